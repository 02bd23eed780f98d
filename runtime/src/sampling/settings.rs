//! How to draw tokens: plain data from outside, and the settings that it becomes once it is checked.

use crate::ids::TokenId;
use std::collections::HashSet;
use std::fmt;

/// The most log-probabilities per token: what the OpenAI API allows.
const TOP_LOGPROBS_MAX: u8 = 20;
/// The most tokens with a bias: what vLLM allows.
const LOGIT_BIAS_ENTRIES_MAX: usize = 1024;

/// Whether [`super::TokenSignals`] are reported beside each drawn token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SignalReport {
    /// They are not, and cost nothing.
    #[default]
    Off,
    /// They are; that takes one more look at each row of logits.
    On,
}

/// Sampling settings as plain data, unchecked. [`SamplingSettings::new`] checks them. The default draws
/// from the model's own distribution: temperature 1, and everything else switched off.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingOptions {
    /// Divides the logits; 0 is greedy. 0 to 100.
    pub temperature: f32,
    /// Keep this many of the best tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the fewest best tokens that together have this probability. Above 0, to 1, which keeps all.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the best one. 0, which keeps all, to 1.
    pub min_p: f32,
    /// Keep the fewest tokens whose surprise is nearest the expected one and that together have this
    /// probability (Meister et al. 2022, "Locally Typical Sampling"). Above 0, to 1, which keeps all.
    pub typical_p: f32,
    /// Divides the positive and multiplies the negative logits of tokens that the sequence holds, the
    /// prompt included (Keskar et al. 2019, "CTRL"). Above 0, to 100; 1 does nothing.
    pub repetition_penalty: f32,
    /// How many of the last tokens the repetition penalty looks at, at least 1; `None` for all.
    pub repetition_window: Option<u32>,
    /// Subtracted from a token's logit for each time it was generated. -2 to 2; 0 does nothing.
    pub frequency_penalty: f32,
    /// Subtracted from the logit of each token that was generated. -2 to 2; 0 does nothing.
    pub presence_penalty: f32,
    /// Added to the logits of single tokens, each at most once. -100 to 100. A token at -100 is never
    /// drawn; where any is at 100, one of those is drawn, whatever the model and the penalties say.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// The seed; `None` leaves it to the caller of [`SamplingSettings::new`].
    pub seed: Option<u64>,
    /// How many of the most likely tokens to report beside each drawn one. 0 to 20.
    pub top_logprobs: u8,
    /// Whether signals are reported beside each drawn token.
    pub signals: SignalReport,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            repetition_window: None,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            top_logprobs: 0,
            signals: SignalReport::Off,
        }
    }
}

/// The numbers that a field takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FieldRange {
    /// The lower end.
    pub low: f32,
    /// Whether the lower end itself is refused.
    pub low_excluded: bool,
    /// The upper end, which is allowed.
    pub high: f32,
}

impl FieldRange {
    const fn closed(low: f32, high: f32) -> Self {
        Self { low, low_excluded: false, high }
    }

    const fn above(low: f32, high: f32) -> Self {
        Self { low, low_excluded: true, high }
    }

    /// Whether `value` lies in the range; no NaN does.
    pub fn contains(&self, value: f32) -> bool {
        let above = if self.low_excluded { value > self.low } else { value >= self.low };
        above && value <= self.high
    }
}

impl fmt::Display for FieldRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.low_excluded {
            write!(formatter, "greater than {} and at most {}", self.low, self.high)
        } else {
            write!(formatter, "between {} and {}", self.low, self.high)
        }
    }
}

/// Why sampling options are refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A number lies outside its range, or is NaN.
    #[error("{field} must be {range}, not {value}")]
    OutOfRange {
        /// The field's name in [`SamplingOptions`].
        field: &'static str,
        /// What it takes.
        range: FieldRange,
        /// What it was.
        value: f32,
    },
    /// A bias lies outside its range, or is NaN.
    #[error("logit_bias of token {token} must be {range}, not {value}")]
    BiasOutOfRange {
        /// The token.
        token: TokenId,
        /// What a bias may be.
        range: FieldRange,
        /// What it was.
        value: f32,
    },
    /// A token has two biases.
    #[error("logit_bias names token {token} twice")]
    BiasRepeated {
        /// The token.
        token: TokenId,
    },
    /// Too many tokens have a bias.
    #[error("logit_bias may hold at most {most} tokens, not {count}")]
    TooManyBiases {
        /// The most that are allowed.
        most: usize,
        /// How many there were.
        count: usize,
    },
    /// A token with a bias is not in the vocabulary.
    #[error("logit_bias names token {token}, but the vocabulary has only {vocabulary} tokens, from 0")]
    BiasOutsideVocabulary {
        /// The token.
        token: TokenId,
        /// The vocabulary's size.
        vocabulary: usize,
    },
}

