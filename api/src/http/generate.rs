//! `POST /v1/chat/completions` and `POST /v1/completions`.

use crate::error::{ApiError, ErrorKind};
use crate::generation::{Job, collect};
use crate::http::body::read_json;
use crate::http::response;
use crate::http::sse::EventStream;
use crate::http::state::AppState;
use crate::text_model::TextModel;
use crate::wire::chat::ChatRequest;
use crate::wire::common::Delivery;
use crate::wire::completion::CompletionRequest;
use crate::wire::reply::{Endpoint, ReplyWriter};
use actix_web::http::header;
use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use serde_json::Value;
use std::sync::Arc;

/// Answers a chat request.
pub async fn chat(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    generate(&request, payload, &state, Endpoint::Chat).await
}

/// Answers a completion request.
pub async fn completion(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    generate(&request, payload, &state, Endpoint::Completion).await
}

async fn generate(
    request: &HttpRequest,
    payload: Payload,
    state: &AppState,
    endpoint: Endpoint,
) -> Result<HttpResponse, ApiError> {
    let body = read_json(request, payload, &state.settings).await?;
    let job = prepare(endpoint, body, state.model.clone()).await?;
    let mut writer = ReplyWriter::new(endpoint, &job, state.model.clone(), state.fingerprint());
    let choices = job.submit(&state.engine).await?;
    match job.common().delivery {
        Delivery::Whole => {
            let choices = collect(&job, &state.model, choices).await?;
            Ok(response::json(&writer.whole(&job, &choices)))
        }
        Delivery::Streamed { .. } => {
            let interval = state.settings.stream_comment_interval;
            stream(EventStream::new(job, state.model.clone(), choices, writer, interval), state).await
        }
    }
}

/// Validates, renders and encodes a request. It runs on a thread of its own, so that a long prompt
/// keeps no other request waiting.
///
/// # Errors
/// The request is not valid.
pub async fn prepare(endpoint: Endpoint, body: Value, model: Arc<TextModel>) -> Result<Job, ApiError> {
    let prepared = actix_web::web::block(move || match endpoint {
        Endpoint::Chat => Job::chat(ChatRequest::read(&body)?, &model),
        Endpoint::Completion => Job::completion(CompletionRequest::read(&body, model.vocabulary())?, &model),
    });
    let stopped = |_| ApiError::new(ErrorKind::EngineFailed, "the request could not be prepared");
    prepared.await.map_err(stopped)?
}

async fn stream(mut stream: EventStream, state: &AppState) -> Result<HttpResponse, ApiError> {
    // Whatever is known of the request within this time still gets a status of its own.
    if let Ok(Some((choice, event))) =
        tokio::time::timeout(state.settings.first_event_wait, stream.next_event()).await
    {
        stream.accept(choice, event)?;
    }
    Ok(HttpResponse::Ok()
        .content_type("text/event-stream")
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .insert_header(("x-accel-buffering", "no"))
        .streaming(stream.into_body()))
}
