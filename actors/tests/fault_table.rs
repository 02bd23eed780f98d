//! One scene for every fault: two lanes that decode and one in the middle of its prompt are in a batch when
//! it happens. For each fault it is written down which lanes advanced, which are run again, which failed and
//! why; the others' tokens and log-probabilities are those of a run without the fault.

mod support;

use futures_util::FutureExt;
use lavalane_actors::lifecycle::{LifecycleEvent, LifecycleEvents};
use lavalane_actors::request::{Failure, Refusal, RequestEvent, ValidRequest};
use lavalane_actors::status::Health;
use lavalane_actors::testing::{Fate, Fault, FaultScript, Gate, Injection, LaneRecord, When};
use lavalane_actors::{EngineHandle, EngineSettings, RequestStream};
use lavalane_runtime::batch::LaneFaultCause;
use lavalane_runtime::ids::{LaneId, Position};
use lavalane_runtime::sampling::Sampled;
use std::time::Duration;
use support::*;

/// The run in which the fault happens: all three lanes are in it.
const RUN: u64 = 4;
const FIRST: usize = 0;
const SECOND: usize = 1;
const PROMPT: usize = 2;

fn three_requests() -> Vec<ValidRequest> {
    let lengths = [9, 12, 100];
    let request = |(seed, length): (u32, usize)| drawn(prompt(seed, length), 20, u64::from(seed));
    (0..3).zip(lengths).map(request).collect()
}

/// An engine with three lanes that stands before run [`RUN`], and the three requests' streams.
async fn stage(script: &FaultScript, settings: EngineSettings) -> (EngineHandle, Gate, Vec<RequestStream>) {
    let (engine, gate) = start_gated_before_faults(script, EngineSettings { lanes: 3, ..settings });
    let mut streams = Vec::new();
    for request in three_requests() {
        streams.push(engine.submit(request).await.expect("it is taken"));
        gate.wait_for_arrival(1);
    }
    gate.allow(RUN - 1);
    gate.wait_for_arrival(RUN);
    (engine, gate, streams)
}

/// What each request gets without a fault.
async fn undisturbed() -> Vec<Reply> {
    let (engine, gate, streams) = stage(&FaultScript::new(), settings()).await;
    gate.open();
    let mut replies = Vec::new();
    for (stream, request) in streams.into_iter().zip(three_requests()) {
        let reply = read(stream).await;
        assert_eq!(reply.tokens, expected(&request));
        replies.push(reply);
    }
    finish(&engine).await;
    replies
}

/// What a fault does to the lanes of its batch.
#[derive(Debug, Default)]
struct Effect<'a> {
    /// Lanes that the fault's run advanced.
    advanced: &'a [usize],
    /// Lanes that the next run takes from the same position again.
    repeated: &'a [usize],
    /// The lane that fails, and why.
    failed: Option<(usize, Failure)>,
    /// How many devices are made.
    devices: u64,
}

fn lanes_where(records: &[LaneRecord], is_one: impl Fn(&LaneRecord) -> bool) -> Vec<usize> {
    let mut lanes: Vec<usize> =
        records.iter().filter(|record| is_one(record)).map(|record| record.lane.index()).collect();
    lanes.sort_unstable();
    lanes
}

fn check_records(script: &FaultScript, effect: &Effect<'_>) {
    let runs = script.runs();
    let (run, next) = (&runs[RUN as usize - 1], &runs[RUN as usize]);
    assert_eq!(lanes_where(&run.lanes, |_| true), [FIRST, SECOND, PROMPT]);
    assert_eq!(lanes_where(&run.lanes, |record| record.fate == Fate::Ran), effect.advanced);
    let is_repeated = |record: &LaneRecord| {
        let before = run.lanes.iter().find(|before| before.lane == record.lane);
        before.is_some_and(|before| before.generation == record.generation && before.from == record.from)
    };
    assert_eq!(lanes_where(&next.lanes, is_repeated), effect.repeated);
    if effect.devices > 0 {
        // A replay begins at the beginning: the transcripts are run again.
        let begins = runs[RUN as usize..].iter().flat_map(|run| &run.lanes);
        assert_eq!(begins.filter(|record| record.from == Position::START).count(), 3);
    }
    check_only_those_that_ran_advanced(&runs);
}

