//! The forward pass of a range of layers on one device group: its weights, its KV cache, its scratch
//! buffers, and the order of its kernels.
//!
//! Hidden states come in and go out as frames of f32 (the embedding is looked up on the host), so that a
//! range of layers is the same thing as a whole model. Everything that changes from step to step
//! (positions, page tables, rotation angles) lies in buffers.

use super::buffers::Home;
use super::device::{DeviceChoice, DeviceReport, Member, Pack};
use super::error::VulkanError;
use super::matrix::{Activations, Matrix};
use super::pipelines::{Binding, Pipelines, Specialised};
use super::recorder::Recorder;
use super::repack::SourceRows;
use crate::gguf::TensorInfo;
use crate::ids::LayerRange;
use crate::model::{Activation, LayerDescription, LayerTensors, Model, RopeStyle};
use lavalane_shaders::{BLOCK, CacheKind, InputKind, Kernel, PAGE_TOKENS, TILE_ROWS};
use std::sync::Arc;
use vulkano::buffer::{BufferContents, Subbuffer};
use vulkano::descriptor_set::DescriptorSet;
use vulkano::format::Format;
use vulkano::pipeline::ComputePipeline;

/// How exactly activations are kept between matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// int8 with a scale per block of 32 wherever weights are quantised.
    #[default]
    Default,
    /// f32 everywhere.
    Precise,
}

impl Precision {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Precise => "precise",
        }
    }

    /// The KV cache's element type that goes with it where nothing else is asked for.
    pub fn kv_type(self) -> KvType {
        match self {
            Self::Default => KvType::F16,
            Self::Precise => KvType::F32,
        }
    }
}

/// The element type of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// IEEE float16.
    #[default]
    F16,
    /// float32.
    F32,
}

impl KvType {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    fn kind(self) -> CacheKind {
        match self {
            Self::F16 => CacheKind::Float16,
            Self::F32 => CacheKind::Float32,
        }
    }
}

/// What a forward pass is made for.
#[derive(Clone, Debug)]
pub struct ForwardOptions {
    /// The device and pack.
    pub choice: DeviceChoice,
    /// How exact activations are.
    pub precision: Precision,
    /// The KV cache's element type.
    pub kv_type: KvType,
    /// The most rows of one submission.
    pub rows_max: usize,
    /// The most sequences.
    pub lanes_max: usize,
    /// The most tokens of one sequence.
    pub context_tokens: usize,
    /// Pages of the KV pool.
    pub pages: usize,
    /// The layers to run; `None` runs all, and then the head.
    pub layers: Option<LayerRange>,
}

/// The most rows of one submission whose logits are wanted.
pub(super) const LOGIT_ROWS_MAX: usize = 64;

/// The bytes that a logits buffer may take.
const LOGIT_BYTES_MAX: usize = 64 << 20;

/// The forward pass, with all that it keeps on the device.
pub struct Forward {
    pub(super) member: Member,
    pub(super) shape: Shape,
    pub(super) buffers: Buffers,
    pub(super) layers: Vec<Layer>,
    /// The matrix from hidden states to logits, where the range ends with the last layer.
    pub(super) head: Option<Matrix>,
    pub(super) descriptions: Vec<LayerDescription>,
    pub(super) first_norm: Stage,
}

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
    pub(super) pages: usize,
}

pub(super) struct Buffers {
    pub(super) residual: Subbuffer<[u8]>,
    pub(super) hidden_in: Subbuffer<[u8]>,
    pub(super) hidden_out: Subbuffer<[u8]>,
    pub(super) delta: Subbuffer<[u8]>,
    pub(super) joint: Subbuffer<[u8]>,
    pub(super) queries: Subbuffer<[u8]>,
    pub(super) attended: Subbuffer<[u8]>,
    pub(super) activations: Activations,
    pub(super) rows: Subbuffer<[u8]>,
    pub(super) tables: Subbuffer<[u8]>,
    pub(super) angles: Subbuffer<[u8]>,
    pub(super) row_map: Subbuffer<[u8]>,
    pub(super) lengths: Subbuffer<[u8]>,
    pub(super) logits: Subbuffer<[u8]>,
}

/// A pipeline with its bindings.
pub(super) type Stage = (Arc<ComputePipeline>, Arc<DescriptorSet>);

