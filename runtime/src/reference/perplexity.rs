//! Perplexity of a text over the windows and tokens of the recorded reference value: disjoint windows, of
//! which the second half is scored. Log-probabilities are exact; the recorder's were not (see the test of
//! the recorded value).

use std::ops::Range;

use super::operations::log_probabilities;
use crate::ids::TokenId;

/// What a text's windows gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// The exponential of the mean negative log-probability.
    pub value: f64,
    /// How many tokens were scored.
    pub scored: usize,
    /// How many windows were run.
    pub windows: usize,
}

/// Runs up to `windows_max` disjoint windows of `window` tokens; a rest that fills none is left out.
///
/// `logits` is given a window's tokens and the range of positions whose logits are wanted, and gives
/// them one after the other (`range.len() * vocabulary`). They belong to a sequence of their own each
/// time. In each window the tokens after the first half are scored: token `i + 1` by the logits of
/// position `i`, for `i` from `window / 2` to `window - 2`.
///
/// # Errors
/// The first error of `logits`.
///
/// # Panics
/// When `window` is below 4 or the tokens fill no window.
pub fn perplexity<E>(
    tokens: &[TokenId],
    window: usize,
    windows_max: usize,
    mut logits: impl FnMut(&[TokenId], Range<usize>) -> Result<Vec<f32>, E>,
) -> Result<Perplexity, E> {
    assert!(window >= 4 && tokens.len() >= window && windows_max > 0, "the tokens fill a window");
    let mut negative_sum = 0.0;
    let mut scored = 0;
    let mut windows = 0;
    for tokens in tokens.chunks_exact(window).take(windows_max) {
        let range = window / 2..window - 1;
        let logits = logits(tokens, range.clone())?;
        let vocabulary = logits.len() / range.len();
        for (position, row) in range.zip(logits.chunks_exact(vocabulary)) {
            negative_sum -= f64::from(log_probabilities(row)[tokens[position + 1].index()]);
            scored += 1;
        }
        windows += 1;
    }
    Ok(Perplexity { value: (negative_sum / scored as f64).exp(), scored, windows })
}
