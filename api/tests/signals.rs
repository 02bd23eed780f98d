//! Token signals over HTTP, whole and streamed, and over the WebSocket: there where they are asked for, and the
//! same everywhere.

mod support;

use serde_json::{Value, json};
use support::websocket::Client;
use support::{Setup, TestServer};

const COMPLETIONS: &str = "/v1/completions";

fn body(signals: Value) -> Value {
    json!({"prompt": "signals", "max_tokens": 12, "seed": 5, "temperature": 1, "ignore_eos": true,
        "logprobs": 2, "signals": signals})
}

fn whole(server: &TestServer, signals: Value) -> Value {
    server.post(COMPLETIONS, body(signals)).json()["choices"][0].clone()
}

fn streamed(server: &TestServer, signals: Value) -> Vec<Value> {
    let mut body = body(signals);
    body["stream"] = json!(true);
    let events = server.post(COMPLETIONS, body).events();
    events.iter().filter_map(|event| event["choices"][0].get("signals").cloned()).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn each_token_s_signals_agree_with_its_log_probabilities_and_the_window_sums_them_up() {
    let server = Setup::default().start();
    let choice = whole(&server, json!({"window": 4}));
    let entries = choice["signals"].as_array().expect("a list").clone();
    assert_eq!(entries.len(), 12);
    for (index, entry) in entries.iter().enumerate() {
        let top = choice["logprobs"]["top_logprobs"][index].as_object().expect("two tokens");
        let mut best: Vec<f64> = top.values().map(number).collect();
        best.sort_by(f64::total_cmp);
        // Two tokens of the same text show as one.
        if let [second, first] = best[..] {
            assert!((number(&entry["top_logprob"]) - first).abs() < 1e-5, "{entry} {top:?}");
            assert!((number(&entry["second_logprob"]) - second).abs() < 1e-5, "{entry} {top:?}");
            assert!((number(&entry["margin"]) - (first - second)).abs() < 1e-5, "{entry} {top:?}");
        }
        let window = &entries[(index + 1).saturating_sub(4)..=index];
        let entropies: Vec<f64> = window.iter().map(|entry| number(&entry["entropy"])).collect();
        let mean = entropies.iter().sum::<f64>() / entropies.len() as f64;
        assert_eq!(entry["window"]["tokens"], window.len());
        assert!((number(&entry["window"]["entropy"]["mean"]) - mean).abs() < 1e-5);
        let max = entropies.iter().copied().fold(0.0, f64::max);
        assert!((number(&entry["window"]["entropy"]["max"]) - max).abs() < 1e-6);
    }
}

#[test]
fn streamed_over_both_transports_they_are_those_of_the_whole_reply() {
    let server = Setup::default().start();
    let expected = whole(&server, json!(true))["signals"].as_array().expect("a list").clone();
    assert_eq!(streamed(&server, json!(true)), expected);
    let mut client = Client::open(&server);
    let mut message = body(json!(true));
    message["type"] = json!("completion");
    message["id"] = json!("a");
    client.send(message);
    let events = client.events_until_ended(1);
    let signals: Vec<Value> = events.iter().filter_map(|event| event.get("signals").cloned()).collect();
    assert_eq!(signals, expected);
}

#[test]
fn nobody_hears_of_them_unasked_and_asking_changes_no_token() {
    let server = Setup::default().start();
    let with = whole(&server, json!(true));
    for unasked in [json!(false), Value::Null] {
        let without = whole(&server, unasked.clone());
        assert_eq!(without.get("signals"), None);
        assert_eq!((&without["text"], &without["logprobs"]), (&with["text"], &with["logprobs"]));
        assert!(streamed(&server, unasked).is_empty());
    }
    let refused = server.post(COMPLETIONS, body(json!({"window": 0})));
    assert_eq!(refused.error(400, "invalid_value").as_deref(), Some("signals.window"));
}