/// Plays the scene with a fault and compares it with the one without.
fn check(fault: Fault, effect: Effect<'_>) {
    block_on(async {
        let whole = undisturbed().await;
        let recovery = Gate::shut();
        let script = FaultScript::new().at(RUN, fault).with_recovery_gate(recovery.clone());
        let (engine, gate, streams) = stage(&script, settings()).await;
        let events = engine.observe(100);
        gate.open();
        if effect.devices > 0 {
            recovery.wait_for_arrival(1);
            assert!(matches!(engine.health(), Health::Recovering { .. }), "{:?}", engine.health());
        } else {
            assert_eq!(engine.health(), Health::Ok);
        }
        recovery.open();
        for (lane, stream) in streams.into_iter().enumerate() {
            let reply = read(stream).await;
            match &effect.failed {
                Some((failed, failure)) if *failed == lane => {
                    assert_eq!(reply.failure(), failure);
                    assert!(whole[lane].sampled.starts_with(&reply.sampled));
                }
                _ => assert_eq!(reply.sampled, whole[lane].sampled, "lane {lane}"),
            }
        }
        assert_eq!(engine.health(), Health::Ok);
        check_records(&script, &effect);
        check_counts(&engine, events, &effect);
        let again = &three_requests()[0];
        assert_eq!(ask(&engine, again.clone()).await.sampled, whole[FIRST].sampled);
        finish(&engine).await;
    });
}

fn check_counts(engine: &EngineHandle, mut events: LifecycleEvents, effect: &Effect<'_>) {
    let statistics = engine.statistics();
    assert_eq!(statistics.requests_failed, u64::from(effect.failed.is_some()));
    assert_eq!(statistics.recoveries, effect.devices);
    assert_eq!(statistics.recovery_time.count(), effect.devices);
    assert_eq!(statistics.resumption_time.count(), effect.devices);
    assert!(statistics.resumption_time.sum() >= statistics.recovery_time.sum());
    let lost = std::iter::from_fn(|| events.try_next())
        .filter(|event| matches!(event, LifecycleEvent::DeviceLost { .. }));
    assert_eq!(lost.count() as u64, effect.devices);
}

#[test]
fn an_allocation_that_fails_ends_its_lane_alone() {
    let failed = Some((SECOND, Failure::Lane(LaneFaultCause::OutOfMemory)));
    let advanced = &[FIRST, PROMPT];
    check(Fault::Lane(SECOND, LaneFaultCause::OutOfMemory), Effect { advanced, failed, ..Effect::default() });
}

#[test]
fn logits_that_are_not_finite_end_their_lane_alone_in_decode_and_in_prefill() {
    for (lane, advanced) in [(FIRST, [SECOND, PROMPT]), (PROMPT, [FIRST, SECOND])] {
        let failed = Some((lane, Failure::Lane(LaneFaultCause::LogitsNotFinite)));
        let fault = Fault::Lane(lane, LaneFaultCause::LogitsNotFinite);
        check(fault, Effect { advanced: &advanced, failed, ..Effect::default() });
    }
}

#[test]
fn a_submission_that_fails_makes_exactly_the_lanes_after_it_run_again() {
    let all = [FIRST, SECOND, PROMPT];
    for ran in 0..3 {
        let (advanced, repeated) = all.split_at(ran);
        check(Fault::Submission(ran), Effect { advanced, repeated, ..Effect::default() });
    }
}

#[test]
fn a_device_lost_before_during_and_after_a_step_is_made_again_and_all_go_on() {
    let all = [FIRST, SECOND, PROMPT];
    for (when, ran) in [(When::Before, 0), (When::During(1), 1), (When::During(2), 2), (When::After, 3)] {
        let advanced = &all[..ran];
        check(Fault::DeviceLost(when), Effect { advanced, devices: 1, ..Effect::default() });
    }
}

