//! The lines that the program and its rendering process exchange: one JSON value each. Messages have the form of the
//! chat API, so that one reader serves both.

use crate::wire::chat::read_messages;
use crate::wire::fields::Fields;
use lavalane_runtime::chat::{ChatMessage, Content, RenderedPrompt, TemplateError, TemplateTexts, ToolCall};
use serde_json::{Value, json};
use std::ops::Range;

/// The first line to the process: the template, and what it must know of the tokenizer.
pub(super) fn start_value(source: &str, texts: &TemplateTexts) -> Value {
    json!({ "source": source, "bos": texts.bos, "eos": texts.eos, "control": texts.control })
}

/// Reads the first line.
pub(super) fn read_start(value: &Value) -> Option<(String, TemplateTexts)> {
    let text = |name: &str| Some(value[name].as_str()?.to_owned());
    let control = value["control"].as_array()?.iter().map(|text| Some(text.as_str()?.to_owned()));
    let texts =
        TemplateTexts { bos: text("bos")?, eos: text("eos")?, control: control.collect::<Option<_>>()? };
    Some((text("source")?, texts))
}

/// A later line: a conversation.
pub(super) fn messages_value(messages: &[ChatMessage]) -> Value {
    json!({ "messages": messages.iter().map(message_value).collect::<Value>() })
}

fn message_value(message: &ChatMessage) -> Value {
    let part = |text: &String| json!({ "type": "text", "text": text });
    let content = match &message.content {
        Content::Null => Value::Null,
        Content::Text(text) => json!(text),
        Content::Parts(texts) => texts.iter().map(part).collect(),
    };
    json!({
        "role": message.role.name(),
        "content": content,
        "name": message.name,
        "reasoning_content": message.reasoning,
        "tool_calls": message.tool_calls.iter().map(call_value).collect::<Value>(),
        "tool_call_id": message.tool_call_id,
    })
}

fn call_value(call: &ToolCall) -> Value {
    let function = json!({ "name": call.name, "arguments": call.arguments });
    json!({ "id": call.id, "type": "function", "function": function })
}

/// Reads a conversation.
pub(super) fn read_conversation(value: &Value) -> Result<Vec<ChatMessage>, TemplateError> {
    let messages = Fields::of_body(value).and_then(|fields| read_messages(&fields));
    messages.map_err(|error| TemplateError::Failed(error.to_string()))
}

/// The answer to a conversation.
pub(super) fn reply_value(reply: &Result<RenderedPrompt, TemplateError>) -> Value {
    match reply {
        Ok(prompt) => {
            let plain: Value = prompt.plain().iter().map(|span| json!([span.start, span.end])).collect();
            json!({ "text": prompt.text(), "plain": plain })
        }
        Err(error) => error_value(error),
    }
}

/// Reads an answer; `None` where it is none.
pub(super) fn read_reply(value: &Value) -> Option<Result<RenderedPrompt, TemplateError>> {
    if let Some(error) = read_error(value) {
        return Some(Err(error));
    }
    let text = value["text"].as_str()?.to_owned();
    let place =
        |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|place| text.is_char_boundary(*place));
    let span = |value: &Value| Some(Range { start: place(&value[0])?, end: place(&value[1])? });
    let plain = value["plain"].as_array()?.iter().map(span).collect::<Option<Vec<_>>>()?;
    Some(Ok(RenderedPrompt::new(text, plain)))
}

/// Says that a template failed.
pub(super) fn error_value(error: &TemplateError) -> Value {
    let (kind, text) = match error {
        TemplateError::Missing => ("missing", ""),
        TemplateError::TooLarge { bytes, limit } => {
            return json!({ "error": "too large", "bytes": bytes, "limit": limit });
        }
        TemplateError::Syntax(text) => ("syntax", text.as_str()),
        TemplateError::Refused(text) => ("refused", text.as_str()),
        TemplateError::Failed(text) => ("failed", text.as_str()),
        TemplateError::TooMuchWork => ("too much work", ""),
        TemplateError::ControlText { text } => ("control text", text.as_str()),
    };
    json!({ "error": kind, "text": text })
}

/// Reads why a template failed; `None` where it did not.
pub(super) fn read_error(value: &Value) -> Option<TemplateError> {
    let text = || value["text"].as_str().unwrap_or_default().to_owned();
    let number =
        |name: &str| value[name].as_u64().and_then(|number| usize::try_from(number).ok()).unwrap_or_default();
    Some(match value["error"].as_str()? {
        "missing" => TemplateError::Missing,
        "too large" => TemplateError::TooLarge { bytes: number("bytes"), limit: number("limit") },
        "syntax" => TemplateError::Syntax(text()),
        "refused" => TemplateError::Refused(text()),
        "too much work" => TemplateError::TooMuchWork,
        "control text" => TemplateError::ControlText { text: text() },
        _ => TemplateError::Failed(text()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lavalane_runtime::chat::Role;

    #[test]
    fn conversations_come_back_as_they_were() {
        let call = ToolCall { id: "c1".to_owned(), name: "f".to_owned(), arguments: "{\"a\": 1}".to_owned() };
        let messages = vec![
            ChatMessage::new(Role::System, "s"),
            ChatMessage::new(Role::Developer, "d"),
            ChatMessage { name: Some("Ann".to_owned()), ..ChatMessage::new(Role::User, "héllo\n") },
            ChatMessage {
                content: Content::Parts(vec!["a".to_owned(), "b".to_owned()]),
                ..ChatMessage::new(Role::User, "")
            },
            ChatMessage {
                content: Content::Null,
                reasoning: Some("hm".to_owned()),
                tool_calls: vec![call],
                ..ChatMessage::new(Role::Assistant, "")
            },
            ChatMessage { tool_call_id: Some("c1".to_owned()), ..ChatMessage::new(Role::Tool, "3") },
        ];
        assert_eq!(read_conversation(&messages_value(&messages)), Ok(messages));
    }

    #[test]
    fn replies_come_back_as_they_were() {
        let replies = [
            Ok(RenderedPrompt::new("é<|im_end|>".to_owned(), vec![0..2, 2..12])),
            Err(TemplateError::Missing),
            Err(TemplateError::TooLarge { bytes: 3, limit: 2 }),
            Err(TemplateError::Syntax("s".to_owned())),
            Err(TemplateError::Refused("r".to_owned())),
            Err(TemplateError::Failed("f".to_owned())),
            Err(TemplateError::TooMuchWork),
            Err(TemplateError::ControlText { text: "c".to_owned() }),
        ];
        for reply in replies {
            assert_eq!(read_reply(&reply_value(&reply)), Some(reply));
        }
    }

    #[test]
    fn what_is_no_reply_is_none() {
        for value in [
            json!(null),
            json!({"text": "é", "plain": [[0, 1]]}),
            json!({"text": "a", "plain": [[0, 2]]}),
            json!({"text": "a", "plain": [[0]]}),
            json!({"plain": []}),
        ] {
            assert_eq!(read_reply(&value), None, "{value}");
        }
    }

    #[test]
    fn the_start_comes_back_as_it_was() {
        let texts =
            TemplateTexts { bos: "<s>".to_owned(), eos: String::new(), control: vec!["<s>".to_owned()] };
        assert_eq!(read_start(&start_value("{{ x }}", &texts)), Some(("{{ x }}".to_owned(), texts)));
        assert_eq!(read_start(&json!({"source": ""})), None);
    }
}
