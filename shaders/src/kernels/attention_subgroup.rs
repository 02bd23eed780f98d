//! Twin of `attention_subgroup.comp`: as [`attention_cpu`](super::attention_cpu), but a page's weights are
//! summed by halving over its 32 lanes, and only visible tokens are added to the output.

use super::sum_by_halving;
use crate::PAGE_TOKENS;

/// What a row sees of its sequence.
pub struct Sequence<'a> {
    /// The row's own position, the last that it sees.
    pub position: usize,
    /// How many tokens it sees, its own among them; `None` for all up to its own.
    pub window: Option<usize>,
    /// The key of a token as the cache holds it, as wide as the query.
    pub key: &'a dyn Fn(usize) -> &'a [f32],
    /// The value of a token as the cache holds it, as wide as the query.
    pub value: &'a dyn Fn(usize) -> &'a [f32],
}

impl Sequence<'_> {
    /// The first visible token.
    pub fn start(&self) -> usize {
        self.window.map_or(0, |window| (self.position + 1).saturating_sub(window))
    }
}

/// `sum(key * query)`, place by place in order.
pub(super) fn dot_product(query: &[f32], key: &[f32]) -> f32 {
    key.iter().zip(query).fold(0.0, |sum, (key, query)| sum + key * query)
}

/// The largest score so far, and by what earlier sums fade: `exp(old largest - new largest)`, or 0 at the
/// first page.
pub(super) fn fade(largest: Option<f32>, scores: &[Option<f32>]) -> (f32, f32) {
    let page = scores.iter().flatten().copied().reduce(f32::max).expect("every page has a visible token");
    let new = largest.map_or(page, |largest| largest.max(page));
    (new, largest.map_or(0.0, |largest| (largest - new).exp()))
}

/// Attention of `query` (already scaled) over `sequence`; the result is as wide as the query.
pub fn attention(query: &[f32], sequence: &Sequence<'_>) -> Vec<f32> {
    let (start, position) = (sequence.start(), sequence.position);
    let mut output = vec![0.0f32; query.len()];
    let (mut largest, mut total) = (None::<f32>, 0.0f32);
    for page in start / PAGE_TOKENS..=position / PAGE_TOKENS {
        let tokens = page * PAGE_TOKENS..(page + 1) * PAGE_TOKENS;
        let visible = |token: &usize| (start..=position).contains(token);
        let scores: Vec<Option<f32>> = tokens
            .clone()
            .map(|token| visible(&token).then(|| dot_product(query, (sequence.key)(token))))
            .collect();
        let (new_largest, fade) = fade(largest, &scores);
        largest = Some(new_largest);
        let weights: Vec<f32> =
            scores.iter().map(|score| score.map_or(0.0, |score| (score - new_largest).exp())).collect();
        total = total * fade + sum_by_halving(weights.clone());
        output.iter_mut().for_each(|sum| *sum *= fade);
        for (token, weight) in tokens.zip(weights).filter(|(token, _)| visible(token)) {
            output.iter_mut().zip((sequence.value)(token)).for_each(|(sum, value)| *sum += weight * value);
        }
    }
    output.iter().map(|sum| sum / total).collect()
}
