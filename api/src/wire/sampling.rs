//! The fields that say how tokens are drawn. Names and ranges are the OpenAI API's; `top_k`, `min_p`,
//! `typical_p`, `repetition_penalty` and `repetition_window` go beyond it.

use crate::error::ApiError;
use crate::wire::fields::{Fields, as_number, invalid};
use lavalane_runtime::ids::TokenId;
use lavalane_runtime::sampling::SamplingOptions;

/// The most log-probabilities that are reported per token, the drawn token's own not counted.
pub const TOP_LOGPROBS_MAX: i64 = 20;

/// Reads all of them but `logprobs`, whose meaning depends on the endpoint.
///
/// # Errors
/// A field has the wrong type. Ranges are checked where the options become settings.
pub fn read(fields: &Fields<'_>) -> Result<SamplingOptions, ApiError> {
    let defaults = SamplingOptions::default();
    let number = |name: &str, default: f32| fields.number(name).map(|value| value.unwrap_or(default));
    Ok(SamplingOptions {
        temperature: number("temperature", defaults.temperature)?,
        // -1 is how some clients say "all".
        top_k: fields.integer("top_k", -1..=i64::from(i32::MAX))?.map_or(defaults.top_k, |k| k.max(0) as u32),
        top_p: number("top_p", defaults.top_p)?,
        min_p: number("min_p", defaults.min_p)?,
        typical_p: number("typical_p", defaults.typical_p)?,
        repetition_penalty: number("repetition_penalty", defaults.repetition_penalty)?,
        repetition_window: window(fields)?,
        frequency_penalty: number("frequency_penalty", defaults.frequency_penalty)?,
        presence_penalty: number("presence_penalty", defaults.presence_penalty)?,
        logit_bias: logit_bias(fields)?,
        // A negative seed is as good as any: its bits are taken as they are.
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64),
        top_logprobs: defaults.top_logprobs,
        signals: defaults.signals,
    })
}

fn window(fields: &Fields<'_>) -> Result<Option<u32>, ApiError> {
    let window = fields.integer("repetition_window", 1..=i64::from(i32::MAX))?;
    Ok(window.map(|window| window as u32))
}

fn logit_bias(fields: &Fields<'_>) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let Some(entries) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let bias = |(key, value): (&String, &serde_json::Value)| {
        let path = || entries.path(key);
        let token =
            key.parse().map(TokenId).map_err(|_| invalid(&path(), "must have a token id as its key"))?;
        Ok((token, as_number(value, path)?))
    };
    entries.entries().map(bias).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn options(body: Value) -> Result<SamplingOptions, ApiError> {
        read(&Fields::of_body(&body).expect("an object"))
    }

    #[test]
    fn nulls_and_absent_fields_are_the_defaults() {
        let nulls = json!({"temperature": null, "top_p": null, "seed": null, "logit_bias": null});
        assert_eq!(options(nulls), Ok(SamplingOptions::default()));
        assert_eq!(options(json!({})), Ok(SamplingOptions::default()));
    }

    #[test]
    fn every_field_arrives() {
        let body = json!({
            "temperature": 0.5, "top_k": 40, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.8,
            "repetition_penalty": 1.1, "repetition_window": 64, "frequency_penalty": 0.2,
            "presence_penalty": 0.3, "logit_bias": {"7": -100}, "seed": -1,
        });
        let expected = SamplingOptions {
            temperature: 0.5,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.1,
            typical_p: 0.8,
            repetition_penalty: 1.1,
            repetition_window: Some(64),
            frequency_penalty: 0.2,
            presence_penalty: 0.3,
            logit_bias: vec![(TokenId(7), -100.0)],
            seed: Some(u64::MAX),
            ..SamplingOptions::default()
        };
        assert_eq!(options(body), Ok(expected));
    }

    #[test]
    fn a_bias_is_named_by_its_key() {
        for (body, path) in [
            (json!({"logit_bias": {"x": 1}}), "logit_bias.x"),
            (json!({"logit_bias": {"5": "1"}}), "logit_bias.5"),
            (json!({"logit_bias": [1]}), "logit_bias"),
            (json!({"logit_bias": {"-1": 1}}), "logit_bias.-1"),
        ] {
            assert_eq!(options(body).expect_err(path).param(), Some(path));
        }
    }
}
