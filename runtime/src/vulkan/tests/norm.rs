//! The norm kernel.

use super::bench::{Bench, Codes, assert_near, bits, check_codes, storage, take_codes, take_values};
use super::sources::Random;
use crate::vulkan::forward::{ADD_DELTA, NORM_DELTA, STORE_FLOAT, USE_ROW_MAP};
use crate::vulkan::matrix::Activations;
use crate::vulkan::pipelines::Binding;
use lavalane_shaders::twins::norm::{Norm, norm};
use lavalane_shaders::{BLOCK, Kernel};
use vulkano::buffer::Subbuffer;

const EPSILON: f32 = 1e-5;

/// How far square roots and quotients may round, in proportion: 2.5 units in the last place for each of
/// four in a row.
const TOLERANCE: f32 = 10.0 * f32::EPSILON;

/// A norm's buffers: rows of a residual stream and of a delta, weights, and what is stored.
struct Case {
    residual: Vec<Vec<f32>>,
    delta: Vec<Vec<f32>>,
    weight: Vec<f32>,
    post_weight: Vec<f32>,
}

impl Case {
    fn new(rows: Vec<Vec<f32>>) -> Self {
        let width = rows[0].len();
        let mut random = Random::new(width as u64);
        let different = random.rows(super::same_bits::DIFFERENT_ROWS, width);
        Self {
            delta: different.into_iter().cycle().take(rows.len()).collect(),
            weight: random.values(width, 2.0),
            post_weight: random.values(width, 2.0),
            residual: rows,
        }
    }

    /// Runs the kernel for the rows of `map`; the residual stream after it, and what it stored.
    fn run(&self, bench: &mut Bench, flags: u32, map: &[u32]) -> (Subbuffer<[u8]>, Activations) {
        let width = self.weight.len();
        let residual = bench.filled(&self.residual.concat());
        let activations = bench.activations(map.len(), width);
        let row_map = bench.filled(&[&[u32::MAX], map].concat());
        let delta = bench.filled(&self.delta.concat());
        let (weight, post_weight) = (bench.filled(&self.weight), bench.filled(&self.post_weight));
        let Activations { codes, scales, values } = &activations;
        let mut bindings = vec![
            (0, Binding::Storage(residual.clone())),
            (1, bench.floats(&delta)),
            (2, bench.floats(&weight)),
            (3, bench.floats(&post_weight)),
            (7, Binding::Storage(row_map)),
            (8, bench.floats(&residual)),
        ];
        let stored = storage(&[codes.first(), scales.first(), values.first()]);
        bindings.extend(stored.into_iter().map(|(number, binding)| (number + 4, binding)));
        let push = [width as u32, EPSILON.to_bits(), 1];
        let constants = [(0, bench.member().lanes() as u32), (1, flags)];
        bench.dispatch(Kernel::Norm(bench.reads()), &constants, &bindings, push, [map.len(), 1, 1]);
        (residual, activations)
    }

    fn twin(&self, bench: &Bench, flags: u32, row: usize) -> (Vec<f32>, Vec<f32>) {
        let settings = Norm {
            lanes: bench.member().lanes(),
            epsilon: EPSILON,
            weight: &self.weight,
            delta: (flags & ADD_DELTA != 0).then_some(&self.delta[row]),
            post_weight: (flags & NORM_DELTA != 0).then_some(&self.post_weight),
        };
        let mut residual = self.residual[row].clone();
        let normalised = norm(&mut residual, &settings);
        (residual, normalised)
    }
}

