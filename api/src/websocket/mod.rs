//! `GET /v1/stream`: several requests at once over one WebSocket. `docs/websocket.md` describes it to
//! clients.
//!
//! The transport (frames, bounds, pings, slow readers) knows no request, and the dialect (what the JSON
//! messages mean) knows no socket, so that other dialects can use the same transport.

mod connection;
pub mod dialect;
pub mod frames;

use crate::error::{ApiError, ErrorKind};
use crate::http::state::AppState;
use actix_web::web::{Data, Payload};
use actix_web::{FromRequest, HttpRequest, HttpResponse};
use dialect::StreamDialect;
use std::time::Duration;

/// How WebSocket connections are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebSocketSettings {
    /// The most bytes of one message from a client.
    pub message_bytes_max: usize,
    /// The most requests that run at once on one connection.
    pub requests_max: usize,
    /// The most events that wait for a client to read them; beyond them, events wait in the engine.
    pub events_buffered_max: usize,
    /// How long a client may read nothing while events wait, before it is cut.
    pub unread_time_max: Duration,
    /// How often the server pings.
    pub ping_interval: Duration,
    /// How long a client may send nothing, not even a pong, before it is cut. This cuts clients that read
    /// nothing where too little is written to fill the buffers on the way to them.
    pub silence_max: Duration,
}

impl Default for WebSocketSettings {
    fn default() -> Self {
        Self {
            message_bytes_max: 2 << 20,
            requests_max: 16,
            events_buffered_max: 256,
            unread_time_max: Duration::from_secs(30),
            ping_interval: Duration::from_secs(10),
            silence_max: Duration::from_secs(25),
        }
    }
}

/// The subprotocol that is agreed on with clients that ask for one.
const PROTOCOL: &str = "lavalane";

/// Opens a connection.
///
/// # Errors
/// The request is no WebSocket handshake.
pub async fn open(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let refused = |error: actix_web::Error| {
        ApiError::new(ErrorKind::InvalidValue, format!("this is no WebSocket handshake: {error}"))
    };
    // The crate makes the handshake and writes frames; they are read here (see `frames`), so it gets
    // an empty payload.
    let empty = Payload::from_request(&request, &mut actix_web::dev::Payload::None);
    let empty = empty.await.map_err(refused)?;
    let (response, session, _) =
        actix_ws::handle_with_protocols(&request, empty, &[PROTOCOL]).map_err(refused)?;
    let settings = state.settings.websocket;
    let stopping = state.stopping.clone();
    let dialect = StreamDialect::new(state.into_inner());
    actix_web::rt::spawn(connection::run(payload, session, dialect, settings, stopping));
    Ok(response)
}