impl SamplingError {
    /// The field of [`SamplingOptions`] that is at fault.
    pub fn field(&self) -> &'static str {
        match self {
            Self::OutOfRange { field, .. } => field,
            Self::BiasOutOfRange { .. }
            | Self::BiasRepeated { .. }
            | Self::TooManyBiases { .. }
            | Self::BiasOutsideVocabulary { .. } => "logit_bias",
        }
    }
}

/// How to draw tokens; validated by construction.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingSettings {
    options: SamplingOptions,
    seed: u64,
}

impl SamplingSettings {
    /// The largest bias, which forces a token; its negative bans one.
    pub(super) const BIAS_FORCES: f32 = 100.0;

    /// Checks `options`. Where they name no seed, `fallback_seed` is used: the caller makes it at
    /// random, and can report it through [`SamplingSettings::seed`].
    ///
    /// # Errors
    /// The first field outside its range, with the range.
    pub fn new(options: SamplingOptions, fallback_seed: u64) -> Result<Self, SamplingError> {
        let numbers = [
            ("temperature", options.temperature, FieldRange::closed(0.0, 100.0)),
            ("top_p", options.top_p, FieldRange::above(0.0, 1.0)),
            ("min_p", options.min_p, FieldRange::closed(0.0, 1.0)),
            ("typical_p", options.typical_p, FieldRange::above(0.0, 1.0)),
            ("repetition_penalty", options.repetition_penalty, FieldRange::above(0.0, 100.0)),
            ("frequency_penalty", options.frequency_penalty, FieldRange::closed(-2.0, 2.0)),
            ("presence_penalty", options.presence_penalty, FieldRange::closed(-2.0, 2.0)),
        ];
        for (field, value, range) in numbers {
            if !range.contains(value) {
                return Err(SamplingError::OutOfRange { field, range, value });
            }
        }
        if options.repetition_window == Some(0) {
            let range = FieldRange::closed(1.0, u32::MAX as f32);
            return Err(SamplingError::OutOfRange { field: "repetition_window", range, value: 0.0 });
        }
        if options.top_logprobs > TOP_LOGPROBS_MAX {
            let range = FieldRange::closed(0.0, f32::from(TOP_LOGPROBS_MAX));
            let value = f32::from(options.top_logprobs);
            return Err(SamplingError::OutOfRange { field: "top_logprobs", range, value });
        }
        check_biases(&options.logit_bias)?;
        let seed = options.seed.unwrap_or(fallback_seed);
        Ok(Self { options, seed })
    }

    /// Always the most likely token.
    pub fn greedy() -> Self {
        let options = SamplingOptions { temperature: 0.0, ..SamplingOptions::default() };
        Self { options, seed: 0 }
    }

    /// Checks what only the model's vocabulary tells.
    ///
    /// # Errors
    /// A token with a bias that the vocabulary does not have. A [`super::Sampler`] ignores such a bias.
    pub fn check_vocabulary(&self, vocabulary: usize) -> Result<(), SamplingError> {
        match self.options.logit_bias.iter().find(|(token, _)| token.index() >= vocabulary) {
            Some(&(token, _)) => Err(SamplingError::BiasOutsideVocabulary { token, vocabulary }),
            None => Ok(()),
        }
    }

    /// The options as they were given.
    pub fn options(&self) -> &SamplingOptions {
        &self.options
    }

    /// The seed of the random numbers, given or fallen back to.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether the best token is taken and nothing is drawn.
    pub fn is_greedy(&self) -> bool {
        self.options.temperature == 0.0
    }

    /// Whether a penalty is on, so that the sequence's history counts.
    pub(super) fn uses_history(&self) -> bool {
        let options = &self.options;
        options.repetition_penalty != 1.0
            || options.frequency_penalty != 0.0
            || options.presence_penalty != 0.0
    }
}

