//! The rules of the operations on one session.

use super::super::{OpenSpan, SessionError, SessionEvent, Sessions, SessionsOptions};
use super::{demanding, go_on, greedy, model, prompt, reply, scripted};
use crate::batch::{ExecutorLimits, LaneFaultCause};
use crate::ids::{Position, TokenId};
use crate::sampling::{SamplingOptions, SamplingSettings};
use crate::testing::{Fault, FaultInjectingExecutor, FaultScript, ScriptedExecutor, scripted_limits};

fn at(tokens: usize) -> Position {
    Position::START.advance(tokens)
}

#[test]
fn admission_reuses_an_idle_lane_and_refuses_when_all_are_busy() {
    let executor = ScriptedExecutor::new(scripted_limits());
    let options = SessionsOptions { capacity: Some(2), ..SessionsOptions::default() };
    let mut sessions = Sessions::new(executor, options);
    let first = sessions.admit(greedy()).expect("a lane is idle");
    let second = sessions.admit(greedy()).expect("a lane is idle");
    let error = sessions.admit(greedy()).expect_err("both lanes are busy");
    assert!(matches!(error, SessionError::AllLanesBusy { capacity: 2 }));
    sessions.prefill(first, &prompt(9, 1)).expect("it runs");
    sessions.drop_session(first).expect("it is active");
    let third = sessions.admit(greedy()).expect("a lane is idle again");
    assert_eq!((third.lane(), third == first), (first.lane(), false));
    assert_eq!(sessions.position(third).expect("it is active").tracked, Position::START);
    assert!(matches!(sessions.position(first), Err(SessionError::Inactive { .. })));
    assert_eq!(sessions.session_on(second.lane()), Some(second));
}

#[test]
fn no_operation_but_admission_makes_a_session() {
    let (mut sessions, script) = scripted();
    let gone = sessions.admit(greedy()).expect("a lane is idle");
    sessions.drop_session(gone).expect("it is active");
    let settings = SamplingSettings::greedy();
    let results = [
        sessions.prefill(gone, &prompt(3, 1)),
        sessions.prefill_sampled(gone, &prompt(3, 1)).map(drop),
        sessions.resume(gone, &prompt(3, 1)).map(drop),
        sessions.decode(gone, TokenId(1)).map(drop),
        sessions.decode_batch(&[(gone, TokenId(1))]).map(drop),
        sessions.verify(gone, &prompt(3, 1)).map(drop),
        sessions.verify_serial(gone, &prompt(3, 1)).map(drop),
        sessions.retire(gone, at(0), 3),
        sessions.trim(gone, 0).map(drop),
        sessions.align_if_ahead(gone, 0).map(drop),
        sessions.position(gone).map(drop),
        sessions.signals(gone).map(drop),
        sessions.signal_window(gone, 3).map(drop),
        sessions.configure_sampling(gone, settings),
        sessions.drop_session(gone),
    ];
    for (operation, result) in results.into_iter().enumerate() {
        let error = result.expect_err("the session is gone");
        assert!(matches!(error, SessionError::Inactive { .. }), "operation {operation}: {error}");
    }
    assert_eq!((sessions.session_on(gone.lane()), script.runs().len()), (None, 0));
}

/// The starts of the slices in which a prompt of `tokens` runs.
fn check_slices(tokens: usize, slice: usize, expected: &[usize]) {
    let limits = ExecutorLimits {
        batch_rows_max: 2048,
        lane_rows_max: 2048,
        context_tokens_max: 8192,
        page_tokens: 32,
        pages: 256,
        ..scripted_limits()
    };
    let script = FaultScript::new();
    let executor = FaultInjectingExecutor::new(ScriptedExecutor::new(limits), script.clone());
    let options = SessionsOptions { slice_rows: Some(slice), ..SessionsOptions::default() };
    let mut sessions = Sessions::new(executor, options);
    let session = sessions.admit(greedy()).expect("a lane is idle");
    sessions.prefill_sampled(session, &prompt(tokens as u32, 1)).expect("it runs");
    let starts: Vec<usize> = script.runs().iter().map(|run| run.lanes[0].from.tokens()).collect();
    assert_eq!(starts, expected, "{tokens} tokens in slices of {slice}");
}

#[test]
fn a_sampled_prefill_keeps_its_last_slice_whole() {
    check_slices(512, 512, &[0]);
    check_slices(513, 512, &[0, 512]);
    check_slices(6603, 2048, &[0, 2048, 4096, 6144]);
}

