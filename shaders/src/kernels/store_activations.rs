//! Twin of `store_activations.glsl`: 32 activations as int8 or int16 codes with a scale.

use crate::BLOCK;

/// 32 activations as codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodeBlock {
    /// Activation `i` is about `scales[0] * codes[i]`.
    pub codes: [i16; BLOCK],
    /// The scale; the scale times the sum of the first 16 codes, of the last 16, and of all.
    pub scales: [f32; 4],
}

/// Blocks below this largest magnitude are stored as zeros, so that no scale is denormal.
pub const SMALLEST_MAGNITUDE: f32 = 1.0e-30;

/// `codes[i] = round(values[i] * most / largest)`, halves to even, `scale = largest / most`, where `largest`
/// is the largest magnitude of the 32 values and `most` the largest code: 127 for int8, 32,767 for int16.
pub fn store_codes(values: &[f32; BLOCK], most: i16) -> CodeBlock {
    let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let most = f32::from(most);
    let (scale, inverse) = match largest < SMALLEST_MAGNITUDE {
        true => (0.0, 0.0),
        false => (largest / most, most / largest),
    };
    let codes = values.map(|value| (value * inverse).round_ties_even() as i16);
    let sum = |codes: &[i16]| codes.iter().map(|&code| i32::from(code)).sum::<i32>();
    let (first, last) = (sum(&codes[..16]), sum(&codes[16..]));
    let scales = [scale, scale * first as f32, scale * last as f32, scale * (first + last) as f32];
    CodeBlock { codes, scales }
}

/// A row of `width` values in blocks of 32, the last padded with zeros.
pub fn blocks_of(row: &[f32]) -> impl Iterator<Item = [f32; BLOCK]> + '_ {
    row.chunks(BLOCK).map(|chunk| {
        let mut block = [0.0; BLOCK];
        block[..chunk.len()].copy_from_slice(chunk);
        block
    })
}
