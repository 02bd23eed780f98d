//! A server over the scripted executor, and a client of plain sockets, for the tests beside this one.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

pub mod websocket;

use lavalane_actors::testing::{
    FaultInjectingExecutor, FaultScript, Gate, ScriptedExecutor, scripted_limits,
};
use lavalane_actors::{Engine, EngineHandle, EngineSettings};
use lavalane_api::http::state::{DeviceSummary, HttpSettings};
use lavalane_api::server::{ServerHandle, ServerParts, start};
use lavalane_api::text_model::TextModel;
use lavalane_runtime::batch::ExecutorLimits;
use lavalane_runtime::chat::ChatTemplate;
use lavalane_runtime::tokenizer::{Tokenizer, TokenizerSource, UnknownPreTokenizer};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// No test depends on time; this only keeps a mistake from hanging one.
const HANG_GUARD: Duration = Duration::from_secs(120);

/// The test model's control tokens, behind its 256 bytes.
pub const TURN_START: u32 = 256;
pub const TURN_END: u32 = 257;
/// Another token that ends a reply.
pub const MESSAGE_END: u32 = 258;
pub const VOCABULARY: usize = 259;

/// A model whose tokens are single bytes, with the ChatML template.
fn tokenizer() -> Tokenizer {
    let mut next = 256;
    let mut spelled = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        // The bytes that are no visible characters are spelled by those from U+0100 on, in order.
        _ => {
            next += 1;
            char::from_u32(next - 1).expect("a character")
        }
    };
    let mut tokens: Vec<String> = (0..=u8::MAX).map(|byte| spelled(byte).to_string()).collect();
    tokens.extend(["<|im_start|>", "<|im_end|>", "<|message_end|>"].map(str::to_owned));
    let mut token_types = vec![1; 256];
    token_types.extend([3; 3]);
    let source = TokenizerSource {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens,
        token_types,
        eos: Some(TURN_END),
        eom: Some(MESSAGE_END),
        ..TokenizerSource::default()
    };
    Tokenizer::new(&source, UnknownPreTokenizer::Refuse).expect("the vocabulary is sound")
}

/// A running server with its engine.
pub struct TestServer {
    pub engine: EngineHandle,
    pub address: SocketAddr,
    handle: Option<ServerHandle>,
}

/// What a test changes of the server.
pub struct Setup {
    pub engine: EngineSettings,
    pub http: HttpSettings,
    pub limits: ExecutorLimits,
    pub gate: Option<Gate>,
    pub script: FaultScript,
}

impl Default for Setup {
    fn default() -> Self {
        let limits = ExecutorLimits {
            vocabulary: VOCABULARY,
            context_tokens_max: 512,
            pages: 256,
            ..scripted_limits()
        };
        let engine = EngineSettings { lanes: 2, queue_capacity: 8, ..EngineSettings::default() };
        Self { engine, http: HttpSettings::default(), limits, gate: None, script: FaultScript::new() }
    }
}

impl Setup {
    pub fn start(self) -> TestServer {
        let mut executor = ScriptedExecutor::new(self.limits);
        if let Some(gate) = self.gate {
            executor = executor.with_gate(gate);
        }
        let executor = FaultInjectingExecutor::new(executor, self.script);
        let tokenizer = Arc::new(tokenizer());
        let template = ChatTemplate::chatml(&tokenizer);
        let engine =
            Engine::start(Box::new(executor), tokenizer.clone(), self.engine).expect("the engine starts");
        let parts = ServerParts {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            engine: engine.clone(),
            model: TextModel::new("scripted".to_owned(), vec!["other".to_owned()], tokenizer, template),
            device: DeviceSummary {
                device: "none".to_owned(),
                pack: "scripted".to_owned(),
                kv_type: "none".to_owned(),
            },
            settings: self.http,
            drain_time_max: Duration::from_secs(2),
        };
        let handle = start(parts).expect("the server starts");
        TestServer { engine, address: handle.address(), handle: Some(handle) }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            actix_web::rt::System::new().block_on(handle.stop_now());
        }
    }
}

