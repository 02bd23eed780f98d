//! Requests that run without faults: replies, stops, limits, order, refusals.

mod support;

use lavalane_actors::EngineSettings;
use lavalane_actors::lifecycle::LifecycleEvent;
use lavalane_actors::request::{
    EndTokens, Failure, FinishReason, Refusal, RequestEvent, StopRules, ValidRequest,
};
use lavalane_actors::settings::PrefixReuse;
use lavalane_actors::status::SlotState;
use lavalane_actors::testing::{FaultScript, ScriptedTokens};
use lavalane_runtime::ids::{LaneId, TokenId};
use lavalane_runtime::tokenizer::TokenText;
use std::time::Duration;
use support::*;

/// Runs requests at once on an engine; each must say what the model says to it alone.
fn check_replies(settings: EngineSettings, requests: Vec<ValidRequest>) {
    block_on(async {
        let script = FaultScript::new();
        let engine = start_with(&script, settings);
        let replies = ask_all(&engine, requests.clone()).await;
        for (request, reply) in requests.iter().zip(&replies) {
            assert_eq!(reply.tokens, expected(request));
            assert_eq!(reply.finished().reason, FinishReason::Length);
            assert_eq!(reply.usage().prompt_tokens, request.prompt.len());
            assert_eq!(reply.usage().completion_tokens, request.tokens_max as usize);
        }
        check_only_those_that_ran_advanced(&script.runs());
        finish(&engine).await;
    });
}

#[test]
fn a_reply_is_the_model_s_whoever_else_is_served_and_however_the_prompt_is_sliced() {
    for slice in [1, 7, 64] {
        let requests = (0..8).map(|seed| drawn(prompt(seed, 20 + 9 * seed as usize), 30, u64::from(seed)));
        let settings = EngineSettings { lanes: 8, prefill_slice_rows_max: slice, ..settings() };
        check_replies(settings, requests.collect());
    }
}

#[test]
fn more_requests_than_lanes_all_get_their_turn() {
    check_replies(settings(), (0..40).map(|seed| request(prompt(seed, 5 + seed as usize), 12)).collect());
}

#[test]
fn eight_identical_requests_among_eight_others_are_identical() {
    let mut requests = vec![request(prompt(1, 50), 20); 8];
    requests.extend((10..18).map(|seed| request(prompt(seed, 33), 20)));
    check_replies(EngineSettings { lanes: 8, ..settings() }, requests);
}

#[test]
fn choices_of_one_request_differ_and_repeat() {
    block_on(async {
        let engine = start_with(&FaultScript::new(), settings());
        let choices = |_| {
            let choice = |choice_index| ValidRequest { choice_index, ..drawn(prompt(3, 30), 16, 1) };
            ask_all(&engine, (0..4).map(choice).collect())
        };
        let (first, second) = (choices(()).await, choices(()).await);
        for (index, reply) in first.iter().enumerate() {
            assert_eq!(reply.tokens, second[index].tokens);
            assert!(first[..index].iter().all(|other| other.tokens != reply.tokens));
        }
        finish(&engine).await;
    });
}

#[test]
fn the_same_prompt_again_is_found_in_the_cache_and_answered_with_the_same_tokens() {
    block_on(async {
        for (reuse, cached) in [(PrefixReuse::On, 69), (PrefixReuse::Off, 0)] {
            let engine =
                start_with(&FaultScript::new(), EngineSettings { prefix_reuse: reuse, ..settings() });
            let question = request(prompt(1, 70), 20);
            let first = ask(&engine, question.clone()).await;
            let second = ask(&engine, question.clone()).await;
            assert_eq!((first.usage().cached_tokens, second.usage().cached_tokens), (0, cached));
            assert_eq!((&first.tokens, &second.tokens), (&expected(&question), &expected(&question)));
            assert_eq!(engine.statistics().prefix_hits, u64::from(cached > 0));
            finish(&engine).await;
        }
    });
}

#[test]
fn a_hit_ends_at_the_first_changed_token_and_the_reply_is_that_of_a_cold_engine() {
    block_on(async {
        let engine = start_with(&FaultScript::new(), settings());
        ask(&engine, request(prompt(1, 70), 20)).await;
        let mut changed = prompt(1, 70);
        changed[20] = TokenId(if changed[20] == TokenId(5) { 6 } else { 5 });
        let question = request(changed, 20);
        let reply = ask(&engine, question.clone()).await;
        assert_eq!(reply.usage().cached_tokens, 20);
        assert_eq!(reply.tokens, expected(&question));
        finish(&engine).await;
    });
}

