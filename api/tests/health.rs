//! `/health` tells the truth while something is wrong, and afterwards.

mod support;

use lavalane_actors::testing::{Fault, FaultScript, Gate, Injection, When};
use serde_json::{Value, json};
use support::{Setup, TestServer, read_answer};

const COMPLETIONS: &str = "/v1/completions";

fn body() -> Value {
    json!({"prompt": "x", "max_tokens": 6, "ignore_eos": true, "seed": 1, "logprobs": 2})
}

/// The status, the word and the reason.
fn health(server: &TestServer) -> (u16, Value, Value) {
    let answer = server.get("/health", "");
    let json = answer.json();
    (answer.status, json["status"].clone(), json["reason"].clone())
}

#[test]
fn health_says_recovering_with_the_reason_until_there_is_another_device_and_requests_are_taken_meanwhile() {
    let whole = Setup::default().start().post(COMPLETIONS, body()).json()["choices"].clone();
    let recovery = Gate::shut();
    let script = FaultScript::new().at(3, Fault::DeviceLost(When::During(0)));
    let script = script.with_recovery_gate(recovery.clone());
    let server = Setup { script, ..Setup::default() }.start();
    assert_eq!(health(&server), (200, json!("ok"), Value::Null));
    let mut running = server.send(COMPLETIONS, body().to_string().as_bytes());
    recovery.wait_for_arrival(1);
    assert_eq!(health(&server), (200, json!("recovering"), json!("injected")));
    let mut waiting = server.send(COMPLETIONS, body().to_string().as_bytes());
    while server.engine.statistics().requests_waiting < 2 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    recovery.open();
    for stream in [&mut running, &mut waiting] {
        assert_eq!(read_answer(stream).json()["choices"], whole);
    }
    assert_eq!(health(&server), (200, json!("ok"), Value::Null));
    server.wait_until_idle();
    assert_eq!(server.engine.statistics().kv_pages_used, 0);
}

#[test]
fn health_is_red_with_the_reason_once_the_device_is_lost_for_good_or_the_scheduler_has_died() {
    let lost = FaultScript::new().at(3, Fault::DeviceLost(When::Before)).fail_recoveries(100);
    for (script, injection, reason) in [
        (lost, None, "the device was lost: injected"),
        (FaultScript::new(), Some(Injection::SchedulerPanic), "the scheduler panicked: injected"),
    ] {
        let gate = Gate::shut();
        let server = Setup { gate: Some(gate.clone()), script, ..Setup::default() }.start();
        let mut running = server.send(COMPLETIONS, body().to_string().as_bytes());
        server.wait_for_lanes(1);
        injection.into_iter().for_each(|injection| server.engine.inject(injection));
        gate.open();
        read_answer(&mut running).error(500, "engine_failed");
        let (status, word, told) = health(&server);
        assert_eq!((status, word), (503, json!("dead")), "{told}");
        assert!(told.as_str().is_some_and(|told| told.contains(reason)), "{told}");
        server.post(COMPLETIONS, body()).error(500, "engine_failed");
    }
}
