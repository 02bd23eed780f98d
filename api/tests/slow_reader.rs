//! Row 23's slow reader: a client that reads nothing is cut and its lane freed, by the bound on waiting events and
//! by the limit in time, over server-sent events and over WebSocket; nobody else notices.

mod support;

use lavalane_actors::testing::{Gate, scripted_limits};
use lavalane_runtime::batch::ExecutorLimits;
use serde_json::{Value, json};
use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;
use support::websocket::Client;
use support::{Setup, TestServer, VOCABULARY, read_answer};

/// So many tokens that a request is cut long before its last: the buffers between lane and client hold events for
/// some thousands, of which the system alone may keep 4 MB, and drawing takes longer with every token.
const TOKENS: u32 = 60_000;

/// Long enough to stand out from the bound on events, which cuts at once.
const HALF_A_SECOND: Duration = Duration::from_millis(500);

/// What cuts the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// Too many of its request's events wait in the engine.
    Events,
    /// It leaves its connection unread for too long.
    Time,
}

fn start(limit: Limit) -> TestServer {
    let limits = ExecutorLimits {
        vocabulary: VOCABULARY,
        context_tokens_max: 65_536,
        pages: 8192,
        ..scripted_limits()
    };
    let mut setup = Setup { limits, ..Setup::default() };
    match limit {
        Limit::Events => setup.engine.events_buffered_max = 64,
        Limit::Time => {
            setup.engine.events_buffered_max = TOKENS as usize;
            setup.http.unread_time_max = HALF_A_SECOND;
            setup.http.websocket.unread_time_max = HALF_A_SECOND;
        }
    }
    setup.start()
}

/// Waits until the slow client is cut, and asserts that it was by `limit` and that another client is served like
/// before.
fn check_cut(server: &TestServer, limit: Limit) {
    server.wait_until_begun();
    let question = json!({"prompt": "x", "max_tokens": 40, "temperature": 0, "ignore_eos": true});
    let meanwhile = server.post("/v1/completions", question.clone()).json();
    assert_eq!(meanwhile["usage"]["completion_tokens"], 40);
    server.wait_until_idle();
    let statistics = server.engine.statistics();
    let cut = (statistics.requests_failed, statistics.requests_cancelled);
    assert_eq!(cut, if limit == Limit::Events { (1, 0) } else { (0, 1) }, "{limit:?}: {statistics:?}");
    assert_eq!(statistics.kv_pages_used, 0);
    let afterwards = server.post("/v1/completions", question).json();
    assert_eq!(afterwards["choices"], meanwhile["choices"]);
}

/// A reply that no buffer holds, with long events.
fn endless() -> Value {
    json!({"type": "chat.completion", "id": "a", "messages": [{"role": "user", "content": "x"}], "max_tokens": TOKENS,
        "logprobs": true, "top_logprobs": 20, "ignore_eos": true})
}

fn ask_for_events(server: &TestServer) -> TcpStream {
    let mut body = endless();
    body["stream"] = json!(true);
    let stream = server.connect_with_small_buffer();
    server.send_on(stream, "/v1/chat/completions", body.to_string().as_bytes())
}

fn ask_on_websocket(server: &TestServer) -> Client {
    let mut client = Client::open_on(server.connect_with_small_buffer(), server);
    client.send(endless());
    client
}

/// Reads on until the connection ends, and tells whether `text` came.
fn still_says(stream: &mut TcpStream, text: &str) -> bool {
    let mut bytes = Vec::new();
    // A connection that was cut may end with an error; what came before it counts.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).contains(text)
}

#[test]
fn an_event_stream_that_is_not_read_is_cut_by_its_waiting_events_and_ends_with_the_reason() {
    let server = start(Limit::Events);
    let mut stream = ask_for_events(&server);
    check_cut(&server, Limit::Events);
    // Within the limit in time the client may read on, and learns why there is no more.
    let events = read_answer(&mut stream).events();
    let last = events.last().expect("an event");
    assert_eq!(last["error"]["code"], "slow_reader", "{last}");
}

#[test]
fn an_event_stream_that_is_left_unread_for_too_long_is_cut_with_its_connection() {
    let server = start(Limit::Time);
    let mut stream = ask_for_events(&server);
    check_cut(&server, Limit::Time);
    assert!(!still_says(&mut stream, "[DONE]"), "the reply ends although its client was cut");
}

#[test]
fn a_websocket_request_that_is_not_read_is_cut_by_its_waiting_events_and_ends_with_the_reason() {
    let server = start(Limit::Events);
    let mut client = ask_on_websocket(&server);
    check_cut(&server, Limit::Events);
    let events = client.events_until_ended(1);
    let last = events.last().expect("an event");
    assert_eq!((&last["id"], &last["error"]["code"]), (&json!("a"), &json!("slow_reader")), "{last}");
    // The connection itself goes on.
    client.send(json!({"type": "ping", "id": 7}));
    assert_eq!(client.event(), json!({"type": "pong", "id": 7}));
}

#[test]
fn a_websocket_that_is_left_unread_for_too_long_is_cut() {
    let server = start(Limit::Time);
    let mut client = ask_on_websocket(&server);
    check_cut(&server, Limit::Time);
    assert!(!still_says(client.stream(), "\"done\""), "the request ends although its client was cut");
}

#[test]
fn a_websocket_whose_client_answers_no_ping_is_cut() {
    let gate = Gate::shut();
    let mut setup = Setup { gate: Some(gate.clone()), ..Setup::default() };
    setup.http.websocket.ping_interval = HALF_A_SECOND / 5;
    setup.http.websocket.silence_max = HALF_A_SECOND;
    let server = setup.start();
    let mut client = ask_on_websocket(&server);
    gate.wait_for_arrival(1);
    // No event waits for it: the engine stands still. It reads until the server has had enough.
    assert!(!still_says(client.stream(), "\"done\""), "the request ends although its client was cut");
    gate.open();
    server.wait_until_idle();
    assert_eq!(server.engine.statistics().requests_cancelled, 1);
}
