//! Lavalane's own messages on a WebSocket: requests of the chat and completion shape with an id of the
//! client's, and one event per token. `docs/websocket.md` is the description for clients.

use super::connection::Dialect;
use super::frames::Unusable;
use crate::error::{ApiError, ErrorKind};
use crate::generation::{Choices, Job, total_usage, unfinished};
use crate::http::generate::prepare;
use crate::http::state::AppState;
use crate::wire::common::Logprobs;
use crate::wire::fields::Fields;
use crate::wire::json;
use crate::wire::logprobs::chat_entry;
use crate::wire::reply::{Endpoint, finish_reason, usage_value};
use crate::wire::signals;
use futures_util::stream::{LocalBoxStream, SelectAll, StreamExt};
use lavalane_actors::request::{RequestEvent, Usage};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;

/// The most bytes of a request's id.
pub const ID_BYTES_MAX: usize = 128;

/// What a client's message asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientMessage {
    /// To run a request.
    Request {
        /// The client's id.
        id: String,
        /// The request's shape.
        endpoint: Endpoint,
        /// The request.
        body: Value,
    },
    /// To end a request early.
    Cancel {
        /// Its id.
        id: String,
    },
    /// To answer, with whatever id it holds.
    Ping {
        /// The id.
        id: Value,
    },
}

/// Why a message was refused, and the id that it named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedMessage {
    /// The id, where the message had a usable one.
    pub id: Option<String>,
    /// Why.
    pub error: ApiError,
}

impl ClientMessage {
    /// Reads a message.
    ///
    /// # Errors
    /// It is not JSON, or not one of the messages above.
    pub fn read(text: &str) -> Result<Self, RefusedMessage> {
        let nameless = |error| RefusedMessage { id: None, error };
        let mut body = json::parse(text.as_bytes()).map_err(nameless)?;
        let fields = Fields::of_body(&body).map_err(nameless)?;
        let kind = fields.required_text("type").map_err(nameless)?.to_owned();
        if kind == "ping" {
            return Ok(Self::Ping { id: fields.get("id").cloned().unwrap_or(Value::Null) });
        }
        let id = fields.required_text("id").map_err(nameless)?.to_owned();
        if id.is_empty() || id.len() > ID_BYTES_MAX {
            let rule = format!("must have 1 to {ID_BYTES_MAX} bytes, not {}", id.len());
            return Err(nameless(fields.invalid("id", &rule)));
        }
        let endpoint = match kind.as_str() {
            "chat.completion" => Endpoint::Chat,
            "completion" => Endpoint::Completion,
            "cancel" => return Ok(Self::Cancel { id }),
            other => {
                let rule = format!("must be chat.completion, completion, cancel or ping, not {other:?}");
                return Err(RefusedMessage { id: Some(id), error: fields.invalid("type", &rule) });
            }
        };
        // Here everything is streamed, and usage always comes.
        if let Value::Object(map) = &mut body {
            map.remove("stream");
            map.remove("stream_options");
        }
        Ok(Self::Request { id, endpoint, body })
    }
}

/// One connection's requests.
pub(super) struct StreamDialect {
    state: Arc<AppState>,
    cancels: HashMap<String, watch::Sender<bool>>,
    events: SelectAll<LocalBoxStream<'static, RequestOutput>>,
}

/// An event of a request.
struct RequestOutput {
    id: String,
    event: Value,
    position: OutputPosition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputPosition {
    Within,
    Last,
}

impl StreamDialect {
    pub(super) fn new(state: Arc<AppState>) -> Self {
        Self { state, cancels: HashMap::new(), events: SelectAll::new() }
    }

    fn accept(&mut self, message: ClientMessage) -> Result<Option<Value>, RefusedMessage> {
        match message {
            ClientMessage::Ping { id } => Ok(Some(json!({ "type": "pong", "id": id }))),
            ClientMessage::Cancel { id } => match self.cancels.get(&id) {
                // The request's stream holds the other end until its last event.
                Some(cancel) => {
                    let _ = cancel.send(true);
                    Ok(None)
                }
                None => {
                    let message = "no request with this id is running";
                    Err(RefusedMessage {
                        id: Some(id),
                        error: ApiError::field(ErrorKind::NotFound, "id", message),
                    })
                }
            },
            ClientMessage::Request { id, endpoint, body } => match self.refusal(&id) {
                Some(error) => Err(RefusedMessage { id: Some(id), error }),
                None => {
                    self.begin(id, endpoint, body);
                    Ok(None)
                }
            },
        }
    }

