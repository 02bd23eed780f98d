//! Requests while lanes, submissions, the executor and the device fail: only the lanes that ran
//! advance, the others go on with the same tokens, every client gets an answer, nothing is lost.

mod support;

use lavalane_actors::request::{Failure, ValidRequest};
use lavalane_actors::status::Health;
use lavalane_actors::testing::{Fault, FaultScript, ScriptedExecutor, When, scripted_limits};
use lavalane_actors::{Engine, EngineHandle, EngineSettings};
use lavalane_runtime::batch::LaneFaultCause;
use lavalane_runtime::ids::TokenId;
use lavalane_runtime::tokenizer::TokenText;
use proptest::prelude::*;
use std::sync::Arc;
use support::*;

fn requests(count: u32) -> Vec<ValidRequest> {
    (0..count).map(|seed| drawn(prompt(seed, 10 + 7 * seed as usize), 20, u64::from(seed))).collect()
}

/// Eight requests on four lanes under a script; `failures` of them fail, with a reason that `is_right`
/// knows, after a part of their reply; all others say what they say without a fault.
fn check(script: FaultScript, failures: usize, is_right: impl Fn(&Failure) -> bool) -> FaultScript {
    block_on(async {
        let engine = start_with(&script, settings());
        let requests = requests(8);
        let replies = ask_all(&engine, requests.clone()).await;
        let mut failed = 0;
        for (request, reply) in requests.iter().zip(&replies) {
            let whole = expected(request);
            match reply.try_failure() {
                None => assert_eq!(reply.tokens, whole),
                Some(failure) => {
                    failed += 1;
                    assert!(is_right(failure), "{failure:?}");
                    assert!(whole.starts_with(&reply.tokens));
                }
            }
        }
        assert_eq!(failed, failures);
        assert_eq!(engine.statistics().requests_failed, failures as u64);
        check_only_those_that_ran_advanced(&script.runs());
        check_still_works(&engine).await;
        finish(&engine).await;
    });
    script
}

/// An engine that has been through a fault answers a new request as if nothing had been.
async fn check_still_works(engine: &EngineHandle) {
    assert_eq!(engine.health(), Health::Ok);
    let question = request(prompt(99, 40), 10);
    assert_eq!(ask(engine, question.clone()).await.tokens, expected(&question));
}

#[test]
fn a_lane_that_fails_ends_alone_with_its_reason() {
    for cause in [LaneFaultCause::OutOfMemory, LaneFaultCause::LogitsNotFinite] {
        for run in [1, 2, 5, 9, 20] {
            let script = FaultScript::new().at(run, Fault::Lane(run as usize, cause.clone()));
            check(script, 1, |failure| *failure == Failure::Lane(cause.clone()));
        }
    }
}

#[test]
fn a_submission_that_fails_holds_exactly_the_lanes_after_it() {
    for lanes in 0..4 {
        let script = FaultScript::new().at(2, Fault::Submission(lanes)).at(7, Fault::Submission(lanes));
        let script = check(script.at(8, Fault::Submission(lanes)), 0, |_| false);
        let cut: Vec<_> = script.runs().into_iter().filter(|run| run.fault.is_some()).collect();
        assert_eq!(cut.len(), 3);
    }
}

#[test]
fn work_that_never_runs_fails_after_a_bounded_number_of_attempts() {
    block_on(async {
        let mut script = FaultScript::new();
        for run in 1..=4 {
            script = script.at(run, Fault::Submission(0));
        }
        let engine = start_with(&script, settings());
        let reply = ask(&engine, request(prompt(1, 9), 5)).await;
        assert!(matches!(reply.failure(), Failure::NotRun { attempts: 4, .. }), "{reply:?}");
        check_still_works(&engine).await;
        finish(&engine).await;
    });
}

#[test]
fn a_lost_device_is_made_again_and_every_request_goes_on_with_the_same_tokens() {
    for when in [When::Before, When::During(1), When::During(3), When::After] {
        for run in [1, 4, 11, 25] {
            let script = check(FaultScript::new().at(run, Fault::DeviceLost(when)), 0, |_| false);
            assert_eq!(script.recoveries(), 1);
        }
    }
}

