//! `POST /tokenize` and `POST /detokenize`. Both names that servers of this kind use for a field are
//! understood, and both are answered.

use crate::error::{ApiError, ErrorKind};
use crate::http::body::read_json;
use crate::http::response;
use crate::http::state::AppState;
use crate::text_model::TextModel;
use crate::wire::tokens::{Pieces, TokenizeRequest, read_detokenize};
use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use lavalane_runtime::ids::TokenId;
use serde_json::{Value, json};

/// Answers with the tokens of a text or a conversation.
pub async fn tokenize(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let body = read_json(&request, payload, &state.settings).await?;
    let model = state.model.clone();
    let context_tokens = state.engine.limits().context_tokens_max;
    let work = move || {
        let (tokens, pieces) = match TokenizeRequest::read(&body)? {
            TokenizeRequest::Text { text, add_special, special, pieces } => {
                (model.tokenizer().encode(&text, special, add_special), pieces)
            }
            TokenizeRequest::Chat { messages, pieces } => (model.encode_chat(&messages)?, pieces),
        };
        Ok(json!({
            "tokens": tokens.iter().map(|&token| token_value(&model, token, pieces)).collect::<Value>(),
            "count": tokens.len(),
            "max_model_len": context_tokens,
        }))
    };
    run(work).await
}

/// Answers with the text of some tokens.
pub async fn detokenize(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let body = read_json(&request, payload, &state.settings).await?;
    let model = state.model.clone();
    let work = move || {
        let text = model.decode(&read_detokenize(&body, model.vocabulary())?);
        Ok(json!({ "content": text, "prompt": text }))
    };
    run(work).await
}

async fn run(
    work: impl FnOnce() -> Result<Value, ApiError> + Send + 'static,
) -> Result<HttpResponse, ApiError> {
    let stopped = |_| ApiError::new(ErrorKind::EngineFailed, "the text could not be worked on");
    Ok(response::json(&actix_web::web::block(work).await.map_err(stopped)??))
}

fn token_value(model: &TextModel, token: TokenId, pieces: Pieces) -> Value {
    match pieces {
        Pieces::Unwanted => json!(token.0),
        Pieces::Wanted => {
            // A piece that is no whole text is given as its bytes.
            let piece = String::from_utf8(model.piece_bytes(token));
            let piece = piece.map_or_else(|error| json!(error.into_bytes()), Value::from);
            json!({ "id": token.0, "piece": piece })
        }
    }
}
