//! The rules of batches of several sessions, and of what survives faults.

use super::super::{BatchItem, BatchSession, Rows, SessionError, SessionId};
use super::{Scripted, demanding, go_on, greedy, prompt, reply, scripted};
use crate::batch::{BatchFaultCause, LaneFaultCause};
use crate::ids::{LaneId, Position, TokenId};
use crate::testing::{Fault, FaultScript, When};

fn item(session: SessionId, from: usize, rows: Rows) -> BatchItem {
    BatchItem { session: BatchSession::Active(session), from: Position::START.advance(from), rows }
}

/// Three sessions of different lengths, and the first draw of each.
fn three(sessions: &mut Scripted) -> Vec<(SessionId, TokenId)> {
    let one = |seed: u32| {
        let session = sessions.admit(demanding()).expect("a lane is idle");
        let drawn = sessions.prefill_sampled(session, &prompt(10 + 7 * seed, seed)).expect("it runs");
        (session, drawn.token)
    };
    (0..3).map(one).collect()
}

#[test]
fn a_batch_mixes_all_kinds_of_rows_and_admits_new_sessions() {
    let (mut sessions, script) = scripted();
    let held = three(&mut sessions);
    let before = script.runs().len();
    let new = BatchSession::New(greedy());
    let outcomes = sessions
        .iteration_batch(vec![
            item(held[0].0, 10, Rows::Decode(held[0].1)),
            item(held[1].0, 17, Rows::Verify(prompt(5, 8))),
            BatchItem { session: new, from: Position::START, rows: Rows::PrefillSampled(prompt(6, 9)) },
            item(held[2].0, 24, Rows::Prefill(prompt(3, 7))),
        ])
        .expect("everything runs");
    let drawn: Vec<usize> = outcomes.iter().map(|outcome| outcome.sampled.len()).collect();
    let ends: Vec<usize> = outcomes.iter().map(|outcome| outcome.to.tokens()).collect();
    assert_eq!((drawn, ends, script.runs().len() - before), (vec![1, 5, 1, 0], vec![11, 22, 6, 27], 1));
    assert_eq!(sessions.session_on(LaneId(3)), Some(outcomes[2].session));
}

/// A batch that must be refused with nothing run, admitted or moved.
fn check_refused(items: impl Fn(&[(SessionId, TokenId)]) -> Vec<BatchItem>, expected: &str) {
    let (mut sessions, script) = scripted();
    let held = three(&mut sessions);
    let before = script.runs().len();
    let error = sessions.iteration_batch(items(&held)).expect_err(expected).to_string();
    assert!(error.contains(expected), "{error}");
    assert_eq!(script.runs().len(), before, "nothing ran");
    assert_eq!(sessions.session_on(LaneId(3)), None, "nothing was admitted");
    for (seed, (session, _)) in held.iter().enumerate() {
        assert_eq!(sessions.position(*session).expect("it is active").tracked.tokens(), 10 + 7 * seed);
    }
}

#[test]
fn what_cannot_run_is_refused_before_anything_runs() {
    let new = || BatchSession::New(greedy());
    let fresh =
        move || BatchItem { session: new(), from: Position::START, rows: Rows::Prefill(prompt(2, 1)) };
    let first = |held: &[(SessionId, TokenId)]| item(held[0].0, 10, Rows::Decode(held[0].1));
    check_refused(|_| Vec::new(), "nothing to run");
    check_refused(|held| vec![first(held), first(held)], "in the batch twice");
    check_refused(|held| vec![fresh(), item(held[1].0, 16, Rows::Decode(TokenId(1)))], "stands at 17");
    check_refused(|held| vec![fresh(), item(held[1].0, 17, Rows::Verify(Vec::new()))], "nothing to run");
    check_refused(|held| vec![first(held), item(held[1].0, 17, Rows::Prefill(prompt(64, 1)))], "65 rows");
    check_refused(|held| vec![fresh(), item(held[2].0, 24, Rows::Decode(TokenId(99)))], "outside the vocab");
    // Five lanes are idle.
    check_refused(|held| [vec![first(held)], (0..6).map(|_| fresh()).collect()].concat(), "all 8 lanes");
}

#[test]
fn a_partial_batch_advances_exactly_those_that_ran_and_the_rest_carry_on_the_same() {
    let mut expected = Vec::new();
    let (mut undisturbed, _) = scripted();
    for seed in 0..3 {
        expected.push(reply(&mut undisturbed, demanding(), &prompt(10 + 7 * seed, seed), 12));
    }
    let faults = [Fault::Lane(1, LaneFaultCause::OutOfMemory), Fault::Submission(0), Fault::Submission(2)];
    for fault in faults {
        let (mut sessions, script) = scripted();
        let held = three(&mut sessions);
        let mut drawn: Vec<Vec<TokenId>> = held.iter().map(|(_, first)| vec![*first]).collect();
        script.now(fault.clone());
        let error = sessions.decode_batch(&held).expect_err("not every session runs");
        let partial = error.partial().expect("it is a batch's account");
        assert_eq!(partial.ran().len() + partial.faulted().len() + partial.not_run().len(), 3);
        for outcome in partial.ran() {
            drawn[outcome.lane.index()].push(outcome.sampled[0].token);
        }
        for (index, (session, _)) in held.iter().enumerate() {
            let position = sessions.position(*session).expect("it is active").tracked.tokens();
            assert_eq!(position, 10 + 7 * index + drawn[index].len() - 1, "{fault:?}");
            go_on(&mut sessions, *session, &mut drawn[index], 12);
        }
        assert_eq!(drawn, expected, "{fault:?}");
    }
}