/// The text of all tokens at once.
fn text_of(tokens: &[TokenId]) -> String {
    let bytes: Vec<u8> =
        tokens.iter().flat_map(|token| ScriptedTokens.token_bytes(*token).to_vec()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn joined_chunks_are_the_whole_text() {
    block_on(async {
        let engine = start_with(&FaultScript::new(), settings());
        for seed in 0..20 {
            let reply = ask(&engine, drawn(prompt(seed, 9), 60, u64::from(seed))).await;
            assert_eq!(reply.text.clone() + &reply.finished().text, text_of(&reply.tokens));
        }
        finish(&engine).await;
    });
}

#[test]
fn an_end_token_a_stop_token_and_a_stop_text_end_a_reply_with_their_reason() {
    block_on(async {
        let engine = start_with(&FaultScript::new(), settings());
        let plain = request(prompt(4, 9), 60);
        let whole = expected(&plain);
        let stop_token = whole[10];
        let first = whole.iter().position(|token| *token == stop_token).expect("it is there");
        let stop = StopRules { tokens: vec![stop_token], end_tokens: EndTokens::Ignore, texts: Vec::new() };
        let reply = ask(&engine, ValidRequest { stop, ..plain.clone() }).await;
        assert_eq!(reply.tokens, whole[..first]);
        assert_eq!(reply.finished().reason, FinishReason::Stop { text: None });
        assert_eq!(reply.usage().completion_tokens, first + 1);

        let text = text_of(&whole);
        let letters: Vec<char> = text.chars().collect();
        let stop_text: String = letters[20..24].iter().collect();
        let stop = StopRules {
            texts: vec![stop_text.clone()],
            end_tokens: EndTokens::Ignore,
            ..StopRules::default()
        };
        let reply = ask(&engine, ValidRequest { stop, ..plain.clone() }).await;
        let finished = reply.finished();
        assert_eq!(reply.text.clone() + &finished.text, text[..text.find(&stop_text).expect("it is there")]);
        assert_eq!(finished.reason, FinishReason::Stop { text: Some(stop_text) });

        // One prompt in about 64 tokens draws the end token; some of these do within 60.
        let stop = StopRules::default();
        let mut ended = 0;
        for seed in 0..20 {
            let question = ValidRequest { stop: stop.clone(), ..request(prompt(seed, 9), 60) };
            let whole = expected(&question);
            let reply = ask(&engine, question).await;
            let end = whole.iter().position(|token| ScriptedTokens.is_end_of_generation(*token));
            assert_eq!(reply.tokens, whole[..end.unwrap_or(whole.len())]);
            ended += usize::from(reply.finished().reason == FinishReason::Stop { text: None });
        }
        assert!(ended > 0, "no reply drew the end token");
        finish(&engine).await;
    });
}

#[test]
fn the_context_s_end_ends_a_reply() {
    block_on(async {
        let engine = start_with(&FaultScript::new(), settings());
        let reply = ask(&engine, request(prompt(1, 250), 100)).await;
        assert_eq!((reply.tokens.len(), &reply.finished().reason), (6, &FinishReason::Length));
        finish(&engine).await;
    });
}

#[test]
fn requests_that_can_never_run_are_refused_with_the_numbers() {
    block_on(async {
        let mut limits = lavalane_actors::testing::scripted_limits();
        limits.pages = 10;
        let engine = start_on(limits, &FaultScript::new(), settings());
        let refusal = async |prompt: Vec<TokenId>| engine.submit(request(prompt, 1)).await.err();
        assert_eq!(refusal(Vec::new()).await, Some(Refusal::EmptyPrompt));
        let too_long = Refusal::PromptTooLong { prompt_tokens: 256, context_tokens: 256 };
        assert_eq!(refusal(prompt(1, 256)).await, Some(too_long));
        let too_small = Refusal::PoolTooSmall { needed_pages: 11, pool_pages: 10 };
        assert_eq!(refusal(prompt(1, 160)).await, Some(too_small));
        let reply = ask(&engine, request(prompt(1, 159), 9)).await;
        assert_eq!(reply.tokens.len(), 1, "the pool's end ends a reply like the context's");
        finish(&engine).await;
    });
}

#[test]
fn fifty_requests_at_once_to_a_mailbox_of_sixteen_all_run() {
    block_on(async {
        let engine = start_with(&FaultScript::new(), settings());
        let requests: Vec<_> = (0..50).map(|seed| request(prompt(seed, 9), 5)).collect();
        // A fresh clone of the handle for each: each clone of an address has a place of its own.
        let submits = requests.iter().map(|request| {
            let engine = engine.clone();
            async move { engine.submit(request.clone()).await }
        });
        let streams = futures_util::future::join_all(submits).await;
        for (request, stream) in requests.iter().zip(streams) {
            assert_eq!(read(stream.expect("there is room for all")).await.tokens, expected(request));
        }
        finish(&engine).await;
    });
}

#[test]
fn of_fifty_requests_at_once_to_a_full_queue_the_rest_are_refused_with_a_reason() {
    block_on(async {
        let (engine, gate) =
            start_gated(&FaultScript::new(), EngineSettings { queue_capacity: 6, ..settings() });
        let submits = (0..50).map(|seed| {
            let engine = engine.clone();
            async move { engine.submit(request(prompt(seed, 9), 5)).await }
        });
        let results = futures_util::future::join_all(submits).await;
        let (taken, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!((taken.len(), refused.len()), (10, 40));
        for refusal in refused {
            let Err(Refusal::QueueFull { capacity: 6, retry_after }) = refusal else { panic!("{refusal:?}") };
            assert!(retry_after >= Duration::from_secs(1));
        }
        gate.open();
        for stream in taken {
            read(stream.expect("these were taken")).await.finished();
        }
        assert_eq!(engine.statistics().requests_refused, 40);
        finish(&engine).await;
    });
}

#[test]
fn the_last_of_lanes_and_one_more_waits_and_runs_in_the_order_of_arrival() {
    block_on(async {
        let settings = EngineSettings { lanes: 1, ..settings() };
        let (engine, gate) = start_gated(&FaultScript::new(), settings);
        let mut events = engine.observe(100);
        let mut streams = Vec::new();
        for (seed, priority) in [(0, 0), (1, 0), (2, 0), (3, 1)] {
            let question = ValidRequest { priority, ..request(prompt(seed, 40), 4) };
            streams.push(engine.submit(question).await.expect("it is taken"));
        }
        let ids: Vec<_> = streams.iter().map(|stream| stream.id()).collect();
        gate.open();
        for stream in streams {
            read(stream).await.finished();
        }
        let mut order = Vec::new();
        while let Some(event) = events.try_next() {
            if let LifecycleEvent::Activated { request, .. } = event {
                order.push(request);
            }
        }
        assert_eq!(order, [ids[0], ids[3], ids[1], ids[2]]);
        finish(&engine).await;
    });
}

#[test]
fn a_request_that_waits_too_long_is_refused_and_one_that_works_too_long_fails() {
    block_on(async {
        let settings = EngineSettings { lanes: 1, ..settings() };
        let (engine, gate) = start_gated(&FaultScript::new(), settings);
        let limit = Duration::from_millis(20);
        let working = ValidRequest { work_time_max: Some(limit), ..request(prompt(1, 9), 100) };
        let working = engine.submit(working).await.expect("it is taken");
        gate.wait_for_arrival(1);
        let waiting = ValidRequest { queue_wait_max: Some(limit), ..request(prompt(2, 9), 5) };
        let waiting = read(engine.submit(waiting).await.expect("it is taken")).await;
        let RequestEvent::Refused(Refusal::QueueTimeout { waited }) = waiting.end else {
            panic!("{waiting:?}")
        };
        assert!(waited >= limit);
        // By now the other has worked for longer than it may, too.
        gate.open();
        assert_eq!(read(working).await.failure(), &Failure::WorkTimeout { limit });
        finish(&engine).await;
    });
}

#[test]
fn health_slots_gauges_and_lifecycle_tell_of_a_lane_while_its_first_step_runs() {
    block_on(async {
        let (engine, gate) = start_gated(&FaultScript::new(), settings());
        let mut events = engine.observe(10);
        let stream = engine.submit(request(prompt(1, 200), 5)).await.expect("it is taken");
        gate.wait_for_arrival(1);
        assert_eq!(engine.health().to_string(), "ok");
        // The first step has not been run, and its lane and gauge already show.
        let slot = engine.slots().remove(0);
        assert_eq!((slot.state, slot.position, slot.prompt_tokens), (SlotState::Prefill, 0, 200));
        assert_eq!((slot.request, slot.kv_pages), (Some(stream.id()), 13));
        assert_eq!(engine.statistics().requests_running, 1);
        let activated =
            LifecycleEvent::Activated { lane: LaneId(0), generation: slot.generation, request: stream.id() };
        assert_eq!(events.try_next(), Some(activated));
        gate.allow(1);
        gate.wait_for_arrival(2);
        let slot = engine.slots().remove(0);
        assert_eq!((slot.state, slot.position, slot.prompt_tokens), (SlotState::Prefill, 16, 200));
        assert_eq!((slot.request, slot.kv_pages), (Some(stream.id()), 13));
        assert_eq!(engine.statistics().requests_running, 1);
        gate.open();
        read(stream).await.finished();
        finish(&engine).await;
    });
}
