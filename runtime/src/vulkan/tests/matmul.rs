//! Matrices of every tensor type times activations.

use super::bench::{Bench, Codes, bits, put_activations};
use super::sources::{Random, Rows};
use crate::quant::TensorType;
use crate::vulkan::device::Pack;
use crate::vulkan::forward::Precision;
use crate::vulkan::matrix::{Matrix, SLICES, input_kind, layout};
use crate::vulkan::region::Region;
use crate::vulkan::repack::{Layout, Repacked, SourceRows, Storage};
use half::f16;
use lavalane_shaders::twins::matmul::{WeightBlock, add_float_terms, by_slices, code_term, in_order};
use lavalane_shaders::twins::store_activations::{CodeBlock, blocks_of, store_codes};
use lavalane_shaders::{BLOCK, CodeKind, InputKind, ScaleKind};

/// A row of weights as the kernels read it, taken out of the repacked words by the layouts of
/// `weights.glsl`.
struct TwinRow {
    storage: Storage,
    quantised: Vec<WeightBlock>,
    weights: Vec<[f32; BLOCK]>,
}

impl TwinRow {
    fn new(storage: Storage, repacked: &Repacked, blocks: usize, layout: Layout, row: usize) -> Self {
        let texel = |parts: usize, block: usize, part: usize| {
            let at = layout.texel(row, block * parts + part, blocks * parts) * 4;
            &repacked.codes[at..at + 4]
        };
        let mut quantised = Vec::new();
        let mut weights = Vec::new();
        for block in 0..blocks {
            let half_at = |word: &[u32], k: usize| (word[k % 8 / 2] >> (16 * (k % 2))) & 0xffff;
            match storage.codes {
                CodeKind::Float32 => {
                    weights.push(std::array::from_fn(|k| f32::from_bits(texel(8, block, k / 4)[k % 4])))
                }
                CodeKind::Float16 => weights.push(std::array::from_fn(|k| {
                    f16::from_bits(half_at(texel(4, block, k / 8), k) as u16).to_f32()
                })),
                CodeKind::BFloat16 => weights
                    .push(std::array::from_fn(|k| f32::from_bits(half_at(texel(4, block, k / 8), k) << 16))),
                CodeKind::Nibbles | CodeKind::Bytes => {
                    let codes = std::array::from_fn(|k| match storage.codes {
                        CodeKind::Nibbles => (texel(1, block, 0)[k / 8] >> (4 * (k % 8)) & 15) as i32,
                        _ => i32::from((texel(2, block, k / 16)[k % 16 / 4] >> (8 * (k % 4))) as u8) - 128,
                    });
                    let scales = scales(storage, &repacked.scales, blocks, layout, row, block);
                    quantised.push(WeightBlock { codes, scales });
                    weights.push(WeightBlock { codes, scales }.weights());
                }
            }
        }
        Self { storage, quantised, weights }
    }

    fn times(&self, pack: Pack, kind: InputKind, row: &TwinInput) -> f32 {
        let add = |sum: f32, block: usize| match kind {
            InputKind::Int8 | InputKind::Int16 => {
                sum + code_term(self.storage.scales, &self.quantised[block], &row.codes[block])
            }
            InputKind::Float => add_float_terms(sum, &self.weights[block], &row.values[block]),
        };
        match pack {
            Pack::Cpu => in_order(self.weights.len(), add),
            Pack::Subgroup | Pack::Coopmat => by_slices(self.weights.len(), SLICES as usize, add),
        }
    }
}

fn scales(
    storage: Storage,
    words: &[u32],
    blocks: usize,
    layout: Layout,
    row: usize,
    block: usize,
) -> [f32; 4] {
    let at = |count: usize, index: usize| layout.texel(row, index, count) * 4;
    match storage.scales {
        ScaleKind::Half => {
            let word = words[at(blocks.div_ceil(4), block / 4) + block % 4];
            let scale = f16::from_bits(word as u16).to_f32();
            let minimum = f16::from_bits((word >> 16) as u16).to_f32();
            [scale, minimum, scale, minimum]
        }
        ScaleKind::Float => {
            let at = at(blocks.div_ceil(2), block / 2) + block % 2 * 2;
            let [scale, minimum] = [words[at], words[at + 1]].map(f32::from_bits);
            [scale, minimum, scale, minimum]
        }
        ScaleKind::FloatPer16 => {
            let at = at(blocks, block);
            [words[at], words[at + 1], words[at + 2], words[at + 3]].map(f32::from_bits)
        }
    }
}

/// A row of activations as the kernels read it.
pub(super) struct TwinInput {
    values: Vec<[f32; BLOCK]>,
    codes: Vec<CodeBlock>,
}

