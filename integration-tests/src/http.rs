//! HTTP over plain sockets: so that a test can leave a connection in the ways that client libraries hide.

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// No test depends on time; this only keeps a mistake from hanging one.
pub const HANG_GUARD: Duration = Duration::from_secs(600);

/// Speaks to one server.
#[derive(Clone, Debug)]
pub struct Http {
    address: String,
}

/// How a client goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goodbye {
    /// It says that it sends no more, and closes.
    Fin,
    /// It resets the connection.
    Reset,
}

/// What a server answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body, as it is.
    pub body: String,
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Panics
    /// It is no JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }
}

impl Http {
    /// A client of the server at `HOST:PORT`.
    pub fn new(address: &str) -> Self {
        Self { address: address.to_owned() }
    }

    /// Sends a request and leaves its connection open.
    ///
    /// # Panics
    /// The server takes no connection.
    pub fn send(&self, path: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        let head = format!("POST {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        self.open(&head, &body)
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Panics
    /// The server does not answer.
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        read_answer(self.send(path, body))
    }

    /// The JSON that a path answers with.
    ///
    /// # Panics
    /// The server does not answer, or not with JSON.
    pub fn get(&self, path: &str) -> Value {
        self.get_answer(path).json()
    }

    fn get_answer(&self, path: &str) -> Answer {
        read_answer(self.open(&format!("GET {path} HTTP/1.1\r\nconnection: close\r\n"), ""))
    }

    fn open(&self, head: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("the server takes connections");
        stream.set_read_timeout(Some(HANG_GUARD)).expect("a time limit");
        stream
            .write_all(format!("{head}host: {}\r\n\r\n{body}", self.address).as_bytes())
            .expect("it is sent");
        stream
    }

    /// The value of a metric that has no labels but the model's name.
    ///
    /// # Panics
    /// The server does not answer, or has no such metric.
    pub fn metric(&self, name: &str) -> f64 {
        self.labelled_metric(name, "")
    }

    /// The value of a metric whose labels include `label`, written `name="value"`.
    ///
    /// # Panics
    /// The server does not answer, or has no such metric.
    pub fn labelled_metric(&self, name: &str, label: &str) -> f64 {
        let text = self.get_answer("/metrics").body;
        let is_meant = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(label);
        let line = text.lines().find(is_meant).unwrap_or_else(|| panic!("no metric {name} in {text}"));
        line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
    }

    /// Looks again and again until `look` finds what it looks for.
    ///
    /// # Panics
    /// It never does.
    pub fn wait_for<T>(&self, what: &str, look: impl Fn(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + HANG_GUARD;
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(Instant::now() < deadline, "waiting for {what}: {}", self.get("/slots"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Goes away. A connection that was closed one way is given back, because dropping it with unread data would reset
/// it.
///
/// # Panics
/// The system does not allow it.
pub fn leave(stream: TcpStream, goodbye: Goodbye) -> Option<TcpStream> {
    match goodbye {
        Goodbye::Fin => {
            stream.shutdown(Shutdown::Write).expect("closed");
            Some(stream)
        }
        Goodbye::Reset => {
            let socket = socket2::Socket::from(stream);
            socket.set_linger(Some(Duration::ZERO)).expect("a hard close");
            None
        }
    }
}

fn read_answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer");
    let text = String::from_utf8(bytes).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, body: body.to_owned() }
}
