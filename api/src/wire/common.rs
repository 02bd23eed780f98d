//! What chat and completion requests have in common, validated.

use crate::error::ApiError;
use crate::wire::fields::{Fields, as_text, invalid};
use crate::wire::signals::{self, Signals};
use crate::wire::time_limits::TimeLimits;
use crate::wire::{sampling, tokens};
use lavalane_actors::request::{EndTokens, StopRules};
use lavalane_runtime::sampling::{SamplingOptions, SignalReport};
use serde_json::{Value, json};

/// The most choices of one request.
pub const CHOICES_MAX: i64 = 64;
/// The most stop texts of one request.
pub const STOP_TEXTS_MAX: usize = 16;
/// The most bytes of one stop text.
pub const STOP_TEXT_BYTES_MAX: usize = 1024;

/// How the reply is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// In one piece.
    Whole,
    /// As server-sent events while it is drawn.
    Streamed {
        /// Whether a last event says what the request used.
        usage: StreamUsage,
    },
}

/// Whether a stream ends with what the request used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamUsage {
    /// It does, and every other event says `usage: null`.
    Included,
    /// No event has the field.
    Left,
}

/// Which log-probabilities are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logprobs {
    /// None.
    Off,
    /// Each token's own, and those of its most likely alternatives.
    On {
        /// How many alternatives; 0 to 20.
        top: u8,
    },
}

/// The fields that every generating request has.
#[derive(Clone, Debug)]
pub struct CommonRequest {
    /// The model that was asked for.
    pub model: Option<String>,
    /// How tokens are drawn; ranges are not checked yet.
    pub sampling: SamplingOptions,
    /// The most tokens to draw; at least 1. `None` where the request does not say.
    pub tokens_max: Option<u32>,
    /// When a reply ends before that.
    pub stop: StopRules,
    /// How many replies to each prompt; at least 1.
    pub choices: u32,
    /// How the reply is sent.
    pub delivery: Delivery,
    /// Which log-probabilities are reported.
    pub logprobs: Logprobs,
    /// Whether the model's certainty is reported.
    pub signals: Signals,
    /// Higher goes first.
    pub priority: i32,
    /// How long it may wait and run; not checked against the engine's own limits yet.
    pub time_limits: TimeLimits,
}

impl CommonRequest {
    /// Reads the common fields. `tokens_max_names` are the field's names, the stronger first.
    ///
    /// # Errors
    /// A field has the wrong type or value, or is one that this server does not implement.
    pub fn read(
        fields: &Fields<'_>,
        tokens_max_names: &[&str],
        logprobs: Logprobs,
    ) -> Result<Self, ApiError> {
        refuse_unsupported(fields)?;
        let mut sampling = sampling::read(fields)?;
        if let Logprobs::On { top } = logprobs {
            sampling.top_logprobs = top;
        }
        let signals = signals::read(fields)?;
        if signals != Signals::Off {
            sampling.signals = SignalReport::On;
        }
        let choices = fields.integer("n", 1..=CHOICES_MAX)?.unwrap_or(1);
        // vLLM's field, in which lower numbers go first.
        let priority = fields.integer("priority", i64::from(-i32::MAX)..=i64::from(i32::MAX))?.unwrap_or(0);
        Ok(Self {
            model: fields.text("model")?.map(str::to_owned),
            sampling,
            tokens_max: tokens_max(fields, tokens_max_names)?,
            stop: stop(fields)?,
            choices: choices as u32,
            delivery: delivery(fields)?,
            logprobs,
            signals,
            priority: -(priority as i32),
            time_limits: TimeLimits::read(fields)?,
        })
    }
}