#[test]
fn a_prefill_without_tokens_is_an_error_and_runs_nothing() {
    let (mut sessions, script) = scripted();
    let session = sessions.admit(greedy()).expect("a lane is idle");
    assert!(matches!(sessions.prefill(session, &[]), Err(SessionError::Empty)));
    assert!(matches!(sessions.prefill_sampled(session, &[]), Err(SessionError::Empty)));
    assert!(matches!(sessions.verify(session, &[]), Err(SessionError::Empty)));
    let beyond = vec![TokenId(5); 257];
    let error = sessions.prefill(session, &beyond).expect_err("the context is shorter");
    assert!(matches!(error, SessionError::ContextFull { tokens: 257, most: 256 }));
    let error = sessions.prefill(session, &[TokenId(64)]).expect_err("the vocabulary is smaller");
    assert!(matches!(error, SessionError::TokenOutsideVocabulary { token: TokenId(64), .. }));
    assert!(script.runs().is_empty());
}

#[test]
fn resume_stays_at_the_frontier_or_trims_to_what_is_common() {
    let (mut sessions, _) = scripted();
    let session = sessions.admit(greedy()).expect("a lane is idle");
    let held = prompt(20, 1);
    sessions.prefill(session, &held).expect("it runs");
    let longer = [held.clone(), prompt(5, 2)].concat();
    assert_eq!(sessions.resume(session, &longer).expect("it is active"), at(20));
    // The same prompt again: only its last token is run once more.
    assert_eq!(sessions.resume(session, &held).expect("it is active"), at(19));
    let mut other = longer;
    other[7] = TokenId(63);
    assert_eq!(sessions.resume(session, &other).expect("it is active"), at(7));
    assert_eq!(sessions.tokens(session).expect("it is active"), &held[..7]);
    assert!(matches!(sessions.resume(session, &[]), Err(SessionError::Empty)));
}

#[test]
fn resume_draws_what_a_new_session_draws() {
    let (mut sessions, _) = scripted();
    let session = sessions.admit(demanding()).expect("a lane is idle");
    sessions.prefill_sampled(session, &prompt(20, 1)).expect("it runs");
    let mut other = prompt(30, 1);
    other[11] = TokenId(3);
    let from = sessions.resume(session, &other).expect("it is active").tokens();
    let mut drawn = vec![sessions.prefill_sampled(session, &other[from..]).expect("it runs").token];
    go_on(&mut sessions, session, &mut drawn, 9);
    let (mut fresh, _) = scripted();
    assert_eq!(drawn, reply(&mut fresh, demanding(), &other, 9));
}

#[test]
fn resume_starts_from_another_sessions_pages_where_they_hold_more() {
    let (mut sessions, script) = scripted();
    let tokens = prompt(40, 1);
    let expected = reply(&mut sessions, demanding(), &tokens, 4);
    let session = sessions.admit(demanding()).expect("a lane is idle");
    // 40 tokens and three of the draws ran; all of the prompt but its last token is known.
    assert_eq!(sessions.resume(session, &tokens).expect("it is active"), at(39));
    let before = script.runs().len();
    let mut drawn = vec![sessions.prefill_sampled(session, &tokens[39..]).expect("it runs").token];
    assert_eq!(script.runs().len() - before, 1);
    go_on(&mut sessions, session, &mut drawn, 4);
    assert_eq!(drawn, expected);
}

#[test]
fn a_live_sessions_full_pages_are_found_by_others() {
    let (mut sessions, _) = scripted();
    let live = sessions.admit(greedy()).expect("a lane is idle");
    sessions.prefill(live, &prompt(40, 1)).expect("it runs");
    let session = sessions.admit(greedy()).expect("a lane is idle");
    // Two full pages of 16; the third is still being written.
    assert_eq!(sessions.resume(session, &prompt(40, 1)).expect("it is active"), at(32));
    let shared = sessions.kv_statistics().pool.shared;
    assert_eq!(shared, 2);
}

#[test]
fn trim_takes_everything_back_and_what_regrows_is_the_same() {
    let (mut sessions, _) = scripted();
    let session = sessions.admit(demanding()).expect("a lane is idle");
    let mut drawn = vec![sessions.prefill_sampled(session, &prompt(21, 1)).expect("it runs").token];
    go_on(&mut sessions, session, &mut drawn, 20);
    for keep in [3, 11, 1] {
        assert_eq!(sessions.trim(session, 21 + keep).expect("it is active"), at(21 + keep));
        let mut again = drawn[..=keep].to_vec();
        go_on(&mut sessions, session, &mut again, 20);
        assert_eq!(again, drawn, "after a trim to {keep} tokens of the reply");
    }
}

