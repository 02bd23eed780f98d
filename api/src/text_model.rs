//! The served model's text side: its name, its tokenizer and its chat template.

use crate::error::{ApiError, ErrorKind};
use crate::templates::TemplateRenderer;
use lavalane_runtime::chat::{ChatMessage, TemplateError};
use lavalane_runtime::ids::TokenId;
use lavalane_runtime::tokenizer::{AddSpecial, ControlText, SpecialText, TokenText, Tokenizer};
use std::sync::Arc;

/// What the server knows of the model beside the engine that runs it.
#[derive(Clone, Debug)]
pub struct TextModel {
    name: String,
    aliases: Vec<String>,
    tokenizer: Arc<Tokenizer>,
    template: Result<Arc<TemplateRenderer>, TemplateError>,
}

impl TextModel {
    /// A model that answers to `name` and to each of `aliases`. A template that could not be read
    /// fails chat requests only, each with its reason.
    pub fn new(
        name: String,
        aliases: Vec<String>,
        tokenizer: Arc<Tokenizer>,
        template: Result<impl Into<TemplateRenderer>, TemplateError>,
    ) -> Self {
        Self { name, aliases, tokenizer, template: template.map(|template| Arc::new(template.into())) }
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All names that the model answers to, its own first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.aliases.iter().map(String::as_str))
    }

    /// Checks the model that a request names.
    ///
    /// # Errors
    /// It is not this one; the message says what is served.
    pub fn check_name(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(asked) if self.names().all(|name| name != asked) => {
                let message = format!("the model {asked:?} is not served here; {:?} is", self.name);
                Err(ApiError::field(ErrorKind::ModelNotFound, "model", message))
            }
            _ => Ok(()),
        }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The chat template, or why there is none.
    pub fn template(&self) -> Result<&TemplateRenderer, &TemplateError> {
        self.template.as_deref()
    }

    /// The size of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.tokenizer.vocabulary_size()
    }

    /// The tokens of a raw prompt: its writer places special tokens, and BOS is put in front where the
    /// model wants it.
    pub fn encode_prompt(&self, text: &str) -> Vec<TokenId> {
        self.tokenizer.encode(text, SpecialText::AsTokens, AddSpecial::Beginning)
    }

    /// The tokens of a conversation, up to where the model's answer begins.
    ///
    /// # Errors
    /// The model has no chat template, or the template refuses the messages.
    pub fn encode_chat(&self, messages: &[ChatMessage]) -> Result<Vec<TokenId>, ApiError> {
        let refused =
            |error: &TemplateError| ApiError::field(ErrorKind::InvalidValue, "messages", error.to_string());
        let template = self.template().map_err(refused)?;
        let prompt = template.render(messages).map_err(|error| refused(&error))?;
        Ok(prompt.encode(&self.tokenizer))
    }

    /// The text of some tokens, special ones included.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        self.tokenizer.decode(tokens, ControlText::Show)
    }

    /// One token's own bytes; those of its name for a special token.
    pub fn piece_bytes(&self, token: TokenId) -> Vec<u8> {
        match self.tokenizer.token_bytes(token) {
            [] => self.tokenizer.token_text(token).unwrap_or_default().as_bytes().to_vec(),
            bytes => bytes.to_vec(),
        }
    }
}
