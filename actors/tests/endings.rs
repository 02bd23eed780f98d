//! How requests without faults end before their time, or with the engine: cancels, slow readers, a full pool,
//! drains, shutdowns.

mod support;

use lavalane_actors::EngineSettings;
use lavalane_actors::request::{Failure, FinishReason, Refusal, RequestEvent, Usage};
use lavalane_actors::testing::FaultScript;
use lavalane_runtime::ids::LaneId;
use std::time::Duration;
use support::*;

/// Cancels a request after `steps` of its steps; its lane must be free within one more.
fn check_cancel(steps: u64, cancel: impl Fn(lavalane_actors::RequestStream)) {
    block_on(async {
        let (engine, gate) = start_gated(&FaultScript::new(), EngineSettings { lanes: 1, ..settings() });
        let stream = engine.submit(request(prompt(1, 100), 50)).await.expect("it is taken");
        let other = engine.submit(request(prompt(2, 9), 5)).await.expect("it is taken");
        gate.allow(steps);
        gate.wait_for_arrival(steps + 1);
        cancel(stream);
        // The step under way is the last that the cancelled request has: the next is the other's.
        gate.allow(1);
        gate.wait_for_arrival(steps + 2);
        assert_eq!(engine.slots()[0].request, Some(other.id()));
        gate.open();
        assert_eq!(read(other).await.tokens, expected(&request(prompt(2, 9), 5)));
        assert_eq!(engine.statistics().requests_cancelled, 1);
        finish(&engine).await;
    });
}

#[test]
fn a_cancelled_request_leaves_its_lane_within_one_step_in_prefill_and_in_decode() {
    for steps in [0, 1, 3, 7, 12] {
        check_cancel(steps, drop);
        check_cancel(steps, |stream| {
            let cancellation = stream.cancellation();
            std::thread::spawn(move || cancellation.cancel()).join().expect("the thread ends");
        });
    }
}

#[test]
fn a_request_cancelled_in_the_queue_is_answered_while_the_lanes_are_busy() {
    block_on(async {
        let (engine, gate) = start_gated(&FaultScript::new(), EngineSettings { lanes: 1, ..settings() });
        let running = engine.submit(request(prompt(1, 9), 5)).await.expect("it is taken");
        gate.wait_for_arrival(1);
        let waiting = engine.submit(request(prompt(2, 9), 5)).await.expect("it is taken");
        waiting.cancel();
        let reply = read(waiting).await;
        assert_eq!(
            (reply.lane, &reply.end),
            (None, &RequestEvent::Cancelled(Usage { prompt_tokens: 9, ..Usage::default() }))
        );
        gate.open();
        read(running).await.finished();
        finish(&engine).await;
    });
}

#[test]
fn a_cancel_in_mid_reply_is_answered_with_what_was_used() {
    block_on(async {
        let engine = start_with(&FaultScript::new(), settings());
        let mut stream = engine.submit(request(prompt(1, 20), 200)).await.expect("it is taken");
        while !matches!(stream.next().await, Some(RequestEvent::Token(_))) {}
        stream.cancel();
        let mut last = None;
        while let Some(event) = stream.next().await {
            last = Some(event);
        }
        let Some(RequestEvent::Cancelled(usage)) = last else { panic!("{last:?}") };
        assert_eq!(usage.prompt_tokens, 20);
        assert!(usage.completion_tokens >= 1);
        finish(&engine).await;
    });
}

#[test]
fn a_reader_that_does_not_read_is_cut_and_learns_why_and_nobody_waits_for_it() {
    block_on(async {
        let settings = EngineSettings { events_buffered_max: 8, lanes: 2, ..settings() };
        let engine = start_with(&FaultScript::new(), settings);
        let slow = engine.submit(request(prompt(1, 20), 100)).await.expect("it is taken");
        let question = request(prompt(2, 20), 8);
        let mut other = engine.submit(question.clone()).await.expect("it is taken");
        let mut tokens = Vec::new();
        while let Some(event) = other.next().await {
            if let RequestEvent::Token(event) = event {
                tokens.push(event.sampled.token);
            }
        }
        assert_eq!(tokens, expected(&question));
        engine.drain().await;
        let reply = read(slow).await;
        assert_eq!(reply.failure(), &Failure::SlowReader { buffered: 8 });
        assert_eq!(reply.tokens.len(), 7, "the start and seven tokens fit");
        finish(&engine).await;
    });
}

