//! The four-bit formats whose codes name entries of a table: IQ4_NL, IQ4_XS and MXFP4.

use super::Decomposed;
use super::scale::{inverse, largest_by_magnitude, magnitude, read_half, round_within, write_half};
use super::small_block::{nibbles, pack_nibbles};

/// The values of IQ4_NL and IQ4_XS codes.
const NON_LINEAR: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of MXFP4 codes (sign, two exponent bits, one fraction bit), so that all are whole.
const DOUBLED_E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn from_table(table: &[i8; 16], bytes: &[u8], scale: f32) -> Decomposed {
    let codes = nibbles(bytes).map(|code| table[usize::from(code)]);
    Decomposed { codes, scale: [scale; 2], minimum: [0.0; 2] }
}

/// IQ4_NL: the scale, 16 bytes of codes.
pub(super) fn decompose_iq4_nl(block: &[u8], parts: &mut [Decomposed]) {
    parts[0] = from_table(&NON_LINEAR, &block[2..], read_half(block, 0));
}

/// IQ4_XS: the scale, a word with the upper two bits of 8 sub-scales (centred on 32), 4 bytes with their
/// low halves, 8 times 16 bytes of codes.
pub(super) fn decompose_iq4_xs(block: &[u8], parts: &mut [Decomposed]) {
    let scale = read_half(block, 0);
    let high_bits = u16::from_le_bytes([block[2], block[3]]);
    for (index, part) in parts.iter_mut().enumerate() {
        let low = block[4 + index / 2] >> (4 * (index % 2)) & 15;
        let high = (high_bits >> (2 * index) & 3) as u8;
        let sub_scale = f32::from((low | high << 4) as i8 - 32);
        *part = from_table(&NON_LINEAR, &block[8 + 16 * index..], scale * sub_scale);
    }
}

/// MXFP4 (Open Compute Project, microscaling formats 1.0): an exponent byte, 16 bytes of codes. The
/// scale is halved because the table is doubled.
pub(super) fn decompose_mxfp4(block: &[u8], parts: &mut [Decomposed]) {
    parts[0] = from_table(&DOUBLED_E2M1, &block[1..], half_power_of_two(block[0]));
}

/// `2^(exponent - 128)`, exactly; the two smallest are subnormal.
fn half_power_of_two(exponent: u8) -> f32 {
    match exponent {
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    }
}

fn nearest(table: &[i8; 16], value: f32) -> u8 {
    let distance = |code: &u8| (value - f32::from(table[usize::from(*code)])).abs();
    (0..16).min_by(|left, right| distance(left).total_cmp(&distance(right))).expect("a table has 16 entries")
}

fn encode_codes(table: &[i8; 16], weights: &[f32], scale: f32, bytes: &mut [u8]) {
    let factor = inverse(scale);
    let codes = std::array::from_fn(|weight| nearest(table, weights[weight] * factor));
    pack_nibbles(&codes, bytes);
}

pub(super) fn encode_iq4_nl(weights: &[f32], block: &mut [u8]) {
    let scale = write_half(block, 0, largest_by_magnitude(weights) / -127.0);
    encode_codes(&NON_LINEAR, weights, scale, &mut block[2..]);
}

pub(super) fn encode_iq4_xs(weights: &[f32], block: &mut [u8]) {
    let wanted: Vec<f32> = weights.chunks_exact(32).map(|part| largest_by_magnitude(part) / -127.0).collect();
    let scale = write_half(block, 0, magnitude(&wanted) / 31.0);
    let mut high_bits = 0_u16;
    block[4..8].fill(0);
    for (index, (part, wanted)) in weights.chunks_exact(32).zip(&wanted).enumerate() {
        let sub_scale = round_within(wanted * inverse(scale), -32, 31);
        let stored = (sub_scale + 32) as u8;
        block[4 + index / 2] |= (stored & 15) << (4 * (index % 2));
        high_bits |= u16::from(stored >> 4) << (2 * index);
        encode_codes(&NON_LINEAR, part, scale * sub_scale as f32, &mut block[8 + 16 * index..][..16]);
    }
    block[2..4].copy_from_slice(&high_bits.to_le_bytes());
}

pub(super) fn encode_mxfp4(weights: &[f32], block: &mut [u8]) {
    let largest = magnitude(weights);
    // The table's largest value is 6, an exponent of 2 above the block's own.
    let exponent = if largest == 0.0 { 0 } else { (largest.log2().floor() as i32 - 2 + 127).clamp(0, 254) };
    block[0] = exponent as u8;
    encode_codes(&DOUBLED_E2M1, weights, half_power_of_two(exponent as u8), &mut block[1..]);
}
