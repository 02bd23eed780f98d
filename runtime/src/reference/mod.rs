//! The scalar reference: a forward pass in plain f32 over decoded weights, with f32 keys and values.
//!
//! It is what everything else is compared with, so it is written to be read: no kernels, no packing, one
//! function per formula. Threads are used only where each writes results of its own.

mod attention;
mod matrix;
pub mod operations;
mod perplexity;
#[cfg(test)]
mod tests;

use std::ops::Range;

use attention::{LayerCache, attend};
pub use matrix::{dot_product, multiply};
use operations::{activate, add, add_to_rows, rms_norm, rotate, soft_cap};
pub use perplexity::{Perplexity, perplexity};

use crate::ids::{LayerRange, TokenId};
use crate::model::{HeadNorms, LayerTensors, Model, QkvBiases};

/// One sequence run through a model by the scalar reference.
pub struct ReferenceModel<'a> {
    model: &'a Model,
    layers: Vec<ReferenceLayer>,
    output_norm: Vec<f32>,
    tokens: usize,
}

/// The decoded norms and biases of a layer, and its cache; matrices are decoded where they are used.
struct ReferenceLayer {
    attention_norm: Vec<f32>,
    feed_forward_norm: Vec<f32>,
    biases: Option<[Vec<f32>; 3]>,
    head_norms: Option<[Vec<f32>; 2]>,
    post_attention_norm: Option<Vec<f32>>,
    post_feed_forward_norm: Option<Vec<f32>>,
    cache: LayerCache,
}

impl ReferenceLayer {
    fn new(model: &Model, tensors: &LayerTensors) -> Self {
        let biases =
            |biases: &QkvBiases| [&biases.query, &biases.key, &biases.value].map(|bias| model.floats(bias));
        let head_norms = |norms: &HeadNorms| [&norms.query, &norms.key].map(|norm| model.floats(norm));
        Self {
            attention_norm: model.floats(&tensors.attention_norm),
            feed_forward_norm: model.floats(&tensors.feed_forward_norm),
            biases: tensors.biases.as_ref().map(biases),
            head_norms: tensors.head_norms.as_ref().map(head_norms),
            post_attention_norm: tensors.post_attention_norm.as_ref().map(|norm| model.floats(norm)),
            post_feed_forward_norm: tensors.post_feed_forward_norm.as_ref().map(|norm| model.floats(norm)),
            cache: LayerCache::default(),
        }
    }
}

impl<'a> ReferenceModel<'a> {
    /// A reference at the start of a sequence.
    pub fn new(model: &'a Model) -> Self {
        Self {
            model,
            layers: model.layers().iter().map(|tensors| ReferenceLayer::new(model, tensors)).collect(),
            output_norm: model.floats(&model.tensors().output_norm),
            tokens: 0,
        }
    }

    /// How many tokens of the sequence have run.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Goes back to the first `tokens` of the sequence.
    ///
    /// # Panics
    /// When fewer have run.
    pub fn trim(&mut self, tokens: usize) {
        assert!(tokens <= self.tokens, "a sequence of {} tokens cannot be cut to {tokens}", self.tokens);
        let description = self.model.description();
        let elements = tokens * description.kv_heads * description.head_dim;
        for layer in &mut self.layers {
            layer.cache.keys.truncate(elements);
            layer.cache.values.truncate(elements);
        }
        self.tokens = tokens;
    }

    /// Runs further tokens of the sequence and gives the logits of those of them whose indices are in
    /// `wanted`: `wanted.len() * vocabulary` elements. Ask for as few as are needed.
    ///
    /// # Panics
    /// When a token is outside the vocabulary, or `wanted` outside the tokens.
    pub fn logits(&mut self, tokens: &[TokenId], wanted: Range<usize>) -> Vec<f32> {
        let hidden = self.model.description().hidden;
        let mut states = self.model.embed_all(tokens);
        let layers = LayerRange::new(0, self.layers.len() as u32).expect("a model has layers");
        self.run_layers(layers, &mut states);
        self.tokens += tokens.len();
        self.head(&states[wanted.start * hidden..wanted.end * hidden])
    }

    /// The logits after the last of `tokens`, which continue the sequence.
    ///
    /// # Panics
    /// When there is no token or one is outside the vocabulary.
    pub fn last_logits(&mut self, tokens: &[TokenId]) -> Vec<f32> {
        self.logits(tokens, tokens.len() - 1..tokens.len())
    }

    /// Runs hidden states of the tokens after those that have run through some layers, in place.
    fn run_layers(&mut self, range: LayerRange, states: &mut [f32]) {
        for index in range.layers() {
            self.attention(index, states);
            self.feed_forward(index, states);
        }
    }

    fn attention(&mut self, index: usize, states: &mut [f32]) {
        let (model, first) = (self.model, self.tokens);
        let description = model.description();
        let (tensors, settings) = (&model.layers()[index], &description.layers[index]);
        let layer = &mut self.layers[index];
        let mut normed = states.to_vec();
        rms_norm(&mut normed, &layer.attention_norm, description.norm_epsilon);
        let mut queries = multiply(model, &tensors.query, &normed);
        let mut keys = multiply(model, &tensors.key, &normed);
        let mut values = multiply(model, &tensors.value, &normed);
        if let Some([query, key, value]) = &layer.biases {
            add_to_rows(&mut queries, query);
            add_to_rows(&mut keys, key);
            add_to_rows(&mut values, value);
        }
        if let Some([query, key]) = &layer.head_norms {
            rms_norm(&mut queries, query, description.norm_epsilon);
            rms_norm(&mut keys, key, description.norm_epsilon);
        }
        for (rows, heads) in [(&mut queries, description.heads), (&mut keys, description.kv_heads)] {
            for (token, row) in rows.chunks_exact_mut(heads * description.head_dim).enumerate() {
                for head in row.chunks_exact_mut(description.head_dim) {
                    rotate(head, first + token, &settings.rope);
                }
            }
        }
        layer.cache.keys.extend(keys);
        layer.cache.values.extend(values);
        let attended = attend(description, settings.window, &queries, &layer.cache, first);
        let mut output = multiply(model, &tensors.attention_output, &attended);
        if let Some(norm) = &layer.post_attention_norm {
            rms_norm(&mut output, norm, description.norm_epsilon);
        }
        add(states, &output);
    }

    fn feed_forward(&self, index: usize, states: &mut [f32]) {
        let description = self.model.description();
        let (tensors, layer) = (&self.model.layers()[index], &self.layers[index]);
        let mut normed = states.to_vec();
        rms_norm(&mut normed, &layer.feed_forward_norm, description.norm_epsilon);
        let mut gate = multiply(self.model, &tensors.gate, &normed);
        let up = multiply(self.model, &tensors.up, &normed);
        activate(description.activation, &mut gate, &up);
        let mut output = multiply(self.model, &tensors.down, &gate);
        if let Some(norm) = &layer.post_feed_forward_norm {
            rms_norm(&mut output, norm, description.norm_epsilon);
        }
        add(states, &output);
    }

    /// The logits of hidden states that have passed all layers.
    fn head(&self, states: &[f32]) -> Vec<f32> {
        let description = self.model.description();
        let mut normed = states.to_vec();
        rms_norm(&mut normed, &self.output_norm, description.norm_epsilon);
        let mut logits = multiply(self.model, &self.model.tensors().output, &normed);
        if let Some(cap) = description.logit_softcap {
            soft_cap(&mut logits, cap);
        }
        logits
    }
}
