//! Causal attention over the keys and values of all positions so far.

use std::thread;

use super::matrix::{dot_product, threads};
use super::operations::softmax;
use crate::model::ModelDescription;

/// The keys and values of one layer: `[position][kv_heads * head_dim]`.
#[derive(Clone, Debug, Default)]
pub(super) struct LayerCache {
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
}

/// Attends with rotated queries (`[token][heads * head_dim]`) of the tokens from position `first` on; the
/// cache already holds those tokens' own keys and values. Gives `[token][heads * head_dim]`.
pub(super) fn attend(
    model: &ModelDescription,
    window: Option<usize>,
    queries: &[f32],
    cache: &LayerCache,
    first: usize,
) -> Vec<f32> {
    let width = model.heads * model.head_dim;
    let tokens = queries.len() / width;
    let mut output = vec![0.0; queries.len()];
    let tokens_per_thread = tokens.div_ceil(threads(tokens * (first + tokens) * width));
    thread::scope(|scope| {
        let chunk = tokens_per_thread * width;
        for (part, (output, queries)) in output.chunks_mut(chunk).zip(queries.chunks(chunk)).enumerate() {
            scope.spawn(move || {
                let first = first + part * tokens_per_thread;
                let rows = output.chunks_exact_mut(width).zip(queries.chunks_exact(width));
                for (row, (output, query)) in rows.enumerate() {
                    attend_token(model, window, query, cache, first + row, output);
                }
            });
        }
    });
    output
}

fn attend_token(
    model: &ModelDescription,
    window: Option<usize>,
    query: &[f32],
    cache: &LayerCache,
    position: usize,
    output: &mut [f32],
) {
    let head_dim = model.head_dim;
    let cache_width = model.kv_heads * head_dim;
    let seen = window.map_or(0, |window| (position + 1).saturating_sub(window))..position + 1;
    let heads_per_group = model.heads / model.kv_heads;
    for (head, (output, query)) in
        output.chunks_exact_mut(head_dim).zip(query.chunks_exact(head_dim)).enumerate()
    {
        let at = |position: usize| position * cache_width + head / heads_per_group * head_dim;
        let mut weights: Vec<f32> = seen
            .clone()
            .map(|position| {
                dot_product(query, &cache.keys[at(position)..][..head_dim]) * model.attention_scale
            })
            .collect();
        softmax(&mut weights);
        for (position, weight) in seen.clone().zip(weights) {
            for (output, value) in output.iter_mut().zip(&cache.values[at(position)..][..head_dim]) {
                *output += weight * value;
            }
        }
    }
}
