//! What the engine's tests share: engines on scripted executors, requests, and the checks that hold
//! after every test.

#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod files;

use lavalane_actors::request::{EndTokens, Failure, Finished, RequestEvent, StopRules, Usage, ValidRequest};
use lavalane_actors::status::{Health, SlotState};
use lavalane_actors::testing::{
    Fate, FaultInjectingExecutor, FaultScript, Gate, RunRecord, ScriptedExecutor, ScriptedTokens,
    expected_reply, scripted_limits,
};
use lavalane_actors::{Engine, EngineHandle, EngineSettings, RequestStream};
use lavalane_runtime::batch::{BatchExecutor, ExecutorLimits};
use lavalane_runtime::ids::{Generation, LaneId, Position, TokenId};
use lavalane_runtime::sampling::{Sampled, SamplingOptions, SamplingSettings};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// No test depends on time; this only keeps a mistake from hanging one.
pub(crate) const HANG_GUARD: Duration = Duration::from_secs(120);

/// Settings for the scripted executor: small slices, so that prompts take several.
pub(crate) fn settings() -> EngineSettings {
    EngineSettings {
        lanes: 4,
        queue_capacity: 300,
        rows_per_iteration: 24,
        prefill_slice_rows_max: 16,
        queue_wait_max: HANG_GUARD,
        work_time_max: HANG_GUARD,
        ..EngineSettings::default()
    }
}

pub(crate) fn start(executor: impl BatchExecutor + 'static, settings: EngineSettings) -> EngineHandle {
    Engine::start(Box::new(executor), Arc::new(ScriptedTokens), settings).expect("the engine starts")
}

/// An engine whose executor plays `script`.
pub(crate) fn start_with(script: &FaultScript, settings: EngineSettings) -> EngineHandle {
    start_on(scripted_limits(), script, settings)
}

pub(crate) fn start_on(
    limits: ExecutorLimits,
    script: &FaultScript,
    settings: EngineSettings,
) -> EngineHandle {
    let executor = ScriptedExecutor::new(limits);
    start(FaultInjectingExecutor::new(executor, script.clone()), settings)
}

/// An engine whose executor plays `script` behind a gate that is shut.
pub(crate) fn start_gated(script: &FaultScript, settings: EngineSettings) -> (EngineHandle, Gate) {
    let gate = Gate::shut();
    let executor = ScriptedExecutor::new(scripted_limits()).with_gate(gate.clone());
    (start(FaultInjectingExecutor::new(executor, script.clone()), settings), gate)
}

/// The same with the gate before the faults: a step that a fault keeps from the device stands before it, too.
pub(crate) fn start_gated_before_faults(
    script: &FaultScript,
    settings: EngineSettings,
) -> (EngineHandle, Gate) {
    start_gated_on(scripted_limits(), script, settings)
}

/// The same on a device of other sizes.
pub(crate) fn start_gated_on(
    limits: ExecutorLimits,
    script: &FaultScript,
    settings: EngineSettings,
) -> (EngineHandle, Gate) {
    let gate = Gate::shut();
    let executor = FaultInjectingExecutor::new(ScriptedExecutor::new(limits), script.clone());
    let before = gate.clone();
    (start(executor.with_observer(move |_run| before.pass()), settings), gate)
}

/// Runs a test's future on a runtime of its own, which is no actor system.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime can be made");
    runtime.block_on(async { tokio::time::timeout(HANG_GUARD, future).await.expect("the test hangs") })
}

/// A prompt of `length` tokens that depends on `seed` from its first token on.
pub(crate) fn prompt(seed: u32, length: usize) -> Vec<TokenId> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let token = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        TokenId(5 + (state >> 16) % 59)
    };
    (0..length).map(token).collect()
}

/// Greedy, `count` tokens, whatever they are.
pub(crate) fn request(prompt: Vec<TokenId>, count: u32) -> ValidRequest {
    ValidRequest {
        prompt,
        sampling: SamplingSettings::greedy(),
        choice_index: 0,
        tokens_max: count,
        stop: StopRules { end_tokens: EndTokens::Ignore, ..StopRules::default() },
        queue_wait_max: None,
        work_time_max: None,
        priority: 0,
        signal_window: None,
    }
}

/// Random draws with a seed.
pub(crate) fn drawn(prompt: Vec<TokenId>, count: u32, seed: u64) -> ValidRequest {
    let options = SamplingOptions {
        temperature: 1.0,
        repetition_penalty: 1.2,
        presence_penalty: 0.5,
        seed: Some(seed),
        ..SamplingOptions::default()
    };
    let sampling = SamplingSettings::new(options, 0).expect("the options are in range");
    ValidRequest { sampling, ..request(prompt, count) }
}

