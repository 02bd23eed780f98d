//! What SIGINT and SIGTERM do to a server: the first lets running requests end, the second ends the program whatever
//! its threads are doing.

use lavalane_integration_tests::server::{Server, SyntheticModel};
use serde_json::json;
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStderr, Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lavalane_under_test");
const SIGKILL: i32 = 9;

/// A server whose every step takes so long, and the lines of its standard error.
fn start(model: &SyntheticModel, step_ms: u32) -> (Server, Lines<BufReader<ChildStderr>>) {
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--port", "0", "--drain-seconds", "3600", "--model"]).arg(model.path());
    command.args(["--fault", &format!("slow:{step_ms}@1+")]).stderr(Stdio::piped());
    let mut server = Server::start_command(command);
    let errors = BufReader::new(server.errors().expect("it is piped"));
    (server, errors.lines())
}

/// Reads lines until one holds `part`.
fn wait_for_line(lines: &mut Lines<BufReader<ChildStderr>>, part: &str) {
    let found = lines.map_while(Result::ok).any(|line| line.contains(part));
    assert!(found, "the server never said {part:?}");
}

fn wait_until_busy(server: &Server) {
    let is_busy = |slots: serde_json::Value| {
        let mut lanes = slots.as_array().expect("a list of lanes").iter();
        lanes.any(|lane| !lane["request"].is_null()).then_some(())
    };
    server.http().wait_for("a lane with a request", |http| is_busy(http.get("/slots")));
}

#[test]
fn the_first_signal_lets_a_running_request_end_and_then_the_program_does() {
    let model = SyntheticModel::write(PROGRAM, "first-signal", &[]);
    for name in ["INT", "TERM"] {
        let (mut server, mut errors) = start(&model, 100);
        let http = server.http();
        let body = json!({"prompt": "The sea is", "max_tokens": 8, "ignore_eos": true});
        let request = std::thread::spawn(move || http.post("/v1/completions", &body));
        wait_until_busy(&server);
        server.signal(name);
        let answer = request.join().expect("it is answered");
        assert_eq!(answer.status, 200, "{name}: {}", answer.body);
        assert_eq!(answer.json()["usage"]["completion_tokens"], 8, "{name}");
        wait_for_line(&mut errors, "stopped");
        assert_eq!(server.wait().code(), Some(0), "{name}");
    }
}

#[test]
fn the_second_signal_ends_the_program_in_the_middle_of_a_step() {
    let model = SyntheticModel::write(PROGRAM, "second-signal", &[]);
    for (first, second) in [("INT", "INT"), ("TERM", "TERM"), ("TERM", "INT")] {
        let (mut server, mut errors) = start(&model, 60_000);
        let body = json!({"prompt": "The sea is", "max_tokens": 8});
        let connection = server.http().send("/v1/completions", &body);
        wait_until_busy(&server);
        server.signal(first);
        wait_for_line(&mut errors, "again to cut");
        server.signal(second);
        wait_for_line(&mut errors, "cut");
        assert_eq!(server.wait().signal(), Some(SIGKILL), "{first}, {second}");
        drop(connection);
    }
}
