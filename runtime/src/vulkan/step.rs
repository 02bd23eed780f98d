//! One submission: rows of several lanes through the layers, to logits and to the lanes' new lengths.

use super::error::VulkanError;
use super::forward::Forward;
use super::group::{Meetings, Program};
use super::pace::Team;
use super::profile::{Profile, StageTime};
use super::programs::StepShape;
use super::tiles::Tiles;
use crate::batch::PageCopy;
use crate::ids::PageId;
use crate::model::RopeSettings;
use crate::session::LengthSlot;

/// How often a profile is tried before the machine counts as too busy for it.
const PROFILE_TRIES: usize = 50;

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
        let profile = Profile::new(self.group.first())?;
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
        self.copy_pages(copies)?;
        if rows == 0 {
            return Ok((StepResult::default(), Vec::new()));
        }
        let end = lanes.iter().map(|lane| lane.position + lane.hidden.len() / hidden).max().unwrap_or(0);
        let tiles = Tiles::new(lanes.iter().map(|lane| lane.hidden.len() / hidden), self.tile_rows(end));
        self.write_inputs(lanes, rows)?;
        self.buffers.tiles.write(&tiles.first_rows)?;
        let wanted = wanted_rows(lanes, hidden);
        self.buffers.row_map.write(&wanted)?;
        let times = self.run_layers(rows, tiles.whole, wanted.len(), profile)?;
        let mut logits = self.run_head(wanted.len())?.into_iter();
        let lengths: Vec<u32> = self.buffers.lengths.read(self.shape.lanes_max)?;
        let mut result = StepResult::default();
        let mut states = match self.head {
            Some(_) => Vec::new(),
            None => self.buffers.hidden_out.read::<f32>(rows * hidden)?,
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

    fn copy_pages(&self, copies: &[PageCopy]) -> Result<(), VulkanError> {
        if copies.is_empty() {
            return Ok(());
        }
        let mut recorder = self.group.record(Team::One)?;
        for copy in copies {
            for layer in &self.layers {
                layer.copy_page(&mut recorder, self.shape.kv_page_bytes, copy.from.index(), copy.to.index());
            }
            // A later copy may read what an earlier one wrote.
            recorder.barrier();
        }
        self.group.run(&recorder.finish()?).map(drop)
    }

    /// Runs the layers, and the head for as many of the `wanted` rows as the logits buffer holds.
    fn run_layers(
        &mut self,
        rows: usize,
        tiles: usize,
        wanted: usize,
        profile: Option<Profile>,
    ) -> Result<Vec<StageTime>, VulkanError> {
        let logit_rows = wanted.min(self.shape.logit_rows_max);
        if profile.is_some() {
            let program =
                self.record_step(StepShape { team: Team::All, rows, tiles, logit_rows }, profile)?;
            for _ in 0..PROFILE_TRIES {
                if self.group.run(&program)? != Meetings::Missed {
                    return program.profile().map_or(Ok(Vec::new()), Profile::times);
                }
            }
            return Err(VulkanError::Busy);
        }
        // A step's result depends only on what it does not change itself, so that it may be run again.
        loop {
            let shape = StepShape { team: self.pace.team(), rows, tiles, logit_rows };
            let program = match self.programs.take(shape) {
                Some(program) => program,
                None => self.record_step(shape, None)?,
            };
            let meetings = self.group.run(&program)?;
            self.programs.put(shape, program);
            match meetings {
                Meetings::Held { waited_share } if shape.team == Team::All => self.pace.met(waited_share),
                Meetings::Held { .. } => {}
                Meetings::Missed => {
                    self.pace.missed();
                    continue;
                }
            }
            return Ok(Vec::new());
        }
    }

    fn record_step(&self, shape: StepShape, profile: Option<Profile>) -> Result<Program, VulkanError> {
        let mut recorder = self.group.record(shape.team)?;
        if let Some(profile) = profile {
            recorder.take_times(profile);
        }
        let bytes = shape.rows * self.shape.hidden * 4;
        let buffers = &self.buffers;
        recorder.copy((&buffers.hidden_in, 0), (&buffers.residual, 0), bytes);
        recorder.barrier();
        self.record_layers(&mut recorder, shape.rows, shape.tiles);
        match &self.head {
            Some(head) if shape.logit_rows > 0 => self.record_head(&mut recorder, head, 0, shape.logit_rows),
            Some(_) => recorder.stage("end"),
            None => recorder.copy((&buffers.residual, 0), (&buffers.hidden_out, 0), bytes),
        }
        recorder.finish()
    }

    /// The logits of all `wanted` rows, after [`Forward::run_layers`]: what it computed, and the rest in
    /// as many submissions as the logits buffer asks for.
    fn run_head(&mut self, wanted: usize) -> Result<Vec<Vec<f32>>, VulkanError> {
        let Some(head) = &self.head else { return Ok(Vec::new()) };
        let mut spare = std::mem::take(&mut self.spare_rows);
        let mut logits: Vec<Vec<f32>> = Vec::with_capacity(wanted);
        while logits.len() < wanted {
            let count = (wanted - logits.len()).min(self.shape.logit_rows_max);
            if !logits.is_empty() {
                let mut recorder = self.group.record(Team::One)?;
                self.record_head(&mut recorder, head, logits.len(), count);
                self.group.run(&recorder.finish()?)?;
            }
            logits.append(&mut self.buffers.logits.read_rows(count, self.shape.vocabulary, &mut spare)?);
        }
        if let Some(cap) = self.shape.logit_softcap {
            logits.iter_mut().flatten().for_each(|logit| *logit = cap * (*logit / cap).tanh());
        }
        self.spare_rows = spare;
        Ok(logits)
    }

    /// Takes a result's logits back, for a later step to write to: systems clear memory that is new, which takes longer
    /// than reading a large vocabulary's logits.
    pub fn recycle(&mut self, result: StepResult) {
        self.spare_rows.extend(result.logits.into_iter().flatten());
        self.spare_rows.truncate(self.shape.logit_rows_max);
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
        let buffers = &self.buffers;
        buffers.rows.write(&infos)?;
        buffers.hidden_in.write(&hidden)?;
        buffers.tables.write(&tables)?;
        buffers.angles.write(&angles)
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
