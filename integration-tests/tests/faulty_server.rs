//! `lavalane serve --fault` on a small model: a lost device, a submission that fails and a lane that panics, behind a
//! real server that goes on.

use lavalane_integration_tests::server::{Server, SyntheticModel};
use serde_json::{Value, json};
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_lavalane_under_test");

fn ask(server: &Server) -> Value {
    let body = json!({"prompt": "The sea is", "max_tokens": 20, "seed": 4, "temperature": 1, "ignore_eos": true,
        "logprobs": 2});
    let answer = server.http().post("/v1/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["choices"].clone()
}

#[test]
fn a_served_reply_is_the_same_after_a_failed_submission_and_lost_devices_and_the_metrics_tell() {
    let model = SyntheticModel::write(PROGRAM, "faulty", &[]);
    let undisturbed = ask(&Server::start(PROGRAM, model.path(), &[]));
    let faults =
        ["--fault", "submission:0@3", "--fault", "device-lost-before@6", "--fault", "device-lost-after@12"];
    let server = Server::start(PROGRAM, model.path(), &faults);
    assert_eq!(ask(&server), undisturbed);
    let http = server.http();
    assert_eq!(http.get("/health")["status"], "ok");
    for (metric, value) in [
        ("lavalane:partial_batches_total", 3.0),
        ("lavalane:device_recoveries_total", 2.0),
        ("lavalane:device_recovery_seconds_count", 2.0),
        ("lavalane:device_resumption_seconds_count", 2.0),
        ("lavalane:requests_failed_total", 0.0),
        ("lavalane:kv_pages_used", 0.0),
    ] {
        assert_eq!(http.metric(metric), value, "{metric}");
    }
    assert!(http.metric("lavalane:device_recovery_seconds_sum") > 0.0);
}

#[test]
fn a_lane_that_panics_behind_a_server_fails_its_request_with_a_reason_and_the_next_is_served() {
    let model = SyntheticModel::write(PROGRAM, "panicking", &[]);
    let server = Server::start(PROGRAM, model.path(), &["--fault", "lane-panic:0@3"]);
    let body = json!({"prompt": "The sea is", "max_tokens": 20, "ignore_eos": true});
    let answer = server.http().post("/v1/completions", &body);
    assert_eq!(answer.status, 500, "{}", answer.body);
    assert!(answer.body.contains("injected"), "{}", answer.body);
    ask(&server);
    assert_eq!(server.http().get("/health")["status"], "ok");
}

#[test]
fn a_scheduler_that_panics_behind_a_server_turns_health_red_with_its_reason() {
    let model = SyntheticModel::write(PROGRAM, "dying", &[]);
    let server = Server::start(PROGRAM, model.path(), &["--fault", "scheduler-panic@3"]);
    let body = json!({"prompt": "The sea is", "max_tokens": 20, "ignore_eos": true});
    let answer = server.http().post("/v1/completions", &body);
    assert!(answer.status >= 500, "{}", answer.body);
    let health = server.http().get("/health");
    assert_eq!(health["status"], "dead");
    assert!(health["reason"].as_str().is_some_and(|reason| reason.contains("injected")), "{health}");
}

#[test]
fn a_fault_that_is_none_is_refused_before_anything_is_loaded() {
    let output = Command::new(PROGRAM)
        .args(["serve", "--model", "no-such-file.gguf", "--fault", "fire@3"])
        .output()
        .expect("the program starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.starts_with("error: --fault: there is no fault `fire`"), "{error}");
}
