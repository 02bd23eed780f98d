//! One submission: rows of several lanes through the layers, to logits and to the lanes' new lengths.

use super::buffers::{read, read_rows, write};
use super::error::VulkanError;
use super::forward::{
    Forward, Layer, NormPush, STORE_FLOAT, STORE_INT8, USE_ROW_MAP, attention_on_texels, attention_queries,
    store_flags,
};
use super::profile::{Profile, StageTime};
use super::recorder::Recorder;
use crate::batch::PageCopy;
use crate::ids::PageId;
use crate::model::{Activation, RopeSettings};
use crate::session::LengthSlot;
use vulkano::buffer::BufferContents;

/// Which rows of a lane have their logits read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLogits {
    /// None.
    None,
    /// The last row's.
    Last,
    /// Every row's.
    All,
}

/// One lane's rows in a submission.
#[derive(Clone, Debug)]
pub struct StepLane<'a> {
    /// The lane's word in the buffer of KV lengths.
    pub slot: LengthSlot,
    /// The position of the first row.
    pub position: usize,
    /// The lane's pages, from the sequence's start; they cover all rows.
    pub pages: &'a [PageId],
    /// The hidden states that go in: `rows * hidden` values, row by row.
    pub hidden: Vec<f32>,
    /// Which rows' logits are wanted.
    pub logits: RowLogits,
}

/// What a submission gives back, lane by lane in the order given.
#[derive(Clone, Debug, Default)]
pub struct StepResult {
    /// The logits of each wanted row, `vocabulary` values each, in order.
    pub logits: Vec<Vec<Vec<f32>>>,
    /// The KV length that the device wrote for each lane.
    pub lengths: Vec<usize>,
    /// The hidden states that come out, where the range of layers has no head.
    pub hidden: Vec<Vec<f32>>,
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct RowInfo {
    position: u32,
    table: u32,
    length_slot: u32,
    last_row: u32,
}

#[derive(Clone, Copy, BufferContents)]
#[repr(C)]
struct RopePush {
    heads: u32,
    kv_heads: u32,
    rotated: u32,
    flags: u32,
    epsilon: f32,
    query_scale: f32,
    angles_offset: u32,
}

#[derive(Clone, Copy, BufferContents)]
#[repr(C)]
struct AttentionPush {
    heads: u32,
    kv_heads: u32,
    window: u32,
}

#[derive(Clone, Copy, BufferContents)]
#[repr(C)]
struct ActivatePush {
    width: u32,
    stride: u32,
    up_offset: u32,
    flags: u32,
}

pub(super) const GATE_SILU: u32 = 4;
pub(super) const GATE_GELU: u32 = 8;

impl Forward {
    /// The most rows of one submission.
    pub fn rows_max(&self) -> usize {
        self.shape.rows_max
    }

    /// Width of a hidden state.
    pub fn hidden(&self) -> usize {
        self.shape.hidden
    }