/// An answer over HTTP.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    /// Asserts an error with its four keys, and returns its `param`.
    pub fn error(&self, status: u16, code: &str) -> Option<String> {
        assert_eq!(self.status, status, "{}", self.body);
        let error = self.json()["error"].clone();
        let mut keys: Vec<String> = error.as_object().expect("an object").keys().cloned().collect();
        keys.sort();
        assert_eq!(keys, ["code", "message", "param", "type"]);
        assert_eq!(error["code"], code, "{error}");
        error["param"].as_str().map(str::to_owned)
    }

    /// The events of a stream, without the last.
    pub fn events(&self) -> Vec<Value> {
        let mut lines: Vec<&str> = self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(lines.pop(), Some("[DONE]"), "{}", self.body);
        lines.into_iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

impl TestServer {
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connected");
        stream.set_read_timeout(Some(HANG_GUARD)).expect("a time limit");
        stream
    }

    /// A connection whose client's side holds little of what it does not read.
    pub fn connect_with_small_buffer(&self) -> TcpStream {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a small buffer");
        socket.connect(&self.address.into()).expect("connected");
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(HANG_GUARD)).expect("a time limit");
        stream
    }

    /// Sends a request and leaves the connection open.
    pub fn send(&self, path: &str, body: &[u8]) -> TcpStream {
        self.send_on(self.connect(), path, body)
    }

    /// Sends a request on a connection.
    pub fn send_on(&self, mut stream: TcpStream, path: &str, body: &[u8]) -> TcpStream {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("the head is sent");
        stream.write_all(body).expect("the body is sent");
        stream
    }

    pub fn post_bytes(&self, path: &str, body: &[u8]) -> Answer {
        read_answer(&mut self.send(path, body))
    }

    pub fn post(&self, path: &str, body: Value) -> Answer {
        self.post_bytes(path, body.to_string().as_bytes())
    }

    pub fn get(&self, path: &str, headers: &str) -> Answer {
        let mut stream = self.connect();
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{headers}\r\n", self.address);
        stream.write_all(request.as_bytes()).expect("sent");
        read_answer(&mut stream)
    }

    /// Waits until no lane has a request and none waits.
    pub fn wait_until_idle(&self) {
        let deadline = Instant::now() + HANG_GUARD;
        while Instant::now() < deadline {
            let statistics = self.engine.statistics();
            let idle = self.engine.slots().iter().all(|slot| slot.request.is_none());
            if idle && statistics.requests_running == 0 && statistics.requests_waiting == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("still busy: {:?}", self.engine.slots());
    }

    /// Waits until a request has been given its first token; it may have ended since.
    pub fn wait_until_begun(&self) {
        let deadline = Instant::now() + HANG_GUARD;
        while self.engine.statistics().generation_tokens == 0 {
            assert!(Instant::now() < deadline, "no request has begun: {:?}", self.engine.statistics());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until so many lanes have a request, and then for what else is on its way to be queued.
    pub fn wait_for_lanes(&self, running: usize) {
        let deadline = Instant::now() + HANG_GUARD;
        let busy = || self.engine.slots().iter().filter(|slot| slot.request.is_some()).count();
        while busy() != running {
            assert!(Instant::now() < deadline, "{running} lanes were expected: {:?}", self.engine.slots());
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(150));
    }
}

pub fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer");
    let text = String::from_utf8(bytes).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { joined_chunks(body) } else { body.to_owned() };
    Answer { status, head: head.to_owned(), body }
}

/// Joins a chunked body, and asserts that every chunk is whole text of its own.
fn joined_chunks(body: &str) -> String {
    let (mut rest, mut joined) = (body.as_bytes(), Vec::new());
    loop {
        let line = rest.windows(2).position(|pair| pair == b"\r\n").expect("a length line");
        let length = std::str::from_utf8(&rest[..line]).expect("a length");
        let length = usize::from_str_radix(length, 16).expect("a length");
        let chunk = &rest[line + 2..line + 2 + length];
        assert!(std::str::from_utf8(chunk).is_ok(), "a chunk ends within a character");
        joined.extend_from_slice(chunk);
        rest = &rest[line + 2 + length + 2..];
        if length == 0 {
            return String::from_utf8(joined).expect("UTF-8");
        }
    }
}
