//! Twin of `matmul_int16_one_cpu.comp`, `matmul_int16_eight_cpu.comp`, `matmul_float_cpu.comp`,
//! `matmul_subgroup.comp` and `matmul_coopmat.comp`: one row of a matrix times one row of activations. The kernels
//! share the terms and differ in the order of their sum: the `cpu` pack adds the blocks in order ([`in_order`]), the
//! `subgroup` and `coopmat` packs add every SLICES-th block into a slice and then the slices ([`by_slices`]).

use super::store_activations::CodeBlock;
use crate::{BLOCK, ScaleKind};

/// 32 weights of one row as the kernels read them: weight `k` is `scale * codes[k] + minimum`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightBlock {
    /// The codes, unsigned nibbles or signed bytes.
    pub codes: [i32; BLOCK],
    /// Scale and minimum of the first 16 weights, then of the last 16.
    pub scales: [f32; 4],
}

impl WeightBlock {
    /// The weights in f32, one rounding after the product and one after the sum.
    pub fn weights(&self) -> [f32; BLOCK] {
        std::array::from_fn(|k| self.scales[k / 16 * 2] * self.codes[k] as f32 + self.scales[k / 16 * 2 + 1])
    }
}

/// What a block of 32 weights adds, with activations as codes:
/// `scale * (input scale * sum(code * input code)) + minimum * (input scale * sum(input code))`,
/// the sums in whole numbers; for [`ScaleKind::FloatPer16`] each half by itself, then both.
pub fn code_term(scales: ScaleKind, weights: &WeightBlock, input: &CodeBlock) -> f32 {
    let dot = |from: usize| -> i32 {
        (from..from + 16).map(|k| weights.codes[k] * i32::from(input.codes[k])).sum()
    };
    let [scale, minimum, last_scale, last_minimum] = weights.scales;
    let [input_scale, first_sum, last_sum, sum] = input.scales;
    match scales {
        ScaleKind::Half | ScaleKind::Float => {
            scale * (input_scale * (dot(0) + dot(16)) as f32) + minimum * sum
        }
        ScaleKind::FloatPer16 => {
            let first = scale * (input_scale * dot(0) as f32) + minimum * first_sum;
            let last = last_scale * (input_scale * dot(16) as f32) + last_minimum * last_sum;
            first + last
        }
    }
}

/// The sum with f32 activations: `sum + weight * input`, weight by weight.
pub fn add_float_terms(sum: f32, weights: &[f32; BLOCK], input: &[f32; BLOCK]) -> f32 {
    weights.iter().zip(input).fold(sum, |sum, (weight, input)| sum + weight * input)
}

/// The `cpu` pack's order: `add(sum, block)` for each of `blocks` blocks, from 0.
pub fn in_order(blocks: usize, add: impl Fn(f32, usize) -> f32) -> f32 {
    (0..blocks).fold(0.0, add)
}

/// The order of the `subgroup` and `coopmat` packs: slice `s` adds the blocks `s`, `s + slices`, … from 0; then the
/// slices' sums are added in order.
pub fn by_slices(blocks: usize, slices: usize, add: impl Fn(f32, usize) -> f32) -> f32 {
    let sums = (0..slices).map(|slice| (slice..blocks).step_by(slices).fold(0.0, &add));
    sums.reduce(|sum, slice| sum + slice).unwrap_or(0.0)
}
