//! The forward pass of a range of layers on one device group: its weights, its KV cache, its scratch
//! buffers, and the order of its kernels.
//!
//! Hidden states come in and go out as frames of f32 (the embedding is looked up on the host), so that a
//! range of layers is the same thing as a whole model. Everything that changes from step to step
//! (positions, page tables, rotation angles) lies in buffers.

use super::build::Build;
use super::device::{DeviceChoice, DeviceReport, Pack};
use super::error::VulkanError;
use super::group::{Group, GroupPipelines, GroupRecorder, Stage};
use super::host_memory::return_freed_memory;
use super::matrix::Matrix;
use super::open::OpenDevice;
use super::pace::Pace;
use super::programs::Programs;
use super::region::Region;
use super::scratch::{Buffers, Shape};
use super::threads::GroupReport;
use crate::ids::LayerRange;
use crate::model::{LayerDescription, Model};
use lavalane_shaders::{CacheKind, InputKind};
use vulkano::buffer::BufferContents;

/// The position up to which the kernel of attention for several rows is not compiled on purpose.
const TILES_FROM: usize = 256;

/// How exactly activations are kept between matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Wherever weights are quantised, as codes with a scale per block of 32: int16 by the `cpu` pack, int8
    /// by the others.
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

    pub(super) fn kind(self) -> CacheKind {
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

/// The forward pass, with all that it keeps on the device. The group comes last, and so goes last: it
/// holds the memory that everything else names.
pub struct Forward {
    pub(super) programs: Programs,
    pub(super) pace: Pace,
    pipelines: GroupPipelines,
    pub(super) shape: Shape,
    pub(super) buffers: Buffers,
    pub(super) layers: Vec<Layer>,
    /// The matrix from hidden states to logits, where the range ends with the last layer.
    pub(super) head: Option<Matrix>,
    pub(super) descriptions: Vec<LayerDescription>,
    pub(super) first_norm: Stage,
    /// Rows of logits that were given back.
    pub(super) spare_rows: Vec<Vec<f32>>,
    pub(super) group: Group,
}

pub(super) struct Layer {
    pub(super) keys: Region,
    pub(super) values: Region,
    pub(super) qkv: Matrix,
    pub(super) rope_append: RopeAppend,
    pub(super) attention: Attention,
    pub(super) output: Matrix,
    /// Adds the attention's output and normalises for the feed-forward.
    pub(super) feed_forward_norm: Stage,
    pub(super) gate_up: Matrix,
    pub(super) store_gated: Stage,
    pub(super) down: Matrix,
    /// Adds the feed-forward's output and normalises for what comes next, or only adds.
    pub(super) next_norm: Stage,
}

/// Who computes a layer's attention.
pub(super) enum Attention {
    /// A kernel that takes row by row, and one that stores its output as activations.
    ByRows { stage: Stage, store: Stage },
    /// A kernel that takes tiles and stores activations, specialised for one row and for [`Shape::tile_rows`] rows.
    ByTiles { single: Stage, whole: Stage },
}

/// How a layer's queries, keys and values get to where attention reads them.
pub(super) enum RopeAppend {
    /// By one kernel for all heads, which is told what to do by flags.
    Joint(Stage, u32),
    /// By a kernel specialised for queries, one for keys and one for values.
    Parts([Stage; 3]),
}

#[derive(Clone, Copy, BufferContents)]
#[repr(C)]
pub(super) struct NormPush {
    pub(super) width: u32,
    pub(super) epsilon: f32,
    pub(super) map_offset: u32,
}

pub(super) const STORE_INT8: u32 = 1;
pub(super) const STORE_FLOAT: u32 = 2;
pub(super) const STORE_INT16: u32 = 64;
pub(super) const ADD_DELTA: u32 = 4;
pub(super) const NORM_DELTA: u32 = 8;
pub(super) const USE_ROW_MAP: u32 = 16;
pub(super) const GATE_SILU: u32 = 4;
pub(super) const GATE_GELU: u32 = 8;

pub(super) const ADD_BIAS: u32 = 1;
pub(super) const NORM_HEADS: u32 = 2;
pub(super) const ROTATE_PAIRS: u32 = 4;

/// A kind of activations as a flag of the kernels that store them.
pub(super) fn store_flag(input: InputKind) -> u32 {
    match input {
        InputKind::Int8 => STORE_INT8,
        InputKind::Int16 => STORE_INT16,
        InputKind::Float => STORE_FLOAT,
    }
}

impl Forward {
    /// Opens the device, uploads the weights and makes the KV cache.
    ///
    /// # Errors
    /// No such device, not enough memory, or a model that the kernels do not cover.
    pub fn new(model: &Model, options: &ForwardOptions) -> Result<Self, VulkanError> {
        Self::on(OpenDevice::open(&options.choice)?, model, options)
    }

    /// As [`Forward::new`], on a device that the options' choice opened.
    ///
    /// # Errors
    /// As of [`Forward::new`].
    pub fn on(device: OpenDevice, model: &Model, options: &ForwardOptions) -> Result<Self, VulkanError> {
        let OpenDevice(group) = device;
        let mut pipelines = GroupPipelines::default();
        let shape = Shape::new(model, options, &group)?;
        let buffers = Buffers::new(&group, &shape)?;
        let range = options.layers.unwrap_or_else(|| whole(model));
        let has_head = range.end() as usize == model.layers().len();
        let mut build = Build {
            group: &group,
            pipelines: &mut pipelines,
            model,
            options,
            shape: &shape,
            buffers: &buffers,
        };
        let first_norm = build.first_norm(range.start() as usize)?;
        // With one layer and the head nearly all kernels are known. They are compiled before most of the weights
        // are in memory, so that what compiling takes for a while adds nothing to the most that is ever taken.
        let (first, others) = (range.layers().start, range.layers().skip(1));
        let mut layers = vec![build.layer(first, range)?];
        let head = match has_head {
            true => Some(build.matrix(&[&model.tensors().output], &buffers.logits)?),
            false => None,
        };
        build.make_kernels(&layers[0], head.as_ref())?;
        return_freed_memory();
        for index in others {
            let layer = build.layer(index, range)?;
            build.make_kernels(&layer, None)?;
            layers.push(layer);
            model.release_pages();
        }
        model.release_pages();
        let descriptions = model.description().layers[range.layers()].to_vec();
        let (programs, pace) = (Programs::default(), Pace::default());
        Ok(Self {
            programs,
            pace,
            pipelines,
            shape,
            buffers,
            layers,
            head,
            descriptions,
            first_norm,
            spare_rows: Vec::new(),
            group,
        })
    }

    /// Compiles one of the kernels that the first steps do without, on one member; [`Forward::step`] compiles what it
    /// needs and has not. Whether there are more.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn prepare(&mut self) -> Result<bool, VulkanError> {
        self.pipelines.make_next(self.group.members())
    }

    /// How many rows a tile of attention has in a step whose sequences reach up to position `end`. As long as
    /// the kernel for several rows is not compiled, near rows are quicker taken one by one than it is made.
    pub(super) fn tile_rows(&self, end: usize) -> usize {
        match self.layers.first().map(|layer| &layer.attention) {
            Some(Attention::ByTiles { whole, .. }) if end <= TILES_FROM && !whole.is_made() => 1,
            _ => self.shape.tile_rows,
        }
    }

    /// The device that the pass runs on.
    pub fn device(&self) -> &DeviceReport {
        self.group.report()
    }

    /// How many members compute together.
    pub fn members(&self) -> usize {
        self.group.members().len()
    }

    /// How the device group computes.
    pub fn group_report(&self) -> GroupReport {
        self.group.how()
    }

    /// The pack in use.
    pub fn pack(&self) -> Pack {
        self.group.first().pack
    }
}

/// All layers of a model.
pub(super) fn whole(model: &Model) -> LayerRange {
    LayerRange::new(0, model.description().layers.len() as u32).expect("a model has layers")
}

impl Layer {
    /// Copies one page to another.
    pub(super) fn copy_page(
        &self,
        recorder: &mut GroupRecorder<'_>,
        page_bytes: usize,
        from: usize,
        to: usize,
    ) {
        for region in [&self.keys, &self.values] {
            recorder.copy((region, from * page_bytes), (region, to * page_bytes), page_bytes);
        }
    }
}
