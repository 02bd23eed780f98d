//! Reproducible random numbers: each row of each tensor has a stream of its own.

/// A SplitMix64 generator (Steele, Lea and Flood 2014).
pub(super) struct Random(u64);

impl Random {
    /// The stream of one row of one tensor.
    pub(super) fn new(seed: u64, tensor: u64, row: u64) -> Self {
        let mut random = Self(seed);
        let tensor = random.next().wrapping_add(tensor);
        let mut random = Self(tensor);
        Self(random.next().wrapping_add(row))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number evenly drawn from [-1, 1).
    pub(super) fn centred(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
    }
}
