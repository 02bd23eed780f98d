//! Token signals: how certain the model was of each token, as an extension of both generating endpoints.

use crate::error::ApiError;
use crate::wire::fields::{Fields, wrong_type};
use lavalane_actors::request::TokenEvent;
use lavalane_runtime::sampling::SignalSpread;
use serde_json::{Value, json};
use std::num::NonZeroU32;

/// Tokens of a window where the request does not say.
const WINDOW_DEFAULT: NonZeroU32 = NonZeroU32::new(16).expect("16 is not 0");
/// The most tokens of a window.
const WINDOW_MAX: i64 = 1024;

/// Whether signals are reported beside each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signals {
    /// They are not.
    Off,
    /// They are, with a window over so many of the last tokens.
    On {
        /// How many tokens.
        window: NonZeroU32,
    },
}

/// Reads `signals`: true, false, or `{"window": n}`.
///
/// # Errors
/// It is something else, or the window is out of range.
pub fn read(fields: &Fields<'_>) -> Result<Signals, ApiError> {
    match fields.get("signals") {
        None | Some(Value::Bool(false)) => Ok(Signals::Off),
        Some(Value::Bool(true)) => Ok(Signals::On { window: WINDOW_DEFAULT }),
        Some(value @ Value::Object(_)) => {
            let options = Fields::of(value, fields.path("signals"))?;
            let window = options.integer("window", 1..=WINDOW_MAX)?;
            let window = window.and_then(|window| NonZeroU32::new(window as u32));
            Ok(Signals::On { window: window.unwrap_or(WINDOW_DEFAULT) })
        }
        Some(value) => Err(wrong_type(&fields.path("signals"), "a boolean or an object", value)),
    }
}

/// A token's signals as the reply holds them; `None` where they were not asked for.
pub fn entry(token: &TokenEvent) -> Option<Value> {
    let signals = token.sampled.signals?;
    let mut entry = json!({
        "entropy": signals.entropy,
        "top_logprob": signals.top_logprob,
        "second_logprob": signals.second_logprob,
        "margin": signals.margin,
    });
    if let Some(window) = token.window {
        entry["window"] = json!({
            "tokens": window.tokens,
            "entropy": spread(window.entropy),
            "margin": spread(window.margin),
            "high_entropy": window.high_entropy,
            "repetitions": window.repetitions,
        });
    }
    Some(entry)
}

fn spread(spread: SignalSpread) -> Value {
    json!({ "mean": spread.mean, "max": spread.max, "min": spread.min })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn check(body: Value, expected: Option<u32>) {
        let signals = read(&Fields::of_body(&body).expect("an object")).expect("valid");
        let window = match signals {
            Signals::Off => None,
            Signals::On { window } => Some(window.get()),
        };
        assert_eq!(window, expected, "{body}");
    }

    #[test]
    fn signals_are_asked_for_by_a_flag_or_with_a_window() {
        check(json!({}), None);
        check(json!({"signals": false}), None);
        check(json!({"signals": true}), Some(16));
        check(json!({"signals": {}}), Some(16));
        check(json!({"signals": {"window": 5}}), Some(5));
    }

    #[test]
    fn what_asks_for_no_window_there_can_be_is_refused_by_name() {
        for (body, param) in [
            (json!({"signals": "yes"}), "signals"),
            (json!({"signals": {"window": 0}}), "signals.window"),
            (json!({"signals": {"window": 1025}}), "signals.window"),
        ] {
            let error = read(&Fields::of_body(&body).expect("an object")).expect_err(param);
            assert_eq!((error.kind(), error.param()), (ErrorKind::InvalidValue, Some(param)));
        }
    }
}
