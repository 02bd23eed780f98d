//! The formats with super-blocks of 256 weights in 16 parts that have signed sub-scales and no minimum:
//! Q3_K and Q6_K. Their codes are split over two arrays, low bits and high bits.

use super::Decomposed;
use super::scale::{inverse, largest_by_magnitude, read_half, round_within, write_half};

/// Q3_K: 32 bytes of third bits (bit p of byte w is weight w of block p; where it is clear, 4 is
/// subtracted), 64 bytes of two-bit codes, 12 bytes of six-bit sub-scales (centred on 32), the scale.
pub(super) fn decompose_q3_k(block: &[u8], parts: &mut [Decomposed]) {
    let scale = read_half(block, 108);
    for (index, part) in parts.iter_mut().enumerate() {
        let bytes = &block[32 + 32 * (index / 4)..];
        part.codes = std::array::from_fn(|weight| {
            let low = (bytes[weight] >> (2 * (index % 4)) & 3) as i8;
            let high = (block[weight] >> index & 1) as i8;
            low + 4 * high - 4
        });
        part.scale = [0, 1].map(|half| scale * f32::from(q3_k_sub_scale(&block[96..108], 2 * index + half)));
        part.minimum = [0.0; 2];
    }
}

/// The sub-scale of one of 16 parts: its low half lies in bytes 0 to 7 (low halves first), its upper two
/// bits in bytes 8 to 11.
fn q3_k_sub_scale(bytes: &[u8], part: usize) -> i8 {
    let low = if part < 8 { bytes[part] & 15 } else { bytes[part - 8] >> 4 };
    let high = bytes[8 + part % 4] >> (2 * (part / 4)) & 3;
    (low | high << 4) as i8 - 32
}

/// Q6_K: 128 bytes of low halves, 64 bytes of upper two bits, 16 signed sub-scales, the scale. Codes are
/// centred on 32.
pub(super) fn decompose_q6_k(block: &[u8], parts: &mut [Decomposed]) {
    let scale = read_half(block, 208);
    for (index, part) in parts.iter_mut().enumerate() {
        let place = q6_k_place(index);
        part.codes = std::array::from_fn(|weight| {
            let low = block[place.low + weight] >> place.low_shift & 15;
            let high = block[place.high + weight] >> place.high_shift & 3;
            (low | high << 4) as i8 - 32
        });
        part.scale = [0, 1].map(|half| scale * f32::from(block[192 + 2 * index + half] as i8));
        part.minimum = [0.0; 2];
    }
}

struct Q6Place {
    low: usize,
    low_shift: usize,
    high: usize,
    high_shift: usize,
}

/// Where the bits of 32 weights lie: 128 weights share 64 bytes of low halves and 32 of upper bits.
fn q6_k_place(index: usize) -> Q6Place {
    let (group, within) = (index / 4, index % 4);
    Q6Place {
        low: 64 * group + 32 * (within % 2),
        low_shift: 4 * (within / 2),
        high: 128 + 32 * group,
        high_shift: 2 * within,
    }
}

/// Chooses 16 signed sub-scales of at most `largest_sub` and codes around `centre` (given back with the
/// centre added), and writes the scale at byte `at`.
fn encode_parts(
    weights: &[f32],
    centre: i32,
    largest_sub: i32,
    block: &mut [u8],
    at: usize,
) -> (Vec<i8>, Vec<u8>) {
    let wanted: Vec<f32> =
        weights.chunks_exact(16).map(|part| largest_by_magnitude(part) / -(centre as f32)).collect();
    let widest = largest_by_magnitude(&wanted).abs();
    let scale = write_half(block, at, widest / largest_sub as f32);
    let sub_scales: Vec<i8> = wanted
        .iter()
        .map(|wanted| round_within(wanted * inverse(scale), -largest_sub, largest_sub) as i8)
        .collect();
    let mut codes = Vec::with_capacity(weights.len());
    for (part, sub_scale) in weights.chunks_exact(16).zip(&sub_scales) {
        let factor = inverse(scale * f32::from(*sub_scale));
        codes.extend(
            part.iter().map(|weight| (round_within(weight * factor, -centre, centre - 1) + centre) as u8),
        );
    }
    (sub_scales, codes)
}

pub(super) fn encode_q3_k(weights: &[f32], block: &mut [u8]) {
    let (sub_scales, codes) = encode_parts(weights, 4, 31, block, 108);
    block[..108].fill(0);
    for (part, sub_scale) in sub_scales.iter().enumerate() {
        let stored = (sub_scale + 32) as u8;
        block[96 + part % 8] |= (stored & 15) << (4 * (part / 8));
        block[104 + part % 4] |= (stored >> 4) << (2 * (part / 4));
    }
    for (weight, code) in codes.iter().enumerate() {
        block[weight % 32] |= (code >> 2) << (weight / 32);
        block[32 + 32 * (weight / 128) + weight % 32] |= (code & 3) << (2 * (weight / 32 % 4));
    }
}

pub(super) fn encode_q6_k(weights: &[f32], block: &mut [u8]) {
    let (sub_scales, codes) = encode_parts(weights, 32, 127, block, 208);
    block[..192].fill(0);
    for (byte, sub_scale) in block[192..208].iter_mut().zip(sub_scales) {
        *byte = sub_scale as u8;
    }
    for (weight, code) in codes.iter().enumerate() {
        let place = q6_k_place(weight / 32);
        block[place.low + weight % 32] |= (code & 15) << place.low_shift;
        block[place.high + weight % 32] |= (code >> 4) << place.high_shift;
    }
}
