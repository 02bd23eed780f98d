//! Building a forward pass: weights go up, and every kernel is bound to its buffers.

use super::buffers::Home;
use super::device::Pack;
use super::error::VulkanError;
use super::forward::{
    ADD_BIAS, ADD_DELTA, Attention, ForwardOptions, GATE_GELU, GATE_SILU, Layer, NORM_DELTA, NORM_HEADS,
    Precision, ROTATE_PAIRS, RopeAppend, STORE_FLOAT, STORE_INT8, STORE_INT16, USE_ROW_MAP, store_flag,
};
use super::group::{Bound, Group, GroupPipelines, Stage};
use super::matrix::{Activations, Matrix, input_kind};
use super::pipelines::Specialised;
use super::region::Region;
use super::repack::{SourceRows, Storage};
use super::scratch::{Buffers, Shape};
use crate::gguf::TensorInfo;
use crate::ids::LayerRange;
use crate::model::{Activation, LayerDescription, LayerTensors, Model, RopeStyle};
use lavalane_shaders::{Kernel, Reads};
use vulkano::format::Format;

/// Rows of a tile of attention. More read keys and values less often, and take longer to compile.
const ATTENTION_TILE_ROWS: usize = 4;

/// What building the layers needs.
pub(super) struct Build<'a> {
    pub(super) group: &'a Group,
    pub(super) pipelines: &'a mut GroupPipelines,
    pub(super) model: &'a Model,
    pub(super) options: &'a ForwardOptions,
    pub(super) shape: &'a Shape,
    pub(super) buffers: &'a Buffers,
}

