//! What a model is, in the terms of its forward pass: sizes, and per layer what differs between
//! architectures. Whoever computes a model reads this and never asks for its architecture's name.

use std::f64::consts::TAU;

/// The function between a feed-forward's gate and its product with `up`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// The Gaussian error linear unit by its tanh approximation:
    /// `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`.
    GeluTanh,
}

/// A dense decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelDescription {
    /// The architecture's name in the file, for example `qwen2`.
    pub architecture: String,
    /// The model's own name, or its file's.
    pub name: String,
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of one head, the same for queries, keys and values.
    pub head_dim: usize,
    /// Elements between the feed-forward's two matrices.
    pub feed_forward: usize,
    /// Rows of the embedding, that is, logits per token.
    pub vocabulary: usize,
    /// The most tokens that the model was made for.
    pub context: usize,
    /// What root-mean-square norms add under the root.
    pub norm_epsilon: f32,
    /// The feed-forward's activation.
    pub activation: Activation,
    /// The factor of embeddings, where they are scaled.
    pub embedding_scale: Option<f32>,
    /// The factor of query-key products.
    pub attention_scale: f32,
    /// Where set, logits are `cap * tanh(logit / cap)`.
    pub logit_softcap: Option<f32>,
    /// Whether the output matrix is the embedding.
    pub tied_head: bool,
    /// The layers in order; there is at least one.
    pub layers: Vec<LayerDescription>,
}

/// What may differ from layer to layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerDescription {
    /// How many positions a token sees, itself included; `None` for all before it.
    pub window: Option<usize>,
    /// The rotation of queries and keys.
    pub rope: RopeSettings,
    /// Whether each query and key head is normed before the rotation.
    pub qk_norm: bool,
    /// Whether queries, keys and values have a bias.
    pub qkv_bias: bool,
    /// Whether the outputs of attention and feed-forward are normed before they are added.
    pub post_norms: bool,
}

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Elements `2i` and `2i + 1`.
    Interleaved,
    /// Elements `i` and `i + dims / 2`.
    Split,
}

/// Rotary position embedding with all scalings resolved: pair `i` at position `p` is rotated by
/// `p * inverse_frequencies[i]`, and multiplied by `magnitude`.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSettings {
    /// Which elements make a pair.
    pub style: RopeStyle,
    /// How many elements of each head, from the first on, are rotated; even.
    pub dims: usize,
    /// Radians per position of each of the `dims / 2` pairs.
    pub inverse_frequencies: Vec<f32>,
    /// The factor of rotated elements.
    pub magnitude: f32,
}

/// How a model's context was extended beyond its training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All positions are divided by the factor.
    Linear {
        /// How many times the context was extended.
        factor: f32,
    },
    /// YaRN (Peng et al. 2023): slow pairs are interpolated, fast ones are not.
    Yarn {
        /// How many times the context was extended.
        factor: f32,
        /// The context before it was extended.
        original_context: usize,
        /// A further factor of rotated elements.
        attention_factor: f32,
        /// Pairs that turn more often than this over the original context are not interpolated.
        beta_fast: f32,
        /// Pairs that turn less often than this over the original context are fully interpolated.
        beta_slow: f32,
    },
}

impl RopeSettings {
    /// Resolves base, scaling and the factors of a `rope_freqs` tensor (of `dims / 2` elements, by which
    /// frequencies are divided).
    pub fn resolve(
        style: RopeStyle,
        dims: usize,
        base: f32,
        scaling: RopeScaling,
        frequency_factors: Option<&[f32]>,
    ) -> Self {
        let inverse_frequencies = (0..dims / 2)
            .map(|pair| {
                let plain = f64::from(base).powf(-2.0 * pair as f64 / dims as f64);
                let factor = frequency_factors.map_or(1.0, |factors| f64::from(factors[pair]));
                scaled_frequency(plain / factor, pair, dims, base, scaling) as f32
            })
            .collect();
        Self { style, dims, inverse_frequencies, magnitude: magnitude(scaling) }
    }
}

fn scaled_frequency(frequency: f64, pair: usize, dims: usize, base: f32, scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / f64::from(factor),
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, .. } => {
            // The pair that makes this many turns over the original context.
            let pair_of = |turns: f32| {
                let wavelength = original_context as f64 / (f64::from(turns) * TAU);
                dims as f64 * wavelength.ln() / (2.0 * f64::from(base).ln())
            };
            let first = pair_of(beta_fast).floor().max(0.0);
            let last = pair_of(beta_slow).ceil().min(dims as f64 - 1.0);
            let interpolated = ((pair as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
            frequency * (1.0 - interpolated) + frequency / f64::from(factor) * interpolated
        }
    }
}

fn magnitude(scaling: RopeScaling) -> f32 {
    match scaling {
        RopeScaling::None | RopeScaling::Linear { .. } => 1.0,
        RopeScaling::Yarn { factor, attention_factor, .. } => attention_factor * (1.0 + 0.1 * factor.ln()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holds the resolved frequencies, relative to unscaled ones, to the expected factors.
    #[track_caller]
    fn check(scaling: RopeScaling, factors: Option<&[f32]>, expected: [f32; 4], expected_magnitude: f32) {
        let resolve =
            |scaling, factors| RopeSettings::resolve(RopeStyle::Split, 8, 10_000.0, scaling, factors);
        let plain = resolve(RopeScaling::None, None);
        assert_eq!(plain.inverse_frequencies, [1.0, 0.1, 0.01, 0.001]);
        let scaled = resolve(scaling, factors);
        assert!((scaled.magnitude - expected_magnitude).abs() < 1e-6, "magnitude {}", scaled.magnitude);
        for (pair, expected) in expected.iter().enumerate() {
            let ratio = scaled.inverse_frequencies[pair] / plain.inverse_frequencies[pair];
            assert!((ratio - expected).abs() < 1e-5, "pair {pair}: {ratio}, expected {expected}");
        }
    }

    #[test]
    fn linear_scaling_divides_every_frequency() {
        check(RopeScaling::Linear { factor: 4.0 }, None, [0.25; 4], 1.0);
    }

    #[test]
    fn factors_of_a_tensor_divide_their_frequency() {
        check(RopeScaling::None, Some(&[1.0, 2.0, 4.0, 8.0]), [1.0, 0.5, 0.25, 0.125], 1.0);
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_interpolates_slow_ones() {
        // Over 4096 positions, 32 turns lie at pair 1.31 (floor 1), one turn at pair 2.81 (ceil 3).
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original_context: 4096,
            attention_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
        };
        check(scaling, None, [1.0, 1.0, 0.625, 0.25], 1.0 + 0.1 * 4.0_f32.ln());
    }
}