#[test]
fn trim_never_goes_forward_and_align_does_nothing_at_or_below() {
    let (mut sessions, _) = scripted();
    let session = sessions.admit(greedy()).expect("a lane is idle");
    sessions.prefill(session, &prompt(10, 1)).expect("it runs");
    let error = sessions.trim(session, 11).expect_err("there are fewer tokens");
    assert!(matches!(error, SessionError::TrimForward { asked: 11, .. }));
    for (asked, expected) in [(11, 10), (10, 10), (4, 4), (7, 4)] {
        let position = sessions.align_if_ahead(session, asked).expect("it is active");
        assert_eq!(position, at(expected), "aligned to {asked}");
    }
}

#[test]
fn verify_predicts_what_decoding_draws_and_serially_the_same() {
    let tokens = prompt(13, 1);
    let (mut sessions, _) = scripted();
    let drawn = reply(&mut sessions, demanding(), &tokens, 9);
    let span = &drawn[..8];
    let mut results = Vec::new();
    for serial in [false, true] {
        let session = sessions.admit(demanding()).expect("a lane is idle");
        sessions.prefill_sampled(session, &tokens).expect("it runs");
        let predicted = match serial {
            false => sessions.verify(session, span),
            true => sessions.verify_serial(session, span),
        };
        let predicted = predicted.expect("it runs");
        assert_eq!(predicted.iter().map(|one| one.token).collect::<Vec<_>>(), drawn[1..]);
        // A wrong draft: the draws up to it are right, and after the trim decoding goes on rightly.
        sessions.trim(session, 13).expect("it is active");
        let wrong = [span[0], span[1], TokenId(60), span[3]];
        let partly = match serial {
            false => sessions.verify(session, &wrong),
            true => sessions.verify_serial(session, &wrong),
        };
        let partly = partly.expect("it runs");
        assert_eq!(partly[1].token, drawn[2]);
        sessions.trim(session, 15).expect("it is active");
        let mut again = drawn[..3].to_vec();
        go_on(&mut sessions, session, &mut again, 9);
        assert_eq!(again, drawn);
        results.push((predicted, partly));
    }
    assert_eq!(results[0], results[1], "in one pass and serially");
}

#[test]
fn a_span_is_retired_whole_or_trimmed_before_anything_else_runs() {
    let (mut sessions, _) = scripted();
    let session = sessions.admit(greedy()).expect("a lane is idle");
    sessions.prefill(session, &prompt(10, 1)).expect("it runs");
    let error = sessions.retire(session, at(0), 10).expect_err("no span is open");
    assert!(matches!(error, SessionError::NotTheOpenSpan { open: None, .. }));
    sessions.verify(session, &prompt(4, 2)).expect("it runs");
    let open = OpenSpan { start: at(10), count: 4 };
    let error = sessions.decode(session, TokenId(7)).expect_err("a span is open");
    assert!(matches!(error, SessionError::SpanOpen { span, .. } if span == open));
    for (start, count) in [(at(10), 3), (at(11), 3), (at(10), 5)] {
        assert!(sessions.retire(session, start, count).is_err());
    }
    sessions.retire(session, at(10), 4).expect("it is the open span");
    sessions.decode(session, TokenId(7)).expect("nothing is open");
    sessions.verify(session, &prompt(4, 3)).expect("it runs");
    // A trim closes the span also where it cuts nothing off.
    sessions.trim(session, 19).expect("it is active");
    sessions.decode(session, TokenId(7)).expect("nothing is open");
}