/// Fields of the OpenAI API and of servers like it that ask for something this server cannot do yet,
/// with the values that ask for nothing.
fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    let unsupported: &[(&str, &[Value])] = &[
        ("tools", &[json!([])]),
        ("tool_choice", &[json!("none")]),
        ("parallel_tool_calls", &[json!(true)]),
        ("functions", &[json!([])]),
        ("function_call", &[json!("none")]),
        ("response_format", &[json!({"type": "text"})]),
        ("audio", &[]),
        ("modalities", &[json!(["text"])]),
        ("prediction", &[]),
        ("store", &[json!(false)]),
        ("reasoning_effort", &[json!("none")]),
        ("verbosity", &[json!("medium")]),
        ("web_search_options", &[]),
        ("service_tier", &[json!("auto"), json!("default")]),
        ("suffix", &[json!("")]),
        ("echo", &[json!(false)]),
        ("best_of", &[json!(1)]),
        ("prompt_logprobs", &[json!(0)]),
        ("use_beam_search", &[json!(false)]),
        ("min_tokens", &[json!(0)]),
        ("bad_words", &[json!([])]),
        ("allowed_token_ids", &[]),
        ("structured_outputs", &[]),
        ("guided_json", &[]),
        ("guided_regex", &[]),
        ("guided_choice", &[]),
        ("guided_grammar", &[]),
        ("json_schema", &[]),
        ("grammar", &[json!("")]),
        ("chat_template", &[]),
        ("chat_template_kwargs", &[json!({})]),
        ("add_generation_prompt", &[json!(true)]),
        ("continue_final_message", &[json!(false)]),
        ("documents", &[json!([])]),
    ];
    unsupported.iter().try_for_each(|(name, harmless)| fields.refuse_unsupported(name, harmless))
}

fn tokens_max(fields: &Fields<'_>, names: &[&str]) -> Result<Option<u32>, ApiError> {
    let mut tokens_max = None;
    // Every name is checked, so that a wrong value is never passed over in silence.
    for name in names {
        let value = fields.integer(name, 1..=i64::from(u32::MAX))?;
        tokens_max = tokens_max.or(value);
    }
    Ok(tokens_max.map(|tokens| tokens as u32))
}

fn stop(fields: &Fields<'_>) -> Result<StopRules, ApiError> {
    let path = fields.path("stop");
    let texts = match fields.get("stop") {
        None => Vec::new(),
        Some(Value::Array(values)) => {
            let text = |(index, value)| stop_text(value, format!("{path}[{index}]"));
            values.iter().enumerate().map(text).collect::<Result<Vec<_>, _>>()?
        }
        Some(value @ Value::String(_)) => vec![stop_text(value, path.clone())?],
        Some(value) => {
            return Err(crate::wire::fields::wrong_type(&path, "a string or an array of strings", value));
        }
    };
    if texts.len() > STOP_TEXTS_MAX {
        return Err(invalid(
            &path,
            &format!("may hold at most {STOP_TEXTS_MAX} strings, not {}", texts.len()),
        ));
    }
    let ids = fields.array("stop_token_ids")?.unwrap_or_default();
    let ids_path = fields.path("stop_token_ids");
    let end_tokens = match fields.flag("ignore_eos")? {
        Some(true) => EndTokens::Ignore,
        _ => EndTokens::Stop,
    };
    // A token that the vocabulary lacks is never drawn and does no harm.
    let tokens = tokens::read_token_ids(ids, &ids_path, u32::MAX as usize)?;
    Ok(StopRules { texts, tokens, end_tokens })
}

fn stop_text(value: &Value, path: String) -> Result<String, ApiError> {
    let text = as_text(value, || path.clone())?;
    match text.len() {
        0 => Err(invalid(&path, "must not be empty")),
        length if length > STOP_TEXT_BYTES_MAX => {
            Err(invalid(&path, &format!("may have at most {STOP_TEXT_BYTES_MAX} bytes, not {length}")))
        }
        _ => Ok(text.to_owned()),
    }
}