#[test]
fn a_session_that_fails_on_its_own_stops_and_the_others_go_on() {
    let (mut sessions, script) = scripted();
    let held = three(&mut sessions);
    script.now(Fault::Lane(1, LaneFaultCause::LogitsNotFinite));
    let error = sessions.decode_batch(&held).expect_err("one session fails");
    let partial = error.partial().expect("it is a batch's account");
    assert_eq!((partial.ran().len(), partial.faulted()[0].lane), (2, held[1].0.lane()));
    assert!(matches!(sessions.tokens(held[1].0), Err(SessionError::Stopped { .. })));
    sessions.decode(held[0].0, TokenId(9)).expect("it goes on");
    sessions.decode(held[2].0, TokenId(9)).expect("it goes on");
}

#[test]
fn a_session_that_finds_no_page_is_as_it_was_and_runs_once_there_is_one() {
    let (mut sessions, _) = scripted();
    // 64 pages of 16 tokens: four sessions of 240 tokens leave four pages.
    let fill = |sessions: &mut Scripted, seed| {
        let session = sessions.admit(greedy()).expect("a lane is idle");
        sessions.prefill(session, &prompt(240, seed)).expect("it runs");
        session
    };
    let full: Vec<SessionId> = (1..5).map(|seed| fill(&mut sessions, seed)).collect();
    let session = sessions.admit(demanding()).expect("a lane is idle");
    let error = sessions.prefill(session, &prompt(100, 9)).expect_err("there are too few pages");
    let partial = error.partial().expect("it is a batch's account");
    assert_eq!(partial.faulted()[0].cause, LaneFaultCause::OutOfMemory);
    let position = sessions.position(session).expect("it is active").tracked.tokens();
    assert_eq!(position, 64, "it stands where its pages end");
    sessions.drop_session(full[0]).expect("it is active");
    let rest = &prompt(100, 9)[position..];
    let mut drawn = vec![sessions.prefill_sampled(session, rest).expect("pages can be had").token];
    go_on(&mut sessions, session, &mut drawn, 5);
    let (mut undisturbed, _) = scripted();
    assert_eq!(drawn, reply(&mut undisturbed, demanding(), &prompt(100, 9), 5));
}

/// Loses the device in a step of all three sessions; after recovery they must go on as if it had not been.
fn check_recovery(fault: Fault, script_of: fn(FaultScript) -> FaultScript, failures: usize) {
    let (mut undisturbed, _) = scripted();
    let expected: Vec<_> =
        (0..3).map(|seed| reply(&mut undisturbed, demanding(), &prompt(10 + 7 * seed, seed), 12)).collect();
    let (mut sessions, script) = scripted();
    let script = script_of(script);
    let held = three(&mut sessions);
    let mut drawn: Vec<Vec<TokenId>> = held.iter().map(|(_, first)| vec![*first]).collect();
    script.now(fault.clone());
    match sessions.decode_batch(&held) {
        Ok(all) => drawn.iter_mut().zip(all).for_each(|(drawn, sampled)| drawn.push(sampled.token)),
        Err(error) => {
            for outcome in error.partial().expect("it is a batch's account").ran() {
                drawn[outcome.lane.index()].push(outcome.sampled[0].token);
            }
        }
    }
    let error = sessions.decode(held[0].0, *drawn[0].last().expect("it has drawn")).expect_err("it is lost");
    let cause = error.partial().expect("it is a batch's account").cause().clone();
    assert!(matches!(cause, BatchFaultCause::DeviceLost(_) | BatchFaultCause::ExecutorDied(_)), "{cause}");
    for _ in 0..failures {
        assert!(matches!(sessions.recover(), Err(SessionError::NotRecovered(_))));
    }
    sessions.recover().expect("a device is made");
    for (index, (session, _)) in held.iter().enumerate() {
        go_on(&mut sessions, *session, &mut drawn[index], 12);
    }
    assert_eq!(drawn, expected, "{fault:?}");
}

#[test]
fn sessions_go_on_the_same_after_the_device_was_lost_or_the_executor_panicked() {
    let same: fn(FaultScript) -> FaultScript = |script| script;
    for when in [When::Before, When::During(1), When::After] {
        check_recovery(Fault::DeviceLost(when), same, 0);
        check_recovery(Fault::Panic(when), same, 0);
    }
    check_recovery(Fault::DeviceLost(When::Before), |script| script.fail_recoveries(2), 2);
}

#[test]
fn a_device_that_is_lost_again_in_the_replay_is_made_again_later() {
    let (mut undisturbed, _) = scripted();
    let expected = reply(&mut undisturbed, demanding(), &prompt(30, 1), 6);
    let (mut sessions, script) = scripted();
    let session = sessions.admit(demanding()).expect("a lane is idle");
    let mut drawn = vec![sessions.prefill_sampled(session, &prompt(30, 1)).expect("it runs").token];
    script.now(Fault::DeviceLost(When::Before));
    sessions.decode(session, drawn[0]).expect_err("the device is lost");
    script.now(Fault::DeviceLost(When::After));
    assert!(matches!(sessions.recover(), Err(SessionError::NotRecovered(_))));
    assert!(matches!(sessions.tokens(session), Err(SessionError::Lost { .. })));
    sessions.recover().expect("a device is made");
    go_on(&mut sessions, session, &mut drawn, 6);
    assert_eq!(drawn, expected);
}
