//! Seeded random numbers for the kernel tests, and weights in every tensor type.

use crate::quant::{TensorType, dequantize, quantize};
use crate::vulkan::repack::SourceRows;

/// Row counts of which each must give every row the same bits: below, at and above the tiles' sizes.
pub(super) const ROW_COUNTS: [usize; 7] = [1, 2, 3, 8, 33, 128, 512];

/// Pseudo-random numbers, the same for the same seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// Within [-1, 1].
    pub(super) fn value(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 31) as f32 - 1.0
    }

    /// `count` numbers of different magnitudes, at most `largest`.
    pub(super) fn values(&mut self, count: usize, largest: f32) -> Vec<f32> {
        (0..count).map(|_| self.value() * self.value().abs() * largest).collect()
    }

    /// `rows` rows of `width` numbers.
    pub(super) fn rows(&mut self, rows: usize, width: usize) -> Vec<Vec<f32>> {
        (0..rows).map(|_| self.values(width, 2.0)).collect()
    }
}

/// Rows of a matrix in a tensor type.
pub(super) struct Rows {
    pub(super) tensor_type: TensorType,
    pub(super) rows: usize,
    pub(super) bytes: Vec<u8>,
    /// Row by row, as the type decodes.
    pub(super) weights: Vec<f32>,
}

impl Rows {
    pub(super) fn new(tensor_type: TensorType, rows: usize, columns: usize) -> Self {
        let original = Random::new((rows * 31 + columns) as u64).values(rows * columns, 0.3);
        let mut bytes = vec![0; tensor_type.bytes(original.len()).unwrap()];
        quantize(tensor_type, &original, &mut bytes);
        let mut weights = vec![0.0; original.len()];
        dequantize(tensor_type, &bytes, &mut weights);
        Self { tensor_type, rows, bytes, weights }
    }

    pub(super) fn source(&self) -> SourceRows<'_> {
        SourceRows { tensor_type: self.tensor_type, bytes: &self.bytes, rows: self.rows }
    }
}
