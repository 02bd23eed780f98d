//! Row 4: a client that goes away frees its lane, streamed or not, by FIN and by RST, in every state.

mod support;

use lavalane_actors::testing::Gate;
use serde_json::json;
use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;
use support::{Setup, TestServer};

#[derive(Clone, Copy, Debug)]
enum Goodbye {
    Fin,
    Rst,
}

fn leave(stream: TcpStream, goodbye: Goodbye) {
    match goodbye {
        Goodbye::Fin => stream.shutdown(Shutdown::Write).expect("closed"),
        Goodbye::Rst => {
            let socket = socket2::Socket::from(stream.try_clone().expect("the same socket"));
            socket.set_linger(Some(Duration::ZERO)).expect("a hard close");
        }
    }
    drop(stream);
}

/// Plays a scene with each way to leave; the server that it gives back has cancelled one request.
fn check(scene: impl Fn(Goodbye, bool) -> TestServer) {
    for goodbye in [Goodbye::Fin, Goodbye::Rst] {
        for streamed in [false, true] {
            let server = scene(goodbye, streamed);
            let cancelled = server.engine.statistics().requests_cancelled;
            assert_eq!(cancelled, 1, "{goodbye:?}, streamed: {streamed}");
        }
    }
}

#[test]
fn a_client_that_leaves_in_the_middle_of_its_prefill_frees_its_lane() {
    check(|goodbye, streamed| {
        let gate = Gate::shut();
        let server = Setup { gate: Some(gate.clone()), ..Setup::default() }.start();
        let body = json!({"prompt": "x".repeat(400), "stream": streamed, "max_tokens": 50});
        let stream = server.send("/v1/completions", body.to_string().as_bytes());
        gate.wait_for_arrival(1);
        leave(stream, goodbye);
        std::thread::sleep(Duration::from_millis(100));
        // The iteration that runs may end, and one more may have begun.
        gate.allow(2);
        server.wait_until_idle();
        gate.open();
        server
    });
}

#[test]
fn a_client_that_leaves_while_it_is_queued_frees_its_place() {
    check(|goodbye, streamed| {
        let gate = Gate::shut();
        let mut setup = Setup { gate: Some(gate.clone()), ..Setup::default() };
        setup.engine.lanes = 1;
        let server = setup.start();
        let body =
            json!({"prompt": "x", "stream": streamed, "max_tokens": 9, "ignore_eos": true}).to_string();
        let _first = server.send("/v1/completions", body.as_bytes());
        gate.allow(1);
        server.wait_for_lanes(1);
        let second = server.send("/v1/completions", body.as_bytes());
        std::thread::sleep(Duration::from_millis(100));
        leave(second, goodbye);
        std::thread::sleep(Duration::from_millis(100));
        gate.allow(1);
        gate.open();
        server.wait_until_idle();
        server
    });
}

#[test]
fn a_client_that_leaves_between_two_tokens_frees_its_lane() {
    check(|goodbye, streamed| {
        let gate = Gate::shut();
        let server = Setup { gate: Some(gate.clone()), ..Setup::default() }.start();
        let body = json!({"prompt": "x", "stream": streamed, "max_tokens": 400, "ignore_eos": true});
        let mut stream = server.send("/v1/completions", body.to_string().as_bytes());
        gate.allow(3);
        gate.wait_for_arrival(4);
        if streamed {
            let mut some = [0; 64];
            assert!(stream.read(&mut some).expect("events") > 0);
        }
        leave(stream, goodbye);
        std::thread::sleep(Duration::from_millis(100));
        gate.allow(2);
        server.wait_until_idle();
        gate.open();
        server
    });
}