#[test]
fn positions_that_disagree_stop_that_session_with_all_three_numbers() {
    let (mut sessions, script) = scripted();
    let broken = sessions.admit(greedy()).expect("a lane is idle");
    let other = sessions.admit(greedy()).expect("a lane is idle");
    for session in [broken, other] {
        sessions.prefill(session, &prompt(6, 1)).expect("it runs");
    }
    let super::super::LaneState::Active(active) = &mut sessions.lanes[0].state else {
        panic!("the session is active")
    };
    active.corrupt_device_length(at(5));
    let error = sessions.position(broken).expect_err("the counts disagree").to_string();
    assert!(error.contains("tracked 6") && error.contains("holds 6") && error.contains("holds 5"), "{error}");
    let again = sessions.decode(broken, TokenId(7)).expect_err("it has stopped");
    assert!(matches!(again, SessionError::Stopped { .. }));
    sessions.position(other).expect("the other is untouched");
    // The device's own word, as the executor reads it.
    script.now(Fault::WrongLength(0));
    let error = sessions.decode(other, TokenId(7)).expect_err("the counts disagree");
    let faulted = error.partial().expect("it is a batch's account").faulted()[0].cause.clone();
    let mismatch = LaneFaultCause::PositionMismatch { tracked: 7, session: 7, device: 8 };
    assert_eq!(faulted, mismatch);
    assert!(matches!(sessions.tokens(other), Err(SessionError::Stopped { cause, .. }) if cause == mismatch));
    sessions.drop_session(other).expect("a stopped session can be dropped");
    sessions.drop_session(broken).expect("a stopped session can be dropped");
    sessions.cache.check_invariants([]);
}

#[test]
fn signals_come_only_where_they_are_asked_for_and_follow_trims() {
    let (mut sessions, _) = scripted();
    let silent = sessions.admit(greedy()).expect("a lane is idle");
    let drawn = sessions.prefill_sampled(silent, &prompt(5, 1)).expect("it runs");
    assert!(drawn.signals.is_none() && sessions.signals(silent).expect("it is active").is_empty());
    assert_eq!(sessions.signal_window(silent, 9).expect("it is active"), None);
    let session = sessions.admit(demanding()).expect("a lane is idle");
    let mut drawn = vec![sessions.prefill_sampled(session, &prompt(5, 1)).expect("it runs").token];
    go_on(&mut sessions, session, &mut drawn, 6);
    let window = sessions.signal_window(session, 4).expect("it is active").expect("draws have signals");
    assert_eq!(window.tokens, 4);
    assert!(window.entropy.min <= window.entropy.mean && window.entropy.mean <= window.entropy.max);
    sessions.trim(session, 7).expect("it is active");
    let places: Vec<usize> =
        sessions.signals(session).expect("it is active").iter().map(|drawn| drawn.place.tokens()).collect();
    assert_eq!(places, [5, 6, 7]);
}

#[test]
fn sampling_is_configured_as_checked_data_and_counts_on() {
    let (mut sessions, _) = scripted();
    let session = sessions.admit(greedy()).expect("a lane is idle");
    let tokens = prompt(12, 1);
    let first = sessions.prefill_sampled(session, &tokens).expect("it runs").token;
    let bias = SamplingOptions { logit_bias: vec![(TokenId(64), 1.0)], ..SamplingOptions::default() };
    let outside = SamplingSettings::new(bias, 0).expect("the bias itself is in range");
    assert!(matches!(sessions.configure_sampling(session, outside), Err(SessionError::Sampling(_))));
    sessions.configure_sampling(session, model::settings(2)).expect("the settings fit");
    let next = sessions.decode(session, first).expect("it runs").token;
    let vocabulary = scripted_limits().vocabulary;
    let all = [tokens, vec![first]].concat();
    let expected = crate::testing::expected_reply(vocabulary, &all, 12, &model::settings(2), 0, 1);
    assert_eq!([next], expected[..]);
}

#[test]
fn observers_hear_what_happens_and_a_slow_one_holds_nothing_up() {
    let (mut sessions, script) = scripted();
    let (slow, events) = (sessions.observe(1), sessions.observe(64));
    let session = sessions.admit(greedy()).expect("a lane is idle");
    sessions.prefill(session, &prompt(6, 1)).expect("it runs");
    sessions.trim(session, 2).expect("it is active");
    script.now(Fault::Lane(0, LaneFaultCause::LogitsNotFinite));
    sessions.decode(session, TokenId(7)).expect_err("its logits are not finite");
    sessions.drop_session(session).expect("it can be dropped");
    let heard: Vec<SessionEvent> = std::iter::from_fn(|| events.try_next()).collect();
    let expected = [
        SessionEvent::Activated { session },
        SessionEvent::Trimmed { session, from: at(6), to: at(2) },
        SessionEvent::Stopped { session, cause: LaneFaultCause::LogitsNotFinite },
        SessionEvent::Reclaimed { session },
    ];
    assert_eq!(heard, expected);
    assert_eq!((slow.try_next(), slow.dropped()), (Some(expected[0].clone()), 3));
}