pub(super) struct Layer {
    pub(super) keys: Subbuffer<[u8]>,
    pub(super) values: Subbuffer<[u8]>,
    pub(super) qkv: Matrix,
    pub(super) rope_append: Stage,
    pub(super) rope_flags: u32,
    pub(super) attention: Stage,
    pub(super) store_attended: Stage,
    pub(super) output: Matrix,
    /// Adds the attention's output and normalises for the feed-forward.
    pub(super) feed_forward_norm: Stage,
    pub(super) gate_up: Matrix,
    pub(super) store_gated: Stage,
    pub(super) down: Matrix,
    /// Adds the feed-forward's output and normalises for what comes next, or only adds.
    pub(super) next_norm: Stage,
    pub(super) post_norms: bool,
}

#[derive(Clone, Copy, BufferContents)]
#[repr(C)]
pub(super) struct NormPush {
    pub(super) width: u32,
    pub(super) flags: u32,
    pub(super) epsilon: f32,
    pub(super) map_offset: u32,
}

pub(super) const STORE_INT8: u32 = 1;
pub(super) const STORE_FLOAT: u32 = 2;
pub(super) const ADD_DELTA: u32 = 4;
pub(super) const NORM_DELTA: u32 = 8;
pub(super) const USE_ROW_MAP: u32 = 16;

pub(super) const ADD_BIAS: u32 = 1;
pub(super) const NORM_HEADS: u32 = 2;
pub(super) const ROTATE_PAIRS: u32 = 4;

/// Which kinds of activations `matrix` reads, as flags of the kernels that store them.
pub(super) fn store_flags(matrix: &Matrix) -> u32 {
    matrix.inputs().fold(0, |flags, input| {
        flags
            | match input {
                InputKind::Int8 => STORE_INT8,
                InputKind::Float => STORE_FLOAT,
            }
    })
}

impl Forward {
    /// Opens the device, uploads the weights and makes the KV cache.
    ///
    /// # Errors
    /// No such device, not enough memory, or a model that the kernels do not cover.
    pub fn new(model: &Model, options: &ForwardOptions) -> Result<Self, VulkanError> {
        let member = Member::open(&options.choice)?;
        let mut pipelines = Pipelines::default();
        let shape = Shape::new(model, options, &member)?;
        let buffers = Buffers::new(&member, &shape)?;
        let range = options.layers.unwrap_or_else(|| whole(model));
        let has_head = range.end() as usize == model.layers().len();
        let mut build = Build {
            member: &member,
            pipelines: &mut pipelines,
            model,
            options,
            shape: &shape,
            buffers: &buffers,
        };
        let first_norm = build.norm(&model.layers()[range.start() as usize].attention_norm, None)?;
        let layers = range.layers().map(|layer| build.layer(layer, range)).collect::<Result<Vec<_>, _>>()?;
        let head = match has_head {
            true => Some(build.matrix(&[&model.tensors().output], &buffers.logits)?),
            false => None,
        };
        let descriptions = model.description().layers[range.layers()].to_vec();
        Ok(Self { shape, buffers, layers, head, descriptions, first_norm, member })
    }

    /// The device that the pass runs on.
    pub fn device(&self) -> &DeviceReport {
        &self.member.report
    }

    /// The pack in use.
    pub fn pack(&self) -> Pack {
        self.member.pack
    }
}

fn whole(model: &Model) -> LayerRange {
    LayerRange::new(0, model.description().layers.len() as u32).expect("a model has layers")
}

impl Shape {
    fn new(model: &Model, options: &ForwardOptions, member: &Member) -> Result<Self, VulkanError> {
        let description = model.description();
        if !description.head_dim.is_multiple_of(8) || description.head_dim > 1024 {
            return Err(VulkanError::Unsupported(format!(
                "heads are {} wide; they must be a multiple of 8 and at most 1024",
                description.head_dim
            )));
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
            pack: member.pack,
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
    fn new(member: &Member, shape: &Shape) -> Result<Self, VulkanError> {
        let rows = shape.rows_max.next_multiple_of(TILE_ROWS);
        let floats = |what: &str, count: usize, home| member.buffer(what, count * 4, home);
        let widest = shape.hidden.max(shape.attended_width()).max(shape.feed_forward);
        let blocks = widest.div_ceil(BLOCK) * rows;
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
            activations: Activations {
                codes: member.buffer("int8 activations", blocks * BLOCK, Home::Device)?,
                scales: member.buffer("activation scales", blocks * 16, Home::Device)?,
                values: member.buffer("f32 activations", blocks * BLOCK * 4, Home::Device)?,
            },
            rows: member.buffer("row descriptions", rows * 16, Home::Upload)?,
            tables: floats("page tables", shape.lanes_max.max(1) * shape.table_entries, Home::Upload)?,
            angles: floats(
                "rotation angles",
                shape.ropes.len() * rows * shape.angle_pairs_max * 2,
                Home::Upload,
            )?,
            row_map: floats("a row map", rows, Home::Upload)?,
            lengths: floats("KV lengths", shape.lanes_max.max(1), Home::Readback)?,
            logits: floats("logits", shape.logit_rows_max * shape.vocabulary, Home::Readback)?,
        })
    }
}

