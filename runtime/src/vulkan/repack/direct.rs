//! Blocks of the plainest formats, laid as they come: their codes are words of the file with their bits in
//! another order, so that no code need be looked at alone. What comes out is what the way over
//! [`crate::quant::decompose`] gives for finite scales, as a test asserts.

use half::f16;

/// A block of 32 weights as it is laid: its texels of codes, scale and minimum.
pub(super) struct Laid<const TEXELS: usize> {
    pub(super) texels: [[u32; 4]; TEXELS],
    pub(super) scale: f32,
    pub(super) minimum: f32,
}

/// A block of Q4_0: the scale, and 16 bytes of two codes each, which stand for 8 less.
pub(super) fn q4_0(block: &[u8; 18]) -> Laid<1> {
    let scale = half(block, 0);
    Laid { texels: [nibbles(&block[2..])], scale, minimum: -8.0 * scale }
}

/// A block of Q4_1: the scale, the minimum, and 16 bytes of two codes each.
pub(super) fn q4_1(block: &[u8; 20]) -> Laid<1> {
    Laid { texels: [nibbles(&block[4..])], scale: half(block, 0), minimum: half(block, 2) }
}

/// A block of Q8_0: the scale, and 32 signed codes, which are stored 128 too large.
pub(super) fn q8_0(block: &[u8; 34]) -> Laid<2> {
    let texel = |from: usize| std::array::from_fn(|word| word_at(block, from + 4 * word) ^ 0x8080_8080);
    Laid { texels: [texel(2), texel(18)], scale: half(block, 0), minimum: 0.0 }
}

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn word_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// 16 bytes whose low halves are codes 0 to 15, and whose high halves are codes 16 to 31, in the order of codes.
fn nibbles(bytes: &[u8]) -> [u32; 4] {
    let eight = |at: usize| u64::from(word_at(bytes, at)) | u64::from(word_at(bytes, at + 4)) << 32;
    let (first, last) = (eight(0), eight(8));
    [low_halves(first), low_halves(last), low_halves(first >> 4), low_halves(last >> 4)]
}

/// The low halves of 8 bytes, one after another.
fn low_halves(bytes: u64) -> u32 {
    let bytes = bytes & 0x0f0f_0f0f_0f0f_0f0f;
    let pairs = (bytes | bytes >> 4) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    (fours | fours >> 16) as u32
}
