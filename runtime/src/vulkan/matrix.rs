//! Matrices in device memory, and multiplying activations by them.
//!
//! A matrix may be several tensors with the same input, one after another (queries, keys and values),
//! and is kept as parts: neighbours of the same storage are one part, and a part that would be larger
//! than the device's buffers is split by rows.

use super::buffers::Home;
use super::coopmat::MatrixShape;
use super::device::{Member, Pack};
use super::error::VulkanError;
use super::forward::Precision;
use super::group::{Along, Bound, Group, GroupPipelines, GroupRecorder, Stage};
use super::host_memory::Draft;
use super::pipelines::Specialised;
use super::region::Region;
use super::repack::{Layout, SourceRows, Storage};
use lavalane_shaders::{
    BLOCK, COOPMAT_TILE, CPU_BUNDLE, CodeKind, InputKind, Kernel, ScaleKind, TILE_ROWS, Tile, row_groups,
};
use vulkano::buffer::BufferContents;
use vulkano::format::Format;

/// Tokens from which on the kernel for tiles of 8 is used.
const EIGHT_FROM_TOKENS: usize = 3;

/// Tokens from which on the kernel of cooperative matrices is used, where there is one: those for which the kernel
/// for tiles of 8 reads the weights more than once.
const COOPMAT_FROM_TOKENS: usize = TILE_ROWS + 1;

/// K slices of the matmul of the packs `subgroup` and `coopmat`: part of their order of sums.
pub(super) const SLICES: u32 = 4;

/// Bytes of weights that are repacked before they are uploaded: what stays in a core's caches.
const REPACK_BYTES: usize = 2 << 20;

/// The activation buffers that matrices read; see `kernels/activations.glsl`.
pub(crate) struct Activations {
    pub(crate) codes: Region,
    pub(crate) scales: Region,
    pub(crate) values: Region,
}

impl Activations {
    /// Room for `rows` rows of `width` values.
    ///
    /// # Errors
    /// They do not fit the devices' memory or limits.
    pub(crate) fn new(group: &Group, rows: usize, width: usize, home: Home) -> Result<Self, VulkanError> {
        let blocks = rows.next_multiple_of(TILE_ROWS) * width.div_ceil(BLOCK);
        Ok(Self {
            codes: group.region("activations' codes", blocks * BLOCK * 2, home)?,
            scales: group.region("activation scales", blocks * 16, home)?,
            values: group.region("f32 activations", blocks * BLOCK * 4, home)?,
        })
    }
}

/// A matrix bound to its input and output buffers.
pub(crate) struct Matrix {
    parts: Vec<Part>,
    rows: usize,
    columns: usize,
}

struct Part {
    input: InputKind,
    rows: usize,
    offset: usize,
    /// The kernel for single tokens, and its workgroups over all rows.
    one: (Stage, usize),
    /// The kernel for tiles of 8 tokens, and its workgroups over all rows.
    eight: (Stage, usize),
    /// The kernel of cooperative matrices, where the pack has one for these weights.
    coopmat: Option<(Stage, usize)>,
}

#[derive(Clone, Copy, BufferContents)]
#[repr(C)]
struct Push {
    blocks: u32,
    rows: u32,
    tokens: u32,
    stride: u32,
    offset: u32,
}

/// Which activations a matrix of this storage takes. Software drivers multiply 16-bit numbers as fast as
/// 8-bit ones, and lose next to nothing by them.
pub(crate) fn input_kind(pack: Pack, storage: Storage, precision: Precision) -> InputKind {
    match pack {
        _ if precision == Precision::Precise || storage.is_float() => InputKind::Float,
        Pack::Cpu => InputKind::Int16,
        Pack::Subgroup | Pack::Coopmat => InputKind::Int8,
    }
}

/// How the weights of a device's pack are laid.
pub(super) fn layout(member: &Member) -> Layout {
    let bundle = match member.pack {
        Pack::Cpu => CPU_BUNDLE,
        Pack::Subgroup | Pack::Coopmat => 1,
    };
    Layout { lanes: member.lanes(), bundle }
}

impl Matrix {
    /// Uploads `sources`, `columns` wide each, and binds them.
    ///
    /// # Errors
    /// They do not fit the device's memory, or the driver refuses.
    pub(crate) fn new(
        group: &Group,
        pipelines: &mut GroupPipelines,
        sources: &[SourceRows<'_>],
        columns: usize,
        precision: Precision,
        input: &Activations,
        output: &Region,
    ) -> Result<Self, VulkanError> {
        let mut parts = Vec::new();
        let mut offset = 0;
        for run in sources.chunk_by(|a, b| Storage::of(a.tensor_type) == Storage::of(b.tensor_type)) {
            let storage = Storage::of(run[0].tensor_type);
            for piece in split(group.first(), storage, run, columns) {
                let rows: usize = piece.iter().map(|source| source.rows).sum();
                let weights = Weights::upload(group, storage, &piece, columns)?;
                parts.push(Part::new(
                    group, pipelines, storage, precision, rows, offset, weights, input, output,
                )?);
                offset += rows;
            }
        }
        Ok(Self { parts, rows: offset, columns })
    }

    /// Which kinds of activations the matrix reads.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = InputKind> + '_ {
        self.parts.iter().map(|part| part.input)
    }

