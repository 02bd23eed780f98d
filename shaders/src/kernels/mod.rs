//! Scalar twins of the compute kernels: the same arithmetic in the same order, on the CPU, one value at a
//! time. Their tests compare each kernel with its twin, in whole numbers bit for bit.
//!
//! Twins know values, not memory: how rows, blocks and pages lie in buffers is the kernels' business, and
//! the tests' to take apart. Rust never fuses a product with a sum, as `precise` forbids it in GLSL.

pub mod activate;
pub mod attention_cpu;
pub mod attention_subgroup;
pub mod matmul;
pub mod multiply_add;
pub mod norm;
pub mod read_all;
pub mod rope_append;
pub mod store_activations;

/// The sum of `lanes` partial sums by halving: lane `i` adds lane `i + step`, for steps from half the
/// lanes down to 1.
///
/// # Panics
/// When the number of lanes is no power of two.
fn sum_by_halving(mut partials: Vec<f32>) -> f32 {
    assert!(partials.len().is_power_of_two(), "{} lanes", partials.len());
    let mut step = partials.len() / 2;
    while step > 0 {
        for lane in 0..step {
            partials[lane] += partials[lane + step];
        }
        step /= 2;
    }
    partials[0]
}