impl Build<'_> {
    fn lanes(&self) -> u32 {
        self.group.first().lanes() as u32
    }

    fn stage(
        &mut self,
        kernel: Kernel,
        constants: Vec<(u32, u32)>,
        bindings: &[(u32, Bound)],
    ) -> Result<Stage, VulkanError> {
        self.group.stage(self.pipelines, Specialised { kernel, constants }, bindings)
    }

    fn constant(&self, what: &str, values: &[f32]) -> Result<Region, VulkanError> {
        let buffer = self.group.region(what, values.len() * 4, Home::Device)?;
        self.group.upload(&buffer, 0, bytemuck::cast_slice(values))?;
        Ok(buffer)
    }

    /// The norm before the first layer of a range, which only normalises.
    pub(super) fn first_norm(&mut self, index: usize) -> Result<Stage, VulkanError> {
        let tensors = &self.model.layers()[index];
        self.norm(&tensors.attention_norm, None, self.stored_for_attention(tensors))
    }

    /// A norm that does what `flags` say.
    fn norm(
        &mut self,
        weight: &TensorInfo,
        post: Option<&TensorInfo>,
        flags: u32,
    ) -> Result<Stage, VulkanError> {
        let weight = self.constant("a norm's weight", &self.model.floats(weight))?;
        let post = match post {
            Some(post) => self.constant("a post-norm's weight", &self.model.floats(post))?,
            None => weight.clone(),
        };
        let buffers = self.buffers;
        let mut bindings = vec![
            (0, Bound::Storage(buffers.residual.clone())),
            (1, self.floats(&buffers.delta)),
            (2, self.floats(&weight)),
            (3, self.floats(&post)),
            (7, Bound::Storage(buffers.row_map.clone())),
        ];
        bindings.extend(self.stored(4));
        if self.reads() == Reads::Texels {
            bindings.push((8, self.floats(&buffers.residual)));
        }
        self.stage(Kernel::Norm(self.reads()), vec![(0, self.lanes()), (1, flags)], &bindings)
    }

    /// Stores a source's values as activations, as `flags` say.
    fn activate(&mut self, source: &Region, flags: u32) -> Result<Stage, VulkanError> {
        debug_assert!(flags & (STORE_INT8 | STORE_INT16 | STORE_FLOAT) != 0, "some activations are stored");
        let mut bindings = vec![(0, self.floats(source))];
        bindings.extend(self.stored(1));
        self.stage(Kernel::Activate(self.reads()), vec![(0, self.lanes()), (1, flags)], &bindings)
    }

    /// Which kinds of activations a matrix of `tensors` reads, as flags of the kernels that store them.
    fn stored_for(&self, tensors: &[&TensorInfo], precision: Precision) -> u32 {
        let kind =
            |tensor: &&TensorInfo| input_kind(self.shape.pack, Storage::of(tensor.tensor_type()), precision);
        tensors.iter().map(kind).fold(0, |flags, kind| flags | store_flag(kind))
    }

    fn stored_for_attention(&self, tensors: &LayerTensors) -> u32 {
        self.stored_for(&joint(tensors), self.options.precision)
    }

    /// By what the pack's kernels read values.
    fn reads(&self) -> Reads {
        self.shape.pack.reads()
    }

    /// A region of f32 as the pack's kernels read it, four at a time.
    fn floats(&self, region: &Region) -> Bound {
        Bound::read_by(self.reads(), region, Format::R32G32B32A32_SFLOAT)
    }

    /// Where activations are stored: three bindings from `first` on.
    fn stored(&self, first: u32) -> [(u32, Bound); 3] {
        let Activations { codes, scales, values } = &self.buffers.activations;
        let mut number = first;
        [codes, scales, values].map(|region| {
            number += 1;
            (number - 1, Bound::Storage(region.clone()))
        })
    }

    /// A matrix with the forward pass's own precision of activations.
    pub(super) fn matrix(&mut self, tensors: &[&TensorInfo], output: &Region) -> Result<Matrix, VulkanError> {
        self.matrix_with(self.options.precision, tensors, output)
    }

    fn matrix_with(
        &mut self,
        precision: Precision,
        tensors: &[&TensorInfo],
        output: &Region,
    ) -> Result<Matrix, VulkanError> {
        let sources: Vec<SourceRows<'_>> = tensors
            .iter()
            .map(|tensor| SourceRows {
                tensor_type: tensor.tensor_type(),
                bytes: self.model.data(tensor),
                rows: tensor.rows(),
            })
            .collect();
        let columns = tensors[0].row_elements();
        let input = &self.buffers.activations;
        Matrix::new(self.group, self.pipelines, &sources, columns, precision, input, output)
    }

    /// Attention's output is the one narrow input that gains much by f32: with int8 here too, the mean KL
    /// divergence to exact arithmetic on SmolLM2 is 0.00283, above what native int8 engines have. int16
    /// loses nothing.
    fn output_precision(&self) -> Precision {
        match self.shape.pack {
            Pack::Cpu => self.options.precision,
            Pack::Subgroup | Pack::Coopmat => Precision::Precise,
        }
    }

    pub(super) fn layer(&mut self, index: usize, range: LayerRange) -> Result<Layer, VulkanError> {
        let model = self.model;
        let tensors = &model.layers()[index];
        let description = &model.description().layers[index];
        let buffers = self.buffers;
        let bytes = self.shape.kv_page_bytes * self.shape.pages;
        if bytes as u64 > self.group.first().buffer_bytes_max() {
            let pages_max = self.group.first().buffer_bytes_max() as usize / self.shape.kv_page_bytes;
            return Err(VulkanError::Unsupported(format!(
                "a KV pool of {} pages: this device's buffers hold {pages_max} pages per layer",
                self.shape.pages
            )));
        }
        let keys = self.group.region("the keys of a layer", bytes, Home::Device)?;
        let values = self.group.region("the values of a layer", bytes, Home::Device)?;
        let rope_append = self.rope_append(tensors, description, &keys, &values)?;
        let precision = self.options.precision;
        let post_attention = tensors.post_attention_norm.as_ref();
        let post_feed_forward = tensors.post_feed_forward_norm.as_ref();
        // One kernel fewer to compile: all norms that take a delta in find their rows by the row map.
        let own = if post_attention.is_some() { NORM_DELTA } else { 0 };
        let delta = ADD_DELTA | USE_ROW_MAP | own;
        // After the last layer, the head's own norm takes the output in, for the wanted rows only.
        let following = model.layers().get(index + 1);
        let (next, next_flags) = match following {
            Some(next) if index + 1 < range.end() as usize => {
                (&next.attention_norm, self.stored_for_attention(next))
            }
            Some(next) => (&next.attention_norm, 0),
            None => {
                let head = self.stored_for(&[&model.tensors().output], precision);
                (&model.tensors().output_norm, head)
            }
        };
        let gate = match self.shape.activation {
            Activation::Silu => GATE_SILU,
            Activation::GeluTanh => GATE_GELU,
        };
        let output = [&tensors.attention_output];
        let output_stored = self.stored_for(&output, self.output_precision());
        let gate_up = [&tensors.gate, &tensors.up];
        let gate_up_stored = self.stored_for(&gate_up, precision);
        let down_stored = self.stored_for(&[&tensors.down], precision);
        Ok(Layer {
            qkv: self.matrix(&joint(tensors), &buffers.joint)?,
            rope_append,
            attention: self.attention(&keys, &values, output_stored)?,
            output: self.matrix_with(self.output_precision(), &output, &buffers.delta)?,
            feed_forward_norm: self.norm(
                &tensors.feed_forward_norm,
                post_attention,
                delta | gate_up_stored,
            )?,
            gate_up: self.matrix(&gate_up, &buffers.joint)?,
            store_gated: self.activate(&buffers.joint, gate | down_stored)?,
            down: self.matrix(&[&tensors.down], &buffers.delta)?,
            next_norm: self.norm(next, post_feed_forward, delta | next_flags)?,
            keys,
            values,
        })
    }

    /// Compiles the kernels of a layer and of the head, but for those that a lane's first tokens do without: attention
    /// of several rows, and the head over several tokens. A step that had to wait for a compiler would be a surprise.
    pub(super) fn make_kernels(&mut self, layer: &Layer, head: Option<&Matrix>) -> Result<(), VulkanError> {
        if let Attention::ByTiles { whole, .. } = &layer.attention {
            self.pipelines.put_off(whole);
        }
        head.into_iter().flat_map(Matrix::of_tiles).for_each(|stage| self.pipelines.put_off(stage));
        self.pipelines.make_urgent(self.group.members())
    }

    fn rope_append(
        &mut self,
        tensors: &LayerTensors,
        description: &LayerDescription,
        keys: &Region,
        values: &Region,
    ) -> Result<RopeAppend, VulkanError> {
        let mut flags = 0;
        let mut bias = vec![0.0];
        if let Some(biases) = &tensors.biases {
            flags |= ADD_BIAS;
            bias = [&biases.query, &biases.key, &biases.value].map(|part| self.model.floats(part)).concat();
        }
        let mut head_norm = vec![0.0];
        if let Some(norms) = &tensors.head_norms {
            flags |= NORM_HEADS;
            head_norm = [&norms.query, &norms.key].map(|part| self.model.floats(part)).concat();
        }
        if description.rope.style == RopeStyle::Interleaved {
            flags |= ROTATE_PAIRS;
        }
        let bias = self.constant("a layer's biases", &bias)?;
        let head_norm = self.constant("a layer's head norms", &head_norm)?;
        let rotated = 2 * description.rope.inverse_frequencies.len();
        let kind = self.options.kv_type.kind();
        let width = self.shape.head_dim as u32;
        let (buffers, lanes) = (self.buffers, self.lanes());
        if self.reads() == Reads::Texels && rotated.is_multiple_of(8) {
            let mut part = |part: u32, cache: &Region| {
                let bindings = [
                    (0, self.floats(&buffers.joint)),
                    (1, self.floats(&bias)),
                    (2, self.floats(&head_norm)),
                    (3, self.floats(&buffers.angles)),
                    (4, Bound::Texels(buffers.rows.clone(), Format::R32G32B32A32_UINT)),
                    (5, Bound::Texels(buffers.tables.clone(), Format::R32_UINT)),
                    (6, Bound::Storage(buffers.queries.clone())),
                    (7, Bound::Storage(cache.clone())),
                    (9, Bound::Storage(buffers.lengths.clone())),
                ];
                let constants = vec![(0, lanes), (1, width), (2, part), (3, flags), (4, rotated as u32)];
                self.stage(Kernel::RopeAppendCpu(kind), constants, &bindings)
            };
            return Ok(RopeAppend::Parts([part(0, keys)?, part(1, keys)?, part(2, values)?]));
        }
        let bindings = [
            (0, Bound::Storage(buffers.joint.clone())),
            (1, Bound::Storage(bias)),
            (2, Bound::Storage(head_norm)),
            (3, Bound::Storage(buffers.angles.clone())),
            (4, Bound::Storage(buffers.rows.clone())),
            (5, Bound::Storage(buffers.tables.clone())),
            (6, Bound::Storage(buffers.queries.clone())),
            (7, Bound::Storage(keys.clone())),
            (8, Bound::Storage(values.clone())),
            (9, Bound::Storage(buffers.lengths.clone())),
        ];
        let constants = vec![(0, lanes), (1, width)];
        Ok(RopeAppend::Joint(self.stage(Kernel::RopeAppend(kind), constants, &bindings)?, flags))
    }

    /// Attention, whose output is stored as activations of the kinds that `stored` names.
    fn attention(&mut self, keys: &Region, values: &Region, stored: u32) -> Result<Attention, VulkanError> {
        let buffers = self.buffers;
        let kind = self.options.kv_type.kind();
        let mut bindings = vec![(3, Bound::Storage(buffers.rows.clone()))];
        let head_dim = self.shape.head_dim as u32;
        if !attention_on_texels(self.shape.pack, self.shape.head_dim) {
            bindings.push((0, Bound::Storage(buffers.queries.clone())));
            bindings.push((1, Bound::Storage(keys.clone())));
            bindings.push((2, Bound::Storage(values.clone())));
            bindings.push((4, Bound::Storage(buffers.tables.clone())));
            bindings.push((5, Bound::Storage(buffers.attended.clone())));
            let stage = self.stage(Kernel::AttentionSubgroup(kind), vec![(1, head_dim)], &bindings)?;
            return Ok(Attention::ByRows { stage, store: self.activate(&buffers.attended, stored)? });
        }
        bindings.push((0, Bound::Texels(buffers.queries.clone(), Format::R32G32B32A32_SFLOAT)));
        bindings.push((1, Bound::Texels(keys.clone(), Format::R32G32B32A32_UINT)));
        bindings.push((2, Bound::Texels(values.clone(), Format::R32G32B32A32_UINT)));
        bindings.push((4, Bound::Texels(buffers.tables.clone(), Format::R32_UINT)));
        bindings.push((5, Bound::Storage(buffers.tiles.clone())));
        bindings.extend(self.stored(6));
        let queries = attention_queries(self.shape) as u32;
        let (tile_rows, lanes) = (self.shape.tile_rows, self.lanes());
        let mut of_rows = |rows: usize| {
            let constants = vec![(0, lanes), (1, head_dim), (2, queries), (3, rows as u32), (4, stored)];
            self.stage(Kernel::AttentionCpu(kind), constants, &bindings)
        };
        Ok(Attention::ByTiles { single: of_rows(1)?, whole: of_rows(tile_rows)? })
    }
}