/// What the model says to a request that ignores end tokens, computed without an engine.
pub(crate) fn expected(request: &ValidRequest) -> Vec<TokenId> {
    let mut tokens = request.prompt.clone();
    let mut reply = Vec::new();
    // The reference stops at end tokens; a request that ignores them goes on.
    while reply.len() < request.tokens_max as usize {
        let left = request.tokens_max as usize - reply.len();
        let more = reference(request, &tokens, left);
        tokens.extend_from_slice(&more);
        reply.extend(more);
    }
    reply
}

fn reference(request: &ValidRequest, tokens: &[TokenId], count: usize) -> Vec<TokenId> {
    let prompt_tokens = request.prompt.len();
    let vocabulary = scripted_limits().vocabulary;
    expected_reply(vocabulary, tokens, prompt_tokens, &request.sampling, request.choice_index, count)
}

/// A stream, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) tokens: Vec<TokenId>,
    /// The tokens with their log-probabilities.
    pub(crate) sampled: Vec<Sampled>,
    pub(crate) text: String,
    pub(crate) lane: Option<LaneId>,
    pub(crate) end: RequestEvent,
}

impl Reply {
    pub(crate) fn finished(&self) -> &Finished {
        match &self.end {
            RequestEvent::Finished(finished) => finished,
            other => panic!("the request ended with {other:?}"),
        }
    }

    pub(crate) fn try_failure(&self) -> Option<&Failure> {
        match &self.end {
            RequestEvent::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    pub(crate) fn failure(&self) -> &Failure {
        match &self.end {
            RequestEvent::Failed(failure) => failure,
            other => panic!("the request ended with {other:?}"),
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        self.finished().usage
    }
}

/// Reads a stream to its end, and sees that it has exactly one.
pub(crate) async fn read(mut stream: RequestStream) -> Reply {
    let (mut tokens, mut text, mut lane) = (Vec::new(), String::new(), None);
    let mut sampled = Vec::new();
    loop {
        match stream.next().await.expect("a stream ends with a final event") {
            RequestEvent::Started { lane: started, .. } => {
                assert_eq!(lane.replace(started), None, "a request starts once");
            }
            RequestEvent::Token(event) => {
                tokens.push(event.sampled.token);
                sampled.push(event.sampled);
                text.push_str(&event.text);
            }
            end => {
                assert_eq!(stream.next().await, None, "nothing follows the final event");
                return Reply { tokens, sampled, text, lane, end };
            }
        }
    }
}

/// Submits a request and reads it to its end.
pub(crate) async fn ask(engine: &EngineHandle, request: ValidRequest) -> Reply {
    read(engine.submit(request).await.expect("the request is taken")).await
}

/// Submits all requests, then reads each to its end.
pub(crate) async fn ask_all(engine: &EngineHandle, requests: Vec<ValidRequest>) -> Vec<Reply> {
    let mut streams = Vec::new();
    for request in requests {
        streams.push(engine.submit(request).await.expect("the request is taken"));
    }
    let mut replies = Vec::new();
    for stream in streams {
        replies.push(read(stream).await);
    }
    replies
}

/// Nothing is left behind: every lane idle, no page held, no request counted as present.
pub(crate) fn check_all_free(engine: &EngineHandle) {
    let slots = engine.slots();
    assert!(slots.iter().all(|slot| slot.state == SlotState::Idle && slot.kv_pages == 0), "{slots:?}");
    let statistics = engine.statistics();
    assert_eq!(statistics.requests_running, 0);
    assert_eq!(statistics.requests_waiting, 0);
    assert_eq!(statistics.kv_pages_used, 0, "{statistics:?}");
}

/// Shuts the engine down and sees that it was well until then.
pub(crate) async fn finish(engine: &EngineHandle) {
    check_all_free(engine);
    engine.shutdown(HANG_GUARD).await;
    assert_eq!(engine.health(), Health::Stopped);
}

/// Of every owner of a lane: a run begins where the last one left it, which is further on exactly if
/// it was reported to have run.
pub(crate) fn check_only_those_that_ran_advanced(runs: &[RunRecord]) {
    let mut next: HashMap<(LaneId, Generation), Position> = HashMap::new();
    for run in runs {
        for lane in &run.lanes {
            let key = (lane.lane, lane.generation);
            if let Some(position) = next.get(&key) {
                assert_eq!(lane.from, *position, "run {} of lane {}", run.run, lane.lane);
            }
            let moved = if lane.fate == Fate::Ran { lane.from.advance(lane.rows) } else { lane.from };
            next.insert(key, moved);
        }
    }
}

/// Waits until something is so.
pub(crate) async fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
