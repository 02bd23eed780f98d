//! How a sequence that is known is cut into slices: a pure function, shared by whoever plans prefill.
//!
//! A slice ends at a multiple of its limit `b`, and the slice whose last row is sampled starts at
//! `(n - 1) / b * b` for a sequence of `n` tokens and is never split.

use crate::batch::LogitsUse;
use crate::ids::Position;

/// The next slice of a prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// How many rows; at least 1, at most the limit.
    pub rows: usize,
    /// Whether a token is drawn after the last row: [`LogitsUse::SampleLast`] or [`LogitsUse::None`].
    pub logits: LogitsUse,
}

/// Where the sampled slice of a sequence of `tokens` tokens starts under a slice limit.
///
/// # Panics
/// When either is 0.
pub fn final_slice_start(tokens: usize, limit: usize) -> usize {
    (tokens - 1) / limit * limit
}

/// The next slice of a sequence of `tokens` tokens from `position` under a slice limit, when its last
/// token's logits are wanted.
///
/// # Panics
/// When the position is not before the sequence's end, or the limit is 0.
pub fn next_slice(position: Position, tokens: usize, limit: usize) -> Slice {
    let from = position.tokens();
    assert!(from < tokens, "a sequence of {tokens} tokens has no slice from {from}");
    if from >= final_slice_start(tokens, limit) {
        Slice { rows: tokens - from, logits: LogitsUse::SampleLast }
    } else {
        Slice { rows: limit - from % limit, logits: LogitsUse::None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_sampled_slice_starts_at_the_last_multiple_below_the_end() {
        for (tokens, limit, start) in [(512, 512, 0), (513, 512, 512), (6603, 2048, 6144), (1, 7, 0)] {
            assert_eq!(final_slice_start(tokens, limit), start, "{tokens} of {limit}");
        }
    }

    proptest! {
        #[test]
        fn slices_cover_the_sequence_and_only_the_last_is_sampled(
            from in 0_usize..300,
            rest in 1_usize..300,
            limit in 1_usize..80,
        ) {
            let (mut position, tokens) = (Position::START.advance(from), from + rest);
            let final_start = final_slice_start(tokens, limit);
            while position.tokens() < tokens {
                let slice = next_slice(position, tokens, limit);
                prop_assert!((1..=limit).contains(&slice.rows));
                let start = position.tokens();
                position = position.advance(slice.rows);
                let is_last = slice.logits == LogitsUse::SampleLast;
                prop_assert_eq!(is_last, position.tokens() == tokens);
                prop_assert_eq!(is_last, start >= final_start);
                prop_assert!(is_last || position.tokens().is_multiple_of(limit));
            }
            prop_assert_eq!(position.tokens(), tokens);
        }
    }
}
