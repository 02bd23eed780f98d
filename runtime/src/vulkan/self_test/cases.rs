//! The self-test's cases: a norm, what it stored times matrices of codes and of floats, and attention, each
//! compared with its scalar twin.

use super::{Alter, Failure};
use crate::quant::TensorType;
use crate::vulkan::buffers::Home;
use crate::vulkan::device::Pack;
use crate::vulkan::error::VulkanError;
use crate::vulkan::forward::{NormPush, Precision, STORE_FLOAT, store_flag};
use crate::vulkan::group::{Along, Bound, Group, GroupPipelines};
use crate::vulkan::matrix::{Activations, Matrix, SLICES};
use crate::vulkan::pace::Team;
use crate::vulkan::pipelines::Specialised;
use crate::vulkan::region::Region;
use crate::vulkan::repack::SourceRows;
use half::f16;
use lavalane_shaders::twins::attention_subgroup::Sequence;
use lavalane_shaders::twins::matmul::{WeightBlock, add_float_terms, by_slices, code_term, in_order};
use lavalane_shaders::twins::norm::{Norm, norm};
use lavalane_shaders::twins::store_activations::store_codes;
use lavalane_shaders::twins::{attention_cpu, attention_subgroup};
use lavalane_shaders::{BLOCK, CacheKind, Kernel, PAGE_TOKENS, ScaleKind, TILE_ROWS};
use vulkano::format::Format;

/// Rows of activations: two tiles, which the kernel of cooperative matrices takes at once.
const ROWS: usize = 2 * TILE_ROWS;

/// Values of a row: more blocks than a sum has slices, so that a slice that nothing computes is noticed.
const WIDTH: usize = 192;
const BLOCKS: usize = WIDTH / BLOCK;
const _: () = assert!(BLOCKS > SLICES as usize);

/// Values of an attention head.
const HEAD_WIDTH: usize = 64;

/// Rows of each matrix: one group of lanes, and a part of another.
const MATRIX_ROWS: usize = 40;

/// The position that attends: it sees two pages.
const POSITION: usize = 40;

const EPSILON: f32 = 1e-5;

/// How far results may be off, in proportion to what is summed: far more than rounding, far less than a
/// fault.
const TOLERANCE: f32 = 1e-3;

/// Runs every case on the group's pack.
pub(super) fn check(group: &Group, alter: Alter<'_>) -> Result<(), Failure> {
    let case = Case { group, alter };
    let activations = Activations::new(group, ROWS, WIDTH, Home::Readback)?;
    case.norm_and_matrices(&activations)?;
    case.attention()
}

struct Case<'a> {
    group: &'a Group,
    alter: Alter<'a>,
}

/// Numbers within [-1, 1] without a pattern along K.
fn numbers(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7919 + seed * 104_729) % 1009) as f32 / 504.0 - 1.0).collect()
}

