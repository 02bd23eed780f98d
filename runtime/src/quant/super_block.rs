//! The formats with super-blocks of 256 weights whose parts have a scale and a minimum of their own:
//! Q2_K (16 parts of 16 weights), Q4_K and Q5_K (8 parts of 32 weights).
//!
//! A part's scale is `scale * sub_scale` and its minimum `-(least * sub_minimum)`, with small integers
//! `sub_scale` and `sub_minimum` in the block and `scale` and `least` in half precision.

use super::Decomposed;
use super::scale::{inverse, range_with_zero, read_half, round_within, write_half};

/// Q2_K: 16 bytes (low half the sub-scale, high half the sub-minimum), 64 bytes of two-bit codes, the
/// scale, the least.
pub(super) fn decompose_q2_k(block: &[u8], parts: &mut [Decomposed]) {
    let (scale, least) = (read_half(block, 80), read_half(block, 82));
    for (index, part) in parts.iter_mut().enumerate() {
        let bytes = &block[16 + 32 * (index / 4)..];
        part.codes = std::array::from_fn(|weight| (bytes[weight] >> (2 * (index % 4)) & 3) as i8);
        for half in 0..2 {
            let sub = block[2 * index + half];
            part.scale[half] = scale * f32::from(sub & 15);
            part.minimum[half] = -(least * f32::from(sub >> 4));
        }
    }
}

/// Q4_K: the scale, the least, 12 bytes of six-bit sub-scales and sub-minimums, 128 bytes of four-bit
/// codes (32 bytes serve two parts: low halves, then high halves).
pub(super) fn decompose_q4_k(block: &[u8], parts: &mut [Decomposed]) {
    for (index, part) in parts.iter_mut().enumerate() {
        let bytes = &block[16 + 32 * (index / 2)..];
        let codes = std::array::from_fn(|weight| (bytes[weight] >> (4 * (index % 2)) & 15) as i8);
        *part = with_six_bit_scales(block, index, codes);
    }
}

/// Q5_K: as Q4_K, with 32 bytes of fifth bits before the codes: bit p of byte w is weight w of part p.
pub(super) fn decompose_q5_k(block: &[u8], parts: &mut [Decomposed]) {
    for (index, part) in parts.iter_mut().enumerate() {
        let bytes = &block[48 + 32 * (index / 2)..];
        let codes = std::array::from_fn(|weight| {
            let high_bit = block[16 + weight] >> index & 1;
            (bytes[weight] >> (4 * (index % 2)) & 15 | high_bit << 4) as i8
        });
        *part = with_six_bit_scales(block, index, codes);
    }
}

fn with_six_bit_scales(block: &[u8], part: usize, codes: [i8; 32]) -> Decomposed {
    let (sub_scale, sub_minimum) = six_bit_pair(&block[4..16], part);
    let scale = read_half(block, 0) * f32::from(sub_scale);
    let minimum = -(read_half(block, 2) * f32::from(sub_minimum));
    Decomposed { codes, scale: [scale; 2], minimum: [minimum; 2] }
}

/// The sub-scale and sub-minimum of one part. The first four pairs lie in the low six bits of bytes 0 to
/// 3 and 4 to 7; the other four have their low halves in bytes 8 to 11 and their upper two bits above
/// the first four.
fn six_bit_pair(bytes: &[u8], part: usize) -> (u8, u8) {
    if part < 4 {
        (bytes[part] & 63, bytes[part + 4] & 63)
    } else {
        let low = bytes[part + 4];
        ((low & 15) | (bytes[part - 4] >> 6) << 4, (low >> 4) | (bytes[part] >> 6) << 4)
    }
}

fn pack_six_bit_pairs(pairs: &[(u8, u8)], bytes: &mut [u8]) {
    bytes.fill(0);
    for (part, &(sub_scale, sub_minimum)) in pairs.iter().enumerate() {
        if part < 4 {
            bytes[part] |= sub_scale;
            bytes[part + 4] |= sub_minimum;
        } else {
            bytes[part + 4] = (sub_scale & 15) | (sub_minimum & 15) << 4;
            bytes[part - 4] |= (sub_scale >> 4) << 6;
            bytes[part] |= (sub_minimum >> 4) << 6;
        }
    }
}

/// Splits the weights into parts, chooses their sub-scales and sub-minimums (at most `largest_sub`) and
/// the codes (at most `largest_code`), and writes scale and least at bytes `at` and `at + 2`.
fn encode_parts(
    weights: &[f32],
    part_weights: usize,
    largest_code: i32,
    largest_sub: i32,
    block: &mut [u8],
    at: usize,
) -> (Vec<(u8, u8)>, Vec<u8>) {
    let ranges: Vec<(f32, f32)> = weights.chunks_exact(part_weights).map(range_with_zero).collect();
    let widest = ranges.iter().map(|(low, high)| (high - low) / largest_code as f32).fold(0.0, f32::max);
    let lowest = ranges.iter().map(|(low, _)| -low).fold(0.0, f32::max);
    let scale = write_half(block, at, widest / largest_sub as f32);
    let least = write_half(block, at + 2, lowest / largest_sub as f32);
    let mut codes = Vec::with_capacity(weights.len());
    let mut pairs = Vec::with_capacity(ranges.len());
    for (weights, (low, high)) in weights.chunks_exact(part_weights).zip(ranges) {
        let sub_minimum = round_within(-low * inverse(least), 0, largest_sub);
        let minimum = least * sub_minimum as f32;
        let width = (high + minimum) / largest_code as f32;
        // Rounding the sub-scale up keeps the highest weight within reach of the largest code.
        let sub_scale = ((width * inverse(scale)).ceil() as i32).clamp(0, largest_sub);
        let factor = inverse(scale * sub_scale as f32);
        codes.extend(
            weights.iter().map(|weight| round_within((weight + minimum) * factor, 0, largest_code) as u8),
        );
        pairs.push((sub_scale as u8, sub_minimum as u8));
    }
    (pairs, codes)
}

pub(super) fn encode_q2_k(weights: &[f32], block: &mut [u8]) {
    let (pairs, codes) = encode_parts(weights, 16, 3, 15, block, 80);
    block[..80].fill(0);
    for (byte, (sub_scale, sub_minimum)) in block.iter_mut().zip(pairs) {
        *byte = sub_scale | sub_minimum << 4;
    }
    for (weight, code) in codes.iter().enumerate() {
        block[16 + 32 * (weight / 128) + weight % 32] |= code << (2 * (weight / 32 % 4));
    }
}

pub(super) fn encode_q4_k(weights: &[f32], block: &mut [u8]) {
    let (pairs, codes) = encode_parts(weights, 32, 15, 63, block, 0);
    pack_six_bit_pairs(&pairs, &mut block[4..16]);
    block[16..].fill(0);
    for (weight, code) in codes.iter().enumerate() {
        block[16 + 32 * (weight / 64) + weight % 32] |= code << (4 * (weight / 32 % 2));
    }
}

pub(super) fn encode_q5_k(weights: &[f32], block: &mut [u8]) {
    let (pairs, codes) = encode_parts(weights, 32, 31, 63, block, 0);
    pack_six_bit_pairs(&pairs, &mut block[4..16]);
    block[16..].fill(0);
    for (weight, code) in codes.iter().enumerate() {
        block[16 + weight % 32] |= (code >> 4) << (weight / 32);
        block[48 + 32 * (weight / 64) + weight % 32] |= (code & 15) << (4 * (weight / 32 % 2));
    }
}
