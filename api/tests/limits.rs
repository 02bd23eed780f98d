//! A request's turn and its limits in time, over HTTP.

mod support;

use lavalane_actors::EngineSettings;
use lavalane_actors::lifecycle::LifecycleEvent;
use lavalane_actors::testing::Gate;
use serde_json::{Value, json};
use std::net::TcpStream;
use std::time::Duration;
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
