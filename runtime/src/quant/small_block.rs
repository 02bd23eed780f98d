//! The formats with blocks of 32 weights and one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
//!
//! A block starts with its scale (half precision), then the minimum where there is one, then the fifth
//! bits of all weights (one 32-bit word) where there are such, then 16 bytes whose low halves are
//! weights 0 to 15 and whose high halves are weights 16 to 31. Formats without a minimum centre their
//! codes on 0. Q8_0 has one signed byte a weight.

use super::Decomposed;
use super::scale::{inverse, largest_by_magnitude, magnitude, read_half, round_within, write_half};

/// The four-bit codes of 16 bytes: the low halves first, then the high halves.
pub(super) fn nibbles(bytes: &[u8]) -> [u8; 32] {
    std::array::from_fn(|weight| if weight < 16 { bytes[weight] & 15 } else { bytes[weight - 16] >> 4 })
}

/// Packs 32 four-bit codes the way [`nibbles`] reads them.
pub(super) fn pack_nibbles(codes: &[u8; 32], bytes: &mut [u8]) {
    for (byte, (low, high)) in bytes.iter_mut().zip(codes[..16].iter().zip(&codes[16..])) {
        *byte = (low & 15) | (high << 4);
    }
}

fn five_bit_codes(high_bits: &[u8], low_bits: &[u8]) -> [u8; 32] {
    let low = nibbles(low_bits);
    std::array::from_fn(|weight| low[weight] | (high_bits[weight / 8] >> (weight % 8) & 1) << 4)
}

fn pack_five_bit_codes(codes: &[u8; 32], bytes: &mut [u8]) {
    let (high_bits, low_bits) = bytes.split_at_mut(4);
    high_bits.fill(0);
    for (weight, code) in codes.iter().enumerate() {
        high_bits[weight / 8] |= (code >> 4) << (weight % 8);
    }
    pack_nibbles(codes, low_bits);
}

fn centred(codes: [u8; 32], centre: i8, scale: f32) -> Decomposed {
    let codes = codes.map(|code| code as i8 - centre);
    Decomposed { codes, scale: [scale; 2], minimum: [0.0; 2] }
}

fn with_minimum(codes: [u8; 32], scale: f32, minimum: f32) -> Decomposed {
    Decomposed { codes: codes.map(|code| code as i8), scale: [scale; 2], minimum: [minimum; 2] }
}

pub(super) fn decompose_q4_0(block: &[u8], parts: &mut [Decomposed]) {
    parts[0] = centred(nibbles(&block[2..]), 8, read_half(block, 0));
}

pub(super) fn decompose_q4_1(block: &[u8], parts: &mut [Decomposed]) {
    parts[0] = with_minimum(nibbles(&block[4..]), read_half(block, 0), read_half(block, 2));
}

pub(super) fn decompose_q5_0(block: &[u8], parts: &mut [Decomposed]) {
    parts[0] = centred(five_bit_codes(&block[2..6], &block[6..]), 16, read_half(block, 0));
}

pub(super) fn decompose_q5_1(block: &[u8], parts: &mut [Decomposed]) {
    let codes = five_bit_codes(&block[4..8], &block[8..]);
    parts[0] = with_minimum(codes, read_half(block, 0), read_half(block, 2));
}

pub(super) fn decompose_q8_0(block: &[u8], parts: &mut [Decomposed]) {
    let codes = std::array::from_fn(|weight| block[2 + weight] as i8);
    parts[0] = Decomposed { codes, scale: [read_half(block, 0); 2], minimum: [0.0; 2] };
}

/// Codes around `centre`, the weight of the largest magnitude at the end with one more code.
fn encode_centred(weights: &[f32], centre: i32, block: &mut [u8]) -> [u8; 32] {
    let scale = write_half(block, 0, largest_by_magnitude(weights) / -(centre as f32));
    let factor = inverse(scale);
    std::array::from_fn(|weight| {
        round_within(weights[weight] * factor + centre as f32, 0, 2 * centre - 1) as u8
    })
}

fn encode_with_minimum(weights: &[f32], largest_code: i32, block: &mut [u8]) -> [u8; 32] {
    let low = weights.iter().copied().fold(f32::INFINITY, f32::min);
    let high = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = write_half(block, 0, (high - low) / largest_code as f32);
    let minimum = write_half(block, 2, low);
    let factor = inverse(scale);
    std::array::from_fn(|weight| round_within((weights[weight] - minimum) * factor, 0, largest_code) as u8)
}

pub(super) fn encode_q4_0(weights: &[f32], block: &mut [u8]) {
    let codes = encode_centred(weights, 8, block);
    pack_nibbles(&codes, &mut block[2..]);
}

pub(super) fn encode_q4_1(weights: &[f32], block: &mut [u8]) {
    let codes = encode_with_minimum(weights, 15, block);
    pack_nibbles(&codes, &mut block[4..]);
}

pub(super) fn encode_q5_0(weights: &[f32], block: &mut [u8]) {
    let codes = encode_centred(weights, 16, block);
    pack_five_bit_codes(&codes, &mut block[2..]);
}

pub(super) fn encode_q5_1(weights: &[f32], block: &mut [u8]) {
    let codes = encode_with_minimum(weights, 31, block);
    pack_five_bit_codes(&codes, &mut block[4..]);
}

pub(super) fn encode_q8_0(weights: &[f32], block: &mut [u8]) {
    let scale = write_half(block, 0, magnitude(weights) / 127.0);
    let factor = inverse(scale);
    for (byte, weight) in block[2..].iter_mut().zip(weights) {
        *byte = round_within(weight * factor, -127, 127) as i8 as u8;
    }
}
