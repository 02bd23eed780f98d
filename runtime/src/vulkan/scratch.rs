//! The sizes that every step of a forward pass needs, and its scratch buffers.

use super::buffers::Home;
use super::build::attention_tile_rows;
use super::device::Pack;
use super::error::VulkanError;
use super::forward::{ForwardOptions, whole};
use super::group::Group;
use super::matrix::Activations;
use super::region::Region;
use crate::model::{Activation, Model};
use lavalane_shaders::{PAGE_TOKENS, TILE_ROWS};

/// The most rows of one submission whose logits are wanted.
const LOGIT_ROWS_MAX: usize = 64;

/// The bytes that a logits buffer may take.
const LOGIT_BYTES_MAX: usize = 64 << 20;

/// The sizes that every step needs.
pub(super) struct Shape {
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) feed_forward: usize,
    pub(super) vocabulary: usize,
    pub(super) epsilon: f32,
    pub(super) activation: Activation,
    pub(super) attention_scale: f32,
    pub(super) logit_softcap: Option<f32>,
    pub(super) rows_max: usize,
    pub(super) lanes_max: usize,
    pub(super) table_entries: usize,
    pub(super) logit_rows_max: usize,
    pub(super) angle_pairs_max: usize,
    /// Which rope of `ropes` each layer uses.
    pub(super) rope_of_layer: Vec<usize>,
    pub(super) ropes: Vec<crate::model::RopeSettings>,
    pub(super) pack: Pack,
    pub(super) kv_page_bytes: usize,
    /// Rows of a tile of attention; 1 where it has none.
    pub(super) tile_rows: usize,
    pub(super) pages: usize,
}

pub(super) struct Buffers {
    pub(super) residual: Region,
    pub(super) hidden_in: Region,
    pub(super) hidden_out: Region,
    pub(super) delta: Region,
    pub(super) joint: Region,
    pub(super) queries: Region,
    pub(super) attended: Region,
    pub(super) activations: Activations,
    pub(super) rows: Region,
    pub(super) tables: Region,
    /// The first rows of attention's tiles.
    pub(super) tiles: Region,
    pub(super) angles: Region,
    /// The rows whose logits are wanted, and behind room for `rows_max` of them all rows in order.
    pub(super) row_map: Region,
    pub(super) lengths: Region,
    pub(super) logits: Region,
}

impl Shape {
    pub(super) fn new(model: &Model, options: &ForwardOptions, group: &Group) -> Result<Self, VulkanError> {
        let description = model.description();
        if !description.head_dim.is_multiple_of(8) || description.head_dim > 1024 {
            return Err(VulkanError::Unsupported(format!(
                "heads are {} wide; they must be a multiple of 8 and at most 1024",
                description.head_dim
            )));
        }
        for (what, width) in
            [("hidden states", description.hidden), ("the feed-forward", description.feed_forward)]
        {
            if !width.is_multiple_of(4) {
                let reason = format!("{what} are {width} wide; they must be a multiple of 4");
                return Err(VulkanError::Unsupported(reason));
            }
        }
        let mut ropes = Vec::new();
        let mut rope_of_layer = Vec::new();
        let range = options.layers.unwrap_or_else(|| whole(model));
        for layer in &description.layers[range.layers()] {
            let known = ropes.iter().position(|rope| *rope == layer.rope);
            rope_of_layer.push(known.unwrap_or_else(|| {
                ropes.push(layer.rope.clone());
                ropes.len() - 1
            }));
        }
        let logit_bytes = description.vocabulary * 4;
        Ok(Self {
            hidden: description.hidden,
            heads: description.heads,
            kv_heads: description.kv_heads,
            head_dim: description.head_dim,
            feed_forward: description.feed_forward,
            vocabulary: description.vocabulary,
            epsilon: description.norm_epsilon,
            activation: description.activation,
            attention_scale: description.attention_scale,
            logit_softcap: description.logit_softcap,
            rows_max: options.rows_max,
            lanes_max: options.lanes_max,
            table_entries: options.context_tokens.div_ceil(PAGE_TOKENS),
            logit_rows_max: (LOGIT_BYTES_MAX / logit_bytes).clamp(1, LOGIT_ROWS_MAX),
            angle_pairs_max: ropes.iter().map(|rope| rope.inverse_frequencies.len()).max().unwrap_or(0),
            rope_of_layer,
            ropes,
            pack: group.first().pack,
            tile_rows: attention_tile_rows(group.first().pack, description.head_dim),
            kv_page_bytes: PAGE_TOKENS
                * description.kv_heads
                * description.head_dim
                * options.kv_type.bytes(),
            pages: options.pages,
        })
    }

    /// Width of a row of queries, keys and values.
    pub(super) fn joint_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Width of a row of attention's output.
    pub(super) fn attended_width(&self) -> usize {
        self.heads * self.head_dim
    }
}

impl Buffers {
    pub(super) fn new(group: &Group, shape: &Shape) -> Result<Self, VulkanError> {
        let rows = shape.rows_max.next_multiple_of(TILE_ROWS);
        let floats = |what: &str, count: usize, home| group.region(what, count * 4, home);
        let widest = shape.hidden.max(shape.attended_width()).max(shape.feed_forward);
        let row_map = floats("a row map", 2 * shape.rows_max, Home::Upload)?;
        let in_order: Vec<u32> = (0..shape.rows_max as u32).collect();
        group.upload(&row_map, shape.rows_max * 4, bytemuck::cast_slice(&in_order))?;
        Ok(Self {
            residual: floats("the residual stream", rows * shape.hidden, Home::Device)?,
            hidden_in: floats("hidden states in", rows * shape.hidden, Home::Upload)?,
            hidden_out: floats("hidden states out", rows * shape.hidden, Home::Readback)?,
            delta: floats("a layer's output", rows * shape.hidden, Home::Device)?,
            joint: floats(
                "queries, keys and values",
                rows * shape.joint_width().max(2 * shape.feed_forward),
                Home::Device,
            )?,
            queries: floats("rotated queries", rows * shape.attended_width(), Home::Device)?,
            attended: floats("attention's output", rows * shape.attended_width(), Home::Device)?,
            activations: Activations::new(group, rows, widest, Home::Device)?,
            rows: group.region("row descriptions", rows * 16, Home::Upload)?,
            tables: floats("page tables", shape.lanes_max.max(1) * shape.table_entries, Home::Upload)?,
            tiles: floats("tiles of rows", rows, Home::Upload)?,
            angles: floats(
                "rotation angles",
                shape.ropes.len() * rows * shape.angle_pairs_max * 2,
                Home::Upload,
            )?,
            row_map,
            lengths: floats("KV lengths", shape.lanes_max.max(1), Home::Readback)?,
            logits: floats("logits", shape.logit_rows_max * shape.vocabulary, Home::Readback)?,
        })
    }
}
