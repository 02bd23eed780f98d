//! A request's turn and its limits in time, the server's and its own, over HTTP and WebSocket.

mod support;

use lavalane_actors::EngineSettings;
use lavalane_actors::lifecycle::LifecycleEvent;
use lavalane_actors::testing::Gate;
use serde_json::{Value, json};
use std::net::TcpStream;
use std::time::Duration;
use support::websocket::Client;
use support::{Setup, TestServer, read_answer};

const COMPLETIONS: &str = "/v1/completions";

fn one_lane(gate: &Gate, change: impl FnOnce(&mut EngineSettings)) -> TestServer {
    let mut setup = Setup { gate: Some(gate.clone()), ..Setup::default() };
    setup.engine.lanes = 1;
    change(&mut setup.engine);
    setup.start()
}

fn body(priority: Value) -> Vec<u8> {
    let body = json!({"prompt": "x", "max_tokens": 3, "ignore_eos": true, "priority": priority});
    body.to_string().into_bytes()
}

/// Sends a request, and returns once it waits as the `waiting`-th.
fn queue(server: &TestServer, priority: Value, waiting: usize) -> TcpStream {
    let stream = server.send(COMPLETIONS, &body(priority));
    while server.engine.statistics().requests_waiting != waiting {
        std::thread::sleep(Duration::from_millis(1));
    }
    stream
}

#[test]
fn a_lower_priority_number_goes_first_and_arrival_decides_among_equals() {
    let gate = Gate::shut();
    let server = one_lane(&gate, |engine| engine.aging_interval = Duration::from_secs(3600));
    let mut events = server.engine.observe(100);
    let mut streams = vec![server.send(COMPLETIONS, &body(json!(0)))];
    gate.wait_for_arrival(1);
    // They are numbered as they arrive: 2 to 5, after the one that runs.
    for (priority, waiting) in [(json!(5), 1), (Value::Null, 2), (json!(-5), 3), (json!(0), 4)] {
        streams.push(queue(&server, priority, waiting));
    }
    gate.open();
    for mut stream in streams {
        assert_eq!(read_answer(&mut stream).status, 200);
    }
    let mut order = Vec::new();
    while let Some(event) = events.try_next() {
        if let LifecycleEvent::Activated { request, .. } = event {
            order.push(request.0);
        }
    }
    assert_eq!(order, [1, 4, 3, 5, 2]);
}

#[test]
fn waiting_too_long_is_a_503_and_working_too_long_a_504() {
    let gate = Gate::shut();
    let limit = Duration::from_millis(30);
    let server = one_lane(&gate, |engine| {
        engine.queue_wait_max = limit;
        engine.work_time_max = limit;
    });
    let mut working = server.send(COMPLETIONS, &body(json!(0)));
    gate.wait_for_arrival(1);
    let waiting = server.post(COMPLETIONS, json!({"prompt": "y", "max_tokens": 3}));
    waiting.error(503, "queue_timeout");
    // By now the other has worked for longer than it may, too.
    gate.open();
    read_answer(&mut working).error(504, "work_timeout");
    server.wait_until_idle();
    assert_eq!(server.engine.statistics().kv_pages_used, 0);
}

/// A completion with further fields.
fn limited(more: Value) -> Value {
    let mut body = json!({"prompt": "x", "max_tokens": 3, "ignore_eos": true});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

#[test]
fn a_request_s_own_limits_end_it_and_leave_those_that_set_none_alone() {
    let gate = Gate::shut();
    let server = one_lane(&gate, |_| {});
    let mut working = server.send(COMPLETIONS, limited(json!({"work_seconds": 0.03})).to_string().as_bytes());
    gate.wait_for_arrival(1);
    let mut patient = queue(&server, json!(0), 1);
    server.post(COMPLETIONS, limited(json!({"queue_seconds": 0.03}))).error(503, "queue_timeout");
    // By now the first has worked for longer than it asked for, too.
    gate.open();
    read_answer(&mut working).error(504, "work_timeout");
    assert_eq!(read_answer(&mut patient).status, 200);
    server.wait_until_idle();
    assert_eq!(server.engine.statistics().kv_pages_used, 0);
}

#[test]
fn a_request_s_own_limits_hold_over_the_websocket() {
    let gate = Gate::shut();
    let server = one_lane(&gate, |_| {});
    let mut client = Client::open(&server);
    let mut send = |id: &str, more: Value| {
        let mut message = limited(more);
        message["type"] = json!("completion");
        message["id"] = json!(id);
        client.send(message);
    };
    send("working", json!({"work_seconds": 0.03}));
    gate.wait_for_arrival(1);
    send("waiting", json!({"queue_seconds": 0.03}));
    send("greedy", json!({"work_seconds": 601}));
    let mut codes = std::collections::BTreeMap::new();
    let mut note = |events: Vec<Value>| {
        for event in events.into_iter().filter(|event| event["type"] == "error") {
            assert_eq!(event["ends_request"], true, "{event}");
            let id = event["id"].as_str().expect("an id").to_owned();
            codes.insert(id, event["error"]["code"].clone());
        }
    };
    note(client.events_until_ended(2));
    gate.open();
    note(client.events_until_ended(1));
    let expected = [("greedy", "invalid_value"), ("waiting", "queue_timeout"), ("working", "work_timeout")];
    assert_eq!(codes, expected.map(|(id, code)| (id.to_owned(), json!(code))).into());
}

#[test]
fn a_limit_longer_than_the_server_s_own_is_refused_by_name_on_both_routes() {
    let server = one_lane(&Gate::shut(), |engine| engine.queue_wait_max = Duration::from_secs(7));
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "queue_seconds": 8});
    for (route, body, name) in [
        (COMPLETIONS, limited(json!({"queue_seconds": 8})), "queue_seconds"),
        (COMPLETIONS, limited(json!({"work_seconds": 0})), "work_seconds"),
        ("/v1/chat/completions", chat, "queue_seconds"),
    ] {
        assert_eq!(server.post(route, body).error(400, "invalid_value").as_deref(), Some(name));
    }
    let limits = server.get("/props", "").json();
    assert_eq!((&limits["queue_seconds"], &limits["work_seconds"]), (&json!(7.0), &json!(600.0)));
}