impl TwinInput {
    pub(super) fn new(row: &[f32], codes: Codes) -> Self {
        let values: Vec<_> = blocks_of(row).collect();
        let codes = values.iter().map(|values| store_codes(values, codes.most)).collect();
        Self { values, codes }
    }
}

/// What the pack's kernels give for `inputs` times the tensors one after another: `[token][row]`.
pub(super) fn twin(
    bench: &Bench,
    tensors: &[Rows],
    precision: Precision,
    inputs: &[TwinInput],
) -> Vec<Vec<f32>> {
    let blocks = inputs[0].values.len();
    let layout = layout(bench.member());
    let mut rows = Vec::new();
    for tensor in tensors {
        let storage = Storage::of(tensor.tensor_type);
        let repacked = storage.repack(
            &[tensor.source()],
            blocks * BLOCK,
            layout,
            0..tensor.rows.div_ceil(layout.bundle_rows()),
        );
        rows.extend((0..tensor.rows).map(|row| TwinRow::new(storage, &repacked, blocks, layout, row)));
    }
    let times = |row: &TwinRow, input| {
        let kind = input_kind(bench.member().pack, row.storage, precision);
        row.times(bench.member().pack, kind, input)
    };
    inputs.iter().map(|input| rows.iter().map(|row| times(row, input)).collect()).collect()
}

/// A matrix with its buffers, ready to multiply any number of the rows it was given.
pub(super) struct Ready<'a> {
    bench: &'a Bench,
    matrix: Matrix,
    output: Region,
    rows: usize,
}

impl<'a> Ready<'a> {
    pub(super) fn new(
        bench: &'a mut Bench,
        tensors: &[Rows],
        columns: usize,
        precision: Precision,
        inputs: &[Vec<f32>],
    ) -> Self {
        let rows: usize = tensors.iter().map(|tensor| tensor.rows).sum();
        let activations = bench.activations(inputs.len(), columns);
        put_activations(&activations, bench.codes(), inputs);
        let output = Region::single(bench.garbage(inputs.len() * rows * 4));
        let sources: Vec<SourceRows<'_>> = tensors.iter().map(Rows::source).collect();
        let Bench { group, group_pipelines, .. } = &mut *bench;
        let matrix =
            Matrix::new(group, group_pipelines, &sources, columns, precision, &activations, &output).unwrap();
        Self { bench, matrix, output, rows }
    }

    /// The bits of the first `tokens` rows' results: `[token][row]`.
    pub(super) fn multiply(&self, tokens: usize) -> Vec<Vec<u32>> {
        self.bench.run_group(|recorder| self.matrix.multiply(recorder, tokens));
        bits(self.output.first(), tokens * self.rows).chunks_exact(self.rows).map(<[u32]>::to_vec).collect()
    }
}

/// Token counts that take every tile, whole and in part.
const TOKENS: [usize; 6] = [1, 2, 3, 8, 9, 33];

/// Multiplies, and holds every result to the twin's bits, and to a plain dot product in f64 over the
/// decoded weights.
fn check(bench: &mut Bench, tensors: &[Rows], columns: usize, precision: Precision) {
    let what: Vec<String> =
        tensors.iter().map(|tensor| format!("{} rows of {}", tensor.rows, tensor.tensor_type)).collect();
    let what = format!("{:?}, {precision:?}, {} by {columns}", bench.member().pack, what.join(" and "));
    let inputs = Random::new(columns as u64).rows(33, columns);
    let twin_inputs: Vec<TwinInput> = inputs.iter().map(|row| TwinInput::new(row, bench.codes())).collect();
    let twins = twin(bench, tensors, precision, &twin_inputs);
    for (token, results) in twins.iter().enumerate() {
        let mut row = 0;
        for tensor in tensors {
            for weights in tensor.weights.chunks_exact(columns) {
                let kind = input_kind(bench.member().pack, Storage::of(tensor.tensor_type), precision);
                let coded = kind != InputKind::Float;
                let bound = Bound::of(weights, &inputs[token], &twin_inputs[token], coded);
                let apart = (f64::from(results[row]) - bound.exact).abs();
                assert!(
                    apart <= bound.error,
                    "{what}, token {token}, row {row}: {apart:e} off the dot product"
                );
                row += 1;
            }
        }
    }
    let ready = Ready::new(bench, tensors, columns, precision, &inputs);
    for tokens in TOKENS {
        for (token, results) in ready.multiply(tokens).iter().enumerate() {
            let expected: Vec<u32> = twins[token].iter().map(|value| value.to_bits()).collect();
            for (row, (found, expected)) in results.iter().zip(&expected).enumerate() {
                assert_eq!(
                    found,
                    expected,
                    "{what}, token {token} of {tokens}, row {row}: {:e}, the twin's {:e}",
                    f32::from_bits(*found),
                    f32::from_bits(*expected)
                );
            }
        }
    }
}

