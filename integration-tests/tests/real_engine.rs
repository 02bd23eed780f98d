//! The engine of actors over the real executor and the real model: prefix hits, company and a small KV pool
//! change nothing in what a request gets.

use futures_executor::block_on;
use lavalane_actors::request::{EndTokens, RequestEvent, StopRules, Usage, ValidRequest};
use lavalane_actors::status::Health;
use lavalane_actors::testing::{Fate, Fault, FaultInjectingExecutor, FaultScript, When};
use lavalane_actors::{Engine, EngineHandle, EngineSettings};
use lavalane_integration_tests::models::{self, ModelFile};
use lavalane_integration_tests::text::{tokenizer, tokens};
use lavalane_runtime::engine::{EngineOptions, VulkanExecutor};
use lavalane_runtime::ids::TokenId;
use lavalane_runtime::model::Model;
use lavalane_runtime::sampling::{Sampled, SamplingOptions, SamplingSettings};
use std::sync::Arc;

fn start(lanes: usize, kv_bytes: Option<u64>) -> Option<EngineHandle> {
    start_with(lanes, kv_bytes, &FaultScript::new())
}

fn start_with(lanes: usize, kv_bytes: Option<u64>, script: &FaultScript) -> Option<EngineHandle> {
    let path = models::find(ModelFile::SmolLm2)?;
    let model = Arc::new(Model::open(path).expect("the model opens"));
    let tokenizer = tokenizer(&model);
    let options = EngineOptions { lanes, context_tokens: Some(512), kv_bytes, ..Default::default() };
    let executor = VulkanExecutor::new(model, &options).expect("the model fits the device");
    let executor = FaultInjectingExecutor::new(executor, script.clone());
    let settings = EngineSettings { lanes, ..Default::default() };
    Some(Engine::start(Box::new(executor), Arc::new(tokenizer), settings).expect("the engine starts"))
}

fn request(prompt: Vec<TokenId>, tokens_max: u32, temperature: f32) -> ValidRequest {
    let options = SamplingOptions { temperature, seed: Some(3), top_logprobs: 4, ..Default::default() };
    let sampling = SamplingSettings::new(options, 0).expect("the settings are in range");
    ValidRequest {
        stop: StopRules { end_tokens: EndTokens::Ignore, ..Default::default() },
        ..ValidRequest::new(prompt, sampling, tokens_max)
    }
}

/// Runs requests at once; gives each one's draws and usage.
fn run(engine: &EngineHandle, requests: Vec<ValidRequest>) -> Vec<(Vec<Sampled>, Usage)> {
    let submit = |request| block_on(engine.submit(request)).expect("the request is taken");
    let streams: Vec<_> = requests.into_iter().map(submit).collect();
    let collect = |mut stream: lavalane_actors::RequestStream| {
        let mut draws = Vec::new();
        while let Some(event) = block_on(stream.next()) {
            match event {
                RequestEvent::Token(token) => draws.push(token.sampled),
                RequestEvent::Finished(finished) => return (draws, finished.usage),
                RequestEvent::Started { .. } => {}
                other => panic!("the request ended with {other:?}"),
            }
        }
        panic!("the stream ended without a last event");
    };
    streams.into_iter().map(collect).collect()
}

#[test]
fn a_prefix_hit_gives_the_same_bits_as_computing() {
    let Some(engine) = start(2, None) else { return };
    let first = tokens(100, 1);
    let cold = run(&engine, vec![request(first.clone(), 12, 0.0)]).remove(0);
    let warm = run(&engine, vec![request(first.clone(), 12, 0.0)]).remove(0);
    assert_eq!(cold.1.cached_tokens, 0, "nothing was cached at first");
    assert!(warm.1.cached_tokens > 0, "the second is a prefix hit");
    assert_eq!(warm.0, cold.0, "tokens and log-probabilities are the same");

    // One early token changed: the hit ends there, and the reply is a cold engine's.
    let mut changed = first;
    changed[40] = TokenId(77);
    let hit = run(&engine, vec![request(changed.clone(), 12, 0.0)]).remove(0);
    assert!(hit.1.cached_tokens <= 40, "{} tokens were taken from the cache", hit.1.cached_tokens);
    let Some(other) = start(2, None) else { return };
    let cold = run(&other, vec![request(changed, 12, 0.0)]).remove(0);
    assert_eq!(hit.0, cold.0, "the reply is a cold engine's");
}

