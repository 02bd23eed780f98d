//! One WebSocket connection: the transport under any dialect.
//!
//! Two tasks: this one reads frames and collects events; the writer sends them and is the only one
//! that ever waits for the client. Between them is a bounded queue. While it is full, events wait in
//! the engine, whose own bound cuts a request that nobody reads; and a client that reads nothing for
//! long enough loses the connection.

use super::WebSocketSettings;
use super::frames::{FrameReader, Incoming, Unusable};
use actix_web::error::PayloadError;
use actix_web::web::Bytes;
use actix_ws::{CloseCode, Session};
use futures_util::{Stream, StreamExt};
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// What the messages on a connection mean.
pub(super) trait Dialect {
    /// Takes a text message and returns what is said at once.
    fn text(&mut self, text: &str) -> Option<Value>;

    /// What is said about a message that cannot be used.
    fn unusable(&mut self, unusable: Unusable) -> Value;

    /// How many requests run.
    fn running(&self) -> usize;

    /// The next event of any running request. Safe to cancel.
    async fn next_event(&mut self) -> Option<Value>;
}

enum Outgoing {
    Event(Value),
    Ping,
    Pong(Vec<u8>),
    Close(CloseCode),
}

/// Serves a connection to its end. Whatever ends it, dropping the dialect cancels its requests.
pub(super) async fn run(
    payload: impl Stream<Item = Result<Bytes, PayloadError>> + Unpin,
    session: Session,
    dialect: impl Dialect,
    settings: WebSocketSettings,
    stopping: watch::Receiver<bool>,
) {
    let (sender, receiver) = mpsc::channel(settings.events_buffered_max.max(1));
    let writer = actix_web::rt::spawn(write(receiver, session, settings.unread_time_max));
    let code = serve(payload, &sender, dialect, &settings, stopping).await;
    if let Some(code) = code {
        // Where the queue is full the client is too slow to be told.
        let _ = sender.try_send(Outgoing::Close(code));
        drop(sender);
    } else {
        writer.abort();
    }
}

/// Returns the code to close with; `None` where the client is gone or too slow to be told anything.
async fn serve(
    mut payload: impl Stream<Item = Result<Bytes, PayloadError>> + Unpin,
    sender: &mpsc::Sender<Outgoing>,
    mut dialect: impl Dialect,
    settings: &WebSocketSettings,
    mut stopping: watch::Receiver<bool>,
) -> Option<CloseCode> {
    let mut frames = FrameReader::new(settings.message_bytes_max);
    let mut pings = tokio::time::interval(settings.ping_interval);
    pings.tick().await;
    let mut heard = Instant::now();
    loop {
        let is_stopping = *stopping.borrow_and_update();
        if is_stopping && dialect.running() == 0 {
            return Some(CloseCode::Away);
        }
        let is_running = dialect.running() > 0;
        tokio::select! {
            biased;
            () = sender.closed() => return None,
            chunk = payload.next() => {
                let Some(Ok(bytes)) = chunk else { return None };
                heard = Instant::now();
                frames.push(&bytes);
            }
            forwarded = forward(sender, &mut dialect), if is_running => forwarded?,
            _ = pings.tick() => {
                if heard.elapsed() > settings.silence_max {
                    return None;
                }
                // A full queue needs no ping: its events are read, or the writer cuts the client.
                let _ = sender.try_send(Outgoing::Ping);
            }
            changed = stopping.changed() => if changed.is_err() { return Some(CloseCode::Away) },
        }
        while let Some(incoming) = frames.next() {
            let answer = match incoming {
                Incoming::Text(text) => dialect.text(&text).map(Outgoing::Event),
                Incoming::Unusable(unusable) => Some(Outgoing::Event(dialect.unusable(unusable))),
                Incoming::Ping(payload) => Some(Outgoing::Pong(payload)),
                Incoming::Pong => None,
                Incoming::Close => return Some(CloseCode::Normal),
                Incoming::Broken(reason) => {
                    tracing::info!("a WebSocket client broke the protocol: {reason}");
                    return Some(CloseCode::Protocol);
                }
            };
            // A client that sends without reading the answers is cut.
            if let Some(answer) = answer
                && sender.try_send(answer).is_err()
            {
                return None;
            }
        }
    }
}

/// Moves one event to the writer, once there is a place for it.
async fn forward(sender: &mpsc::Sender<Outgoing>, dialect: &mut impl Dialect) -> Option<()> {
    let place = sender.reserve().await.ok()?;
    if let Some(event) = dialect.next_event().await {
        place.send(Outgoing::Event(event));
    }
    Some(())
}

/// Sends what is queued. Ends with the queue, with a close, or when the client takes nothing for
/// `unread_time_max`.
async fn write(mut queue: mpsc::Receiver<Outgoing>, mut session: Session, unread_time_max: Duration) {
    while let Some(outgoing) = queue.recv().await {
        let sending = async {
            match outgoing {
                Outgoing::Event(event) => session.text(event.to_string()).await.is_ok(),
                Outgoing::Ping => session.ping(b"").await.is_ok(),
                Outgoing::Pong(payload) => session.pong(&payload).await.is_ok(),
                Outgoing::Close(code) => {
                    // The client may be gone already; either way nothing follows.
                    let _ = session.clone().close(Some(code.into())).await;
                    false
                }
            }
        };
        match tokio::time::timeout(unread_time_max, sending).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(_) => {
                tracing::info!("a WebSocket client read nothing for {} s", unread_time_max.as_secs_f32());
                return;
            }
        }
    }
}
