//! Row 4 on the real thing: clients that go away by FIN and by RST, streamed and not, while their prompt of 7,900
//! tokens is read, between two of their tokens, and while they are queued. Every iteration carries a slice of the
//! long prompt and takes long enough to see what happens within it.

use lavalane_integration_tests::http::{Goodbye, Http, leave};
use lavalane_integration_tests::models::{ModelFile, find};
use lavalane_integration_tests::server::Server;
use serde_json::{Value, json};
use std::net::TcpStream;

const PROGRAM: &str = env!("CARGO_BIN_EXE_lavalane_under_test");
const PROMPT_TOKENS: u64 = 7900;
/// Two lanes: one reads the long prompt, one draws tokens beside it; a third request waits. The slices are long
/// although tokens are drawn beside them.
const ARGUMENTS: &[&str] = &[
    "--lanes",
    "2",
    "--batch-rows",
    "128",
    "--prefix-reuse",
    "false",
    "--prefill-lengthening",
    "100000",
    "--prefill-step-ms",
    "60000",
];

/// How many iterations have begun.
fn iterations(server: &Http) -> u64 {
    server.metric("lavalane:iterations_total") as u64
}

fn cancelled(server: &Http) -> f64 {
    server.labelled_metric("vllm:request_success_total", "finished_reason=\"abort\"")
}

/// The lane that has a request for which `is_it` holds.
fn lane(server: &Http, is_it: impl Fn(&Value) -> bool) -> Option<Value> {
    server.get("/slots").as_array().expect("lanes").iter().find(|slot| is_it(slot)).cloned()
}

fn reads_the_long_prompt(slot: &Value) -> bool {
    slot["state"] == "prefill" && slot["prompt_tokens"] == PROMPT_TOKENS
}

/// Lets a client go just after an iteration has begun, and asserts that `is_gone` holds before that iteration and the
/// next have passed.
fn check_gone(
    server: &Http,
    client: TcpStream,
    goodbye: Goodbye,
    what: &str,
    is_gone: impl Fn(&Http) -> bool,
) {
    let before = iterations(server);
    server.wait_for("the next iteration", |server| (iterations(server) > before).then_some(()));
    let _kept = leave(client, goodbye);
    let begun = iterations(server);
    server.wait_for(what, |server| is_gone(server).then_some(()));
    let passed = iterations(server) - begun;
    assert!(passed <= 1, "{what} took {passed} iterations, {goodbye:?}");
}

/// Plays one scene: a reader of the long prompt, a client that gets tokens and one that is queued, each of whom
/// leaves, the last first.
fn check(server: &Http, goodbye: Goodbye, streamed: bool) {
    let send = |mut body: Value| {
        body["stream"] = json!(streamed);
        body["ignore_eos"] = json!(true);
        server.send("/v1/completions", &body)
    };
    let before = cancelled(server);
    let prompt: Vec<u64> = (0..PROMPT_TOKENS).map(|at| 1000 + at * 7919 % 40_000).collect();
    let long = send(json!({"prompt": prompt, "max_tokens": 9}));
    server.wait_for("the long prompt's first slice", |server| lane(server, reads_the_long_prompt));
    let short = send(json!({"prompt": "The sea is", "max_tokens": 1000}));
    let has_drawn =
        |slot: &Value| slot["generated_tokens"].as_u64() >= Some(2) && slot["prompt_tokens"] != PROMPT_TOKENS;
    server.wait_for("two tokens", |server| lane(server, has_drawn));
    let queued = send(json!({"prompt": "Who", "max_tokens": 9}));
    server.wait_for("the queue", |server| (server.metric("vllm:num_requests_waiting") == 1.0).then_some(()));

    check_gone(server, queued, goodbye, "leaving the queue", |server| {
        server.metric("vllm:num_requests_waiting") == 0.0
    });
    assert_eq!(server.metric("vllm:num_requests_running"), 2.0);
    check_gone(server, short, goodbye, "freeing the lane between two tokens", |server| {
        server.metric("vllm:num_requests_running") == 1.0
            && lane(server, |slot| slot["state"] == "idle").is_some()
    });
    assert!(
        lane(server, reads_the_long_prompt).is_some(),
        "the long prompt is still read: {}",
        server.get("/slots")
    );
    check_gone(server, long, goodbye, "freeing the lane in its prefill", |server| {
        server.metric("vllm:num_requests_running") == 0.0
            && lane(server, |slot| slot["state"] != "idle").is_none()
    });
    assert_eq!(cancelled(server) - before, 3.0);
    assert_eq!(server.metric("lavalane:kv_pages_used"), 0.0);
}

#[test]
fn clients_that_leave_in_a_long_prefill_between_tokens_and_in_the_queue_free_their_place_within_one_iteration()
 {
    let Some(model) = find(ModelFile::SmolLm2) else { return };
    let server = Server::start(PROGRAM, &model, ARGUMENTS);
    let server = server.http();
    for goodbye in [Goodbye::Fin, Goodbye::Reset] {
        for streamed in [false, true] {
            check(&server, goodbye, streamed);
        }
    }
    let reply =
        server.post("/v1/completions", &json!({"prompt": "The sea is", "max_tokens": 2, "temperature": 0}));
    assert_eq!(reply.status, 200, "the server goes on: {}", reply.body);
}