    fn refusal(&self, id: &str) -> Option<ApiError> {
        let most = self.state.settings.websocket.requests_max;
        if *self.state.stopping.borrow() {
            return Some(ApiError::new(ErrorKind::ShuttingDown, "the server is shutting down"));
        }
        if self.cancels.contains_key(id) {
            let message = format!("a request with the id {id:?} is still running on this connection");
            return Some(ApiError::field(ErrorKind::DuplicateId, "id", message));
        }
        (self.cancels.len() >= most).then(|| {
            let message = format!("at most {most} requests run at once on one connection");
            ApiError::new(ErrorKind::TooManyRequests, message)
        })
    }

    fn begin(&mut self, id: String, endpoint: Endpoint, body: Value) {
        let (cancel, cancelled) = watch::channel(false);
        self.cancels.insert(id.clone(), cancel);
        let stage = Stage::Preparing { endpoint, body };
        let request = RunningRequest { state: self.state.clone(), cancelled, stage };
        let events = futures_util::stream::unfold(request, |mut request| async move {
            let output = request.next().await?;
            Some((output, request))
        });
        let events = events.map(move |(mut event, position): (Value, OutputPosition)| {
            event["id"] = json!(id);
            RequestOutput { id: id.clone(), event, position }
        });
        self.events.push(events.boxed_local());
    }
}

impl Dialect for StreamDialect {
    fn text(&mut self, text: &str) -> Option<Value> {
        match ClientMessage::read(text).and_then(|message| self.accept(message)) {
            Ok(answer) => answer,
            // What is refused here never began, so a live request of the same id goes on.
            Err(refused) => Some(error_event(refused.id, &refused.error, OutputPosition::Within)),
        }
    }

    fn unusable(&mut self, unusable: Unusable) -> Value {
        let kind = match unusable {
            Unusable::TooLarge { .. } => ErrorKind::TooLarge,
            Unusable::Binary | Unusable::NotUtf8 => ErrorKind::InvalidJson,
        };
        error_event(None, &ApiError::new(kind, unusable.to_string()), OutputPosition::Within)
    }

    fn running(&self) -> usize {
        self.cancels.len()
    }

    async fn next_event(&mut self) -> Option<Value> {
        let output = self.events.next().await?;
        if output.position == OutputPosition::Last {
            self.cancels.remove(&output.id);
        }
        Some(output.event)
    }
}

fn error_event(id: Option<String>, error: &ApiError, position: OutputPosition) -> Value {
    json!({
        "type": "error",
        "id": id,
        "ends_request": position == OutputPosition::Last,
        "error": error.object(),
    })
}

/// One request from its message to its last event.
struct RunningRequest {
    state: Arc<AppState>,
    cancelled: watch::Receiver<bool>,
    stage: Stage,
}

enum Stage {
    Preparing { endpoint: Endpoint, body: Value },
    Running(Box<Progress>),
    Ended,
}

struct Progress {
    job: Job,
    choices: Choices,
    /// Per choice, how many tokens it has.
    tokens: Vec<usize>,
    usages: Vec<Option<Usage>>,
    is_cancelled: bool,
    told: Told,
}

/// Whether the engine was told that the client cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    No,
    Yes,
}

impl RunningRequest {
    /// The next event, without its id; `None` after the last.
    async fn next(&mut self) -> Option<(Value, OutputPosition)> {
        match self.advance().await {
            Ok(output) => output,
            Err(error) => {
                self.stage = Stage::Ended;
                Some((error_event(None, &error, OutputPosition::Last), OutputPosition::Last))
            }
        }
    }