#[test]
fn a_device_that_can_not_be_made_at_once_is_tried_again() {
    let script = FaultScript::new().at(6, Fault::DeviceLost(When::During(2))).fail_recoveries(1);
    assert_eq!(check(script, 0, |_| false).recoveries(), 1);
}

#[test]
fn an_executor_that_panics_is_made_again_and_every_request_goes_on_with_the_same_tokens() {
    for when in [When::Before, When::During(2), When::After] {
        for run in [1, 6, 17] {
            check(FaultScript::new().at(run, Fault::Panic(when)), 0, |_| false);
        }
    }
}

#[test]
fn a_request_that_kills_the_executor_is_found_and_fails_alone() {
    block_on(async {
        let poison = TokenId(63);
        let script = FaultScript::new().panic_on(poison);
        let engine = start_with(&script, settings());
        let mut questions: Vec<_> = (0..60).map(|seed| request(prompt(seed, 20), 6)).collect();
        questions
            .retain(|question| !question.prompt.contains(&poison) && !expected(question).contains(&poison));
        questions.truncate(3);
        assert_eq!(questions.len(), 3);
        let mut poisoned = request(prompt(7, 20), 6);
        poisoned.prompt[12] = poison;
        let mut all = questions.clone();
        all.push(poisoned);
        let replies = ask_all(&engine, all).await;
        for (question, reply) in questions.iter().zip(&replies) {
            assert_eq!(reply.tokens, expected(question));
        }
        let panicked = LaneFaultCause::Panicked("injected".to_owned());
        assert_eq!(replies[3].failure(), &Failure::Lane(panicked));
        assert_eq!(engine.health(), Health::Ok);
        finish(&engine).await;
    });
}

#[test]
fn a_device_that_is_lost_for_good_fails_every_request_with_the_reason_and_turns_health_red() {
    block_on(async {
        let script = FaultScript::new().at(5, Fault::DeviceLost(When::After)).fail_recoveries(100);
        let engine = start_with(&script, settings());
        let replies = ask_all(&engine, requests(8)).await;
        for reply in replies {
            if let Some(failure) = reply.try_failure() {
                assert_eq!(failure, &Failure::DeviceLost("injected".to_owned()));
            }
        }
        assert!(matches!(engine.health(), Health::Dead { .. }));
        check_all_free(&engine);
        let refusal = engine.submit(request(prompt(1, 9), 5)).await.expect_err("it takes no more");
        assert!(refusal.to_string().contains("the device was lost: injected"), "{refusal}");
    });
}

#[test]
fn a_length_that_disagrees_stops_that_lane_with_all_three_numbers() {
    let script = FaultScript::new().at(6, Fault::WrongLength(1));
    check(script, 1, |failure| match failure {
        Failure::Lane(LaneFaultCause::PositionMismatch { tracked, session, device }) => {
            tracked == session && *device == session + 1
        }
        _ => false,
    });
}

#[test]
fn an_answer_that_leaves_a_lane_or_a_session_out_ends_that_lane() {
    for fault in [Fault::LeftOut(0), Fault::SessionKept(2)] {
        let script = FaultScript::new().at(6, fault);
        check(script, 1, |failure| matches!(failure, Failure::Lane(LaneFaultCause::InvalidWork(_))));
    }
}

/// A tokenizer that panics on one token.
struct Fragile(TokenId);

impl TokenText for Fragile {
    fn token_bytes(&self, token: TokenId) -> &[u8] {
        assert_ne!(token, self.0, "fragile");
        b"x"
    }

    fn is_end_of_generation(&self, _token: TokenId) -> bool {
        false
    }
}

