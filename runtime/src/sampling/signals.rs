//! What one row of logits says of the model's certainty.

use super::softmax::{LOGPROB_FLOOR, LogSoftmax, best, weighted_distances};
use crate::ids::TokenId;
use std::collections::HashSet;

/// How certain the model is of one next token; of its own distribution, before bias, penalties,
/// temperature and truncation. All numbers are finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenSignals {
    /// Shannon entropy in nats: 0 where one token has all the probability, `ln(vocabulary)` at most.
    pub entropy: f32,
    /// Natural-log probability of the best token.
    pub top_logprob: f32,
    /// Natural-log probability of the second best; [`LOGPROB_FLOOR`] where there is none.
    pub second_logprob: f32,
    /// How far the best is ahead of the second, in nats; never negative.
    pub margin: f32,
}

/// The signals of one row of logits; `None` where one is NaN or positive infinity, or none is finite.
pub fn token_signals(logits: &[f32]) -> Option<TokenSignals> {
    LogSoftmax::new(logits).map(|model| signals_of(&model, logits))
}

/// The signals of a row that was looked at already.
pub(super) fn signals_of(model: &LogSoftmax, logits: &[f32]) -> TokenSignals {
    let greatest = model.best().logit;
    // With d the distance below the best logit and S the sum of exp(-d), the entropy, the mean of
    // -ln p, is ln S + sum(exp(-d) d) / S.
    let weighted = weighted_distances(logits, greatest);
    let entropy = (model.log_sum() + weighted / model.log_sum().exp()) as f32;
    let (before, after) = (&logits[..model.best().index], &logits[model.best().index + 1..]);
    let second = [best(before), best(after)].into_iter().flatten().map(|best| best.logit);
    let second_logprob = second.fold(f32::NEG_INFINITY, f32::max);
    let second_logprob = model.logprob(second_logprob).max(LOGPROB_FLOOR);
    let top_logprob = model.logprob(greatest);
    TokenSignals { entropy, top_logprob, second_logprob, margin: top_logprob - second_logprob }
}

/// Entropy from which a token counts as uncertain: that of an even choice among eight, in nats.
pub const HIGH_ENTROPY: f32 = 2.079_441_5;

/// The values of one signal over a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SignalSpread {
    /// Their mean.
    pub mean: f32,
    /// The greatest.
    pub max: f32,
    /// The least.
    pub min: f32,
}

impl SignalSpread {
    fn over(values: impl ExactSizeIterator<Item = f32> + Clone) -> Self {
        let total: f64 = values.clone().map(f64::from).sum();
        Self {
            mean: (total / values.len() as f64) as f32,
            max: values.clone().fold(f32::NEG_INFINITY, f32::max),
            min: values.fold(f32::INFINITY, f32::min),
        }
    }
}

/// What the signals of several drawn tokens say together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SignalWindow {
    /// How many tokens the window holds; at least 1.
    pub tokens: usize,
    /// Their entropies, in nats.
    pub entropy: SignalSpread,
    /// Their margins, in nats.
    pub margin: SignalSpread,
    /// How many have an entropy of at least [`HIGH_ENTROPY`].
    pub high_entropy: usize,
    /// How many are the same token as one before them in the window.
    pub repetitions: usize,
}

/// The window over `drawn`, oldest first; `None` where it is empty.
pub fn signal_window(drawn: &[(TokenId, TokenSignals)]) -> Option<SignalWindow> {
    if drawn.is_empty() {
        return None;
    }
    let signals = drawn.iter().map(|(_, signals)| signals);
    let different: HashSet<TokenId> = drawn.iter().map(|&(token, _)| token).collect();
    Some(SignalWindow {
        tokens: drawn.len(),
        entropy: SignalSpread::over(signals.clone().map(|signals| signals.entropy)),
        margin: SignalSpread::over(signals.clone().map(|signals| signals.margin)),
        high_entropy: signals.filter(|signals| signals.entropy >= HIGH_ENTROPY).count(),
        repetitions: drawn.len() - different.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_counts_what_is_uncertain_and_what_repeats() {
        let drawn = |token, entropy, margin| {
            let signals = TokenSignals { entropy, top_logprob: -0.5, second_logprob: -0.5 - margin, margin };
            (TokenId(token), signals)
        };
        assert_eq!(signal_window(&[]), None);
        let window = [drawn(5, 0.5, 3.0), drawn(6, 2.5, 0.25), drawn(5, 3.0, 0.5), drawn(5, 2.0, 0.25)];
        let expected = SignalWindow {
            tokens: 4,
            entropy: SignalSpread { mean: 2.0, max: 3.0, min: 0.5 },
            margin: SignalSpread { mean: 1.0, max: 3.0, min: 0.25 },
            high_entropy: 2,
            repetitions: 2,
        };
        assert_eq!(signal_window(&window), Some(expected));
    }

    fn check(logits: &[f32], entropy: f32, top: f32, second: f32) {
        let signals = token_signals(logits).expect("usable logits");
        let pairs = [
            (signals.entropy, entropy),
            (signals.top_logprob, top),
            (signals.second_logprob, second),
            (signals.margin, top - second),
        ];
        for (ours, expected) in pairs {
            assert!((ours - expected).abs() < 1e-5, "{signals:?}, expected {entropy} {top} {second}");
        }
    }

    #[test]
    fn an_even_row_has_the_greatest_entropy_and_no_margin() {
        let quarter = 0.25_f32.ln();
        check(&[3.0; 4], -quarter, quarter, quarter);
    }

    #[test]
    fn a_certain_row_has_no_entropy() {
        check(&[0.0, 200.0, f32::NEG_INFINITY], 0.0, 0.0, -200.0);
        check(&[5.0], 0.0, 0.0, LOGPROB_FLOOR);
    }

    #[test]
    fn an_uneven_row_has_the_entropy_of_its_probabilities() {
        let probabilities = [0.5_f32, 0.3, 0.2];
        let logits = probabilities.map(f32::ln);
        let entropy = -probabilities.iter().map(|p| p * p.ln()).sum::<f32>();
        check(&logits, entropy, 0.5_f32.ln(), 0.3_f32.ln());
    }

    #[test]
    fn an_unusable_row_has_no_signals() {
        assert_eq!(token_signals(&[f32::NAN, 1.0]), None);
    }
}
