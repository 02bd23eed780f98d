//! Log-probabilities as the two endpoints write them down.

use crate::text_model::TextModel;
use lavalane_runtime::ids::TokenId;
use lavalane_runtime::sampling::Sampled;
use serde_json::{Map, Value, json};

/// One token's entry in the `logprobs.content` of a chat reply.
pub fn chat_entry(model: &TextModel, sampled: &Sampled) -> Value {
    let mut entry = chat_token(model, sampled.token, sampled.logprob);
    entry["top_logprobs"] =
        sampled.top.iter().map(|&(token, logprob)| chat_token(model, token, logprob)).collect();
    entry
}

fn chat_token(model: &TextModel, token: TokenId, logprob: f32) -> Value {
    let bytes = model.piece_bytes(token);
    json!({ "token": String::from_utf8_lossy(&bytes), "logprob": logprob, "bytes": bytes })
}

/// The four parallel lists of a completion's `logprobs`.
#[derive(Clone, Debug, Default)]
pub struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Adds a token whose text begins `offset` characters into the reply.
    pub fn push(&mut self, model: &TextModel, sampled: &Sampled, offset: usize) {
        let piece = |token| String::from_utf8_lossy(&model.piece_bytes(token)).into_owned();
        self.tokens.push(piece(sampled.token));
        self.token_logprobs.push(sampled.logprob);
        let mut top = Map::new();
        for &(token, logprob) in &sampled.top {
            // Several tokens may have the same text, such as the replacement character: the likelier
            // one, which comes first, stays.
            top.entry(piece(token)).or_insert_with(|| json!(logprob));
        }
        self.top_logprobs.push(Value::Object(top));
        self.text_offset.push(offset);
    }

    /// The lists as the reply holds them.
    pub fn into_value(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}