#[test]
fn an_executor_that_panics_is_made_again_and_nothing_of_its_run_counts() {
    for when in [When::Before, When::During(1), When::After] {
        check(Fault::Panic(when), Effect { devices: 1, ..Effect::default() });
    }
}

#[test]
fn a_slow_step_changes_nothing() {
    let advanced = &[FIRST, SECOND, PROMPT];
    check(Fault::Slow(Duration::from_millis(20)), Effect { advanced, ..Effect::default() });
}

/// Plays the scene with something going wrong in the actors during run [`RUN`]; gives the replies.
async fn inject(injection: Injection) -> (EngineHandle, Vec<Reply>) {
    let (engine, gate, streams) = stage(&FaultScript::new(), settings()).await;
    engine.inject(injection);
    gate.open();
    let mut replies = Vec::new();
    for stream in streams {
        replies.push(read(stream).await);
    }
    (engine, replies)
}

#[test]
fn a_lane_that_panics_ends_alone_and_serves_the_next_request() {
    block_on(async {
        let whole = undisturbed().await;
        let (engine, replies) = inject(Injection::LanePanic(LaneId(SECOND as u32))).await;
        let panicked = LaneFaultCause::Panicked("injected".to_owned());
        assert_eq!(replies[SECOND].failure(), &Failure::Lane(panicked));
        for lane in [FIRST, PROMPT] {
            assert_eq!(replies[lane].sampled, whole[lane].sampled);
        }
        assert_eq!(engine.health(), Health::Ok);
        // All three lanes take requests again, the one that panicked too.
        for (reply, whole) in ask_all(&engine, three_requests()).await.iter().zip(&whole) {
            assert_eq!(reply.sampled, whole.sampled);
        }
        finish(&engine).await;
    });
}

#[test]
fn a_scheduler_that_panics_answers_everybody_frees_everything_and_turns_health_red() {
    block_on(async {
        let whole = undisturbed().await;
        let (engine, replies) = inject(Injection::SchedulerPanic).await;
        for (reply, whole) in replies.iter().zip(&whole) {
            let Failure::EngineStopped(reason) = reply.failure() else { panic!("{reply:?}") };
            assert_eq!(reason, "the scheduler panicked: injected");
            assert!(whole.sampled.starts_with(&reply.sampled));
        }
        assert!(matches!(engine.health(), Health::Dead { .. }), "{:?}", engine.health());
        check_all_free(&engine);
        let refusal = engine.submit(three_requests().remove(0)).await.expect_err("it is dead");
        assert!(matches!(refusal, Refusal::NotRunning(_)), "{refusal:?}");
    });
}

#[test]
fn clients_that_vanish_free_their_lanes_within_the_step_and_disturb_nobody() {
    block_on(async {
        let (engine, gate, streams) = stage(&FaultScript::new(), settings()).await;
        let next = engine.submit(request(prompt(9, 20), 8)).await.expect("it is taken");
        engine.inject(Injection::ReadersVanish);
        gate.allow(1);
        gate.wait_for_arrival(RUN + 1);
        let slots = engine.slots();
        assert_eq!(slots.iter().filter_map(|slot| slot.request).collect::<Vec<_>>(), [next.id()]);
        gate.open();
        for stream in streams {
            assert!(matches!(read(stream).await.end, RequestEvent::Cancelled(_)));
        }
        assert_eq!(read(next).await.tokens, expected(&request(prompt(9, 20), 8)));
        assert_eq!(engine.health(), Health::Ok);
        finish(&engine).await;
    });
}

