//! Identical prompts in flight are computed once: later ones wait for the lane that computes, and one of
//! them takes over when that lane ends before it is done.

mod support;

use lavalane_actors::EngineSettings;
use lavalane_actors::request::{Failure, Refusal, RequestEvent, ValidRequest};
use lavalane_actors::settings::PrefixReuse;
use lavalane_actors::testing::{Fate, Fault, FaultScript, RunRecord, When};
use lavalane_runtime::batch::LaneFaultCause;
use std::time::Duration;
use support::*;

/// Tokens of the prompt: four pages of 16 and 6 tokens.
const PROMPT: usize = 70;
/// What a lane that finds the prompt's full pages still computes of it.
const TAIL: usize = 6;

fn eight_lanes() -> EngineSettings {
    EngineSettings { lanes: 8, ..settings() }
}

/// Requests for the same prompt with a seed of their own each; every one draws ten tokens.
fn identical(count: u64) -> Vec<ValidRequest> {
    (0..count).map(|seed| drawn(prompt(1, PROMPT), 10, seed)).collect()
}

/// Rows that were reported to have run at positions of the prompt.
fn prompt_rows(runs: &[RunRecord]) -> usize {
    let lanes = runs.iter().flat_map(|run| &run.lanes).filter(|lane| lane.fate == Fate::Ran);
    lanes.map(|lane| lane.rows.min(PROMPT.saturating_sub(lane.from.tokens()))).sum()
}

/// Six requests for one prompt under a script, of which `failures` fail, with `cause`; the prompt's rows
/// that ran must be `rows`.
fn check(script: &FaultScript, failures: usize, cause: &LaneFaultCause, rows: usize) {
    block_on(async {
        let (engine, gate) = start_gated(script, eight_lanes());
        let requests = identical(6);
        let mut streams = Vec::new();
        for request in &requests {
            streams.push(engine.submit(request.clone()).await.expect("it is taken"));
        }
        gate.open();
        let mut failed = 0;
        for (request, stream) in requests.iter().zip(streams) {
            let reply = read(stream).await;
            match reply.try_failure() {
                None => assert_eq!(reply.tokens, expected(request)),
                Some(failure) => {
                    assert_eq!(failure, &Failure::Lane(cause.clone()));
                    failed += 1;
                }
            }
        }
        assert_eq!(failed, failures);
        assert_eq!(prompt_rows(&script.runs()), rows);
        check_only_those_that_ran_advanced(&script.runs());
        finish(&engine).await;
    });
}

#[test]
fn six_identical_prompts_are_computed_once() {
    check(&FaultScript::new(), 0, &LaneFaultCause::OutOfMemory, PROMPT + 5 * TAIL);
}

#[test]
fn a_waiting_request_takes_over_from_a_lane_that_faults() {
    for cause in [LaneFaultCause::OutOfMemory, LaneFaultCause::LogitsNotFinite] {
        let script = FaultScript::new().at(3, Fault::Lane(0, cause.clone()));
        // Two slices of the first lane ran in vain.
        check(&script, 1, &cause, 32 + PROMPT + 4 * TAIL);
    }
}

#[test]
fn two_lanes_that_fault_one_after_the_other_leave_a_third_to_take_over() {
    let cause = LaneFaultCause::LogitsNotFinite;
    let script = FaultScript::new().at(3, Fault::Lane(0, cause.clone())).at(5, Fault::Lane(0, cause.clone()));
    check(&script, 2, &cause, 32 + 16 + PROMPT + 3 * TAIL);
}

#[test]
fn after_a_lost_device_the_prompt_is_computed_once_more() {
    let script = FaultScript::new().at(3, Fault::DeviceLost(When::Before));
    check(&script, 0, &LaneFaultCause::OutOfMemory, 32 + PROMPT + 5 * TAIL);
}

#[test]
fn a_waiting_request_takes_over_from_a_lane_whose_client_leaves_and_uses_what_it_computed() {
    block_on(async {
        let script = FaultScript::new();
        let (engine, gate) = start_gated(&script, eight_lanes());
        let requests = identical(6);
        let mut streams = Vec::new();
        for request in &requests {
            streams.push(engine.submit(request.clone()).await.expect("it is taken"));
        }
        gate.allow(2);
        gate.wait_for_arrival(3);
        drop(streams.remove(0));
        gate.open();
        for (request, stream) in requests[1..].iter().zip(streams) {
            assert_eq!(read(stream).await.tokens, expected(request));
        }
        assert_eq!(engine.statistics().requests_cancelled, 1);
        assert_eq!(prompt_rows(&script.runs()), PROMPT + 4 * TAIL);
        finish(&engine).await;
    });
}