fn delivery(fields: &Fields<'_>) -> Result<Delivery, ApiError> {
    let streamed = fields.flag("stream")?.unwrap_or(false);
    let Some(options) = fields.object("stream_options")? else {
        let usage = StreamUsage::Left;
        return Ok(if streamed { Delivery::Streamed { usage } } else { Delivery::Whole });
    };
    if !streamed {
        return Err(fields.invalid("stream_options", "is only allowed where `stream` is true"));
    }
    let included = options.flag("include_usage")?.unwrap_or(false);
    let usage = if included { StreamUsage::Included } else { StreamUsage::Left };
    Ok(Delivery::Streamed { usage })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn read(body: Value) -> Result<CommonRequest, ApiError> {
        CommonRequest::read(&Fields::of_body(&body)?, &["max_completion_tokens", "max_tokens"], Logprobs::Off)
    }

    fn check(body: Value, kind: ErrorKind, param: &str) {
        let error = read(body.clone()).expect_err(param);
        assert_eq!((error.kind(), error.param()), (kind, Some(param)), "{body}: {error}");
    }

    #[test]
    fn an_empty_object_is_all_defaults() {
        let request = read(json!({"stop": null, "max_tokens": null, "n": null})).expect("valid");
        assert_eq!((request.tokens_max, request.choices), (None, 1));
        assert_eq!(request.delivery, Delivery::Whole);
        assert!(request.stop.texts.is_empty());
    }

    #[test]
    fn impossible_limits_are_refused_by_name() {
        check(json!({"max_tokens": 0}), ErrorKind::InvalidValue, "max_tokens");
        check(json!({"max_completion_tokens": -1}), ErrorKind::InvalidValue, "max_completion_tokens");
        check(json!({"max_completion_tokens": 1, "max_tokens": "2"}), ErrorKind::InvalidValue, "max_tokens");
        check(json!({"n": 0}), ErrorKind::InvalidValue, "n");
        check(json!({"n": 65}), ErrorKind::InvalidValue, "n");
    }

    #[test]
    fn the_newer_name_of_the_token_limit_is_stronger() {
        let request = read(json!({"max_tokens": 3, "max_completion_tokens": 5})).expect("valid");
        assert_eq!(request.tokens_max, Some(5));
    }

    #[test]
    fn stop_is_a_text_or_several_and_never_empty() {
        let texts = |body| read(body).expect("valid").stop.texts;
        assert_eq!(texts(json!({"stop": "a"})), ["a"]);
        assert_eq!(texts(json!({"stop": ["a", "b"]})), ["a", "b"]);
        check(json!({"stop": ""}), ErrorKind::InvalidValue, "stop");
        check(json!({"stop": ["a", ""]}), ErrorKind::InvalidValue, "stop[1]");
        check(json!({"stop": ["a", 1]}), ErrorKind::InvalidValue, "stop[1]");
        check(json!({"stop": 5}), ErrorKind::InvalidValue, "stop");
        check(json!({"stop": vec!["x"; 17]}), ErrorKind::InvalidValue, "stop");
    }

    #[test]
    fn known_fields_that_ask_for_the_unsupported_are_refused_and_unknown_ones_are_not() {
        check(json!({"tools": [{"type": "function"}]}), ErrorKind::UnsupportedField, "tools");
        check(
            json!({"response_format": {"type": "json_object"}}),
            ErrorKind::UnsupportedField,
            "response_format",
        );
        check(json!({"store": true}), ErrorKind::UnsupportedField, "store");
        check(json!({"modalities": ["text", "audio"]}), ErrorKind::UnsupportedField, "modalities");
        let harmless = json!({
            "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "store": false,
            "audio": null, "modalities": ["text"], "user": "me", "metadata": {"a": "b"}, "wibble": [1],
        });
        assert!(read(harmless).is_ok());
    }

    #[test]
    fn stream_options_need_a_stream() {
        check(json!({"stream_options": {"include_usage": true}}), ErrorKind::InvalidValue, "stream_options");
        let request =
            read(json!({"stream": true, "stream_options": {"include_usage": true}})).expect("valid");
        assert_eq!(request.delivery, Delivery::Streamed { usage: StreamUsage::Included });
    }

    #[test]
    fn lower_priority_numbers_go_first() {
        assert_eq!(read(json!({"priority": 3})).expect("valid").priority, -3);
    }
}
