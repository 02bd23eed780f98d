//! Recording a step: the order of its kernels, and what is passed to each.

use super::build::attention_queries;
use super::forward::{Attention, Forward, Layer, NormPush, RopeAppend};
use super::group::{Along, GroupRecorder, Stage};
use super::matrix::Matrix;
use vulkano::buffer::BufferContents;

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
struct RopePartPush {
    heads: u32,
    kv_heads: u32,
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
struct TiledAttentionPush {
    heads: u32,
    kv_heads: u32,
    window: u32,
    first_tile: u32,
}

#[derive(Clone, Copy, BufferContents)]
#[repr(C)]
struct ActivatePush {
    width: u32,
    stride: u32,
    up_offset: u32,
}

impl Forward {
    /// Where the angles of rope `index` begin, in pairs.
    pub(super) fn angles_offset(&self, index: usize) -> usize {
        index * self.shape.rows_max * self.shape.angle_pairs_max
    }

    pub(super) fn record_layers(&self, recorder: &mut GroupRecorder<'_>, rows: usize, tiles: usize) {
        self.record_first_norm(recorder, rows);
        recorder.barrier();
        for (index, layer) in self.layers.iter().enumerate() {
            self.record_attention(recorder, index, rows, tiles);
            self.record_feed_forward(recorder, layer, rows);
            // After the last layer, the head's own norm takes the output in, for the wanted rows only.
            if index + 1 < self.layers.len() || self.head.is_none() {
                recorder.stage("norm");
                recorder.dispatch(&layer.next_norm, self.norm_push(self.shape.rows_max), [rows, 1], Along::X);
                recorder.barrier();
            }
        }
    }

    pub(super) fn record_first_norm(&self, recorder: &mut GroupRecorder<'_>, rows: usize) {
        recorder.stage("norm");
        recorder.dispatch(&self.first_norm, self.norm_push(self.shape.rows_max), [rows, 1], Along::X);
    }

    /// What a norm is told that uses the row map from `map_offset` on, if it does: at [`Shape::rows_max`] begins the part
    /// that names each row in order.
    fn norm_push(&self, map_offset: usize) -> NormPush {
        let map_offset = map_offset as u32;
        NormPush { width: self.shape.hidden as u32, epsilon: self.shape.epsilon, map_offset }
    }

    fn record_attention(&self, recorder: &mut GroupRecorder<'_>, index: usize, rows: usize, tiles: usize) {
        let layer = &self.layers[index];
        recorder.stage("matmul: queries, keys, values");
        layer.qkv.multiply(recorder, rows);
        recorder.barrier();
        self.record_rope_append(recorder, index, rows);
        recorder.barrier();
        self.record_attending(recorder, index, rows, tiles);
        recorder.barrier();
        if let Attention::ByRows { store, .. } = &layer.attention {
            let width = self.shape.attended_width() as u32;
            let push = ActivatePush { width, stride: width, up_offset: 0 };
            self.activate(recorder, store, push, rows);
            recorder.barrier();
        }
        recorder.stage("matmul: attention output");
        layer.output.multiply(recorder, rows);
        recorder.barrier();
    }

    /// The rotation of a layer's queries and keys, and its keys and values put into the cache.
    pub(super) fn record_rope_append(&self, recorder: &mut GroupRecorder<'_>, index: usize, rows: usize) {
        let shape = &self.shape;
        let rope = &shape.ropes[shape.rope_of_layer[index]];
        let rotated = 2 * rope.inverse_frequencies.len() as u32;
        let angles_offset = self.angles_offset(shape.rope_of_layer[index]) as u32;
        let (heads, kv_heads) = (shape.heads as u32, shape.kv_heads as u32);
        recorder.stage("RoPE and KV append");
        match &self.layers[index].rope_append {
            RopeAppend::Joint(stage, flags) => {
                let push = RopePush {
                    heads,
                    kv_heads,
                    rotated,
                    flags: *flags,
                    epsilon: shape.epsilon,
                    query_scale: shape.attention_scale,
                    angles_offset,
                };
                let grid = [rows, shape.heads + 2 * shape.kv_heads];
                recorder.dispatch(stage, push, grid, Along::longer(grid));
            }
            RopeAppend::Parts(stages) => {
                let push = RopePartPush {
                    heads,
                    kv_heads,
                    epsilon: shape.epsilon,
                    query_scale: shape.attention_scale,
                    angles_offset,
                };
                for (stage, heads) in stages.iter().zip([shape.heads, shape.kv_heads, shape.kv_heads]) {
                    let grid = [rows, heads];
                    recorder.dispatch(stage, push, grid, Along::longer(grid));
                }
            }
        }
    }

