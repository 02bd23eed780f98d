//! Chat templates: messages in, the text of a prompt out, with the user's parts marked so that they can
//! never become control tokens.
//!
//! A model file carries its template as Jinja source (`tokenizer.chat_template`). It is run by
//! minijinja in the way Hugging Face's `apply_chat_template` runs it, under a budget of work, since the
//! template is as foreign as the rest of the file.

mod dates;
mod functions;
mod guard;
mod markers;
mod message;
mod prompt;
mod template;

#[cfg(test)]
mod tests;

pub use message::{ChatMessage, Content, Role, ToolCall};
pub use prompt::RenderedPrompt;
pub use template::{CHATML, ChatTemplate, GenerationPrompt, RenderOptions, TemplateTexts};

/// Why a chat template could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The model file has no template.
    #[error("the model file has no chat template (tokenizer.chat_template); is this a base model?")]
    Missing,
    /// The template is too large to be one.
    #[error("the chat template has {bytes} bytes, more than {limit}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The most that is read.
        limit: usize,
    },
    /// The template is no valid Jinja.
    #[error("the chat template is faulty: {0}")]
    Syntax(String),
    /// The template refused the messages, in its own words.
    #[error("the chat template refuses the messages: {0}")]
    Refused(String),
    /// The template failed on the messages.
    #[error("the chat template failed: {0}")]
    Failed(String),
    /// The template asked for more work than it may.
    #[error("the chat template takes too much work for these messages")]
    TooMuchWork,
    /// A message holds the text of a control token, and the template treats that text in a way that
    /// would mix it up with the template's own control tokens.
    #[error(
        "a message holds the control text {text:?}, which this model's chat template does not allow in it"
    )]
    ControlText {
        /// The control token's text.
        text: String,
    },
}