/// Runs with `flags` over the rows of `map` out of 9, and compares every row with the twin and with f64.
fn check(width: usize, flags: u32, map: &[u32]) {
    Bench::for_each_pack(|bench| {
        let case = Case::new(Random::new(3).rows(9, width));
        let stored = flags | bench.codes().flag | STORE_FLOAT;
        let (residual, activations) = case.run(bench, stored, map);
        let residual = bits(&residual, 9 * width);
        for row in 0..9 {
            let found = &residual[row * width..(row + 1) * width];
            let Some(at) = map.iter().position(|&source| source as usize == row) else {
                let untouched: Vec<u32> = case.residual[row].iter().map(|value| value.to_bits()).collect();
                assert_eq!(found, untouched, "row {row} is not in the map");
                continue;
            };
            let what = format!("{:?}, width {width}, flags {flags}, row {row}", bench.member().pack);
            let (sum, normalised) = case.twin(bench, flags, row);
            let values = take_values(&activations, at, width);
            for place in 0..width {
                let added = (sum[place] - case.residual[row][place]).abs();
                let tolerance =
                    if flags & NORM_DELTA == 0 { 0.0 } else { TOLERANCE * added.max(sum[place].abs()) };
                assert_near(f32::from_bits(found[place]), sum[place], tolerance, &what);
                // Where a delta's own norm rounds otherwise, so does the sum, by as much of the delta.
                let weight = (case.weight[place] * added).abs();
                let tolerance = TOLERANCE * (normalised[place].abs() + weight);
                assert_near(values[place], normalised[place], tolerance, &what);
            }
            assert!(values[width..].iter().all(|&value| value.to_bits() == 0), "{what}: padding");
            let mean = sum.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>() / width as f64;
            for place in 0..width {
                let exact = f64::from(sum[place]) * f64::from(case.weight[place])
                    / (mean + f64::from(EPSILON)).sqrt();
                assert_near(normalised[place], exact as f32, 1e-5 * exact.abs() as f32, &what);
            }
            check_codes(&activations, bench.codes(), at, width, &what);
        }
    });
}

/// The bits of all that the kernel gives for each row of a residual stream.
pub(super) fn stored_bits(bench: &mut Bench, rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    let width = rows[0].len();
    let case = Case::new(rows.to_vec());
    let map: Vec<u32> = (0..rows.len() as u32).collect();
    let codes = bench.codes();
    let (residual, activations) = case.run(bench, ADD_DELTA | NORM_DELTA | codes.flag | STORE_FLOAT, &map);
    let residual = bits(&residual, rows.len() * width);
    let row_bits = |row| {
        [&residual[row * width..(row + 1) * width], &activation_bits(&activations, codes, row, width)]
            .concat()
    };
    (0..rows.len()).map(row_bits).collect()
}

/// The bits of a row's activations, codes and f32.
pub(super) fn activation_bits(activations: &Activations, codes: Codes, row: usize, width: usize) -> Vec<u32> {
    let mut bits: Vec<u32> =
        take_values(activations, row, width).iter().map(|value| value.to_bits()).collect();
    for block in take_codes(activations, codes, row, width) {
        bits.extend(block.codes.map(|code| code as u32));
        bits.extend(block.scales.map(f32::to_bits));
    }
    bits
}

const EVERY_ROW: [u32; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

#[test]
fn rows_are_normalised_as_by_the_twin() {
    for width in [576, 640, 100] {
        check(width, 0, &EVERY_ROW);
    }
}

#[test]
fn a_delta_is_added_before_the_norm_and_kept_in_the_residual_stream() {
    for width in [576, 640, 100] {
        check(width, ADD_DELTA, &EVERY_ROW);
    }
}

#[test]
fn a_delta_with_its_own_norm_is_normalised_before_it_is_added() {
    for width in [576, 640, 100] {
        check(width, ADD_DELTA | NORM_DELTA, &EVERY_ROW);
    }
}

#[test]
fn a_row_map_picks_rows_and_leaves_the_others_alone() {
    check(100, ADD_DELTA | USE_ROW_MAP, &[8, 2, 5]);
}

#[test]
fn without_a_store_flag_only_the_residual_stream_is_written() {
    Bench::for_each_pack(|bench| {
        let case = Case::new(Random::new(4).rows(2, 100));
        let (residual, activations) = case.run(bench, ADD_DELTA, &[0, 1]);
        let sums = [case.twin(bench, ADD_DELTA, 0).0, case.twin(bench, ADD_DELTA, 1).0].concat();
        let expected: Vec<u32> = sums.iter().map(|value| value.to_bits()).collect();
        assert_eq!(bits(&residual, 200), expected);
        let blocks = 100usize.div_ceil(BLOCK) * 8;
        assert!(bits(activations.values.first(), blocks * BLOCK).iter().all(|&word| word == u32::MAX));
        assert!(bits(activations.scales.first(), blocks * 4).iter().all(|&word| word == u32::MAX));
        assert!(bits(activations.codes.first(), blocks * 8).iter().all(|&word| word == u32::MAX));
    });
}
