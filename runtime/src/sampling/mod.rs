//! Sampling: from one row of logits to one token, as a function of settings, history and position.
//!
//! Two distributions are at work and are kept apart:
//! - **The model's distribution** is the softmax of the raw logits. Every log-probability that is
//!   reported ([`Sampled::logprob`], [`Sampled::top`], [`TokenSignals`]) is of this one. Neither
//!   temperature nor truncation, penalties nor logit bias changes it, as users of the OpenAI API and of
//!   vLLM (its `raw_logprobs`) expect.
//! - **The draw's distribution** is what a token is drawn from. It is made in the order of vLLM's
//!   sampler: logit bias, repetition penalty, frequency and presence penalties, temperature, min-p,
//!   top-k, typical, top-p. Each filter sees what the one before left, renormalised, and always leaves
//!   at least one token. Temperature 0 takes the best token after bias and penalties instead, the
//!   lowest id among equals.
//!
//! Nothing here depends on lane, batch or number of draws made: the random number is a function of
//! seed, choice index and position, and every sum is taken in one fixed order.

mod filters;
mod history;
mod random;
mod sampler;
mod settings;
mod signals;
mod softmax;

pub use random::uniform;
pub use sampler::Sampler;
pub use settings::{FieldRange, SamplingError, SamplingOptions, SamplingSettings, SignalReport};
pub use signals::{HIGH_ENTROPY, SignalSpread, SignalWindow, TokenSignals, signal_window, token_signals};
pub use softmax::{LOGPROB_FLOOR, softmax};

use crate::ids::TokenId;

/// A token that was drawn or predicted, with what the model thought of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: TokenId,
    /// Its natural-log probability under the model (before bias, penalties, temperature and
    /// truncation); finite, never below [`LOGPROB_FLOOR`].
    pub logprob: f32,
    /// The most likely tokens with their log probabilities under the model, best first, the lower id
    /// first among equals; as many as were asked for, or the whole vocabulary where that is smaller.
    pub top: Vec<(TokenId, f32)>,
    /// How certain the model was, where the settings ask for it.
    pub signals: Option<TokenSignals>,
}
