//! The rule that a row's bits depend on nothing but the row: not on how many rows a call has, and not on
//! where among them it stands.

use super::bench::Bench;
use super::matmul::Ready;
use super::sources::{ROW_COUNTS, Random, Rows};
use super::{activate, attention, norm, rope_append};
use crate::quant::TensorType;
use crate::vulkan::forward::Precision;

/// Different rows among those of a call; coprime with the tiles' size, so that each stands everywhere.
pub(super) const DIFFERENT_ROWS: usize = 7;

/// Runs `run` with every number of rows, and holds row `r` of each to the bits of row `r % 7` of the
/// largest call. `run` gives each row's bits; its rows repeat after 7.
fn check(what: &str, mut run: impl FnMut(usize) -> Vec<Vec<u32>>) {
    let all = run(*ROW_COUNTS.last().unwrap());
    for rows in ROW_COUNTS {
        let found = run(rows);
        assert_eq!(found.len(), rows, "{what}");
        for (row, bits) in found.iter().enumerate() {
            assert!(*bits == all[row % DIFFERENT_ROWS], "{what}: row {row} of {rows} has other bits");
        }
    }
}

fn repeated(width: usize, rows: usize) -> Vec<Vec<f32>> {
    let different = Random::new(7).rows(DIFFERENT_ROWS, width);
    different.into_iter().cycle().take(rows).collect()
}

#[test]
fn a_token_times_a_matrix_has_the_same_bits_among_any_number_of_tokens() {
    Bench::for_each_pack(|bench| {
        let pack = bench.member().pack;
        for tensor_type in TensorType::all() {
            for precision in [Precision::Default, Precision::Precise] {
                let inputs = repeated(512, 512);
                let tensors = [Rows::new(tensor_type, 37, 512)];
                let ready = Ready::new(bench, &tensors, 512, precision, &inputs);
                check(&format!("{pack:?} {tensor_type}, {precision:?}"), |tokens| ready.multiply(tokens));
            }
        }
    });
}

#[test]
fn a_normalised_row_has_the_same_bits_among_any_number_of_rows() {
    Bench::for_each_pack(|bench| {
        let residual = repeated(100, 512);
        check("norm", |rows| norm::stored_bits(bench, &residual[..rows]));
    });
}

#[test]
fn an_activated_row_has_the_same_bits_among_any_number_of_rows() {
    Bench::for_each_pack(|bench| {
        let source = repeated(2 * 100, 512);
        check("activate", |rows| activate::stored_bits(bench, &source[..rows]));
    });
}

#[test]
fn rotated_and_appended_heads_have_the_same_bits_among_any_number_of_rows() {
    Bench::for_each_pack(|bench| {
        check("rope_append", |rows| rope_append::appended_bits(bench, rows));
    });
}

#[test]
fn an_attending_row_has_the_same_bits_among_any_number_of_rows() {
    Bench::for_each_pack(|bench| {
        check("attention", |rows| attention::attended_bits(bench, rows));
    });
}