/// The tensors of a layer's first matrix.
fn joint(tensors: &LayerTensors) -> [&TensorInfo; 3] {
    [&tensors.query, &tensors.key, &tensors.value]
}

/// Whether attention runs by the texel kernel: the `cpu` pack, and heads of whole chunks of 64.
fn attention_on_texels(pack: Pack, head_dim: usize) -> bool {
    pack == Pack::Cpu && head_dim.is_multiple_of(64)
}

/// How many rows a tile of attention has.
pub(super) fn attention_tile_rows(pack: Pack, head_dim: usize) -> usize {
    if attention_on_texels(pack, head_dim) { ATTENTION_TILE_ROWS } else { 1 }
}

/// How many query heads one workgroup of the texel kernel takes, for this shape.
pub(super) fn attention_queries(shape: &Shape) -> usize {
    queries_per_workgroup(shape.heads / shape.kv_heads, shape.head_dim)
}

/// As many of a KV head's query heads as registers allow, and as keep the kernel quick to compile.
pub(super) fn queries_per_workgroup(per_kv: usize, head_dim: usize) -> usize {
    let fitting = |queries: &usize| per_kv.is_multiple_of(*queries) && queries * head_dim <= 256;
    (1..=per_kv).rev().find(fitting).unwrap_or(1)
}
