//! Tokens and logits as the tests need them.

use lavalane_runtime::ids::TokenId;
use lavalane_runtime::model::Model;
use lavalane_runtime::tokenizer::{Tokenizer, TokenizerSource, UnknownPreTokenizer};

/// The tokenizer of a model's file.
///
/// # Panics
/// When the file has none that is known.
pub fn tokenizer(model: &Model) -> Tokenizer {
    let source = TokenizerSource::from_gguf(model.file()).expect("the file has a vocabulary");
    Tokenizer::new(&source, UnknownPreTokenizer::Refuse).expect("the vocabulary is known")
}

/// A fixed sequence of ordinary token ids of SmolLM2's vocabulary, another for each seed.
pub fn tokens(count: u32, seed: u32) -> Vec<TokenId> {
    (0..count).map(|at| TokenId(1000 + (at * 7919 + seed * 104_729) % 40_000)).collect()
}

/// Natural-log probabilities, in f64.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let total: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit) - largest - total.ln()).collect()
}
