//! The random number of a draw, as a function of what the draw is and of nothing else.
//!
//! Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011) is
//! a keyed bijection of 128-bit counters whose outputs pass the usual batteries of tests. The key is the
//! seed and the counter is position and choice index, so that no two draws of a seed share a counter.

use crate::ids::Position;

const ROUNDS: u32 = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Added to the key after each round: the golden ratio and the square root of 3 less 1, as fractions of 2^32.
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// The random number of the draw at `position` of choice `choice_index` under `seed`: a multiple of
/// 2^-53 in `[0, 1)`, uniformly distributed. The same arguments always give the same number.
pub fn uniform(seed: u64, choice_index: u32, position: Position) -> f64 {
    let key = [seed as u32, (seed >> 32) as u32];
    // A position is 32 bits wide, so the cast loses nothing.
    let words = philox([position.tokens() as u32, choice_index, 0, 0], key);
    let bits = (u64::from(words[1]) << 32) | u64::from(words[0]);
    (bits >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
        }
        let first = u64::from(counter[0]) * u64::from(MULTIPLIERS[0]);
        let second = u64::from(counter[2]) * u64::from(MULTIPLIERS[1]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn check(counter: [u32; 4], key: [u32; 2], expected: [u32; 4]) {
        assert_eq!(philox(counter, key), expected);
    }

    #[test]
    fn philox_gives_its_authors_known_answers() {
        check([0; 4], [0; 2], [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
        check([u32::MAX; 4], [u32::MAX; 2], [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]);
        check(
            [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344],
            [0xA409_3822, 0x299F_31D0],
            [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1],
        );
    }

    #[test]
    fn seed_choice_and_position_each_change_the_number_and_nothing_else_does() {
        let mut seen = HashSet::new();
        for seed in [0, 1, 1 << 32, u64::MAX] {
            for choice in 0..4 {
                for place in 0..50 {
                    let number = uniform(seed, choice, Position::START.advance(place));
                    assert!((0.0..1.0).contains(&number));
                    assert_eq!(number, uniform(seed, choice, Position::START.advance(place)));
                    assert!(seen.insert(number.to_bits()));
                }
            }
        }
    }

    #[test]
    fn the_numbers_fill_the_unit_interval_evenly() {
        let (bins, draws) = (64, 64_000);
        let mut counts = vec![0_u32; bins];
        for place in 0..draws {
            counts[(uniform(42, 0, Position::START.advance(place)) * bins as f64) as usize] += 1;
        }
        let expected = draws as f64 / bins as f64;
        let distance: f64 =
            counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
        // Chi-squared with 63 degrees of freedom lies between these with probability 0.998.
        assert!((34.0..104.0).contains(&distance), "chi-squared is {distance}");
    }
}