/// A dot product, and how far a kernel may be off it.
struct Bound {
    exact: f64,
    error: f64,
}

impl Bound {
    /// An activation kept as a code is off by at most half its block's scale; and every product and sum in f32 may
    /// round, in proportion to the sum of magnitudes.
    fn of(weights: &[f32], input: &[f32], stored: &TwinInput, coded: bool) -> Self {
        let (mut exact, mut magnitudes, mut rounding) = (0.0, 0.0, 0.0);
        for (k, (&weight, &input)) in weights.iter().zip(input).enumerate() {
            exact += f64::from(weight) * f64::from(input);
            magnitudes += f64::from(weight).abs() * (f64::from(input).abs() + 1e-30);
            if coded {
                rounding += f64::from(weight).abs() * f64::from(stored.codes[k / BLOCK].scales[0]) * 0.501;
            }
        }
        // Codes and minimums of a type may cancel: a weight's parts are larger than itself by 16 at most.
        let error = rounding + 16.0 * magnitudes * weights.len() as f64 * f64::from(f32::EPSILON) + 1e-6;
        Self { exact, error }
    }
}

fn fits(tensor_type: TensorType, columns: usize) -> bool {
    columns.is_multiple_of(tensor_type.block_weights())
}

#[test]
fn every_type_gives_the_twins_bits_and_the_dot_product() {
    Bench::for_each_pack(|bench| {
        for tensor_type in TensorType::all() {
            for (rows, columns) in [(37, 96), (200, 256), (37, 576), (8, 1280)] {
                if fits(tensor_type, columns) {
                    check(bench, &[Rows::new(tensor_type, rows, columns)], columns, Precision::Default);
                }
            }
        }
    });
}

#[test]
fn every_type_gives_the_twins_bits_with_float_activations() {
    Bench::for_each_pack(|bench| {
        for tensor_type in TensorType::all().filter(|tensor_type| tensor_type.is_quantised()) {
            for (rows, columns) in [(37, 96), (41, 512)] {
                if fits(tensor_type, columns) {
                    check(bench, &[Rows::new(tensor_type, rows, columns)], columns, Precision::Precise);
                }
            }
        }
    });
}

#[test]
fn tensors_of_mixed_types_lie_one_after_another_in_one_matrix() {
    use TensorType::*;
    Bench::for_each_pack(|bench| {
        for types in [vec![Q4_K, Q4_K, Q6_K, F16], vec![Q4_0, Q4_1, Q4_0], vec![F32, Q8_0, BF16, Q5_1]] {
            let rows = [48, 13, 24, 7];
            let tensors: Vec<Rows> =
                types.iter().zip(rows).map(|(&kind, rows)| Rows::new(kind, rows, 256)).collect();
            check(bench, &tensors, 256, Precision::Default);
            check(bench, &tensors, 256, Precision::Precise);
        }
    });
}

#[test]
fn a_matrix_larger_than_the_devices_buffers_is_split_by_rows() {
    Bench::for_each_pack(|bench| {
        let storage = Storage::of(TensorType::Q4_0);
        let layout = layout(bench.member());
        let bundle_bytes = storage.bundle_bytes(96 / BLOCK, layout);
        bench.group.first_mut().buffer_bytes_limit = 2 * bundle_bytes as u64;
        let tensors = [Rows::new(TensorType::Q4_0, 150, 96), Rows::new(TensorType::Q4_1, 37, 96)];
        check(bench, &tensors, 96, Precision::Default);
        let input = Random::new(1).rows(1, 96);
        let ready = Ready::new(bench, &tensors, 96, Precision::Default, &input);
        let rows_of_a_part = 2 * layout.bundle_rows();
        assert_eq!(ready.matrix.inputs().count(), 187usize.div_ceil(rows_of_a_part));
    });
}

#[test]
fn weights_that_are_all_zero_or_at_the_ends_of_their_range_are_exact() {
    Bench::for_each_pack(|bench| {
        for tensor_type in TensorType::all() {
            let mut rows = Rows::new(tensor_type, 3, 256);
            let originals = [vec![0.0; 256], vec![1.0; 256], vec![-1.0; 256]].concat();
            crate::quant::quantize(tensor_type, &originals, &mut rows.bytes);
            crate::quant::dequantize(tensor_type, &rows.bytes, &mut rows.weights);
            check(bench, &[rows], 256, Precision::Default);
        }
    });
}