#[test]
fn identical_requests_among_others_are_identical_to_one_alone() {
    let Some(engine) = start(6, None) else { return };
    let same = || request(tokens(40, 9), 8, 0.7);
    let alone = run(&engine, vec![same()]).remove(0);
    let mut requests = Vec::new();
    for other in 0..8 {
        requests.push(same());
        requests.push(request(tokens(10 + other * 7, 100 + other), 8, 0.7));
    }
    for (draws, _) in run(&engine, requests).into_iter().step_by(2) {
        assert_eq!(draws, alone.0);
    }
}

#[test]
fn conversations_beyond_the_kv_pool_wait_or_are_replayed_and_none_is_corrupted() {
    // 30 layers x 3 heads x 64 values x 2 x 2 bytes x 32 tokens is a page; the pool holds 14 of them.
    let page_bytes = 30 * 3 * 64 * 2 * 2 * 32;
    let Some(small) = start(4, Some(14 * page_bytes)) else { return };
    let requests = || (0..4).map(|seed| request(tokens(70, seed), 90, 0.7)).collect::<Vec<_>>();
    let crowded = run(&small, requests());
    let Some(large) = start(4, None) else { return };
    for (index, request) in requests().into_iter().enumerate() {
        let alone = run(&large, vec![request]).remove(0);
        assert_eq!(crowded[index].0, alone.0, "conversation {index}");
    }
}

/// Three requests, of which one reads a longer prompt while the others draw.
fn three_requests() -> Vec<ValidRequest> {
    (0..3).map(|seed| request(tokens(12 + 40 * seed, seed), 8, 0.7)).collect()
}

/// Each request's draws and usage on an engine that plays `script`, which fails nothing for good.
fn run_faulty(script: &FaultScript) -> Option<Vec<Vec<Sampled>>> {
    let engine = start_with(3, None, script)?;
    let draws = run(&engine, three_requests()).into_iter().map(|(draws, _)| draws).collect();
    assert_eq!(engine.health(), Health::Ok);
    let statistics = engine.statistics();
    assert_eq!((statistics.kv_pages_used, statistics.requests_failed), (0, 0));
    assert_eq!(statistics.recovery_time.count(), u64::from(script.recoveries()));
    if script.recoveries() > 0 {
        println!(
            "a lost device was made again in {:.3} s, and all went on after {:.3} s (means of {})",
            statistics.recovery_time.mean().unwrap_or_default(),
            statistics.resumption_time.mean().unwrap_or_default(),
            script.recoveries()
        );
    }
    Some(draws)
}

#[test]
fn lanes_after_a_failed_submission_run_again_with_the_same_bits() {
    let Some(undisturbed) = run_faulty(&FaultScript::new()) else { return };
    let script = FaultScript::new().at(2, Fault::Submission(0)).at(5, Fault::Submission(1));
    let script = script.at(7, Fault::Submission(2));
    assert_eq!(run_faulty(&script), Some(undisturbed), "tokens and log-probabilities");
    let cut: Vec<_> = script.runs().into_iter().filter(|run| run.fault.is_some()).collect();
    assert_eq!(cut.len(), 3);
    for (run, ran) in cut.iter().zip(0..) {
        // Exactly those before the failure ran.
        for (place, lane) in run.lanes.iter().enumerate() {
            assert_eq!(lane.fate == Fate::Ran, place < ran, "{run:?}");
        }
    }
}

#[test]
fn requests_are_rebuilt_after_a_lost_device_with_the_same_bits() {
    let Some(undisturbed) = run_faulty(&FaultScript::new()) else { return };
    for when in [When::Before, When::During(1), When::After] {
        let script = FaultScript::new().at(5, Fault::DeviceLost(when));
        assert_eq!(run_faulty(&script).as_ref(), Some(&undisturbed), "lost {when:?} a step");
        assert_eq!(script.recoveries(), 1);
    }
}