impl Case<'_> {
    fn pack(&self) -> Pack {
        self.group.first().pack
    }

    fn region(&self, bytes: &[u8]) -> Result<Region, VulkanError> {
        let region = self.group.region("a self-test's values", bytes.len(), Home::Readback)?;
        region.write(bytes)?;
        Ok(region)
    }

    fn floats(&self, values: &[f32]) -> Result<Region, VulkanError> {
        self.region(bytemuck::cast_slice(values))
    }

    /// A region of f32 as the pack's kernels read it.
    fn bound(&self, region: &Region, format: Format) -> Bound {
        Bound::read_by(self.pack().reads(), region, format)
    }

    /// A norm of rows of a residual stream, and what it stored times a matrix of codes and one of floats, by
    /// the kernels for many rows, for eight and for one, which must give the first row the same bits.
    fn norm_and_matrices(&self, activations: &Activations) -> Result<(), Failure> {
        let mut pipelines = GroupPipelines::default();
        let (residual, weight) = (numbers(1, ROWS * WIDTH), numbers(2, WIDTH));
        let float = Format::R32G32B32A32_SFLOAT;
        let (stream, weights) = (self.floats(&residual)?, self.floats(&weight)?);
        let bindings = [
            (0, Bound::Storage(stream.clone())),
            (1, self.bound(&stream, float)),
            (2, self.bound(&weights, float)),
            (3, self.bound(&weights, float)),
            (4, Bound::Storage(activations.codes.clone())),
            (5, Bound::Storage(activations.scales.clone())),
            (6, Bound::Storage(activations.values.clone())),
            (7, Bound::Storage(self.floats(&[0.0; ROWS])?)),
            (8, self.bound(&stream, float)),
        ];
        let lanes = self.group.first().lanes();
        let kernel = Kernel::Norm(self.pack().reads());
        let weights = Weights::new();
        let output = self.floats(&[f32::NAN; ROWS * 2 * MATRIX_ROWS])?;
        let precision = Precision::Default;
        let sources = weights.sources();
        let matrix =
            Matrix::new(self.group, &mut pipelines, &sources, WIDTH, precision, activations, &output)?;
        let flags = matrix.inputs().fold(STORE_FLOAT, |flags, input| flags | store_flag(input));
        let kernel = Specialised { kernel, constants: vec![(0, lanes as u32), (1, flags)] };
        let stage = self.group.stage(&mut pipelines, kernel, &bindings)?;
        let push = NormPush { width: WIDTH as u32, epsilon: EPSILON, map_offset: 0 };
        let mut recorder = self.group.record(Team::All)?;
        recorder.dispatch(&stage, push, [ROWS, 1], Along::X);
        self.group.run(&recorder.finish()?)?;

        let stored = rows_of(&activations.values.read::<f32>(ROWS * WIDTH)?);
        for (row, stored) in stored.iter().enumerate() {
            let mut stream = residual[row * WIDTH..(row + 1) * WIDTH].to_vec();
            let settings = Norm { lanes, epsilon: EPSILON, weight: &weight, delta: None, post_weight: None };
            let twin = norm(&mut stream, &settings);
            self.compare("norm", stored, twin.iter().map(|&value| (value, TOLERANCE)))?;
        }
        let mut first_rows = Vec::new();
        for (rows, names) in [
            (ROWS, ["matmul of codes by 16", "matmul of floats by 16"]),
            (TILE_ROWS, ["matmul of codes by 8", "matmul of floats by 8"]),
            (1, ["matmul of codes", "matmul of floats"]),
        ] {
            let mut recorder = self.group.record(Team::All)?;
            matrix.multiply(&mut recorder, rows);
            self.group.run(&recorder.finish()?)?;
            let products = output.read::<f32>(rows * 2 * MATRIX_ROWS)?;
            self.compare_products(&weights, &stored[..rows], &products, names)?;
            first_rows.push(products[..2 * MATRIX_ROWS].to_vec());
        }
        let alone = first_rows.pop().expect("three numbers of rows were taken");
        for among in first_rows {
            self.compare_bits("matmul among rows", &among, &alone)?;
        }
        Ok(())
    }

    fn compare_products(
        &self,
        weights: &Weights,
        rows: &[Vec<f32>],
        products: &[f32],
        names: [&'static str; 2],
    ) -> Result<(), Failure> {
        for (row, products) in rows.iter().zip(products.chunks_exact(2 * MATRIX_ROWS)) {
            let (of_codes, of_floats) = products.split_at(MATRIX_ROWS);
            self.compare(names[0], of_codes, weights.times_codes(self.pack(), row))?;
            self.compare(names[1], of_floats, weights.times_floats(self.pack(), row))?;
        }
        Ok(())
    }

    /// One query over two pages of keys and values in float16.
    fn attention(&self) -> Result<(), Failure> {
        let mut pipelines = GroupPipelines::default();
        let rounded = |seed| -> Vec<f32> {
            let numbers = numbers(seed, (POSITION + 1) * HEAD_WIDTH);
            numbers.into_iter().map(|value| f16::from_f32(value).to_f32()).collect()
        };
        let (query, keys, values) = (numbers(3, HEAD_WIDTH), rounded(4), rounded(5));
        // The sequence's first page is the pool's second. In a page of keys, texels of 8 lie token by token.
        let mut cached =
            [vec![f16::ZERO; 2 * PAGE_TOKENS * HEAD_WIDTH], vec![f16::ZERO; 2 * PAGE_TOKENS * HEAD_WIDTH]];
        for token in 0..=POSITION {
            let (page, within) = (1 - token / PAGE_TOKENS, token % PAGE_TOKENS);
            for at in 0..HEAD_WIDTH {
                let key = ((page * HEAD_WIDTH / 8 + at / 8) * PAGE_TOKENS + within) * 8 + at % 8;
                cached[0][key] = f16::from_f32(keys[token * HEAD_WIDTH + at]);
                let value = (page * PAGE_TOKENS + within) * HEAD_WIDTH + at;
                cached[1][value] = f16::from_f32(values[token * HEAD_WIDTH + at]);
            }
        }
        let result = self.floats(&[f32::NAN; HEAD_WIDTH * TILE_ROWS])?;
        let bits =
            |cached: &[f16]| -> Vec<u8> { cached.iter().flat_map(|value| value.to_le_bytes()).collect() };
        let (key_region, value_region) = (self.region(&bits(&cached[0]))?, self.region(&bits(&cached[1]))?);
        let words = |words: &[u32]| self.region(bytemuck::cast_slice(words));
        let mut bindings = vec![
            (0, self.bound(&self.floats(&query)?, Format::R32G32B32A32_SFLOAT)),
            (1, self.bound(&key_region, Format::R32G32B32A32_UINT)),
            (2, self.bound(&value_region, Format::R32G32B32A32_UINT)),
            (3, Bound::Storage(words(&[POSITION as u32, 0, 0, 0])?)),
            (4, self.bound(&words(&[1, 0])?, Format::R32_UINT)),
        ];
        let lanes = self.group.first().lanes();
        let (kernel, constants) = match self.pack() {
            Pack::Cpu => {
                bindings.push((5, Bound::Storage(words(&[0])?)));
                bindings.extend((6..9).map(|number| (number, Bound::Storage(result.clone()))));
                let constants =
                    vec![(0, lanes as u32), (1, HEAD_WIDTH as u32), (2, 1), (3, 1), (4, STORE_FLOAT)];
                (Kernel::AttentionCpu(CacheKind::Float16), constants)
            }
            Pack::Subgroup | Pack::Coopmat => {
                bindings.push((5, Bound::Storage(result.clone())));
                (Kernel::AttentionSubgroup(CacheKind::Float16), vec![(1, HEAD_WIDTH as u32)])
            }
        };
        let stage = self.group.stage(&mut pipelines, Specialised { kernel, constants }, &bindings)?;
        let mut recorder = self.group.record(Team::All)?;
        match self.pack() {
            Pack::Cpu => recorder.dispatch(&stage, [1u32, 1, 0, 0], [1, 1], Along::X),
            Pack::Subgroup | Pack::Coopmat => recorder.dispatch(&stage, [1u32, 1, 0], [1, 1], Along::X),
        }
        self.group.run(&recorder.finish()?)?;
        let (key, value) = (|token: usize| head_of(&keys, token), |token: usize| head_of(&values, token));
        let seen = Sequence { position: POSITION, window: None, key: &key, value: &value };
        let twin = match self.pack() {
            Pack::Cpu => attention_cpu::attention(&query, &seen, lanes),
            Pack::Subgroup | Pack::Coopmat => attention_subgroup::attention(&query, &seen),
        };
        let stored = result.read::<f32>(HEAD_WIDTH * TILE_ROWS)?;
        let found: Vec<f32> = match self.pack() {
            // As activations lie: a row's quads a tile apart.
            Pack::Cpu => (0..HEAD_WIDTH).map(|at| stored[at / 4 * TILE_ROWS * 4 + at % 4]).collect(),
            Pack::Subgroup | Pack::Coopmat => stored[..HEAD_WIDTH].to_vec(),
        };
        self.compare("attention", &found, twin.into_iter().map(|value| (value, TOLERANCE)))
    }

    /// Compares what was found with (value, tolerance) of each.
    fn compare(
        &self,
        kernel: &'static str,
        found: &[f32],
        expected: impl Iterator<Item = (f32, f32)>,
    ) -> Result<(), Failure> {
        let found = self.altered(kernel, found);
        for (found, (expected, tolerance)) in found.into_iter().zip(expected) {
            let near = (found - expected).abs() <= tolerance;
            if !near {
                return Err(Failure::Mismatch { kernel, found, expected, tolerance });
            }
        }
        Ok(())
    }

    /// Compares a row's results among others with those that it has alone.
    fn compare_bits(&self, kernel: &'static str, found: &[f32], alone: &[f32]) -> Result<(), Failure> {
        let found = self.altered(kernel, found);
        let mut pairs = found.iter().zip(alone);
        match pairs.find(|(found, alone)| found.to_bits() != alone.to_bits()) {
            Some((&found, &alone)) => Err(Failure::OtherBits { kernel, found, alone }),
            None => Ok(()),
        }
    }

    /// What was found, with the fault that a test wants.
    fn altered(&self, kernel: &'static str, found: &[f32]) -> Vec<f32> {
        let mut found = found.to_vec();
        (self.alter)(self.pack(), kernel, &mut found);
        found
    }
}

