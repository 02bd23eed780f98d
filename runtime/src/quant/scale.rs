//! What the block formats share: half-precision scales in the bytes, and the choice of scales when
//! weights are encoded.

use half::f16;

/// The half-precision number at this byte.
pub(super) fn read_half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Writes a half-precision number and gives back what a reader will see.
pub(super) fn write_half(block: &mut [u8], at: usize, value: f32) -> f32 {
    let stored = f16::from_f32(value);
    block[at..at + 2].copy_from_slice(&stored.to_le_bytes());
    stored.to_f32()
}

/// The weight of the largest magnitude, with its sign.
pub(super) fn largest_by_magnitude(weights: &[f32]) -> f32 {
    weights
        .iter()
        .fold(0.0, |largest: f32, &weight| if weight.abs() > largest.abs() { weight } else { largest })
}

/// The largest magnitude.
pub(super) fn magnitude(weights: &[f32]) -> f32 {
    largest_by_magnitude(weights).abs()
}

/// The smallest and the largest weight, with 0 among them.
pub(super) fn range_with_zero(weights: &[f32]) -> (f32, f32) {
    weights.iter().fold((0.0, 0.0), |(low, high), &weight| (weight.min(low), weight.max(high)))
}

/// `1 / value`, or 0 for 0.
pub(super) fn inverse(value: f32) -> f32 {
    if value == 0.0 { 0.0 } else { value.recip() }
}

/// The nearest whole number within the bounds.
pub(super) fn round_within(value: f32, low: i32, high: i32) -> i32 {
    (value.round() as i32).clamp(low, high)
}
