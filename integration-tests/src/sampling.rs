//! Settings of draws that tell much of the logits that they were drawn from.

use lavalane_runtime::sampling::{SamplingOptions, SamplingSettings, SignalReport};

/// Random draws with penalties, and so much reported of each that equal reports mean equal logits: the best
/// tokens' log-probabilities, and the entropy of the whole row.
///
/// # Panics
/// Never: the settings are in range.
pub fn telling_draws() -> SamplingSettings {
    let options = SamplingOptions {
        temperature: 0.8,
        seed: Some(7),
        presence_penalty: 0.5,
        repetition_penalty: 1.1,
        top_logprobs: 20,
        signals: SignalReport::On,
        ..Default::default()
    };
    SamplingSettings::new(options, 0).expect("the settings are in range")
}
