//! Twin of `attention_cpu.comp`: one query head over its sequence's keys and values.
//!
//! `result = sum(softmax(query . key) * value)` over the visible tokens, with the softmax kept online:
//! after each group of 8 tokens, sums so far fade by `exp(old largest - new largest)`. Tokens of a group
//! that are not visible have weight 0; a visible token's value is read in their place.

use super::attention_subgroup::{Sequence, dot_product, fade};

/// Tokens that are scored at a time: the lanes of the kernel.
const LANES: usize = 8;

/// Attention of `query` (already scaled) over `sequence`; the result is as wide as the query.
pub fn attention(query: &[f32], sequence: &Sequence<'_>) -> Vec<f32> {
    let (start, position) = (sequence.start(), sequence.position);
    let mut output = vec![0.0f32; query.len()];
    let (mut largest, mut total) = (None::<f32>, 0.0f32);
    for first_token in (start / LANES * LANES..=position).step_by(LANES) {
        let score = |token| dot_product(query, (sequence.key)(token));
        let scores: [Option<f32>; LANES] = std::array::from_fn(|lane| {
            let token = first_token + lane;
            (start..=position).contains(&token).then(|| score(token))
        });
        let (new_largest, fade) = fade(largest, &scores);
        largest = Some(new_largest);
        let weights = scores.map(|score| score.map_or(0.0, |score| (score - new_largest).exp()));
        total = total * fade + sum_by_neighbours(weights);
        output.iter_mut().for_each(|sum| *sum *= fade);
        for (lane, weight) in weights.into_iter().enumerate() {
            let value = (sequence.value)((first_token + lane).clamp(start, position));
            output.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight * value);
        }
    }
    output.iter().map(|sum| sum / total).collect()
}

/// The sum over the lanes, neighbours first: each lane adds the lane whose number differs in bit 0, then
/// in bit 1, then in bit 2.
fn sum_by_neighbours(mut lanes: [f32; LANES]) -> f32 {
    for bit in [1, 2, 4] {
        lanes = std::array::from_fn(|lane| lanes[lane] + lanes[lane ^ bit]);
    }
    lanes[0]
}