#[test]
fn four_conversations_beyond_the_pool_all_finish_uncorrupted() {
    block_on(async {
        let mut limits = lavalane_actors::testing::scripted_limits();
        limits.pages = 20;
        let script = FaultScript::new();
        let engine = start_on(limits, &script, settings());
        // Each has 50 + 110 tokens: ten pages of sixteen, forty together, of which there are twenty.
        let requests: Vec<_> = (0..4).map(|seed| drawn(prompt(seed, 50), 110, u64::from(seed))).collect();
        let replies = ask_all(&engine, requests.clone()).await;
        for (request, reply) in requests.iter().zip(&replies) {
            assert_eq!(reply.tokens, expected(request));
            assert_eq!(reply.finished().reason, FinishReason::Length);
        }
        assert!(engine.statistics().preemptions > 0, "the pool was never exhausted");
        check_only_those_that_ran_advanced(&script.runs());
        finish(&engine).await;
    });
}

#[test]
fn draining_runs_what_was_taken_and_refuses_the_rest() {
    block_on(async {
        let (engine, gate) = start_gated(&FaultScript::new(), EngineSettings { lanes: 1, ..settings() });
        let first = engine.submit(request(prompt(1, 9), 5)).await.expect("it is taken");
        let second = engine.submit(request(prompt(2, 9), 5)).await.expect("it is taken");
        let drained = engine.drain();
        let others = async {
            while engine.health().takes_requests() {
                tokio::task::yield_now().await;
            }
            assert_eq!(engine.submit(request(prompt(3, 9), 5)).await.err(), Some(Refusal::Draining));
            gate.open();
            (read(first).await, read(second).await)
        };
        let ((), (first, second)) = futures_util::future::join(drained, others).await;
        assert_eq!(first.tokens, expected(&request(prompt(1, 9), 5)));
        assert_eq!(second.tokens, expected(&request(prompt(2, 9), 5)));
        finish(&engine).await;
    });
}

#[test]
fn a_shutdown_past_its_deadline_ends_what_runs_and_refuses_what_waits() {
    block_on(async {
        let (engine, gate) = start_gated(&FaultScript::new(), EngineSettings { lanes: 1, ..settings() });
        let running = engine.submit(request(prompt(1, 9), 100)).await.expect("it is taken");
        let waiting = engine.submit(request(prompt(2, 9), 5)).await.expect("it is taken");
        gate.wait_for_arrival(1);
        let shutdown = engine.shutdown(Duration::ZERO);
        let others = async {
            let waiting = read(waiting).await;
            assert_eq!(waiting.end, RequestEvent::Refused(Refusal::Draining));
            gate.open();
            let running = read(running).await;
            assert!(matches!(running.failure(), Failure::EngineStopped(_)));
        };
        futures_util::future::join(shutdown, others).await;
        assert_eq!(engine.health().to_string(), "stopped");
        check_all_free(&engine);
        assert_eq!(
            engine.submit(request(prompt(3, 9), 5)).await.err(),
            Some(Refusal::NotRunning("stopped".to_owned()))
        );
    });
}

#[test]
fn a_stream_outlives_the_last_handle_and_then_the_engine_stops() {
    block_on(async {
        let script = FaultScript::new();
        let engine = start_with(&script, settings());
        let mut events = engine.observe(1000);
        let question = request(prompt(1, 20), 30);
        let stream = engine.submit(question.clone()).await.expect("it is taken");
        drop(engine);
        assert_eq!(read(stream).await.tokens, expected(&question));
        // The observers' channels close when the engine is gone.
        while events.next().await.is_some() {}
    });
}

#[test]
fn each_lane_serves_one_owner_after_another_under_a_new_generation() {
    block_on(async {
        let engine = start_with(&FaultScript::new(), EngineSettings { lanes: 1, ..settings() });
        let before = engine.slots()[0].generation;
        for seed in 0..3 {
            let reply = ask(&engine, request(prompt(seed, 9), 3)).await;
            assert_eq!(reply.lane, Some(LaneId(0)));
        }
        assert_eq!(engine.slots()[0].generation, before.next().next().next());
        finish(&engine).await;
    });
}