    async fn advance(&mut self) -> Result<Option<(Value, OutputPosition)>, ApiError> {
        loop {
            match &mut self.stage {
                Stage::Ended => return Ok(None),
                Stage::Preparing { endpoint, body } => {
                    let job = prepare(*endpoint, std::mem::take(body), self.state.model.clone()).await?;
                    let choices = job.submit(&self.state.engine).await?;
                    let (tokens, usages) = (vec![0; job.choices()], vec![None; job.choices()]);
                    let (is_cancelled, told) = (false, Told::No);
                    let progress = Progress { job, choices, tokens, usages, is_cancelled, told };
                    self.stage = Stage::Running(Box::new(progress));
                }
                Stage::Running(progress) => {
                    let event = tokio::select! {
                        event = progress.choices.next() => event,
                        // An error says that the connection is gone, and with it this request.
                        _ = self.cancelled.wait_for(|cancelled| *cancelled), if progress.told == Told::No => {
                            progress.told = Told::Yes;
                            progress.choices.cancellations().iter().for_each(|cancellation| cancellation.cancel());
                            continue;
                        }
                    };
                    let Some((choice, event)) = event else {
                        let last = progress.last()?;
                        self.stage = Stage::Ended;
                        return Ok(Some((last, OutputPosition::Last)));
                    };
                    if let Some(event) = progress.event(&self.state, choice, event)? {
                        return Ok(Some((event, OutputPosition::Within)));
                    }
                }
            }
        }
    }
}

impl Progress {
    fn event(
        &mut self,
        state: &AppState,
        choice: usize,
        event: RequestEvent,
    ) -> Result<Option<Value>, ApiError> {
        match event {
            RequestEvent::Started { lane, cached_tokens } => Ok(Some(json!({
                "type": "started", "choice": choice, "lane": lane.0, "cached_tokens": cached_tokens,
            }))),
            RequestEvent::Token(token) => {
                let index = self.tokens[choice];
                self.tokens[choice] += 1;
                let mut event = json!({
                    "type": "token",
                    "choice": choice,
                    "index": index,
                    "token": token.sampled.token.0,
                    "text": token.text,
                });
                if self.job.common().logprobs != Logprobs::Off {
                    event["logprobs"] = chat_entry(&state.model, &token.sampled);
                }
                if let Some(signals) = signals::entry(&token) {
                    event["signals"] = signals;
                }
                Ok(Some(event))
            }
            RequestEvent::Finished(finished) => {
                self.usages[choice] = Some(finished.usage);
                Ok(Some(json!({
                    "type": "finished",
                    "choice": choice,
                    "text": finished.text,
                    "finish_reason": finish_reason(&finished.reason),
                })))
            }
            RequestEvent::Cancelled(usage) => {
                self.usages[choice] = Some(usage);
                self.is_cancelled = true;
                Ok(None)
            }
            RequestEvent::Failed(failure) => Err(ApiError::from(&failure)),
            RequestEvent::Refused(refusal) => {
                Err(ApiError::from_refusal(&refusal, self.job.prompt_field(choice)))
            }
        }
    }

    fn last(&self) -> Result<Value, ApiError> {
        let usages: Option<Vec<Usage>> = self.usages.iter().copied().collect();
        let usages = usages.ok_or_else(unfinished)?;
        let kind = if self.is_cancelled { "cancelled" } else { "done" };
        let usage = usage_value(total_usage(&usages, self.job.common().choices));
        Ok(json!({ "type": kind, "usage": usage }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, id: Option<&str>, param: Option<&str>) {
        let refused = ClientMessage::read(text).expect_err(text);
        assert_eq!((refused.id.as_deref(), refused.error.param()), (id, param), "{text}");
    }

    #[test]
    fn a_message_that_cannot_be_used_is_named_by_field() {
        check("not json", None, None);
        check("[]", None, None);
        check("{}", None, Some("type"));
        check(r#"{"type":"completion"}"#, None, Some("id"));
        check(r#"{"type":"completion","id":""}"#, None, Some("id"));
        check(r#"{"type":"completion","id":5}"#, None, Some("id"));
        check(r#"{"type":"dance","id":"a"}"#, Some("a"), Some("type"));
    }

    #[test]
    fn a_request_is_streamed_whatever_it_says_of_streams() {
        let text = r#"{"type":"completion","id":"a","prompt":"x","stream":false,"stream_options":{}}"#;
        let message = ClientMessage::read(text).expect("valid");
        let body = json!({"type": "completion", "id": "a", "prompt": "x"});
        let expected = ClientMessage::Request { id: "a".to_owned(), endpoint: Endpoint::Completion, body };
        assert_eq!(message, expected);
    }

    #[test]
    fn cancels_and_pings_are_read() {
        let cancel = ClientMessage::read(r#"{"type":"cancel","id":"a"}"#);
        assert_eq!(cancel, Ok(ClientMessage::Cancel { id: "a".to_owned() }));
        assert_eq!(ClientMessage::read(r#"{"type":"ping"}"#), Ok(ClientMessage::Ping { id: Value::Null }));
    }
}
