//! Renders conversations by the served model's chat template.
//!
//! A template comes with a model file and is a program. The template engine bounds the work of an honest one; one
//! that means harm gets round that bound and would take all memory or never end. So the `lavalane` program renders in
//! a child process, whose memory and time the system and its own watchdog bound. Whoever embeds the server may render
//! in its own process where the files are trusted.

pub mod child;
mod process;
mod wire;

pub use process::TemplateProcess;

use lavalane_runtime::chat::{ChatMessage, ChatTemplate, RenderOptions, RenderedPrompt, TemplateError};
use std::path::PathBuf;

/// Which chat template a model is served with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateChoice {
    /// The one in its own file.
    Model,
    /// ChatML, for models that were trained on it and carry no template.
    ChatMl,
    /// The one in this file.
    File(PathBuf),
}

impl TemplateChoice {
    /// A name that is known, or else a file.
    pub fn read(value: &str) -> Self {
        match value {
            "chatml" => Self::ChatMl,
            path => Self::File(path.into()),
        }
    }
}

/// A chat template, ready to render.
#[derive(Debug)]
pub enum TemplateRenderer {
    /// In this process.
    Here(Box<ChatTemplate>),
    /// In a process of its own.
    Apart(TemplateProcess),
}

impl TemplateRenderer {
    /// The template's source.
    pub fn source(&self) -> &str {
        match self {
            Self::Here(template) => template.source(),
            Self::Apart(process) => process.source(),
        }
    }

    /// The prompt for `messages`, up to where the model's answer begins. Blocks until it is rendered.
    ///
    /// # Errors
    /// As for [`ChatTemplate::render`].
    pub fn render(&self, messages: &[ChatMessage]) -> Result<RenderedPrompt, TemplateError> {
        match self {
            Self::Here(template) => template.render(messages, &RenderOptions::default()),
            Self::Apart(process) => process.render(messages),
        }
    }
}

impl From<ChatTemplate> for TemplateRenderer {
    fn from(template: ChatTemplate) -> Self {
        Self::Here(Box::new(template))
    }
}

impl From<TemplateProcess> for TemplateRenderer {
    fn from(process: TemplateProcess) -> Self {
        Self::Apart(process)
    }
}
