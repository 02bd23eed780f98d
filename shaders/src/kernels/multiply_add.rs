//! Twin of `multiply_add.comp`: chains of multiply-adds.
//!
//! With a factor that is a power of two, a product is exact, and fused or not, the bits are the same.

/// Chains of four values that a lane has; SUMS in the kernel.
pub const SUMS: usize = 8;

/// Multiply-adds of each chain in a turn; STEPS in the kernel.
pub const STEPS: usize = 8;

/// Multiplications and additions that one lane does in `turns` turns.
pub const fn operations(turns: usize) -> usize {
    2 * 4 * SUMS * STEPS * turns
}

/// What the lane at `at`, counted over all workgroups, stores after so many turns.
pub fn sums(at: usize, factor: f32, addend: f32, turns: usize) -> [f32; 4] {
    std::array::from_fn(|part| {
        let chain = |index: usize| {
            let start = (at % 256 + 4 * index + part) as f32;
            (0..turns * STEPS).fold(start, |sum, _| sum.mul_add(factor, addend))
        };
        (0..SUMS).fold(0.0, |sum, index| sum + chain(index))
    })
}
