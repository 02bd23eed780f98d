//! `lavalane serve --fault` on a small model: every fault there is, behind a real server that goes on where it can.

use lavalane_integration_tests::server::{Server, SyntheticModel};
use serde_json::{Value, json};
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_lavalane_under_test");

fn request() -> Value {
    json!({"prompt": "The sea is", "max_tokens": 20, "seed": 4, "temperature": 1, "ignore_eos": true,
        "logprobs": 2})
}

fn ask(server: &Server) -> Value {
    let answer = server.http().post("/v1/completions", &request());
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

/// What a fault in the middle of a reply does to it: nothing, or this status with a message that holds this.
const EFFECTS: &[(&str, Option<(u16, &str)>)] = &[
    ("device-lost-after@3", None),
    ("device-lost-before@3", None),
    ("device-lost-during:0@3", None),
    ("executor-panic@3", None),
    ("lane-panic:0@3", Some((500, "injected"))),
    ("left-out:0@3", Some((500, "leaves the lane out"))),
    ("not-finite:0@3", Some((500, "not finite"))),
    ("out-of-memory:0@3", Some((500, "memory"))),
    ("readers-slow@3", Some((500, "reads too slowly"))),
    ("readers-vanish@3", Some((503, "cancelled"))),
    ("scheduler-slow:50@3", None),
    ("session-kept:0@3", Some((500, "session"))),
    ("slow:20@3", None),
    ("submission:0@3", None),
    ("wrong-length:0@3", Some((500, "position"))),
];

/// Faults that tests of their own are about.
const ELSEWHERE: &[&str] = &["disk-full", "disk-slow", "process-killed", "scheduler-panic"];

#[test]
fn each_fault_behind_a_server_leaves_a_reply_whole_or_fails_it_with_its_reason_and_the_next_is_served() {
    let model = SyntheticModel::write(PROGRAM, "each-fault", &[]);
    let undisturbed = ask(&Server::start(PROGRAM, model.path(), &[]));
    for (fault, effect) in EFFECTS {
        let server = Server::start(PROGRAM, model.path(), &["--fault", fault]);
        let http = server.http();
        let answer = http.post("/v1/completions", &request());
        match effect {
            None => assert_eq!(answer.json()["choices"], undisturbed, "{fault}"),
            Some((status, reason)) => {
                assert_eq!(answer.status, *status, "{fault}: {}", answer.body);
                assert!(answer.body.contains(reason), "{fault}: {}", answer.body);
            }
        }
        assert_eq!(ask(&server), undisturbed, "after {fault}");
        assert_eq!(http.get("/health")["status"], "ok", "{fault}");
        for gauge in ["vllm:num_requests_running", "lavalane:kv_pages_used"] {
            assert_eq!(http.metric(gauge), 0.0, "{gauge} after {fault}");
        }
    }
}

#[test]
fn every_fault_that_can_be_ordered_has_a_test() {
    let output = Command::new(PROGRAM).args(["serve", "--fault", "fire@3"]).output();
    let error = String::from_utf8_lossy(&output.expect("the program starts").stderr).into_owned();
    let (_, kinds) = error.trim_end().split_once("there are: ").expect("the faults are listed");
    let name = |kind: &str| kind.split([':', '@']).next().map(str::to_owned);
    let mut listed: Vec<_> = kinds.split(", ").filter_map(name).collect();
    let mut tested: Vec<_> = EFFECTS.iter().filter_map(|(fault, _)| name(fault)).collect();
    tested.extend(ELSEWHERE.iter().map(|kind| (*kind).to_owned()));
    listed.sort();
    tested.sort();
    assert_eq!(listed, tested);
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