fn check_biases(biases: &[(TokenId, f32)]) -> Result<(), SamplingError> {
    if biases.len() > LOGIT_BIAS_ENTRIES_MAX {
        return Err(SamplingError::TooManyBiases { most: LOGIT_BIAS_ENTRIES_MAX, count: biases.len() });
    }
    let range = FieldRange::closed(-SamplingSettings::BIAS_FORCES, SamplingSettings::BIAS_FORCES);
    let mut seen = HashSet::with_capacity(biases.len());
    for &(token, value) in biases {
        if !range.contains(value) {
            return Err(SamplingError::BiasOutOfRange { token, range, value });
        }
        if !seen.insert(token) {
            return Err(SamplingError::BiasRepeated { token });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that a change of the default options is refused with exactly this text.
    fn check(change: impl FnOnce(&mut SamplingOptions), field: &str, text: &str) {
        let mut options = SamplingOptions::default();
        change(&mut options);
        let error = SamplingSettings::new(options, 0).expect_err("the options are refused");
        assert_eq!((error.field(), error.to_string().as_str()), (field, text));
    }

    #[test]
    fn a_number_outside_its_range_is_refused_by_name_and_range() {
        check(|o| o.temperature = -0.1, "temperature", "temperature must be between 0 and 100, not -0.1");
        check(|o| o.top_p = 0.0, "top_p", "top_p must be greater than 0 and at most 1, not 0");
        check(|o| o.top_p = 1.5, "top_p", "top_p must be greater than 0 and at most 1, not 1.5");
        check(|o| o.min_p = 2.0, "min_p", "min_p must be between 0 and 1, not 2");
        check(|o| o.typical_p = 0.0, "typical_p", "typical_p must be greater than 0 and at most 1, not 0");
        check(
            |o| o.repetition_penalty = 0.0,
            "repetition_penalty",
            "repetition_penalty must be greater than 0 and at most 100, not 0",
        );
        check(
            |o| o.frequency_penalty = 3.0,
            "frequency_penalty",
            "frequency_penalty must be between -2 and 2, not 3",
        );
        check(
            |o| o.presence_penalty = -3.0,
            "presence_penalty",
            "presence_penalty must be between -2 and 2, not -3",
        );
        check(|o| o.top_logprobs = 21, "top_logprobs", "top_logprobs must be between 0 and 20, not 21");
        let options = SamplingOptions { repetition_window: Some(0), ..SamplingOptions::default() };
        let error = SamplingSettings::new(options, 0).expect_err("an empty window is refused");
        assert_eq!(error.field(), "repetition_window");
    }

    #[test]
    fn nan_is_refused_in_every_number() {
        let changes: [fn(&mut SamplingOptions); 8] = [
            |o| o.temperature = f32::NAN,
            |o| o.top_p = f32::NAN,
            |o| o.min_p = f32::NAN,
            |o| o.typical_p = f32::NAN,
            |o| o.repetition_penalty = f32::NAN,
            |o| o.frequency_penalty = f32::NAN,
            |o| o.presence_penalty = f32::NAN,
            |o| o.logit_bias = vec![(TokenId(1), f32::NAN)],
        ];
        for change in changes {
            let mut options = SamplingOptions::default();
            change(&mut options);
            assert!(SamplingSettings::new(options, 0).is_err());
        }
    }

    #[test]
    fn a_bad_bias_is_refused_by_its_token() {
        check(
            |o| o.logit_bias = vec![(TokenId(7), 100.5)],
            "logit_bias",
            "logit_bias of token 7 must be between -100 and 100, not 100.5",
        );
        check(
            |o| o.logit_bias = vec![(TokenId(7), 1.0), (TokenId(7), 2.0)],
            "logit_bias",
            "logit_bias names token 7 twice",
        );
        check(
            |o| o.logit_bias = (0..1025).map(|token| (TokenId(token), 1.0)).collect(),
            "logit_bias",
            "logit_bias may hold at most 1024 tokens, not 1025",
        );
        let options = SamplingOptions { logit_bias: vec![(TokenId(9), 1.0)], ..SamplingOptions::default() };
        let settings = SamplingSettings::new(options, 0).expect("the bias itself is fine");
        assert_eq!(settings.check_vocabulary(10), Ok(()));
        let error = settings.check_vocabulary(9).expect_err("token 9 is outside");
        assert_eq!(error.field(), "logit_bias");
    }

    #[test]
    fn the_seed_falls_back_only_where_none_is_given() {
        let with = |seed| {
            let options = SamplingOptions { seed, ..SamplingOptions::default() };
            SamplingSettings::new(options, 5).expect("valid").seed()
        };
        assert_eq!((with(None), with(Some(0))), (5, 0));
    }
}
