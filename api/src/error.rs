//! The error object that every refusal of the server is, over HTTP, in a stream and over a WebSocket.
//!
//! It has the shape of the OpenAI API and always holds its four keys: `message`, `type`, `param` (the
//! path of the field at fault, or null) and `code` (one word per kind of error, for programs).

use actix_web::http::StatusCode;
use lavalane_actors::request::{Failure, Refusal};
use lavalane_runtime::sampling::SamplingError;
use serde_json::{Value, json};
use std::time::Duration;

/// What went wrong; decides the status, the `type` and the `code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The body is not JSON.
    InvalidJson,
    /// A field's value is not one that the field takes.
    InvalidValue,
    /// A field that must be there is not.
    MissingField,
    /// A field of the API that this server does not implement.
    UnsupportedField,
    /// The prompt is longer than the context.
    ContextLengthExceeded,
    /// No such model is served.
    ModelNotFound,
    /// No such route.
    NotFound,
    /// The route takes other methods.
    MethodNotAllowed,
    /// The body or frame is larger than allowed.
    TooLarge,
    /// The body did not arrive in time.
    BodyTimeout,
    /// The connection broke while the body arrived.
    BodyBroken,
    /// The API key is missing or wrong.
    InvalidApiKey,
    /// The page that asks comes from an origin that is not allowed.
    OriginNotAllowed,
    /// The queue is full.
    QueueFull,
    /// No lane became free in time.
    QueueTimeout,
    /// Too many requests at once on one connection.
    TooManyRequests,
    /// A request with this id is still running on the connection.
    DuplicateId,
    /// The server is stopping.
    ShuttingDown,
    /// The request took longer than it may.
    WorkTimeout,
    /// The client reads too slowly.
    SlowReader,
    /// The engine failed.
    EngineFailed,
}

impl ErrorKind {
    /// The HTTP status.
    pub fn status(self) -> StatusCode {
        match self {
            Self::InvalidJson
            | Self::InvalidValue
            | Self::MissingField
            | Self::UnsupportedField
            | Self::ContextLengthExceeded
            | Self::BodyBroken => StatusCode::BAD_REQUEST,
            Self::InvalidApiKey => StatusCode::UNAUTHORIZED,
            Self::OriginNotAllowed => StatusCode::FORBIDDEN,
            Self::ModelNotFound | Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::DuplicateId => StatusCode::CONFLICT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::QueueFull | Self::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            Self::QueueTimeout | Self::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            Self::WorkTimeout => StatusCode::GATEWAY_TIMEOUT,
            Self::SlowReader | Self::EngineFailed => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The object's `code`.
    pub fn code(self) -> &'static str {
        match self {
            Self::InvalidJson => "invalid_json",
            Self::InvalidValue => "invalid_value",
            Self::MissingField => "missing_field",
            Self::UnsupportedField => "unsupported_field",
            Self::ContextLengthExceeded => "context_length_exceeded",
            Self::ModelNotFound => "model_not_found",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::TooLarge => "too_large",
            Self::BodyTimeout => "body_timeout",
            Self::BodyBroken => "body_broken",
            Self::InvalidApiKey => "invalid_api_key",
            Self::OriginNotAllowed => "origin_not_allowed",
            Self::QueueFull => "queue_full",
            Self::QueueTimeout => "queue_timeout",
            Self::TooManyRequests => "too_many_requests",
            Self::DuplicateId => "duplicate_id",
            Self::ShuttingDown => "shutting_down",
            Self::WorkTimeout => "work_timeout",
            Self::SlowReader => "slow_reader",
            Self::EngineFailed => "engine_failed",
        }
    }

    /// The object's `type`, as the OpenAI API groups errors.
    pub fn group(self) -> &'static str {
        match self.status().as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }
}

/// An error as the client sees it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    kind: ErrorKind,
    message: String,
    param: Option<String>,
    retry_after: Option<Duration>,
}

impl ApiError {
    /// An error that is about no single field.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, retry_after: None }
    }

    /// An error about the field at `path`, such as `messages[0].content`.
    pub fn field(kind: ErrorKind, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: Some(path.into()), retry_after: None }
    }

    /// The same error, about the field at `path`.
    #[must_use]
    pub fn about(mut self, path: impl Into<String>) -> Self {
        self.param = Some(path.into());
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The path of the field at fault.
    pub fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// When the client may try again.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The inner object, with its four keys.
    pub fn object(&self) -> Value {
        json!({
            "message": self.message,
            "type": self.kind.group(),
            "param": self.param,
            "code": self.kind.code(),
        })
    }

    /// The body of an error response: the object under `error`.
    pub fn body(&self) -> Value {
        json!({ "error": self.object() })
    }

    /// What the client hears of a refusal. `prompt_field` is the field that holds the prompt.
    pub fn from_refusal(refusal: &Refusal, prompt_field: &str) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::QueueFull { retry_after, .. } => Self {
                kind: ErrorKind::QueueFull,
                message,
                param: None,
                retry_after: Some((*retry_after).max(Duration::from_secs(1))),
            },
            Refusal::QueueTimeout { .. } => Self {
                kind: ErrorKind::QueueTimeout,
                message,
                param: None,
                retry_after: Some(Duration::from_secs(1)),
            },
            Refusal::PromptTooLong { .. } | Refusal::PoolTooSmall { .. } => {
                Self::field(ErrorKind::ContextLengthExceeded, prompt_field, message)
            }
            Refusal::EmptyPrompt => Self::field(ErrorKind::InvalidValue, prompt_field, message),
            Refusal::Draining => Self::new(ErrorKind::ShuttingDown, message),
            Refusal::NotRunning(_) => Self::new(ErrorKind::EngineFailed, message),
        }
    }
}

impl From<&Failure> for ApiError {
    fn from(failure: &Failure) -> Self {
        let kind = match failure {
            Failure::WorkTimeout { .. } => ErrorKind::WorkTimeout,
            Failure::SlowReader { .. } => ErrorKind::SlowReader,
            _ => ErrorKind::EngineFailed,
        };
        Self::new(kind, failure.to_string())
    }
}

impl From<SamplingError> for ApiError {
    fn from(error: SamplingError) -> Self {
        Self::field(ErrorKind::InvalidValue, error.field(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_object_always_holds_its_four_keys() {
        for error in [
            ApiError::new(ErrorKind::NotFound, "nothing here"),
            ApiError::field(ErrorKind::InvalidValue, "n", "too many"),
        ] {
            let body = error.body();
            let object = body["error"].as_object().expect("an object");
            let mut keys: Vec<&str> = object.keys().map(String::as_str).collect();
            keys.sort_unstable();
            assert_eq!(keys, ["code", "message", "param", "type"]);
        }
    }

    #[test]
    fn a_prompt_that_is_too_long_is_a_400_with_both_numbers() {
        let refusal = Refusal::PromptTooLong { prompt_tokens: 900, context_tokens: 512 };
        let error = ApiError::from_refusal(&refusal, "messages");
        assert_eq!(error.kind().status(), StatusCode::BAD_REQUEST);
        assert_eq!(error.param(), Some("messages"));
        assert!(error.to_string().contains("900") && error.to_string().contains("512"), "{error}");
    }

    #[test]
    fn a_full_queue_is_a_429_that_says_when_to_come_back() {
        let refusal = Refusal::QueueFull { capacity: 4, retry_after: Duration::from_millis(20) };
        let error = ApiError::from_refusal(&refusal, "prompt");
        assert_eq!(error.kind().status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(error.retry_after(), Some(Duration::from_secs(1)));
    }
}
