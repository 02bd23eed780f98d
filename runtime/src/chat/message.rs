//! Messages of a conversation, and how templates see them.

use serde_json::{Map, Value, json};

/// Who speaks. An enum and not a text, so that no client can smuggle one into a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions.
    System,
    /// Instructions, by the API's newer name. Templates that do not know it see a system message.
    Developer,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
}

impl Role {
    /// The role's name, as templates know it.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing, as beside tool calls.
    Null,
    /// One text.
    Text(String),
    /// Several texts. Templates that know parts see them as such, others see them joined by line
    /// breaks.
    Parts(Vec<String>),
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: Content,
    /// The speaker's name.
    pub name: Option<String>,
    /// What the model thought before it answered (`reasoning_content`).
    pub reasoning: Option<String>,
    /// The calls of an assistant's message.
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool's message answers.
    pub tool_call_id: Option<String>,
}

/// One call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The call's id.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The arguments as JSON text. Templates see the value where it is valid JSON, as they expect.
    pub arguments: String,
}

impl ChatMessage {
    /// A message that is only a text.
    pub fn new(role: Role, content: impl Into<Content>) -> Self {
        Self {
            role,
            content: content.into(),
            name: None,
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
        }
    }
}

/// What a template knows of the forms that messages may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Abilities {
    pub(super) content: ContentForms,
    pub(super) developer: Knowledge,
    pub(super) tool_calls: Knowledge,
}

/// Which forms of content a template can print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentForms {
    Text,
    Parts,
    Both,
}

/// Whether a template speaks of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Knowledge {
    Known,
    Unknown,
}

/// The message as a template sees it.
pub(super) fn template_view(message: &ChatMessage, abilities: Abilities) -> Value {
    let role = match (message.role, abilities.developer) {
        (Role::Developer, Knowledge::Unknown) => Role::System,
        (role, _) => role,
    };
    let mut view = Map::new();
    view.insert("role".into(), role.name().into());
    view.insert("content".into(), content_view(&message.content, abilities));
    let texts = [
        ("name", &message.name),
        ("reasoning_content", &message.reasoning),
        ("tool_call_id", &message.tool_call_id),
    ];
    for (key, text) in texts {
        if let Some(text) = text {
            view.insert(key.into(), text.as_str().into());
        }
    }
    if !message.tool_calls.is_empty() {
        view.insert("tool_calls".into(), message.tool_calls.iter().map(call_view).collect());
    }
    Value::Object(view)
}

fn content_view(content: &Content, abilities: Abilities) -> Value {
    let part = |text: &str| json!({ "type": "text", "text": text });
    match (content, abilities.content) {
        // Templates that know no tool calls also know no content but texts.
        (Content::Null, _) if abilities.tool_calls == Knowledge::Unknown => "".into(),
        (Content::Null, _) => Value::Null,
        (Content::Text(text), ContentForms::Parts) => Value::Array(vec![part(text)]),
        (Content::Text(text), ContentForms::Text | ContentForms::Both) => text.as_str().into(),
        (Content::Parts(texts), ContentForms::Text) => texts.join("\n").into(),
        (Content::Parts(texts), ContentForms::Both) if texts.len() == 1 => texts[0].as_str().into(),
        (Content::Parts(texts), ContentForms::Parts | ContentForms::Both) => {
            texts.iter().map(|text| part(text)).collect()
        }
    }
}

fn call_view(call: &ToolCall) -> Value {
    let arguments = match serde_json::from_str::<Value>(&call.arguments) {
        Ok(value) if value.is_object() => value,
        _ => call.arguments.as_str().into(),
    };
    json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": arguments } })
}
