//! What stands before every route: request ids, web origins, API keys, and the access log.

use crate::error::{ApiError, ErrorKind};
use crate::http::state::AppState;
use crate::random;
use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::http::{Method, header};
use actix_web::middleware::Next;
use actix_web::web::Data;
use actix_web::{Error, HttpResponse, ResponseError};
use std::time::Instant;
use tracing::Instrument;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A longer id of a client is not taken over.
const REQUEST_ID_BYTES_MAX: usize = 128;
/// The WebSocket subprotocol that carries a key, for browsers, which cannot set headers there.
const KEY_PROTOCOL_PREFIX: &str = "lavalane-api-key.";

/// The middleware.
///
/// # Errors
/// What the route itself fails with.
pub async fn guard<B: MessageBody>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, Error> {
    let began = Instant::now();
    let id = request_id(request.headers());
    let (method, path) = (request.method().clone(), request.path().to_owned());
    let span = tracing::info_span!("request", id = id.to_str().unwrap_or_default());
    let answer = async {
        let origin = allowed_origin(&request);
        let mut response = match &origin {
            Err(error) => refuse(request, error),
            Ok(Some(_)) if method == Method::OPTIONS => {
                request.into_response(preflight()).map_into_right_body()
            }
            Ok(_) => match check_key(&request) {
                Err(error) => refuse(request, &error),
                Ok(()) => next.call(request).await?.map_into_left_body(),
            },
        };
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, id.clone());
        if let Ok(Some(origin)) = origin {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::VARY, HeaderValue::from_static("origin"));
            let exposed = HeaderValue::from_static("x-request-id, retry-after");
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
        let status = response.status().as_u16();
        tracing::info!(%method, path, status, ms = began.elapsed().as_millis() as u64, "answered");
        Ok(response)
    };
    answer.instrument(span).await
}

fn refuse<B>(request: ServiceRequest, error: &ApiError) -> ServiceResponse<EitherBody<B>> {
    request.into_response(error.error_response()).map_into_right_body()
}

fn preflight() -> HttpResponse {
    HttpResponse::NoContent()
        .insert_header((header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, OPTIONS"))
        .insert_header((
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            "authorization, content-type, x-request-id, api-key",
        ))
        .insert_header((header::ACCESS_CONTROL_MAX_AGE, "600"))
        .finish()
}

/// The client's own id where it is short and printable, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let printable = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    };
    let made = || HeaderValue::try_from(random::id("req-")).unwrap_or(HeaderValue::from_static("req-0"));
    headers.get(&REQUEST_ID).filter(printable).cloned().unwrap_or_else(made)
}

/// Checks a web page's origin. `None` where there is nothing to allow: the request comes from no page,
/// or from a page of this server.
fn allowed_origin(request: &ServiceRequest) -> Result<Option<HeaderValue>, ApiError> {
    let Some(origin) = request.headers().get(header::ORIGIN) else { return Ok(None) };
    let text = origin.to_str().unwrap_or_default();
    let own = text.split_once("://").map(|(_, host)| host);
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    if own.is_some() && own == host {
        return Ok(None);
    }
    let allowed = state(request).is_some_and(|state| {
        state.settings.allowed_origins.iter().any(|allowed| allowed == "*" || allowed == text)
    });
    if allowed {
        return Ok(Some(origin.clone()));
    }
    let message =
        format!("pages from {text:?} may not use this server; start it with --cors-origin to allow them");
    Err(ApiError::new(ErrorKind::OriginNotAllowed, message))
}

/// `/health` tells nothing worth a key, and load balancers have none.
fn check_key(request: &ServiceRequest) -> Result<(), ApiError> {
    let Some(state) = state(request) else { return Ok(()) };
    let keys = &state.settings.api_keys;
    if keys.is_empty() || request.path() == "/health" {
        return Ok(());
    }
    match sent_key(request.headers()) {
        Some(key) if keys.contains(key) => Ok(()),
        Some(_) => Err(ApiError::new(ErrorKind::InvalidApiKey, "the API key is not known")),
        None => {
            let message = "no API key was sent; send it as `Authorization: Bearer KEY`";
            Err(ApiError::new(ErrorKind::InvalidApiKey, message))
        }
    }
}

fn sent_key(headers: &HeaderMap) -> Option<&str> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    let protocol = || {
        let mut protocols = text(header::SEC_WEBSOCKET_PROTOCOL)?.split(',').map(str::trim);
        protocols.find_map(|protocol| protocol.strip_prefix(KEY_PROTOCOL_PREFIX))
    };
    bearer.or_else(|| text(HeaderName::from_static("api-key"))).or_else(protocol)
}

fn state(request: &ServiceRequest) -> Option<&Data<AppState>> {
    request.app_data::<Data<AppState>>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(entries: &[(&str, &str)]) -> HeaderMap {
        let entry = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).expect("a name"), HeaderValue::from_str(value).expect("a value"))
        };
        entries.iter().map(entry).collect()
    }

    #[test]
    fn a_key_is_found_in_each_place_where_clients_put_it() {
        assert_eq!(sent_key(&headers(&[("authorization", "Bearer k1")])), Some("k1"));
        assert_eq!(sent_key(&headers(&[("authorization", "bearer k1")])), Some("k1"));
        assert_eq!(sent_key(&headers(&[("api-key", "k2")])), Some("k2"));
        let protocols = "lavalane, lavalane-api-key.k3";
        assert_eq!(sent_key(&headers(&[("sec-websocket-protocol", protocols)])), Some("k3"));
        assert_eq!(sent_key(&headers(&[("authorization", "Basic k1")])), None);
    }

    #[test]
    fn a_client_s_request_id_is_kept_unless_it_could_break_a_log() {
        assert_eq!(request_id(&headers(&[("x-request-id", "abc-1")])), "abc-1");
        for bad in ["a b", &"x".repeat(129)] {
            let id = request_id(&headers(&[("x-request-id", bad)]));
            assert!(id.to_str().expect("printable").starts_with("req-"));
        }
    }
}
