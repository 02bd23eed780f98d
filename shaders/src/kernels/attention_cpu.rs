//! Twin of `attention_cpu.comp`: one query head over its sequence's keys and values.
//!
//! `result = sum(softmax(query . key) * value)` over the visible tokens, with the softmax kept online:
//! after each group of tokens, as many as lanes, sums so far fade by `exp(old largest - new largest)`. Tokens of a group
//! that are not visible have weight 0; a visible token's value is read in their place.

use super::attention_subgroup::{Sequence, dot_product, fade};

/// Lanes that share a token's values; each further such number of lanes has tokens and sums of its own.
const SHARING: usize = 8;

/// Attention of `query` (already scaled) over `sequence` by `lanes` lanes, 8 or 16; the result is as wide as the query.
pub fn attention(query: &[f32], sequence: &Sequence<'_>, lanes: usize) -> Vec<f32> {
    let (start, position) = (sequence.start(), sequence.position);
    let mut outputs = vec![vec![0.0f32; query.len()]; lanes / SHARING];
    let (mut largest, mut total) = (None::<f32>, 0.0f32);
    for first_token in (start / lanes * lanes..=position).step_by(lanes) {
        let tokens = first_token..first_token + lanes;
        let score = |token| dot_product(query, (sequence.key)(token));
        let seen = |token| (start..=position).contains(&token).then(|| score(token));
        let scores: Vec<Option<f32>> = tokens.clone().map(seen).collect();
        let (new_largest, fade) = fade(largest, &scores);
        largest = Some(new_largest);
        let weight = |score: &Option<f32>| score.map_or(0.0, |score| (score - new_largest).exp());
        let weights: Vec<f32> = scores.iter().map(weight).collect();
        outputs.iter_mut().flatten().for_each(|sum| *sum *= fade);
        for (at, (token, weight)) in tokens.zip(&weights).enumerate() {
            let value = (sequence.value)(token.clamp(start, position));
            let output = &mut outputs[at % (lanes / SHARING)];
            output.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight * value);
        }
        total = total * fade + sum_by_neighbours(weights);
    }
    let sum = |place: usize| outputs.iter().map(|output| output[place]).reduce(|sum, output| sum + output);
    (0..query.len()).map(|place| sum(place).unwrap_or(0.0) / total).collect()
}

/// The sum over the lanes, neighbours first: each lane adds the lane whose number differs in bit 0, then in bit 1, and
/// so on.
fn sum_by_neighbours(mut lanes: Vec<f32>) -> f32 {
    while lanes.len() > 1 {
        lanes = lanes.chunks(2).map(|pair| pair.iter().sum()).collect();
    }
    lanes[0]
}
