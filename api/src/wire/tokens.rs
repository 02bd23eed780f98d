//! The bodies of `/tokenize` and `/detokenize`, and lists of token ids wherever they appear.

use crate::error::ApiError;
use crate::wire::chat::read_messages;
use crate::wire::fields::{Fields, as_integer};
use lavalane_runtime::chat::ChatMessage;
use lavalane_runtime::ids::TokenId;
use lavalane_runtime::tokenizer::{AddSpecial, SpecialText};
use serde_json::Value;

/// What `/tokenize` is asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenizeRequest {
    /// One text.
    Text {
        /// The text.
        text: String,
        /// Whether the model file's own tokens are added.
        add_special: AddSpecial,
        /// What becomes of special tokens' text.
        special: SpecialText,
        /// Whether each token's text is wanted.
        pieces: Pieces,
    },
    /// A conversation, as `/v1/chat/completions` would read it.
    Chat {
        /// The messages.
        messages: Vec<ChatMessage>,
        /// Whether each token's text is wanted.
        pieces: Pieces,
    },
}

/// Whether each token's text is wanted beside its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// It is.
    Wanted,
    /// Ids are enough.
    Unwanted,
}

impl TokenizeRequest {
    /// Reads a body. The text is in `content` or `prompt`; `messages` stands in its place.
    ///
    /// # Errors
    /// A field is missing or has the wrong type.
    pub fn read(body: &Value) -> Result<Self, ApiError> {
        let fields = Fields::of_body(body)?;
        let pieces = match fields.flag("with_pieces")? {
            Some(true) => Pieces::Wanted,
            _ => Pieces::Unwanted,
        };
        if fields.get("messages").is_some() {
            let messages = read_messages(&fields)?;
            return Ok(Self::Chat { messages, pieces });
        }
        let text = match fields.text("content")? {
            Some(text) => text,
            None => fields.text("prompt")?.ok_or_else(|| fields.missing("content"))?,
        };
        let add_special = match fields.flag("add_special_tokens")? {
            Some(flag) => Some(flag),
            None => fields.flag("add_special")?,
        };
        Ok(Self::Text {
            text: text.to_owned(),
            add_special: if add_special == Some(true) { AddSpecial::Yes } else { AddSpecial::No },
            special: match fields.flag("parse_special")? {
                Some(false) => SpecialText::AsText,
                _ => SpecialText::AsTokens,
            },
            pieces,
        })
    }
}

/// Reads the body of `/detokenize`.
///
/// # Errors
/// `tokens` is missing, is no list of token ids, or holds one that the vocabulary lacks.
pub fn read_detokenize(body: &Value, vocabulary: usize) -> Result<Vec<TokenId>, ApiError> {
    let fields = Fields::of_body(body)?;
    let tokens = fields.array("tokens")?.ok_or_else(|| fields.missing("tokens"))?;
    read_token_ids(tokens, &fields.path("tokens"), vocabulary)
}

/// Reads a list of token ids, each below `vocabulary`.
///
/// # Errors
/// An entry is something else; the error names it.
pub fn read_token_ids(values: &[Value], path: &str, vocabulary: usize) -> Result<Vec<TokenId>, ApiError> {
    let last = i64::try_from(vocabulary).unwrap_or(i64::MAX) - 1;
    let token = |(index, value)| {
        as_integer(value, 0..=last, || format!("{path}[{index}]")).map(|id| TokenId(id as u32))
    };
    values.iter().enumerate().map(token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_names_of_the_text_are_understood() {
        for name in ["content", "prompt"] {
            let expected = TokenizeRequest::Text {
                text: "hi".to_owned(),
                add_special: AddSpecial::No,
                special: SpecialText::AsTokens,
                pieces: Pieces::Unwanted,
            };
            assert_eq!(TokenizeRequest::read(&json!({name: "hi"})), Ok(expected));
        }
        let error = TokenizeRequest::read(&json!({})).expect_err("no text");
        assert_eq!(error.param(), Some("content"));
    }

    #[test]
    fn a_token_outside_the_vocabulary_is_named() {
        let error = read_detokenize(&json!({"tokens": [1, 10]}), 10).expect_err("10 is outside");
        assert_eq!(error.param(), Some("tokens[1]"));
        assert_eq!(read_detokenize(&json!({"tokens": [1, 9]}), 10), Ok(vec![TokenId(1), TokenId(9)]));
    }
}
