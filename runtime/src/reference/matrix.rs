//! Products of activations with stored matrices, in plain f32.
//!
//! Rows of the matrix are decoded as they are needed, a block of them at a time, so a model costs no
//! memory beyond its file. Every product is summed in the same order (eight interleaved partial sums
//! along the row, then those eight as a tree), however many tokens there are, so a token's result never depends on its
//! neighbours.

use std::thread;

use crate::cores::cores;
use crate::gguf::TensorInfo;
use crate::model::Model;
use crate::quant::dequantize;

/// Partial sums of one product.
const LANES: usize = 8;
/// Rows of the matrix that are decoded together; they stay in the cache while all tokens pass.
const BLOCK_ROWS: usize = 16;
/// Tokens whose products with one row are computed together.
const TOKENS: usize = 4;
/// Below this many products a further thread costs more than it saves.
const PRODUCTS_PER_THREAD: usize = 1 << 20;

/// `output[token][row] = sum over k of input[token][k] * matrix[row][k]`, for `input` of
/// `tokens * row_elements` elements. Gives `tokens * rows` elements.
pub fn multiply(model: &Model, matrix: &TensorInfo, input: &[f32]) -> Vec<f32> {
    let (columns, rows) = (matrix.row_elements(), matrix.rows());
    assert!(input.len().is_multiple_of(columns), "whole rows of activations");
    let tokens = input.len() / columns;
    let row_bytes = matrix.bytes() / rows;
    let bytes = model.data(matrix);
    let mut by_row = vec![0.0; rows * tokens];
    let rows_per_thread = rows.div_ceil(threads(rows * columns * tokens)).next_multiple_of(BLOCK_ROWS);
    thread::scope(|scope| {
        let outputs = by_row.chunks_mut((rows_per_thread * tokens).max(1));
        for (output, bytes) in outputs.zip(bytes.chunks(rows_per_thread * row_bytes)) {
            scope.spawn(move || {
                let mut decoded = vec![0.0; BLOCK_ROWS * columns];
                let outputs = output.chunks_mut(BLOCK_ROWS * tokens);
                for (output, bytes) in outputs.zip(bytes.chunks(BLOCK_ROWS * row_bytes)) {
                    let decoded = &mut decoded[..bytes.len() / row_bytes * columns];
                    dequantize(matrix.tensor_type(), bytes, decoded);
                    multiply_block(decoded, input, columns, output);
                }
            });
        }
    });
    transpose(&by_row, rows, tokens)
}

/// How many threads so many products are worth.
pub(super) fn threads(products: usize) -> usize {
    (products / PRODUCTS_PER_THREAD).clamp(1, cores())
}

/// The products of some decoded rows with all tokens: `output[row][token]`.
fn multiply_block(rows: &[f32], input: &[f32], columns: usize, output: &mut [f32]) {
    let tokens = input.len() / columns;
    for (group, input) in input.chunks(TOKENS * columns).enumerate() {
        for (row, output) in rows.chunks_exact(columns).zip(output.chunks_exact_mut(tokens)) {
            let output = &mut output[group * TOKENS..];
            if input.len() == TOKENS * columns {
                let inputs: [&[f32]; TOKENS] =
                    std::array::from_fn(|token| &input[token * columns..][..columns]);
                output[..TOKENS].copy_from_slice(&dot_products(row, inputs));
            } else {
                for (input, output) in input.chunks_exact(columns).zip(output) {
                    [*output] = dot_products(row, [input]);
                }
            }
        }
    }
}

/// The dot product of two equally long vectors, summed in this module's order.
pub fn dot_product(left: &[f32], right: &[f32]) -> f32 {
    let [sum] = dot_products(left, [right]);
    sum
}

fn dot_products<const N: usize>(row: &[f32], inputs: [&[f32]; N]) -> [f32; N] {
    let (row_lanes, row_rest) = row.as_chunks::<LANES>();
    let inputs_lanes = inputs.map(|input| input.as_chunks::<LANES>().0);
    assert!(inputs_lanes.iter().all(|lanes| lanes.len() == row_lanes.len()), "equal lengths");
    let mut sums = [[0.0_f32; LANES]; N];
    for (chunk, row) in row_lanes.iter().enumerate() {
        for (sums, input) in sums.iter_mut().zip(&inputs_lanes) {
            for ((sum, left), right) in sums.iter_mut().zip(row).zip(&input[chunk]) {
                *sum += left * right;
            }
        }
    }
    std::array::from_fn(|index| {
        let rest = &inputs[index][row.len() - row_rest.len()..];
        let rest: f32 = row_rest.iter().zip(rest).map(|(left, right)| left * right).sum();
        let mut lanes = sums[index];
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                lanes[lane] += lanes[lane + width];
            }
            width /= 2;
        }
        lanes[0] + rest
    })
}

fn transpose(by_row: &[f32], rows: usize, tokens: usize) -> Vec<f32> {
    if tokens == 1 {
        return by_row.to_vec();
    }
    let mut by_token = vec![0.0; by_row.len()];
    for (token, output) in by_token.chunks_exact_mut(rows).enumerate() {
        for (row, output) in output.iter_mut().enumerate() {
            *output = by_row[row * tokens + token];
        }
    }
    by_token
}