    /// The stages that take tiles of several tokens.
    pub(crate) fn of_tiles(&self) -> impl Iterator<Item = &Stage> {
        let kernels = self.parts.iter().flat_map(|part| [Some(&part.eight), part.coopmat.as_ref()]);
        kernels.flatten().map(|(stage, _)| stage)
    }

    /// Multiplies the first `tokens` rows of activations; the output has one value per row of the matrix and token.
    pub(crate) fn multiply(&self, recorder: &mut GroupRecorder<'_>, tokens: usize) {
        for part in &self.parts {
            let push = Push {
                blocks: self.columns.div_ceil(BLOCK) as u32,
                rows: part.rows as u32,
                tokens: tokens as u32,
                stride: self.rows as u32,
                offset: part.offset as u32,
            };
            let ((stage, groups), tile) = match &part.coopmat {
                Some(kernel) if tokens >= COOPMAT_FROM_TOKENS => (kernel, COOPMAT_TILE),
                _ if tokens >= EIGHT_FROM_TOKENS => (&part.eight, TILE_ROWS),
                _ => (&part.one, 1),
            };
            // By rows of the matrix, so that each member reads its own share of the weights only.
            recorder.dispatch(stage, push, [*groups, tokens.div_ceil(tile)], Along::X);
        }
    }
}

/// Splits a run of same-stored tensors by rows so that each piece's codes fit the device's buffers.
fn split<'a>(
    member: &Member,
    storage: Storage,
    run: &[SourceRows<'a>],
    columns: usize,
) -> Vec<Vec<SourceRows<'a>>> {
    let layout = layout(member);
    let bundle_bytes = storage.bundle_bytes(columns.div_ceil(BLOCK), layout);
    let bundles_max = (member.buffer_bytes_max() as usize / bundle_bytes.max(1)).max(1);
    let rows_max = bundles_max * layout.bundle_rows();
    let mut pieces = vec![Vec::new()];
    let mut filled = 0;
    for source in run {
        let row_bytes = source.bytes.len() / source.rows.max(1);
        let mut taken = 0;
        while taken < source.rows {
            if filled == rows_max {
                pieces.push(Vec::new());
                filled = 0;
            }
            let rows = (source.rows - taken).min(rows_max - filled);
            let bytes = &source.bytes[taken * row_bytes..(taken + rows) * row_bytes];
            let piece = pieces.last_mut().expect("there is always a piece");
            piece.push(SourceRows { tensor_type: source.tensor_type, bytes, rows });
            taken += rows;
            filled += rows;
        }
    }
    pieces
}

struct Weights {
    codes: Region,
    scales: Option<Region>,
}

