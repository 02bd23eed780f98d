//! What every route shares: the engine, the model's text side, the settings.

use crate::text_model::TextModel;
use crate::websocket::WebSocketSettings;
use lavalane_actors::EngineHandle;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// What computes the replies, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSummary {
    /// The device's name.
    pub device: String,
    /// The kernel pack.
    pub pack: String,
    /// The KV cache's element type.
    pub kv_type: String,
}

/// How the server treats its clients.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// API keys, of which each request must hold one; empty lets everybody in.
    pub api_keys: ApiKeys,
    /// Web origins that may use the server beside its own; `*` allows all.
    pub allowed_origins: Vec<String>,
    /// The most bytes of a body.
    pub body_bytes_max: usize,
    /// How long a body may take to arrive.
    pub body_time_max: Duration,
    /// How long a client may leave data unread before its connection is cut.
    pub unread_time_max: Duration,
    /// How long a streamed reply waits for its first event before the status is sent; until then a
    /// refusal still gets a status of its own.
    pub first_event_wait: Duration,
    /// After how long without an event a stream sends a comment, so that proxies keep it open.
    pub stream_comment_interval: Duration,
    /// How WebSocket connections are treated.
    pub websocket: WebSocketSettings,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            api_keys: ApiKeys::default(),
            allowed_origins: Vec::new(),
            body_bytes_max: 2 << 20,
            body_time_max: Duration::from_secs(30),
            unread_time_max: Duration::from_secs(30),
            first_event_wait: Duration::from_secs(10),
            stream_comment_interval: Duration::from_secs(15),
            websocket: WebSocketSettings::default(),
        }
    }
}

/// API keys, kept as digests: comparing them takes the same time whatever was sent.
#[derive(Clone, Debug, Default)]
pub struct ApiKeys(Vec<[u8; 32]>);

impl ApiKeys {
    /// Keys of any length.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Self {
        Self(keys.into_iter().map(digest).collect())
    }

    /// Whether no key is needed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `key` is one of them. Every key is compared to its end.
    pub fn contains(&self, key: &str) -> bool {
        let sent = digest(key);
        let difference = |known: &[u8; 32]| {
            known.iter().zip(sent).fold(0_u8, |difference, (known, sent)| difference | (known ^ sent))
        };
        self.0.iter().fold(false, |found, known| found | (difference(known) == 0))
    }
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// What every route shares.
#[derive(Debug)]
pub struct AppState {
    /// The engine.
    pub engine: EngineHandle,
    /// The model's text side.
    pub model: Arc<TextModel>,
    /// What computes.
    pub device: DeviceSummary,
    /// How clients are treated.
    pub settings: HttpSettings,
    /// When the server started, in seconds since 1970.
    pub started: u64,
    /// Turns true when the server is about to stop.
    pub stopping: watch::Receiver<bool>,
}

impl AppState {
    /// What computed a reply: equal for replies that may be compared bit by bit.
    pub fn fingerprint(&self) -> String {
        format!("lavalane-{}-{}", env!("CARGO_PKG_VERSION"), self.device.pack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_key_is_known() {
        let keys = ApiKeys::new(["first", "second"]);
        assert!(keys.contains("first") && keys.contains("second"));
        assert!(!keys.contains("") && !keys.contains("firs") && !keys.contains("firsts"));
    }
}