    /// Runs one submission, page copies first.
    ///
    /// # Errors
    /// The device's refusal or loss; then no lane of the submission counts as run.
    ///
    /// # Panics
    /// When the rows exceed [`Forward::rows_max`] or a lane's pages do not cover its rows: the caller
    /// checks both.
    pub fn step(&mut self, copies: &[PageCopy], lanes: &[StepLane<'_>]) -> Result<StepResult, VulkanError> {
        self.run_step(copies, lanes, None).map(|(result, _)| result)
    }

    /// As [`Forward::step`], and gives the time of each kind of stage on the device.
    ///
    /// # Errors
    /// As of [`Forward::step`]; also where the device takes no timestamps.
    ///
    /// # Panics
    /// As [`Forward::step`].
    pub fn profile_step(
        &mut self,
        lanes: &[StepLane<'_>],
    ) -> Result<(StepResult, Vec<StageTime>), VulkanError> {
        let profile = Profile::new(&self.member)?;
        self.run_step(&[], lanes, Some(profile))
    }

    fn run_step(
        &mut self,
        copies: &[PageCopy],
        lanes: &[StepLane<'_>],
        profile: Option<Profile>,
    ) -> Result<(StepResult, Vec<StageTime>), VulkanError> {
        let hidden = self.shape.hidden;
        let rows: usize = lanes.iter().map(|lane| lane.hidden.len() / hidden).sum();
        assert!(
            rows <= self.shape.rows_max,
            "{rows} rows in a submission of at most {}",
            self.shape.rows_max
        );
        self.write_inputs(lanes, rows)?;
        let wanted = wanted_rows(lanes, hidden);
        write(&self.buffers.row_map, &wanted)?;

        let mut recorder = self.member.record()?;
        if let Some(profile) = profile {
            recorder.take_times(profile);
        }
        for copy in copies {
            for layer in &self.layers {
                layer.copy_page(&mut recorder, self.shape.kv_page_bytes, copy.from.index(), copy.to.index());
            }
            recorder.barrier();
        }
        let bytes = (rows * hidden * 4) as u64;
        if rows > 0 {
            recorder.copy(
                self.buffers.hidden_in.clone().slice(0..bytes),
                self.buffers.residual.clone().slice(0..bytes),
            );
            recorder.barrier();
            self.record_layers(&mut recorder, rows);
        }
        let (logits, times) = self.run_head(recorder, rows, wanted.len())?;
        let mut logits = logits.into_iter();
        let lengths: Vec<u32> = read(&self.buffers.lengths, self.shape.lanes_max)?;
        let mut result = StepResult::default();
        let mut states = match self.head {
            Some(_) => Vec::new(),
            None => read::<f32>(&self.buffers.hidden_out, rows * hidden)?,
        };
        for lane in lanes {
            let count = logit_rows(lane, hidden);
            result.logits.push(logits.by_ref().take(count).collect());
            result.lengths.push(lengths[lane.slot.0 as usize] as usize);
            if self.head.is_none() {
                let rest = states.split_off(lane.hidden.len());
                result.hidden.push(std::mem::replace(&mut states, rest));
            }
        }
        Ok((result, times))
    }

    fn write_inputs(&self, lanes: &[StepLane<'_>], rows: usize) -> Result<(), VulkanError> {
        let shape = &self.shape;
        let mut infos = Vec::with_capacity(rows);
        let mut hidden = Vec::with_capacity(rows * shape.hidden);
        let mut tables = vec![0u32; lanes.len() * shape.table_entries];
        for (index, lane) in lanes.iter().enumerate() {
            let count = lane.hidden.len() / shape.hidden;
            let needed = (lane.position + count).div_ceil(lavalane_shaders::PAGE_TOKENS);
            assert!(needed <= lane.pages.len() && needed <= shape.table_entries, "the pages cover the rows");
            let table = index * shape.table_entries;
            for (entry, page) in tables[table..].iter_mut().zip(&lane.pages[..needed]) {
                *entry = page.0;
            }
            infos.extend((0..count).map(|row| RowInfo {
                position: (lane.position + row) as u32,
                table: table as u32,
                length_slot: lane.slot.0,
                last_row: u32::from(row + 1 == count),
            }));
            hidden.extend_from_slice(&lane.hidden);
        }
        let mut angles = Vec::new();
        for (index, rope) in shape.ropes.iter().enumerate() {
            angles.resize(self.angles_offset(index), [0.0f32; 2]);
            for info in &infos {
                angles.extend(rotation_angles(rope, info.position));
            }
        }
        write(&self.buffers.rows, &infos)?;
        write(&self.buffers.hidden_in, &hidden)?;
        write(&self.buffers.tables, &tables)?;
        write(&self.buffers.angles, &angles)
    }

    /// Where the angles of rope `index` begin, in pairs.
    fn angles_offset(&self, index: usize) -> usize {
        index * self.shape.rows_max * self.shape.angle_pairs_max
    }

    fn record_layers(&self, recorder: &mut Recorder, rows: usize) {
        let push = self.norm_push(store_flags(&self.layers[0].qkv));
        recorder.stage("norm");
        recorder.dispatch(&self.first_norm.0, &self.first_norm.1, push, [rows as u32, 1, 1]);
        recorder.barrier();
        for (index, layer) in self.layers.iter().enumerate() {
            self.record_attention(recorder, index, layer, rows);
            self.record_feed_forward(recorder, layer, rows);
            let next = self.layers.get(index + 1);
            // After the last layer, the head's own norm takes the output in, for the wanted rows only.
            if next.is_some() || self.head.is_none() {
                let store = next.map_or(0, |next| store_flags(&next.qkv));
                let push = self.norm_push(layer.delta_flags() | store);
                recorder.stage("norm");
                recorder.dispatch(&layer.next_norm.0, &layer.next_norm.1, push, [rows as u32, 1, 1]);
                recorder.barrier();
            }
        }
    }

    fn norm_push(&self, flags: u32) -> NormPush {
        NormPush { width: self.shape.hidden as u32, flags, epsilon: self.shape.epsilon, map_offset: 0 }
    }

    fn record_attention(&self, recorder: &mut Recorder, index: usize, layer: &Layer, rows: usize) {
        let shape = &self.shape;
        recorder.stage("matmul: queries, keys, values");
        layer.qkv.multiply(recorder, rows);
        recorder.barrier();
        let rope = &shape.ropes[shape.rope_of_layer[index]];
        let push = RopePush {
            heads: shape.heads as u32,
            kv_heads: shape.kv_heads as u32,
            rotated: 2 * rope.inverse_frequencies.len() as u32,
            flags: layer.rope_flags,
            epsilon: shape.epsilon,
            query_scale: shape.attention_scale,
            angles_offset: self.angles_offset(shape.rope_of_layer[index]) as u32,
        };
        let heads = (shape.heads + 2 * shape.kv_heads) as u32;
        recorder.stage("RoPE and KV append");
        recorder.dispatch(&layer.rope_append.0, &layer.rope_append.1, push, [rows as u32, heads, 1]);
        recorder.barrier();
        let push = AttentionPush {
            heads: shape.heads as u32,
            kv_heads: shape.kv_heads as u32,
            window: self.descriptions[index].window.unwrap_or(0) as u32,
        };
        let groups =
            if attention_on_texels(shape) { shape.heads / attention_queries(shape) } else { shape.heads };
        recorder.stage("attention");
        recorder.dispatch(&layer.attention.0, &layer.attention.1, push, [rows as u32, groups as u32, 1]);
        recorder.barrier();
        let width = shape.attended_width() as u32;
        let push = ActivatePush { width, stride: width, up_offset: 0, flags: store_flags(&layer.output) };
        self.activate(recorder, &layer.store_attended, push, rows);
        recorder.stage("matmul: attention output");
        layer.output.multiply(recorder, rows);
        recorder.barrier();
    }

    fn record_feed_forward(&self, recorder: &mut Recorder, layer: &Layer, rows: usize) {
        let push = self.norm_push(layer.delta_flags() | store_flags(&layer.gate_up));
        recorder.stage("norm");
        recorder.dispatch(&layer.feed_forward_norm.0, &layer.feed_forward_norm.1, push, [rows as u32, 1, 1]);
        recorder.barrier();
        recorder.stage("matmul: gate, up");
        layer.gate_up.multiply(recorder, rows);
        recorder.barrier();
        let gate = match self.shape.activation {
            Activation::Silu => GATE_SILU,
            Activation::GeluTanh => GATE_GELU,
        };
        let width = self.shape.feed_forward as u32;
        let flags = gate | store_flags(&layer.down);
        let push = ActivatePush { width, stride: 2 * width, up_offset: width, flags };
        self.activate(recorder, &layer.store_gated, push, rows);
        recorder.stage("matmul: down");
        layer.down.multiply(recorder, rows);
        recorder.barrier();
    }

    fn activate(
        &self,
        recorder: &mut Recorder,
        stage: &super::forward::Stage,
        push: ActivatePush,
        rows: usize,
    ) {
        debug_assert!(push.flags & (STORE_INT8 | STORE_FLOAT) != 0, "some activations are stored");
        let blocks = (push.width as usize).div_ceil(lavalane_shaders::BLOCK);
        let groups = blocks.div_ceil(self.member.lanes()) as u32;
        recorder.stage("activation");
        recorder.dispatch(&stage.0, &stage.1, push, [groups, rows as u32, 1]);
        recorder.barrier();
    }

    /// Ends the recording with the head, in as many submissions as the logits buffer asks for.
    fn run_head(
        &self,
        mut recorder: Recorder,
        rows: usize,
        wanted: usize,
    ) -> Result<(Vec<Vec<f32>>, Vec<StageTime>), VulkanError> {
        let Some(head) = &self.head else {
            let bytes = (rows * self.shape.hidden * 4) as u64;
            if rows > 0 {
                recorder.copy(
                    self.buffers.residual.clone().slice(0..bytes),
                    self.buffers.hidden_out.clone().slice(0..bytes),
                );
            }
            let times = self.finish(recorder)?;
            return Ok((Vec::new(), times));
        };
        let last = self.layers.last().expect("a range has layers");
        let vocabulary = self.shape.vocabulary;
        let mut logits: Vec<Vec<f32>> = Vec::with_capacity(wanted);
        let mut times = Vec::new();
        let mut recorder = Some(recorder);
        while logits.len() < wanted || recorder.is_some() {
            let mut commands = match recorder.take() {
                Some(recorder) => recorder,
                None => self.member.record()?,
            };
            let count = (wanted - logits.len()).min(self.shape.logit_rows_max);
            if count > 0 {
                let flags = last.delta_flags() | USE_ROW_MAP | store_flags(head);
                let push = NormPush { map_offset: logits.len() as u32, ..self.norm_push(flags) };
                commands.stage("norm");
                commands.dispatch(&last.next_norm.0, &last.next_norm.1, push, [count as u32, 1, 1]);
                commands.barrier();
                commands.stage("matmul: head");
                head.multiply(&mut commands, count);
            }
            times.append(&mut self.finish(commands)?);
            logits.append(&mut read_rows(&self.buffers.logits, count, vocabulary)?);
        }
        if let Some(cap) = self.shape.logit_softcap {
            logits.iter_mut().flatten().for_each(|logit| *logit = cap * (*logit / cap).tanh());
        }
        Ok((logits, times))
    }

    /// Submits, waits, and reads the times that were taken.
    fn finish(&self, mut recorder: Recorder) -> Result<Vec<StageTime>, VulkanError> {
        recorder.stage("end");
        match self.member.submit(recorder)? {
            Some(profile) => profile.times(),
            None => Ok(Vec::new()),
        }
    }
}

/// The cosine and sine of each pair's rotation at a position, times the rope's magnitude.
fn rotation_angles(rope: &RopeSettings, position: u32) -> impl Iterator<Item = [f32; 2]> + '_ {
    rope.inverse_frequencies.iter().map(move |&frequency| {
        let (sine, cosine) = (f64::from(position) * f64::from(frequency)).sin_cos();
        [cosine, sine].map(|part| (part * f64::from(rope.magnitude)) as f32)
    })
}

fn logit_rows(lane: &StepLane<'_>, hidden: usize) -> usize {
    match lane.logits {
        RowLogits::None => 0,
        RowLogits::Last => 1,
        RowLogits::All => lane.hidden.len() / hidden,
    }
}

/// The rows whose logits are wanted, in order.
fn wanted_rows(lanes: &[StepLane<'_>], hidden: usize) -> Vec<u32> {
    let mut wanted = Vec::new();
    let mut end = 0;
    for lane in lanes {
        end += lane.hidden.len() / hidden;
        wanted.extend((end - logit_rows(lane, hidden)) as u32..end as u32);
    }
    wanted
}