impl Weights {
    fn upload(
        group: &Group,
        storage: Storage,
        piece: &[SourceRows<'_>],
        columns: usize,
    ) -> Result<Self, VulkanError> {
        let layout = layout(group.first());
        let rows: usize = piece.iter().map(|source| source.rows).sum();
        let bundles = rows.div_ceil(layout.bundle_rows());
        let blocks = columns.div_ceil(BLOCK);
        let [code_bytes, scale_bytes] =
            [storage.bundle_bytes(blocks, layout), storage.bundle_scale_bytes(blocks, layout)];
        let [all_codes, all_scales] = [bundles * code_bytes, bundles * scale_bytes];
        if group.shares_memory() {
            let mut codes = Draft::whole("a matrix's weights", all_codes)?;
            let mut scales = Draft::whole("a matrix's scales", all_scales)?;
            let code_words = bytemuck::cast_slice_mut(&mut codes.bytes_mut()[..all_codes]);
            let scale_words = bytemuck::cast_slice_mut(&mut scales.bytes_mut()[..all_scales]);
            storage.repack_to(piece, columns, layout, 0..bundles, code_words, scale_words);
            let scales = (scale_bytes > 0).then(|| group.adopt(scales)).transpose()?;
            return Ok(Self { codes: group.adopt(codes)?, scales });
        }
        let codes = group.region("a matrix's weights", all_codes, Home::Device)?;
        let scales = (scale_bytes > 0)
            .then(|| group.region("a matrix's scales", all_scales, Home::Device))
            .transpose()?;
        let step = (REPACK_BYTES / code_bytes.max(1)).max(1);
        for from in (0..bundles).step_by(step) {
            let repacked = storage.repack(piece, columns, layout, from..bundles.min(from + step));
            group.upload(&codes, from * code_bytes, bytemuck::cast_slice(&repacked.codes))?;
            if let Some(scales) = &scales {
                group.upload(scales, from * scale_bytes, bytemuck::cast_slice(&repacked.scales))?;
            }
        }
        Ok(Self { codes, scales })
    }
}

impl Part {
    #[expect(clippy::too_many_arguments, reason = "each is a different thing to bind")]
    fn new(
        group: &Group,
        pipelines: &mut GroupPipelines,
        storage: Storage,
        precision: Precision,
        rows: usize,
        offset: usize,
        weights: Weights,
        input: &Activations,
        output: &Region,
    ) -> Result<Self, VulkanError> {
        let member = group.first();
        let kind = input_kind(member.pack, storage, precision);
        let groups = rows.div_ceil(member.lanes());
        let mut ready = |tile| {
            let bindings = bindings(member.pack, storage, kind, &weights, input, output);
            group.stage(pipelines, kernel(member, storage, kind, tile), &bindings)
        };
        let (one, eight) = (ready(Tile::One)?, ready(Tile::Eight)?);
        let per_workgroup = |tile| match member.pack {
            Pack::Cpu => row_groups(kind, tile),
            Pack::Subgroup | Pack::Coopmat => 1,
        };
        let [one_groups, eight_groups] =
            [Tile::One, Tile::Eight].map(|tile| groups.div_ceil(per_workgroup(tile)));
        let coopmat = match (kind, coopmat_kernel(member, storage)) {
            (InputKind::Int8, Some(kernel)) => {
                let bindings = bindings(member.pack, storage, kind, &weights, input, output);
                Some((group.stage(pipelines, kernel, &bindings)?, groups))
            }
            _ => None,
        };
        let (one, eight) = ((one, one_groups), (eight, eight_groups));
        Ok(Self { input: kind, rows, offset, one, eight, coopmat })
    }
}

fn kernel(member: &Member, storage: Storage, input: InputKind, tile: Tile) -> Specialised {
    let Storage { codes, scales } = storage;
    let lanes = member.lanes() as u32;
    match member.pack {
        Pack::Cpu => Specialised {
            kernel: Kernel::MatmulCpu { input, codes, scales, tile },
            constants: vec![(0, lanes)],
        },
        Pack::Subgroup | Pack::Coopmat => Specialised {
            kernel: Kernel::MatmulSubgroup { input, codes, scales, tile },
            constants: vec![(0, lanes), (1, SLICES)],
        },
    }
}

/// The kernel of cooperative matrices for quantised weights, where the pack has one.
fn coopmat_kernel(member: &Member, storage: Storage) -> Option<Specialised> {
    let MatrixShape { m, n, k } = member.matrix_shape?;
    let codes = match storage.codes {
        CodeKind::Nibbles => 0,
        CodeKind::Bytes => 1,
        CodeKind::Float16 | CodeKind::BFloat16 | CodeKind::Float32 => return None,
    };
    let scales = match storage.scales {
        ScaleKind::Half => 0,
        ScaleKind::Float => 1,
        ScaleKind::FloatPer16 => 2,
    };
    let threads = SLICES * member.report.subgroup_size;
    let constants = vec![(0, threads), (1, SLICES), (2, m), (3, n), (4, k), (5, codes), (6, scales)];
    Some(Specialised { kernel: Kernel::MatmulCoopmat, constants })
}

fn bindings(
    pack: Pack,
    storage: Storage,
    input_kind: InputKind,
    weights: &Weights,
    input: &Activations,
    output: &Region,
) -> Vec<(u32, Bound)> {
    let mut bindings = vec![(4, Bound::Storage(output.clone()))];
    match pack {
        Pack::Subgroup | Pack::Coopmat => {
            bindings.push((0, Bound::Storage(weights.codes.clone())));
            bindings.extend(weights.scales.clone().map(|scales| (1, Bound::Storage(scales))));
            match input_kind {
                InputKind::Float => bindings.push((2, Bound::Storage(input.values.clone()))),
                InputKind::Int8 | InputKind::Int16 => {
                    bindings.push((2, Bound::Storage(input.codes.clone())));
                    bindings.push((3, Bound::Storage(input.scales.clone())));
                }
            }
        }
        Pack::Cpu => {
            bindings.push((0, Bound::Texels(weights.codes.clone(), Format::R32G32B32A32_UINT)));
            // With codes, kernels fetch whole texels, and so the scales of several blocks.
            let whole = input_kind != InputKind::Float;
            let scale_format = match (storage.scales, whole) {
                (ScaleKind::Half, false) => Format::R32_UINT,
                (ScaleKind::Float, false) => Format::R32G32_UINT,
                (_, true) | (ScaleKind::FloatPer16, _) => Format::R32G32B32A32_UINT,
            };
            bindings.extend(weights.scales.clone().map(|scales| (1, Bound::Texels(scales, scale_format))));
            match input_kind {
                InputKind::Float => {
                    bindings.push((2, Bound::Texels(input.values.clone(), Format::R32G32B32A32_SFLOAT)));
                }
                InputKind::Int8 | InputKind::Int16 => {
                    bindings.push((2, Bound::Texels(input.codes.clone(), Format::R32G32B32A32_UINT)));
                    bindings.push((3, Bound::Texels(input.scales.clone(), Format::R32G32B32A32_SFLOAT)));
                }
            }
        }
    }
    bindings
}