#[test]
fn a_panic_in_a_lane_ends_that_lane_s_request_and_no_other() {
    block_on(async {
        let questions = requests(4);
        let replies: Vec<_> = questions.iter().map(expected).collect();
        // A token that one of the replies has and the others have not.
        let (broken, token) = (0..replies.len())
            .flat_map(|index| replies[index].iter().map(move |token| (index, *token)))
            .find(|(index, token)| (0..4).all(|other| other == *index || !replies[other].contains(token)))
            .expect("some token is in one reply alone");
        let executor = Box::new(ScriptedExecutor::new(scripted_limits()));
        let engine =
            Engine::start(executor, Arc::new(Fragile(token)), settings()).expect("the engine starts");
        for (index, reply) in ask_all(&engine, questions).await.into_iter().enumerate() {
            if index == broken {
                let Failure::Lane(LaneFaultCause::Panicked(message)) = reply.failure() else {
                    panic!("{reply:?}")
                };
                assert!(message.contains("fragile"), "{message}");
            } else {
                assert_eq!(reply.tokens, replies[index]);
            }
        }
        finish(&engine).await;
    });
}

fn any_when() -> impl Strategy<Value = When> {
    prop_oneof![Just(When::Before), (0_usize..4).prop_map(When::During), Just(When::After)]
}

fn any_fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        (0_usize..4).prop_map(|lane| Fault::Lane(lane, LaneFaultCause::OutOfMemory)),
        (0_usize..4).prop_map(Fault::Submission),
        any_when().prop_map(Fault::DeviceLost),
        any_when().prop_map(Fault::Panic),
        (0_usize..4).prop_map(Fault::WrongLength),
        (0_usize..4).prop_map(Fault::SessionKept),
        (0_usize..4).prop_map(Fault::LeftOut),
    ]
}

/// One request of the random test: seed, prompt length, tokens, and after how many events its client
/// cancels it, if it does.
type Client = (u32, usize, u32, Option<usize>);

fn any_client() -> impl Strategy<Value = Client> {
    (0_u32..20, 1_usize..90, 1_u32..30, prop::option::weighted(0.33, 0_usize..12))
}

/// Reads a reply until its client leaves it, if it does.
async fn serve(engine: &EngineHandle, client: Client) -> Option<(ValidRequest, Reply)> {
    let (seed, length, count, leaves_after) = client;
    let question = drawn(prompt(seed, length), count, u64::from(seed));
    let mut stream = engine.submit(question.clone()).await.expect("there is room for all");
    match leaves_after {
        None => Some((question, read(stream).await)),
        Some(events) => {
            for _ in 0..events {
                stream.next().await;
            }
            None
        }
    }
}

fn check_random(clients: Vec<Client>, faults: Vec<(u64, Fault)>, pages: usize) {
    let script = faults.into_iter().fold(FaultScript::new(), |script, (run, fault)| script.at(run, fault));
    block_on(async {
        let mut limits = scripted_limits();
        limits.pages = pages;
        let engine = start_on(limits, &script, EngineSettings { queue_capacity: 300, ..settings() });
        let served = clients.into_iter().map(|client| serve(&engine, client));
        for (question, reply) in futures_util::future::join_all(served).await.into_iter().flatten() {
            let whole = expected(&question);
            match reply.try_failure() {
                None => assert_eq!(reply.tokens, whole),
                Some(Failure::Lane(_)) => assert!(whole.starts_with(&reply.tokens)),
                Some(other) => panic!("{other:?}"),
            }
        }
        engine.drain().await;
        check_only_those_that_ran_advanced(&script.runs());
        finish(&engine).await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn two_hundred_requests_with_random_cancels_are_all_right_and_nothing_is_lost(
        clients in prop::collection::vec(any_client(), 200),
        pages in 12_usize..64,
    ) {
        check_random(clients, Vec::new(), pages);
    }

    #[test]
    fn random_faults_never_change_a_token_nor_lose_a_request(
        clients in prop::collection::vec(any_client(), 40),
        faults in prop::collection::vec((1_u64..120, any_fault()), 0..8),
        pages in 12_usize..64,
    ) {
        check_random(clients, faults, pages);
    }
}