#[test]
fn readers_that_are_found_too_slow_are_cut_and_told_and_their_lanes_serve_the_next() {
    block_on(async {
        let whole = undisturbed().await;
        let (engine, replies) = inject(Injection::ReadersSlow).await;
        for (reply, whole) in replies.iter().zip(&whole) {
            let buffered = engine.settings().events_buffered_max;
            assert_eq!(reply.failure(), &Failure::SlowReader { buffered });
            assert!(whole.sampled.starts_with(&reply.sampled));
        }
        assert_eq!(engine.health(), Health::Ok);
        for (reply, whole) in ask_all(&engine, three_requests()).await.iter().zip(&whole) {
            assert_eq!(reply.sampled, whole.sampled);
        }
        finish(&engine).await;
    });
}

#[test]
fn an_overloaded_scheduler_refuses_what_is_too_much_and_serves_the_rest_undisturbed() {
    check_overload(None);
}

#[test]
fn a_scheduler_that_does_nothing_for_a_while_refuses_what_is_too_much_and_serves_the_rest_undisturbed() {
    check_overload(Some(Injection::SchedulerSlow(Duration::from_millis(50))));
}

/// Three requests run, and a hundred more arrive at once.
fn check_overload(injection: Option<Injection>) {
    block_on(async {
        let whole = undisturbed().await;
        let small = EngineSettings { queue_capacity: 5, ..settings() };
        let (engine, gate, streams) = stage(&FaultScript::new(), small).await;
        injection.into_iter().for_each(|injection| engine.inject(injection));
        let floods = (0..100).map(|seed| {
            let engine = engine.clone();
            async move { engine.submit(request(prompt(seed, 9), 2)).await }
        });
        let (taken, refused): (Vec<_>, Vec<_>) =
            futures_util::future::join_all(floods).await.into_iter().partition(Result::is_ok);
        assert_eq!((taken.len(), refused.len()), (5, 95));
        assert!(refused.iter().all(|result| matches!(result, Err(Refusal::QueueFull { capacity: 5, .. }))));
        assert_eq!(engine.health(), Health::Ok);
        gate.open();
        for (stream, whole) in streams.into_iter().zip(&whole) {
            assert_eq!(read(stream).await.sampled, whole.sampled);
        }
        for stream in taken {
            read(stream.expect("it was taken")).await.finished();
        }
        finish(&engine).await;
    });
}

fn take(event: Option<RequestEvent>, drawn: &mut Vec<Sampled>) {
    match event.expect("the stream has not ended") {
        RequestEvent::Token(token) => drawn.push(token.sampled),
        RequestEvent::Started { .. } => {}
        end => assert!(matches!(end, RequestEvent::Finished(_)), "{end:?}"),
    }
}

/// Takes whatever events wait.
fn take_all(streams: &mut [RequestStream], replies: &mut [Vec<Sampled>]) {
    for (stream, drawn) in streams.iter_mut().zip(replies) {
        while let Some(event) = stream.next().now_or_never().filter(Option::is_some) {
            take(event, drawn);
        }
    }
}

#[test]
fn a_reader_that_is_too_slow_is_cut_and_the_others_go_on_undisturbed() {
    block_on(async {
        let whole = undisturbed().await;
        let narrow = EngineSettings { events_buffered_max: 8, ..settings() };
        let (engine, gate, mut streams) = stage(&FaultScript::new(), narrow).await;
        let slow = streams.remove(SECOND);
        // The two others are read as they are drawn: no step runs before they were.
        let mut replies = [Vec::new(), Vec::new()];
        for reader in 0..2 {
            while replies[reader].len() < 20 {
                take_all(&mut streams, &mut replies);
                if replies[reader].len() < 20 {
                    gate.allow(1);
                    take(streams[reader].next().await, &mut replies[reader]);
                }
            }
        }
        for (drawn, lane) in replies.iter().zip([FIRST, PROMPT]) {
            assert_eq!(*drawn, whole[lane].sampled);
        }
        gate.open();
        engine.drain().await;
        let reply = support::read(slow).await;
        assert_eq!(reply.failure(), &Failure::SlowReader { buffered: 8 });
        assert_eq!(reply.sampled, whole[SECOND].sampled[..7]);
        finish(&engine).await;
    });
}
