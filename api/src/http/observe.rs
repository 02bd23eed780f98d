//! What an operator may see: health, properties, lanes and models. Nothing here asks the engine's
//! actors, so all of it answers while a long prompt runs.

use crate::error::{ApiError, ErrorKind};
use crate::http::response;
use crate::http::state::AppState;
use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::web::{Data, Path};
use lavalane_actors::status::{Health, SlotStatus};
use serde_json::{Value, json};

/// `GET /health`: 200 while requests are taken.
pub async fn health(state: Data<AppState>) -> HttpResponse {
    let health = state.engine.health();
    let (word, reason) = match &health {
        Health::Starting => ("starting", None),
        Health::Ok => ("ok", None),
        Health::Recovering { reason } => ("recovering", Some(reason)),
        Health::Draining => ("draining", None),
        Health::Stopped => ("stopped", None),
        Health::Dead { reason } => ("dead", Some(reason)),
    };
    let status = if health.takes_requests() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({ "status": word, "reason": reason });
    HttpResponse::build(status).content_type("application/json").body(body.to_string())
}

/// `GET /props`: what runs here.
pub async fn props(state: Data<AppState>) -> HttpResponse {
    let limits = state.engine.limits();
    let settings = state.engine.settings();
    response::json(&json!({
        "model": state.model.name(),
        "chat_template": state.model.template().map(|template| template.source()).ok(),
        "vocabulary": state.model.vocabulary(),
        "context_tokens": limits.context_tokens_max,
        "lanes": settings.lanes,
        "queue_capacity": settings.queue_capacity,
        "queue_seconds": settings.queue_wait_max.as_secs_f64(),
        "work_seconds": settings.work_time_max.as_secs_f64(),
        "kv_pages": limits.pages,
        "kv_page_tokens": limits.page_tokens,
        "kv_type": state.device.kv_type,
        "device": state.device.device,
        "pack": state.device.pack,
        "version": env!("CARGO_PKG_VERSION"),
    }))
}

/// `GET /slots`: every lane.
pub async fn slots(state: Data<AppState>) -> HttpResponse {
    response::json(&state.engine.slots().iter().map(slot).collect())
}

fn slot(slot: &SlotStatus) -> Value {
    json!({
        "id": slot.lane.0,
        "state": slot.state.name(),
        "request": slot.request.map(|request| request.0),
        "position": slot.position,
        "prompt_tokens": slot.prompt_tokens,
        "generated_tokens": slot.generated_tokens,
        "tokens_per_second": slot.tokens_per_second,
        "kv_pages": slot.kv_pages,
    })
}

/// `GET /v1/models`.
pub async fn models(state: Data<AppState>) -> HttpResponse {
    let models: Value = state.model.names().map(|name| model(&state, name)).collect();
    response::json(&json!({ "object": "list", "data": models }))
}

/// `GET /v1/models/{id}`.
pub async fn one_model(state: Data<AppState>, name: Path<String>) -> Result<HttpResponse, ApiError> {
    state.model.check_name(Some(name.as_str()))?;
    match state.model.names().find(|known| *known == name.as_str()) {
        Some(name) => Ok(response::json(&model(&state, name))),
        None => Err(ApiError::field(ErrorKind::ModelNotFound, "model", "no such model")),
    }
}

fn model(state: &AppState, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": state.started,
        "owned_by": "lavalane",
        "root": state.model.name(),
        "max_model_len": state.engine.limits().context_tokens_max,
    })
}