/// What building the layers needs.
struct Build<'a> {
    member: &'a Member,
    pipelines: &'a mut Pipelines,
    model: &'a Model,
    options: &'a ForwardOptions,
    shape: &'a Shape,
    buffers: &'a Buffers,
}

impl Build<'_> {
    fn lanes(&self) -> u32 {
        self.member.lanes() as u32
    }

    fn stage(
        &mut self,
        kernel: Kernel,
        constants: Vec<(u32, u32)>,
        bindings: &[(u32, Binding)],
    ) -> Result<Stage, VulkanError> {
        let pipeline = self.pipelines.get(self.member, Specialised { kernel, constants })?;
        let set = self.member.set(&pipeline, bindings)?;
        Ok((pipeline, set))
    }

    fn constant(&self, what: &str, values: &[f32]) -> Result<Subbuffer<[u8]>, VulkanError> {
        let buffer = self.member.buffer(what, values.len() * 4, Home::Device)?;
        self.member.upload(&buffer, bytemuck::cast_slice(values))?;
        Ok(buffer)
    }

    fn norm(&mut self, weight: &TensorInfo, post: Option<&TensorInfo>) -> Result<Stage, VulkanError> {
        let weight = self.constant("a norm's weight", &self.model.floats(weight))?;
        let post = match post {
            Some(post) => self.constant("a post-norm's weight", &self.model.floats(post))?,
            None => weight.clone(),
        };
        let buffers = self.buffers;
        let bindings = [
            (0, Binding::Storage(buffers.residual.clone())),
            (1, Binding::Storage(buffers.delta.clone())),
            (2, Binding::Storage(weight)),
            (3, Binding::Storage(post)),
            (4, Binding::Storage(buffers.activations.codes.clone())),
            (5, Binding::Storage(buffers.activations.scales.clone())),
            (6, Binding::Storage(buffers.activations.values.clone())),
            (7, Binding::Storage(buffers.row_map.clone())),
        ];
        self.stage(Kernel::Norm, vec![(0, self.lanes())], &bindings)
    }

    fn activate(&mut self, source: &Subbuffer<[u8]>) -> Result<Stage, VulkanError> {
        let activations = &self.buffers.activations;
        let bindings = [
            (0, Binding::Storage(source.clone())),
            (1, Binding::Storage(activations.codes.clone())),
            (2, Binding::Storage(activations.scales.clone())),
            (3, Binding::Storage(activations.values.clone())),
        ];
        self.stage(Kernel::Activate, vec![(0, self.lanes())], &bindings)
    }

    /// A matrix with the forward pass's own precision of activations.
    fn matrix(&mut self, tensors: &[&TensorInfo], output: &Subbuffer<[u8]>) -> Result<Matrix, VulkanError> {
        self.matrix_with(self.options.precision, tensors, output)
    }

    fn matrix_with(
        &mut self,
        precision: Precision,
        tensors: &[&TensorInfo],
        output: &Subbuffer<[u8]>,
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
        Matrix::new(self.member, self.pipelines, &sources, columns, precision, input, output)
    }

    fn layer(&mut self, index: usize, range: LayerRange) -> Result<Layer, VulkanError> {
        let model = self.model;
        let tensors = &model.layers()[index];
        let description = &model.description().layers[index];
        let buffers = self.buffers;
        let bytes = self.shape.kv_page_bytes * self.shape.pages;
        if bytes as u64 > self.member.buffer_bytes_max() {
            let pages_max = self.member.buffer_bytes_max() as usize / self.shape.kv_page_bytes;
            return Err(VulkanError::Unsupported(format!(
                "a KV pool of {} pages: this device's buffers hold {pages_max} pages per layer",
                self.shape.pages
            )));
        }
        let keys = self.member.buffer("the keys of a layer", bytes, Home::Device)?;
        let values = self.member.buffer("the values of a layer", bytes, Home::Device)?;
        let (rope_append, rope_flags) = self.rope_append(tensors, description, &keys, &values)?;
        let attention = self.attention(&keys, &values)?;
        let next = if index + 1 < range.end() as usize {
            model.layers()[index + 1].attention_norm.clone()
        } else {
            model.tensors().output_norm.clone()
        };
        let post_attention = tensors.post_attention_norm.as_ref();
        let post_feed_forward = tensors.post_feed_forward_norm.as_ref();
        Ok(Layer {
            qkv: self.matrix(&[&tensors.query, &tensors.key, &tensors.value], &buffers.joint)?,
            rope_append,
            rope_flags,
            attention,
            store_attended: self.activate(&buffers.attended)?,
            // Attention's output is the one narrow input that gains much by f32: with int8 here too, the mean
            // KL divergence to exact arithmetic on SmolLM2 is 0.00283, above what native int8 engines have.
            output: self.matrix_with(Precision::Precise, &[&tensors.attention_output], &buffers.delta)?,
            feed_forward_norm: self.norm(&tensors.feed_forward_norm, post_attention)?,
            gate_up: self.matrix(&[&tensors.gate, &tensors.up], &buffers.joint)?,
            store_gated: self.activate(&buffers.joint)?,
            down: self.matrix(&[&tensors.down], &buffers.delta)?,
            next_norm: self.norm(&next, post_feed_forward)?,
            post_norms: post_attention.is_some(),
            keys,
            values,
        })
    }

    fn rope_append(
        &mut self,
        tensors: &LayerTensors,
        description: &LayerDescription,
        keys: &Subbuffer<[u8]>,
        values: &Subbuffer<[u8]>,
    ) -> Result<(Stage, u32), VulkanError> {
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
        let buffers = self.buffers;
        let bindings = [
            (0, Binding::Storage(buffers.joint.clone())),
            (1, Binding::Storage(self.constant("a layer's biases", &bias)?)),
            (2, Binding::Storage(self.constant("a layer's head norms", &head_norm)?)),
            (3, Binding::Storage(buffers.angles.clone())),
            (4, Binding::Storage(buffers.rows.clone())),
            (5, Binding::Storage(buffers.tables.clone())),
            (6, Binding::Storage(buffers.queries.clone())),
            (7, Binding::Storage(keys.clone())),
            (8, Binding::Storage(values.clone())),
            (9, Binding::Storage(buffers.lengths.clone())),
        ];
        let constants = vec![(0, self.lanes()), (1, self.shape.head_dim as u32)];
        let kernel = Kernel::RopeAppend(self.options.kv_type.kind());
        Ok((self.stage(kernel, constants, &bindings)?, flags))
    }

    fn attention(&mut self, keys: &Subbuffer<[u8]>, values: &Subbuffer<[u8]>) -> Result<Stage, VulkanError> {
        let buffers = self.buffers;
        let kind = self.options.kv_type.kind();
        let mut bindings = vec![
            (3, Binding::Storage(buffers.rows.clone())),
            (4, Binding::Storage(buffers.tables.clone())),
            (5, Binding::Storage(buffers.attended.clone())),
        ];
        let head_dim = self.shape.head_dim as u32;
        if attention_on_texels(self.shape) {
            let texels =
                |buffer: &Subbuffer<[u8]>, format| self.member.view(buffer, format).map(Binding::Texels);
            bindings.push((0, texels(&buffers.queries, Format::R32G32B32A32_SFLOAT)?));
            bindings.push((1, texels(keys, Format::R32G32B32A32_UINT)?));
            bindings.push((2, texels(values, Format::R32G32B32A32_UINT)?));
            let queries = attention_queries(self.shape) as u32;
            self.stage(Kernel::AttentionCpu(kind), vec![(1, head_dim), (2, queries)], &bindings)
        } else {
            bindings.push((0, Binding::Storage(buffers.queries.clone())));
            bindings.push((1, Binding::Storage(keys.clone())));
            bindings.push((2, Binding::Storage(values.clone())));
            self.stage(Kernel::AttentionSubgroup(kind), vec![(1, head_dim)], &bindings)
        }
    }
}

/// Whether attention runs by the texel kernel: the `cpu` pack, and heads of whole chunks of 64.
pub(super) fn attention_on_texels(shape: &Shape) -> bool {
    shape.pack == Pack::Cpu && shape.head_dim.is_multiple_of(64)
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

impl Layer {
    /// Flags of the norms that take this layer's outputs in.
    pub(super) fn delta_flags(&self) -> u32 {
        if self.post_norms { ADD_DELTA | NORM_DELTA } else { ADD_DELTA }
    }

    /// Copies one page to another.
    pub(super) fn copy_page(&self, recorder: &mut Recorder, page_bytes: usize, from: usize, to: usize) {
        let slice = |buffer: &Subbuffer<[u8]>, page: usize| {
            buffer.clone().slice((page * page_bytes) as u64..((page + 1) * page_bytes) as u64)
        };
        for buffer in [&self.keys, &self.values] {
            recorder.copy(slice(buffer, from), slice(buffer, to));
        }
    }
}
