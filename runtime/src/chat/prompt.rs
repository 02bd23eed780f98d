//! A rendered prompt: its text, and which parts of it are a client's.

use crate::ids::TokenId;
use crate::tokenizer::{AddSpecial, Tokenizer};
use std::ops::Range;

/// What a chat template gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPrompt {
    text: String,
    plain: Vec<Range<usize>>,
}

impl RenderedPrompt {
    /// A prompt of which the byte ranges `plain`, in order and apart from one another, are a client's.
    pub fn new(text: String, plain: Vec<Range<usize>>) -> Self {
        Self { text, plain }
    }

    /// The prompt's text, exactly as the template printed it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The byte ranges in which a control token's text came from a client, in order.
    pub fn plain(&self) -> &[Range<usize>] {
        &self.plain
    }

    /// The prompt's tokens. The template's control texts become control tokens, a client's stay text.
    /// BOS is in front where the tokenizer adds it, and once only where the template prints it too.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Vec<TokenId> {
        tokenizer.encode_with_plain_spans(&self.text, &self.plain, AddSpecial::Beginning)
    }
}
