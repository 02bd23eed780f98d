//! The body of `POST /v1/chat/completions`.

use crate::error::{ApiError, ErrorKind};
use crate::wire::common::{CommonRequest, Logprobs};
use crate::wire::fields::{Fields, as_text, invalid, wrong_type};
use crate::wire::sampling::TOP_LOGPROBS_MAX;
use lavalane_runtime::chat::{ChatMessage, Content, Role, ToolCall};
use serde_json::Value;

/// Reads the field `messages`.
///
/// # Errors
/// It is missing or empty, or a message is not as the API says.
pub fn read_messages(fields: &Fields<'_>) -> Result<Vec<ChatMessage>, ApiError> {
    let values = fields.array("messages")?.ok_or_else(|| fields.missing("messages"))?;
    if values.is_empty() {
        return Err(fields.invalid("messages", "must hold at least one message"));
    }
    let path = fields.path("messages");
    let message = |(index, value)| read_message(&Fields::of(value, format!("{path}[{index}]"))?);
    values.iter().enumerate().map(message).collect()
}

fn read_message(fields: &Fields<'_>) -> Result<ChatMessage, ApiError> {
    let role = read_role(fields.required_text("role")?, &fields.path("role"))?;
    fields.refuse_unsupported("audio", &[])?;
    fields.refuse_unsupported("function_call", &[])?;
    let tool_calls = match role {
        Role::Assistant => tool_calls(fields)?,
        _ => Vec::new(),
    };
    let content = match content(fields)? {
        Some(content) => content,
        None if !tool_calls.is_empty() => Content::Null,
        None => match (role, fields.text("refusal")?) {
            (Role::Assistant, Some(refusal)) => Content::from(refusal),
            _ => return Err(fields.missing("content")),
        },
    };
    let tool_call_id = fields.text("tool_call_id")?.map(str::to_owned);
    if role == Role::Tool && tool_call_id.is_none() {
        return Err(fields.missing("tool_call_id"));
    }
    Ok(ChatMessage {
        role,
        content,
        name: fields.text("name")?.map(str::to_owned),
        reasoning: fields.text("reasoning_content")?.map(str::to_owned),
        tool_calls,
        tool_call_id,
    })
}

fn read_role(name: &str, path: &str) -> Result<Role, ApiError> {
    match name {
        "system" => Ok(Role::System),
        "developer" => Ok(Role::Developer),
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        "tool" => Ok(Role::Tool),
        other => {
            let known = "must be one of system, developer, user, assistant and tool";
            Err(invalid(path, &format!("{known}, not {other:?}")))
        }
    }
}

fn content(fields: &Fields<'_>) -> Result<Option<Content>, ApiError> {
    let path = fields.path("content");
    match fields.get("content") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(Content::Text(text.clone()))),
        Some(Value::Array(parts)) => {
            let part = |(index, value)| part_text(&Fields::of(value, format!("{path}[{index}]"))?);
            let texts = parts.iter().enumerate().map(part).collect::<Result<Vec<_>, _>>()?;
            if texts.is_empty() {
                return Err(invalid(&path, "must hold at least one part"));
            }
            Ok(Some(Content::Parts(texts)))
        }
        Some(other) => Err(wrong_type(&path, "a string or an array of parts", other)),
    }
}

fn part_text(part: &Fields<'_>) -> Result<String, ApiError> {
    match part.required_text("type")? {
        name @ ("text" | "refusal") => part.required_text(name).map(str::to_owned),
        kind @ ("image_url" | "input_audio" | "file") => {
            let path = part.path("type");
            let message = format!("`{path}`: parts of type {kind:?} are not supported by this server");
            Err(ApiError::field(ErrorKind::UnsupportedField, path, message))
        }
        other => Err(part.invalid("type", &format!("must be \"text\", not {other:?}"))),
    }
}

fn tool_calls(fields: &Fields<'_>) -> Result<Vec<ToolCall>, ApiError> {
    let path = fields.path("tool_calls");
    let call = |(index, value)| {
        let call = Fields::of(value, format!("{path}[{index}]"))?;
        if let Some(kind) = call.text("type")?.filter(|kind| *kind != "function") {
            return Err(call.invalid("type", &format!("must be \"function\", not {kind:?}")));
        }
        let function = call.object("function")?.ok_or_else(|| call.missing("function"))?;
        Ok(ToolCall {
            id: call.required_text("id")?.to_owned(),
            name: function.required_text("name")?.to_owned(),
            arguments: as_text_field(&function, "arguments")?,
        })
    };
    fields.array("tool_calls")?.unwrap_or_default().iter().enumerate().map(call).collect()
}