    /// A layer's queries over what is in the cache. The rows have `tiles` tiles of several rows.
    pub(super) fn record_attending(
        &self,
        recorder: &mut GroupRecorder<'_>,
        index: usize,
        rows: usize,
        tiles: usize,
    ) {
        let shape = &self.shape;
        let (heads, kv_heads) = (shape.heads as u32, shape.kv_heads as u32);
        let window = self.descriptions[index].window.unwrap_or(0) as u32;
        recorder.stage("attention");
        match &self.layers[index].attention {
            Attention::ByRows { stage, .. } => {
                let push = AttentionPush { heads, kv_heads, window };
                let grid = [rows, shape.heads];
                recorder.dispatch(stage, push, grid, Along::longer(grid));
            }
            Attention::ByTiles { single, whole } => {
                let singles = rows - tiles * shape.tile_rows;
                for (stage, first_tile, count) in [(whole, 0, tiles), (single, tiles, singles)] {
                    let push = TiledAttentionPush { heads, kv_heads, window, first_tile: first_tile as u32 };
                    let grid = [count, shape.heads / attention_queries(shape)];
                    recorder.dispatch(stage, push, grid, Along::longer(grid));
                }
            }
        }
    }

    fn record_feed_forward(&self, recorder: &mut GroupRecorder<'_>, layer: &Layer, rows: usize) {
        recorder.stage("norm");
        let push = self.norm_push(self.shape.rows_max);
        recorder.dispatch(&layer.feed_forward_norm, push, [rows, 1], Along::X);
        recorder.barrier();
        recorder.stage("matmul: gate, up");
        layer.gate_up.multiply(recorder, rows);
        recorder.barrier();
        self.record_gate(recorder, layer, rows);
        recorder.barrier();
        recorder.stage("matmul: down");
        layer.down.multiply(recorder, rows);
        recorder.barrier();
    }

    /// The feed-forward's activation.
    pub(super) fn record_gate(&self, recorder: &mut GroupRecorder<'_>, layer: &Layer, rows: usize) {
        let width = self.shape.feed_forward as u32;
        let push = ActivatePush { width, stride: 2 * width, up_offset: width };
        self.activate(recorder, &layer.store_gated, push, rows);
    }

    fn activate(&self, recorder: &mut GroupRecorder<'_>, stage: &Stage, push: ActivatePush, rows: usize) {
        let blocks = (push.width as usize).div_ceil(lavalane_shaders::BLOCK);
        let grid = [blocks.div_ceil(self.group.first().lanes()), rows];
        recorder.stage("activation");
        recorder.dispatch(stage, push, grid, Along::longer(grid));
    }

    /// Records the head over `count` rows of the row map from `from` on.
    pub(super) fn record_head(
        &self,
        recorder: &mut GroupRecorder<'_>,
        head: &Matrix,
        from: usize,
        count: usize,
    ) {
        let last = self.layers.last().expect("a range has layers");
        recorder.stage("norm");
        recorder.dispatch(&last.next_norm, self.norm_push(from), [count, 1], Along::X);
        recorder.barrier();
        recorder.stage("matmul: head");
        head.multiply(recorder, count);
        recorder.stage("end");
    }
}