#[test]
fn while_nothing_is_reused_every_request_computes_its_own_prompt() {
    block_on(async {
        let script = FaultScript::new();
        let engine = start_with(&script, EngineSettings { prefix_reuse: PrefixReuse::Off, ..eight_lanes() });
        for (request, reply) in identical(6).iter().zip(ask_all(&engine, identical(6)).await) {
            assert_eq!(reply.tokens, expected(request));
        }
        assert_eq!(prompt_rows(&script.runs()), 6 * PROMPT);
        finish(&engine).await;
    });
}

/// Submits `second` while the first request's prompt is being computed; tells whether the second has a
/// lane after the first's next step.
async fn has_lane_beside(first: ValidRequest, second: ValidRequest) -> bool {
    let script = FaultScript::new();
    let (engine, gate) = start_gated(&script, eight_lanes());
    let first_stream = engine.submit(first.clone()).await.expect("it is taken");
    gate.wait_for_arrival(1);
    let second_stream = engine.submit(second.clone()).await.expect("it is taken");
    gate.allow(1);
    gate.wait_for_arrival(2);
    let has_lane = engine.slots().iter().any(|slot| slot.request == Some(second_stream.id()));
    gate.open();
    assert_eq!(read(first_stream).await.tokens, expected(&first));
    assert_eq!(read(second_stream).await.tokens, expected(&second));
    finish(&engine).await;
    has_lane
}

#[test]
fn a_request_waits_only_where_waiting_is_shorter_than_computing() {
    block_on(async {
        let long = request(prompt(1, 200), 4);
        let beginning = |tokens| request(long.prompt[..tokens].to_vec(), 4);
        let mut other_tail = long.clone();
        other_tail.prompt.truncate(180);
        other_tail.prompt.extend(prompt(2, 30));
        assert!(!has_lane_beside(long.clone(), long.clone()).await, "the same prompt");
        assert!(!has_lane_beside(long.clone(), other_tail).await, "most of the prompt");
        assert!(has_lane_beside(long.clone(), beginning(40)).await, "a short beginning of a long prompt");
        assert!(has_lane_beside(long.clone(), request(prompt(3, 200), 4)).await, "another prompt");
    });
}

#[test]
fn a_waiting_request_is_overtaken_and_leaves_at_its_own_limit() {
    block_on(async {
        let (engine, gate) = start_gated(&FaultScript::new(), eight_lanes());
        let first = engine.submit(request(prompt(1, 200), 4)).await.expect("it is taken");
        gate.wait_for_arrival(1);
        let limit = Duration::from_millis(20);
        let waiting = ValidRequest { queue_wait_max: Some(limit), ..request(prompt(1, 200), 4) };
        let waiting = engine.submit(waiting).await.expect("it is taken");
        let other = engine.submit(request(prompt(2, 20), 4)).await.expect("it is taken");
        gate.allow(1);
        gate.wait_for_arrival(2);
        assert!(engine.slots().iter().any(|slot| slot.request == Some(other.id())));
        let end = read(waiting).await.end;
        assert!(matches!(end, RequestEvent::Refused(Refusal::QueueTimeout { .. })), "{end:?}");
        gate.open();
        read(first).await.finished();
        read(other).await.finished();
        finish(&engine).await;
    });
}

#[test]
fn a_prompt_that_is_cached_takes_one_step_of_at_most_its_last_page() {
    block_on(async {
        let script = FaultScript::new();
        let engine = start_with(&script, settings());
        ask(&engine, request(prompt(1, PROMPT), 1)).await.finished();
        let before = script.runs().len();
        let reply = ask(&engine, request(prompt(1, PROMPT), 1)).await;
        assert_eq!(reply.tokens, expected(&request(prompt(1, PROMPT), 1)));
        let runs = script.runs().split_off(before);
        assert_eq!(runs.iter().map(|run| run.lanes[0].rows).collect::<Vec<_>>(), [1]);
        finish(&engine).await;
    });
}