fn as_text_field(fields: &Fields<'_>, name: &str) -> Result<String, ApiError> {
    let value = fields.get(name).ok_or_else(|| fields.missing(name))?;
    as_text(value, || fields.path(name)).map(str::to_owned)
}

/// A chat request, validated.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    /// The conversation; at least one message.
    pub messages: Vec<ChatMessage>,
    /// Everything else.
    pub common: CommonRequest,
}

impl ChatRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// A field is missing, has the wrong type or value, or is not supported; the error names it.
    pub fn read(body: &Value) -> Result<Self, ApiError> {
        let fields = Fields::of_body(body)?;
        let logprobs = logprobs(&fields)?;
        let common = CommonRequest::read(&fields, &["max_completion_tokens", "max_tokens"], logprobs)?;
        Ok(Self { messages: read_messages(&fields)?, common })
    }
}

fn logprobs(fields: &Fields<'_>) -> Result<Logprobs, ApiError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=TOP_LOGPROBS_MAX)?;
    match (wanted, top) {
        (true, top) => Ok(Logprobs::On { top: top.unwrap_or(0) as u8 }),
        (false, Some(1..)) => Err(fields.invalid("top_logprobs", "is only allowed where `logprobs` is true")),
        (false, _) => Ok(Logprobs::Off),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages(messages: Value) -> Result<Vec<ChatMessage>, ApiError> {
        ChatRequest::read(&json!({ "messages": messages })).map(|request| request.messages)
    }

    fn check(value: Value, param: &str) {
        let error = messages(value.clone()).expect_err(param);
        assert_eq!(error.param(), Some(param), "{value}: {error}");
    }

    #[test]
    fn every_form_of_message_in_the_reference_is_accepted() {
        let read = messages(json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "name": "Ann", "content": [
                {"type": "text", "text": "one"}, {"type": "text", "text": "two"}
            ]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ]));
        let read = read.expect("all are valid");
        assert_eq!(read[0].role, Role::Developer);
        assert_eq!(read[1].content, Content::Parts(vec!["one".to_owned(), "two".to_owned()]));
        assert_eq!(read[1].name.as_deref(), Some("Ann"));
        assert_eq!((&read[2].content, read[2].tool_calls[0].name.as_str()), (&Content::Null, "f"));
        assert_eq!(read[3].tool_call_id.as_deref(), Some("c1"));
        assert_eq!(read[4].content, Content::Parts(vec!["no".to_owned()]));
    }

    #[test]
    fn a_bad_message_is_named_by_its_place() {
        check(json!([]), "messages");
        check(json!("hi"), "messages");
        check(json!([{"role": "user", "content": "x"}, 5]), "messages[1]");
        check(json!([{"content": "x"}]), "messages[0].role");
        check(json!([{"role": "robot", "content": "x"}]), "messages[0].role");
        check(json!([{"role": "user", "content": null}]), "messages[0].content");
        check(json!([{"role": "user", "content": 5}]), "messages[0].content");
        check(json!([{"role": "user", "content": []}]), "messages[0].content");
        check(json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text");
        check(
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            "messages[0].content[0].type",
        );
        check(json!([{"role": "tool", "content": "x"}]), "messages[0].tool_call_id");
        check(json!([{"role": "assistant", "content": null}]), "messages[0].content");
        check(
            json!([{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}]}]),
            "messages[0].tool_calls[0].function.arguments",
        );
    }

    #[test]
    fn a_missing_conversation_is_named() {
        let error = ChatRequest::read(&json!({})).expect_err("no messages");
        assert_eq!((error.kind(), error.param()), (ErrorKind::MissingField, Some("messages")));
    }

    #[test]
    fn alternatives_are_only_reported_with_log_probabilities() {
        let read = |more: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
            body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            ChatRequest::read(&body).map(|request| request.common.logprobs)
        };
        assert_eq!(read(json!({"logprobs": true, "top_logprobs": 5})), Ok(Logprobs::On { top: 5 }));
        assert_eq!(read(json!({"logprobs": true})), Ok(Logprobs::On { top: 0 }));
        assert_eq!(read(json!({"top_logprobs": 0})), Ok(Logprobs::Off));
        assert_eq!(read(json!({"top_logprobs": 2})).expect_err("no logprobs").param(), Some("top_logprobs"));
        assert!(read(json!({"logprobs": true, "top_logprobs": 21})).is_err());
    }
}
