//! The kernel that stores activations, gated or as they are.

use super::bench::{Bench, assert_near, check_codes, storage, take_values};
use super::norm::activation_bits;
use super::sources::Random;
use crate::vulkan::forward::{GATE_GELU, GATE_SILU, STORE_FLOAT};
use crate::vulkan::matrix::Activations;
use lavalane_shaders::twins::activate::{gelu, silu};
use lavalane_shaders::{BLOCK, Kernel};

/// How far `exp` may be off, in proportion to the result: Vulkan allows 3 + 2 |x| units in the last place
/// for `exp(x)`, and x is at most 30 where the result is not yet flat.
const TOLERANCE: f32 = 64.0 * f32::EPSILON;

/// Runs the kernel over rows of `width` gates and as many ups.
fn run(bench: &mut Bench, rows: &[Vec<f32>], width: usize, flags: u32) -> Activations {
    let stride = rows[0].len();
    let source = bench.filled(&rows.concat());
    let activations = bench.activations(rows.len(), width);
    let Activations { codes, scales, values } = &activations;
    let mut bindings = vec![(0, bench.floats(&source))];
    let stored = storage(&[codes.first(), scales.first(), values.first()]);
    bindings.extend(stored.into_iter().map(|(number, binding)| (number + 1, binding)));
    let flags = flags | bench.codes().flag | STORE_FLOAT;
    let push = [width as u32, stride as u32, (stride - width) as u32];
    let lanes = bench.member().lanes();
    let groups = [width.div_ceil(BLOCK).div_ceil(lanes), rows.len(), 1];
    bench.dispatch(
        Kernel::Activate(bench.reads()),
        &[(0, lanes as u32), (1, flags)],
        &bindings,
        push,
        groups,
    );
    activations
}

/// Compares the kernel with `expected(gate, up)`, and that with `exact(gate, up)` in f64.
fn check(flags: u32, expected: fn(f32, f32) -> f32, exact: fn(f64, f64) -> f64) {
    let tolerance = if flags == 0 { 0.0 } else { TOLERANCE };
    Bench::for_each_pack(|bench| {
        for width in [576, 1536, 100] {
            let mut rows = Random::new(width as u64).rows(5, 2 * width);
            // Gates far from 0, where exp overflows or vanishes.
            for (at, gate) in
                [0.0, -0.0, 1e-20, 5.0, -5.0, 20.0, -20.0, 87.0, -87.0, 100.0, -100.0, 1e4, -1e4]
                    .into_iter()
                    .enumerate()
            {
                rows[1][at] = gate;
                rows[1][width + at] = 0.75;
            }
            let activations = run(bench, &rows, width, flags);
            for (row, source) in rows.iter().enumerate() {
                let what = format!("{:?}, width {width}, flags {flags}, row {row}", bench.member().pack);
                let values = take_values(&activations, row, width);
                for place in 0..width {
                    let (gate, up) = (source[place], source[width + place]);
                    let what = format!("{what}, gate {gate:e}");
                    let twin = expected(gate, up);
                    // Where GELU's 1 + tanh cancels, it is off by a part of the gate.
                    let cancelled = 4.0 * f32::EPSILON * (up * gate.clamp(-20.0, 1.0)).abs();
                    let allowed = |off: f32| if off == 0.0 { 0.0 } else { off * twin.abs() + cancelled };
                    assert_near(values[place], twin, allowed(tolerance), &what);
                    let exact = exact(f64::from(gate), f64::from(up));
                    assert_near(twin, exact as f32, allowed(TOLERANCE), &what);
                }
                assert!(values[width..].iter().all(|&value| value.to_bits() == 0), "{what}: padding");
                check_codes(&activations, bench.codes(), row, width, &what);
            }
        }
    });
}

/// The bits of what the kernel stores for each row of gates and ups.
pub(super) fn stored_bits(bench: &mut Bench, rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    let width = rows[0].len() / 2;
    let activations = run(bench, rows, width, GATE_SILU);
    (0..rows.len()).map(|row| activation_bits(&activations, bench.codes(), row, width)).collect()
}

#[test]
fn without_a_gate_values_are_stored_as_they_are() {
    check(0, |value, _| value, |value, _| value);
}

#[test]
fn silu_gates_as_the_twin_and_the_formula_do() {
    check(GATE_SILU, |gate, up| silu(gate) * up, |gate, up| gate / (1.0 + (-gate).exp()) * up);
}

#[test]
fn gelu_gates_as_the_twin_and_the_formula_do() {
    let exact = |gate: f64, up: f64| {
        let u = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3));
        0.5 * gate * (1.0 + u.tanh()) * up
    };
    check(GATE_GELU, |gate, up| gelu(gate) * up, exact);
}
