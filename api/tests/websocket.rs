//! Row 23: `GET /v1/stream` with a client of plain sockets.

mod support;

use lavalane_actors::testing::Gate;
use serde_json::{Value, json};
use support::Setup;
use support::websocket::Client;

fn completion(id: &str, tokens_max: u32) -> Value {
    json!({"type": "completion", "id": id, "prompt": "x", "max_tokens": tokens_max, "ignore_eos": true})
}

#[test]
fn two_requests_at_once_each_get_one_event_per_token_in_order_and_their_usage() {
    let server = Setup::default().start();
    let mut client = Client::open(&server);
    client.send(completion("a", 20));
    client.send(completion("b", 30));
    let events = client.events_until_ended(2);
    for (id, count) in [("a", 20), ("b", 30)] {
        let own: Vec<&Value> = events.iter().filter(|event| event["id"] == id).collect();
        assert_eq!(own[0]["type"], "started");
        let tokens: Vec<_> = own.iter().filter(|event| event["type"] == "token").collect();
        assert_eq!(tokens.len(), count);
        assert!(tokens.iter().enumerate().all(|(index, token)| token["index"] == index));
        assert_eq!(own.last().expect("an event")["usage"]["completion_tokens"], count);
    }
}

#[test]
fn bad_frames_get_error_events_and_the_connection_goes_on() {
    let server = Setup::default().start();
    let mut client = Client::open(&server);
    client.send_frame(1, b"not json");
    client.send_frame(2, &[0, 1, 2]);
    client.send_frame(1, &vec![b'x'; 20 << 20]);
    client.send(json!({"type": "completion", "id": "a", "prompt": 5}));
    client.send(json!({"type": "cancel", "id": "nobody"}));
    let codes: Vec<Value> = (0..5).map(|_| client.event()["error"]["code"].clone()).collect();
    assert_eq!(codes[..3], ["invalid_json", "invalid_json", "too_large"]);
    assert!(
        codes[3..].contains(&json!("invalid_value")) && codes[3..].contains(&json!("not_found")),
        "{codes:?}"
    );
    client.send(json!({"type": "ping", "id": 7}));
    assert_eq!(client.event(), json!({"type": "pong", "id": 7}));
    client.send_frame(9, b"hi");
    assert_eq!(client.read_frame(), (10, b"hi".to_vec()));
}

#[test]
fn a_live_id_cannot_be_used_twice_and_a_cancel_ends_its_request() {
    let gate = Gate::shut();
    let server = Setup { gate: Some(gate.clone()), ..Setup::default() }.start();
    let mut client = Client::open(&server);
    client.send(completion("a", 400));
    client.send(completion("a", 5));
    let refused = std::iter::from_fn(|| Some(client.event())).find(|event| event["type"] == "error");
    let refused = refused.expect("a refusal");
    assert_eq!(
        (&refused["error"]["code"], &refused["ends_request"]),
        (&json!("duplicate_id"), &json!(false))
    );
    client.send(json!({"type": "cancel", "id": "a"}));
    std::thread::sleep(std::time::Duration::from_millis(200));
    gate.open();
    let events = client.events_until_ended(1);
    assert_eq!(events.last().expect("an event")["type"], "cancelled");
    server.wait_until_idle();
}

#[test]
fn a_connection_that_closes_in_mid_stream_frees_its_lanes() {
    let gate = Gate::shut();
    let server = Setup { gate: Some(gate.clone()), ..Setup::default() }.start();
    let mut client = Client::open(&server);
    client.send(completion("a", 400));
    client.send(completion("b", 400));
    gate.wait_for_arrival(1);
    std::thread::sleep(std::time::Duration::from_millis(200));
    drop(client);
    std::thread::sleep(std::time::Duration::from_millis(200));
    gate.allow(3);
    server.wait_until_idle();
    gate.open();
    assert_eq!(server.engine.statistics().requests_cancelled, 2);
}