fn head_of(tokens: &[f32], token: usize) -> &[f32] {
    &tokens[token * HEAD_WIDTH..(token + 1) * HEAD_WIDTH]
}

/// The rows out of the layout of `activations.glsl`: tile by tile, of each block quads of 4 values row by row.
fn rows_of(values: &[f32]) -> Vec<Vec<f32>> {
    let value = |row: usize, at: usize| {
        let quad = row / TILE_ROWS * (WIDTH / 4) + at / 4;
        values[(quad * TILE_ROWS + row % TILE_ROWS) * 4 + at % 4]
    };
    (0..ROWS).map(|row| (0..WIDTH).map(|at| value(row, at)).collect()).collect()
}

/// A matrix in Q8_0, and one in F32.
struct Weights {
    codes: Vec<[i32; BLOCK]>,
    code_bytes: Vec<u8>,
    floats: Vec<f32>,
}

/// The scale of every block in Q8_0.
const SCALE: f32 = 1.0 / 64.0;

impl Weights {
    fn new() -> Self {
        let numbers = numbers(6, 2 * MATRIX_ROWS * WIDTH);
        let (coded, floats) = numbers.split_at(MATRIX_ROWS * WIDTH);
        let codes: Vec<[i32; BLOCK]> = coded
            .as_chunks::<BLOCK>()
            .0
            .iter()
            .map(|block| block.map(|value| (value * 127.0) as i32))
            .collect();
        let mut code_bytes = Vec::new();
        for block in &codes {
            code_bytes.extend(f16::from_f32(SCALE).to_le_bytes());
            code_bytes.extend(block.map(|code| code as i8 as u8));
        }
        Self { codes, code_bytes, floats: floats.to_vec() }
    }

