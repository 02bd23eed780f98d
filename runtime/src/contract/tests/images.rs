//! Snapshots of sessions: what is restored goes on the same, and what does not fit changes nothing.

use super::super::{SessionError, SessionEvent, Sessions, SessionsOptions};
use super::{demanding, go_on, greedy, prompt, reply, scripted};
use crate::batch::ExecutorLimits;
use crate::snapshot::{Image, ImageError, Restored, WhenIncompatible};
use crate::testing::{Fault, ScriptedExecutor, When, scripted_limits};

/// An image of 40 tokens, made by an executor with pages of another size.
fn foreign() -> Image {
    let limits = ExecutorLimits { page_tokens: 8, ..scripted_limits() };
    let mut sessions = Sessions::new(ScriptedExecutor::new(limits), SessionsOptions::default());
    let session = sessions.admit(greedy()).expect("a lane is idle");
    sessions.prefill(session, &prompt(40, 1)).expect("it runs");
    sessions.snapshot(session).expect("it holds tokens")
}

#[test]
fn a_restored_session_draws_what_the_other_would_have() {
    let (mut undisturbed, _) = scripted();
    let expected = reply(&mut undisturbed, demanding(), &prompt(37, 1), 9);
    let (mut sessions, script) = scripted();
    let events = sessions.observe(16);
    let first = sessions.admit(demanding()).expect("a lane is idle");
    sessions.prefill(first, &prompt(36, 1)).expect("it runs");
    let image = sessions.snapshot(first).expect("it holds tokens");
    let second = sessions.admit(demanding()).expect("a lane is idle");
    // What it held before is replaced.
    sessions.prefill(second, &prompt(50, 3)).expect("it runs");
    let restored = sessions.restore(second, &image, WhenIncompatible::Refuse).expect("it fits");
    assert_eq!((restored, script.runs().len()), (Restored::Imported, 5 + 7));
    let mut drawn = vec![sessions.prefill_sampled(second, &prompt(37, 1)[36..]).expect("it runs").token];
    go_on(&mut sessions, second, &mut drawn, 9);
    assert_eq!(drawn, expected);
    let heard: Vec<SessionEvent> = std::iter::from_fn(|| events.try_next()).collect();
    let position = image_position(&image);
    assert!(heard.contains(&SessionEvent::Exported { session: first, position }));
    assert!(heard.contains(&SessionEvent::Imported { session: second, position }));
}

fn image_position(image: &Image) -> crate::ids::Position {
    crate::ids::Position::START.advance(image.tokens().len())
}

#[test]
fn an_image_that_does_not_fit_changes_nothing() {
    let (mut sessions, script) = scripted();
    let session = sessions.admit(greedy()).expect("a lane is idle");
    let empty = sessions.snapshot(session).expect_err("it holds nothing");
    assert!(matches!(empty, SessionError::Image(ImageError::SessionEmpty)));
    sessions.prefill(session, &prompt(20, 2)).expect("it runs");
    let own = sessions.snapshot(session).expect("it holds tokens");
    let error = sessions.restore(session, &foreign(), WhenIncompatible::Refuse).expect_err("it is foreign");
    assert!(matches!(error, SessionError::Image(ImageError::Incompatible(_))), "{error}");
    let replay = sessions.restore(session, &foreign(), WhenIncompatible::Replay).expect("its tokens fit");
    assert_eq!(replay, Restored::ToReplay(prompt(40, 1)));
    let free = |sessions: &super::Scripted| sessions.kv_statistics().pool.free;
    let before = free(&sessions);
    script.now(Fault::DeviceLost(When::Before));
    sessions.decode(session, crate::ids::TokenId(5)).expect_err("the device is lost");
    let error = sessions.restore(session, &own, WhenIncompatible::Refuse).expect_err("the device is lost");
    assert!(matches!(error, SessionError::Image(ImageError::Transfer(_))), "{error}");
    assert_eq!(sessions.tokens(session).expect("it is active"), prompt(20, 2));
    assert_eq!(free(&sessions), before, "no page is lost");
}
