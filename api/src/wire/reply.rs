//! Replies of the two generating endpoints, whole and in chunks.

use crate::generation::{Job, TokenPart, WholeChoice, total_usage};
use crate::random;
use crate::text_model::TextModel;
use crate::wire::common::{Delivery, Logprobs, StreamUsage};
use crate::wire::logprobs::{CompletionLogprobs, chat_entry};
use crate::wire::signals::{self, Signals};
use lavalane_actors::request::{FinishReason, Finished, TokenEvent, Usage};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Which endpoint's shape a reply has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
}

/// Writes one request's reply.
#[derive(Debug)]
pub struct ReplyWriter {
    endpoint: Endpoint,
    model: Arc<TextModel>,
    id: String,
    created: u64,
    fingerprint: String,
    logprobs: Logprobs,
    stream_usage: StreamUsage,
    /// Per choice, how many characters its tokens have so far.
    offsets: Vec<usize>,
}

impl ReplyWriter {
    /// A writer for the reply to `job`. `fingerprint` names what computed it.
    pub fn new(endpoint: Endpoint, job: &Job, model: Arc<TextModel>, fingerprint: String) -> Self {
        let id = random::id(match endpoint {
            Endpoint::Chat => "chatcmpl-",
            Endpoint::Completion => "cmpl-",
        });
        let stream_usage = match job.common().delivery {
            Delivery::Streamed { usage } => usage,
            Delivery::Whole => StreamUsage::Left,
        };
        let created = unix_seconds();
        let logprobs = job.common().logprobs;
        let offsets = vec![0; job.choices()];
        Self { endpoint, model, id, created, fingerprint, logprobs, stream_usage, offsets }
    }

    fn envelope(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model.name(),
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        })
    }

    /// The whole reply.
    pub fn whole(&mut self, job: &Job, choices: &[WholeChoice]) -> Value {
        let usages: Vec<Usage> = choices.iter().map(|choice| choice.usage).collect();
        let choice = |(index, choice): (usize, &WholeChoice)| {
            let logprobs = self.whole_logprobs(choice);
            let reason = finish_reason(&choice.reason);
            let mut value = match self.endpoint {
                Endpoint::Chat => json!({
                    "index": index,
                    "message": { "role": "assistant", "content": choice.text, "refusal": null },
                    "logprobs": logprobs,
                    "finish_reason": reason,
                }),
                Endpoint::Completion => json!({
                    "index": index, "text": choice.text, "logprobs": logprobs, "finish_reason": reason,
                }),
            };
            if job.common().signals != Signals::Off {
                value["signals"] = choice.tokens.iter().filter_map(signals::entry).collect();
            }
            value
        };
        let choices: Value = choices.iter().enumerate().map(choice).collect();
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completion => "text_completion",
        };
        let mut reply = self.envelope(object, choices);
        reply["usage"] = usage_value(total_usage(&usages, job.common().choices));
        reply
    }

    fn whole_logprobs(&self, choice: &WholeChoice) -> Value {
        match (self.logprobs, self.endpoint) {
            (Logprobs::Off, _) => Value::Null,
            (Logprobs::On { .. }, Endpoint::Chat) => {
                let entries = choice.tokens.iter().map(|token| chat_entry(&self.model, &token.sampled));
                json!({ "content": entries.collect::<Value>(), "refusal": null })
            }
            (Logprobs::On { .. }, Endpoint::Completion) => {
                let mut lists = CompletionLogprobs::default();
                let mut offset = 0;
                for token in &choice.tokens {
                    lists.push(&self.model, &token.sampled, offset);
                    offset += token.text.chars().count();
                }
                lists.into_value()
            }
        }
    }

    fn chunk(&self, choices: Value) -> Value {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completion => "text_completion",
        };
        let mut chunk = self.envelope(object, choices);
        if self.stream_usage == StreamUsage::Included {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn choice_chunk(&self, index: usize, text: Option<&str>, logprobs: Value, reason: Value) -> Value {
        let choice = match self.endpoint {
            Endpoint::Chat => {
                let delta = text.map_or_else(|| json!({}), |text| json!({ "content": text }));
                json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason })
            }
            Endpoint::Completion => json!({
                "index": index,
                "text": text.unwrap_or_default(),
                "logprobs": logprobs,
                "finish_reason": reason,
            }),
        };
        self.chunk(json!([choice]))
    }

    /// A choice's first chunk: for chat, the one and only that holds the role.
    pub fn first_chunk(&self, index: usize) -> Option<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        let choice = json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": null });
        (self.endpoint == Endpoint::Chat).then(|| self.chunk(json!([choice])))
    }

    /// The chunk for a token; `None` where it brings neither text, log-probabilities nor signals. One that
    /// only ends the reply has neither of the latter.
    pub fn token_chunk(&mut self, index: usize, token: &TokenEvent, part: TokenPart) -> Option<Value> {
        let offset = self.offsets[index];
        self.offsets[index] += token.text.chars().count();
        let logprobs = match (self.logprobs, self.endpoint) {
            _ if part == TokenPart::End => Value::Null,
            (Logprobs::Off, _) => Value::Null,
            (Logprobs::On { .. }, Endpoint::Chat) => {
                json!({ "content": [chat_entry(&self.model, &token.sampled)], "refusal": null })
            }
            (Logprobs::On { .. }, Endpoint::Completion) => {
                let mut lists = CompletionLogprobs::default();
                lists.push(&self.model, &token.sampled, offset);
                lists.into_value()
            }
        };
        let signals = signals::entry(token).filter(|_| part == TokenPart::Said);
        if token.text.is_empty() && logprobs.is_null() && signals.is_none() {
            return None;
        }
        let mut chunk = self.choice_chunk(index, Some(&token.text), logprobs, Value::Null);
        if let Some(signals) = signals {
            chunk["choices"][0]["signals"] = signals;
        }
        Some(chunk)
    }

    /// A choice's last chunks: text that was held back, then the reason.
    pub fn last_chunks(&self, index: usize, finished: &Finished) -> Vec<Value> {
        let reason = json!(finish_reason(&finished.reason));
        let held = (!finished.text.is_empty())
            .then(|| self.choice_chunk(index, Some(&finished.text), Value::Null, Value::Null));
        held.into_iter().chain([self.choice_chunk(index, None, Value::Null, reason)]).collect()
    }

    /// The chunk with what the request used, where the client asked for one.
    pub fn usage_chunk(&self, usage: Usage) -> Option<Value> {
        (self.stream_usage == StreamUsage::Included).then(|| {
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = usage_value(usage);
            chunk
        })
    }
}

/// The API's word for why a reply ended.
pub fn finish_reason(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop { .. } => "stop",
        FinishReason::Length => "length",
    }
}

/// The `usage` object.
pub fn usage_value(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
    })
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