    fn sources(&self) -> [SourceRows<'_>; 2] {
        let rows = MATRIX_ROWS;
        [
            SourceRows { tensor_type: TensorType::Q8_0, bytes: &self.code_bytes, rows },
            SourceRows { tensor_type: TensorType::F32, bytes: bytemuck::cast_slice(&self.floats), rows },
        ]
    }

    /// Each row's product with activations as codes, and how far it may be off: a code may be the neighbour.
    fn times_codes(&self, pack: Pack, input: &[f32]) -> impl Iterator<Item = (f32, f32)> {
        let most = match pack {
            Pack::Cpu => i16::MAX,
            Pack::Subgroup | Pack::Coopmat => i8::MAX.into(),
        };
        let input: Vec<_> =
            input.as_chunks::<BLOCK>().0.iter().map(|block| store_codes(block, most)).collect();
        self.codes.chunks_exact(BLOCKS).map(move |row| {
            let weights = |block: usize| WeightBlock { codes: row[block], scales: [SCALE, 0.0, SCALE, 0.0] };
            let add =
                |sum: f32, block: usize| sum + code_term(ScaleKind::Half, &weights(block), &input[block]);
            let off = (0..BLOCKS).map(|block| {
                let magnitudes = weights(block).weights().iter().map(|weight| weight.abs()).sum::<f32>();
                magnitudes * input[block].scales[0]
            });
            (in_order_of(pack, add), off.sum::<f32>() + TOLERANCE)
        })
    }

    fn times_floats(&self, pack: Pack, input: &[f32]) -> impl Iterator<Item = (f32, f32)> {
        let input: Vec<[f32; BLOCK]> = input.as_chunks::<BLOCK>().0.to_vec();
        self.floats.chunks_exact(WIDTH).map(move |row| {
            let blocks = row.as_chunks::<BLOCK>().0;
            let add = |sum: f32, block: usize| add_float_terms(sum, &blocks[block], &input[block]);
            (in_order_of(pack, add), TOLERANCE)
        })
    }
}

/// The sum over the blocks in the pack's order.
fn in_order_of(pack: Pack, add: impl Fn(f32, usize) -> f32) -> f32 {
    match pack {
        Pack::Cpu => in_order(BLOCKS, add),
        Pack::Subgroup | Pack::Coopmat => by_slices(BLOCKS, SLICES as usize, add),
    }
}
