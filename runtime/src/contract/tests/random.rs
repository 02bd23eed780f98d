//! Random sequences of all operations over several sessions, with random faults, against the model.

use super::super::{BatchItem, BatchSession, LaneState, NewSession, OpenSpan, Rows, SessionError, SessionId};
use super::super::{SessionOutcome, Sessions, SessionsOptions};
use super::model::{Kind, Life, Model, ModelSession, settings};
use super::operations::{Operation, Part, operation};
use crate::batch::ExecutorLimits;
use crate::ids::{LaneId, Position, TokenId};
use crate::snapshot::{ImageError, Restored, WhenIncompatible};
use crate::testing::{FaultInjectingExecutor, FaultScript, ScriptedExecutor, scripted_limits};
use proptest::prelude::*;

/// Four lanes, five rows a slice, and pages for about three full contexts.
pub(super) const LIMITS: ExecutorLimits = ExecutorLimits {
    batch_rows_max: 24,
    lane_rows_max: 16,
    lanes_max: 4,
    context_tokens_max: 40,
    page_tokens: 4,
    pages: 30,
    vocabulary: 64,
};
const SLICE: usize = 5;

fn ids(tokens: &[u32]) -> Vec<TokenId> {
    tokens.iter().copied().map(TokenId).collect()
}

/// The sessions under test, beside the model.
pub(super) struct Pair {
    sessions: Sessions<FaultInjectingExecutor<ScriptedExecutor>>,
    script: FaultScript,
    pub(super) model: Model,
    /// Every session that ever was, dropped ones too.
    known: Vec<SessionId>,
}

impl Pair {
    fn new() -> Self {
        assert_eq!(LIMITS.vocabulary, scripted_limits().vocabulary, "the model draws from as many");
        let script = FaultScript::new();
        let executor = FaultInjectingExecutor::new(ScriptedExecutor::new(LIMITS), script.clone());
        let options = SessionsOptions { slice_rows: Some(SLICE), ..SessionsOptions::default() };
        Self {
            sessions: Sessions::new(executor, options),
            script,
            model: Model::default(),
            known: Vec::new(),
        }
    }

    fn pick(&self, index: u8) -> Option<SessionId> {
        (!self.known.is_empty()).then(|| self.known[usize::from(index) % self.known.len()])
    }

    fn session(&mut self, session: SessionId) -> &mut ModelSession {
        self.model.sessions.get_mut(&session).expect("the session is active")
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Admit(kind) => self.admit(kind),
            Operation::Batch(parts) => self.batch(parts),
            Operation::Fault(fault) => self.script.now(fault),
            Operation::Recover => self.recover(),
            Operation::Drop(session)
            | Operation::Prefill(session, _)
            | Operation::PrefillSampled(session, _)
            | Operation::Resume { session, .. }
            | Operation::VerifySerial(session, _)
            | Operation::Retire { session, .. }
            | Operation::Trim(session, _)
            | Operation::Align(session, _)
            | Operation::Configure(session, _)
            | Operation::Copy { session, .. } => {
                if let Some(session) = self.pick(session) {
                    self.apply_to(session, operation);
                }
            }
        }
    }

    fn apply_to(&mut self, session: SessionId, operation: Operation) {
        match operation {
            Operation::Drop(_) => match self.sessions.drop_session(session) {
                Ok(()) => assert!(self.model.sessions.remove(&session).is_some(), "it was there"),
                Err(error) => assert!(self.model.check_refused(session, &error)),
            },
            Operation::Prefill(_, tokens) => {
                let tokens = ids(&tokens);
                let result = self.sessions.prefill(session, &tokens).map(|()| Vec::new());
                self.slices(session, &tokens, result);
            }
            Operation::PrefillSampled(_, tokens) => {
                let tokens = ids(&tokens);
                let result = self.sessions.prefill_sampled(session, &tokens).map(|drawn| vec![drawn]);
                self.slices(session, &tokens, result);
            }
            Operation::Resume { like, keep, tail, .. } => self.resume(session, like, keep, &tail),
            Operation::VerifySerial(_, span) => self.verify_serial(session, &ids(&span)),
            Operation::Retire { wrong, .. } => self.retire(session, wrong),
            Operation::Trim(_, tokens) => match self.sessions.trim(session, tokens) {
                Ok(position) => {
                    self.session(session).trim(tokens);
                    assert_eq!(position.tokens(), tokens);
                }
                Err(SessionError::TrimForward { asked, position, .. }) => {
                    assert!(asked == tokens && tokens > self.session(session).tokens.len());
                    assert_eq!(position, self.session(session).position());
                }
                Err(error) => assert!(self.model.check_refused(session, &error), "{error}"),
            },
            Operation::Align(_, tokens) => match self.sessions.align_if_ahead(session, tokens) {
                Ok(position) if self.session(session).tokens.len() > tokens => {
                    assert_eq!(position.tokens(), tokens);
                    self.session(session).trim(tokens);
                }
                Ok(position) => assert_eq!(position, self.session(session).position()),
                Err(error) => assert!(self.model.check_refused(session, &error), "{error}"),
            },
            Operation::Configure(_, kind) => {
                match self.sessions.configure_sampling(session, settings(kind)) {
                    Ok(()) => self.session(session).settings = settings(kind),
                    Err(error) => assert!(self.model.check_refused(session, &error), "{error}"),
                }
            }
            Operation::Copy { from, .. } => self.copy(session, from),
            other => unreachable!("{other:?} names no session"),
        }
    }

    fn admit(&mut self, kind: u8) {
        let new = NewSession::new(settings(kind));
        match self.sessions.admit(new.clone()) {
            Ok(session) => self.admitted(session, &new),
            Err(SessionError::AllLanesBusy { capacity }) => {
                assert!(capacity == LIMITS.lanes_max && self.model.sessions.len() == capacity);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn admitted(&mut self, session: SessionId, new: &NewSession) {
        assert!(!self.known.contains(&session), "a session's id is never used again");
        self.known.push(session);
        self.model.sessions.insert(session, ModelSession::new(new));
        assert!(self.model.sessions.len() <= LIMITS.lanes_max);
    }

    /// What came of tokens that ran in slices: all of them, or some whole slices.
    fn slices(
        &mut self,
        session: SessionId,
        tokens: &[TokenId],
        result: Result<Vec<crate::sampling::Sampled>, SessionError>,
    ) {
        match result {
            Ok(sampled) => self.session(session).run(tokens, Kind::Prompt, &sampled),
            Err(SessionError::Partial(partial)) => {
                self.model.account(&[session], &partial);
                if let Ok(held) = self.sessions.tokens(session) {
                    let before = self.model.sessions[&session].tokens.len();
                    let ran = held.len() - before;
                    assert!(ran < tokens.len() && (ran == 0 || held.len().is_multiple_of(SLICE)));
                    self.session(session).run(&tokens[..ran], Kind::Prompt, &[]);
                }
            }
            Err(error) => self.check_refusal(session, tokens, &error),
        }
    }

    fn resume(&mut self, session: SessionId, like: u8, keep: usize, tail: &[u32]) {
        let like = self.pick(like).and_then(|like| self.model.sessions.get(&like));
        let mut prompt = like.map(|like| like.tokens.clone()).unwrap_or_default();
        prompt.truncate(keep);
        prompt.extend(ids(tail));
        match self.sessions.resume(session, &prompt) {
            Ok(position) => {
                let held = self.session(session);
                let wanted = &prompt[..prompt.len() - 1];
                let own = held.tokens.iter().zip(wanted).take_while(|(one, other)| one == other).count();
                assert!((own..prompt.len()).contains(&position.tokens()), "{position} of own {own}");
                if position.tokens() > own {
                    held.tokens = prompt[..position.tokens()].to_vec();
                    held.prompt_tokens = position.tokens();
                    held.drawn.clear();
                } else if own < held.tokens.len() {
                    held.trim(own);
                }
                held.open = None;
            }
            Err(SessionError::Empty) if self.model.is_active(session) => assert!(prompt.is_empty()),
            Err(error) => assert!(self.model.check_refused(session, &error), "{error}"),
        }
    }

    /// Restores a snapshot of one session into another, or itself.
    fn copy(&mut self, session: SessionId, from: u8) {
        let from = self.pick(from).expect("there is one to copy to");
        let image = match self.sessions.snapshot(from) {
            Ok(image) => image,
            Err(SessionError::Image(ImageError::SessionEmpty)) if self.model.is_active(from) => {
                return assert!(self.model.sessions[&from].tokens.is_empty());
            }
            // The device may be lost without a batch that has said so.
            Err(SessionError::Image(ImageError::Transfer(_))) => return,
            Err(error) => return assert!(self.model.check_refused(from, &error), "{error}"),
        };
        assert_eq!(image.tokens(), self.model.sessions[&from].tokens);
        match self.sessions.restore(session, &image, WhenIncompatible::Refuse) {
            Ok(restored) => {
                assert_eq!(restored, Restored::Imported);
                let held = self.session(session);
                held.tokens = image.tokens().to_vec();
                held.prompt_tokens = held.tokens.len();
                held.drawn.clear();
                held.open = None;
            }
            Err(SessionError::OutOfPages(_)) => {}
            Err(error) => assert!(self.model.check_refused(session, &error), "{error}"),
        }
    }

    fn verify_serial(&mut self, session: SessionId, span: &[TokenId]) {
        match self.sessions.verify_serial(session, span) {
            Ok(sampled) => {
                let start = self.session(session).position();
                self.session(session).run(span, Kind::Reply, &sampled);
                self.session(session).open = Some(OpenSpan { start, count: span.len() });
            }
            Err(SessionError::Partial(partial)) => self.model.account(&[session], &partial),
            Err(error) => self.check_refusal(session, span, &error),
        }
    }

    fn retire(&mut self, session: SessionId, wrong: bool) {
        let open = self.model.sessions.get(&session).and_then(|held| held.open);
        let mut asked = open.unwrap_or(OpenSpan { start: Position::START, count: 1 });
        asked.count += usize::from(wrong);
        match self.sessions.retire(session, asked.start, asked.count) {
            Ok(()) => {
                assert_eq!(open, Some(asked));
                self.session(session).open = None;
            }
            Err(SessionError::NotTheOpenSpan { open: known, .. }) => {
                assert!(known == open && open != Some(asked));
            }
            Err(error) => assert!(self.model.check_refused(session, &error), "{error}"),
        }
    }

    fn batch(&mut self, parts: Vec<(u8, Part)>) {
        let items: Vec<BatchItem> =
            parts.into_iter().filter_map(|(who, part)| self.item(who, part)).collect();
        match self.sessions.iteration_batch(items.clone()) {
            Ok(outcomes) => {
                assert_eq!(outcomes.len(), items.len());
                for (item, outcome) in items.iter().zip(&outcomes) {
                    self.member(item, outcome.session);
                    self.ran(item, outcome);
                }
            }
            Err(SessionError::Partial(partial)) => {
                // New sessions were admitted in the batch's order, each to the first idle lane.
                let mut fresh = (0..LIMITS.lanes_max as u32)
                    .filter_map(|lane| self.sessions.session_on(LaneId(lane)))
                    .filter(|session| !self.known.contains(session))
                    .collect::<Vec<_>>()
                    .into_iter();
                let mut members = Vec::new();
                for item in &items {
                    let session = match item.session {
                        BatchSession::Active(session) => session,
                        BatchSession::New(_) => fresh.next().expect("it was admitted"),
                    };
                    self.member(item, session);
                    members.push(session);
                }
                for outcome in partial.ran() {
                    let at = members.iter().position(|session| session.lane() == outcome.lane);
                    let at = at.expect("the lane is in the batch");
                    let (from, to, sampled) = (outcome.from, outcome.to, outcome.sampled.clone());
                    self.ran(&items[at], &SessionOutcome { session: members[at], from, to, sampled });
                }
                self.model.account(&members, &partial);
            }
            Err(error) => self.check_batch_refusal(&items, &error),
        }
    }

    fn item(&self, who: u8, part: Part) -> Option<BatchItem> {
        if let Part::New(kind, tokens) = part {
            let session = BatchSession::New(NewSession::new(settings(kind)));
            return Some(BatchItem {
                session,
                from: Position::START,
                rows: Rows::PrefillSampled(ids(&tokens)),
            });
        }
        let session = self.pick(who)?;
        let mut from = self.model.sessions.get(&session).map_or(Position::START, ModelSession::position);
        let rows = match part {
            Part::Prefill(tokens) => Rows::Prefill(ids(&tokens)),
            Part::PrefillSampled(tokens) => Rows::PrefillSampled(ids(&tokens)),
            Part::Decode(token) => Rows::Decode(TokenId(token)),
            Part::Verify(tokens) => Rows::Verify(ids(&tokens)),
            Part::Recompute(tokens) => Rows::Recompute(ids(&tokens)),
            Part::ElsewherePosition(token) => {
                from = from.advance(1);
                Rows::Decode(TokenId(token))
            }
            Part::New(..) => unreachable!("handled above"),
        };
        Some(BatchItem { session: BatchSession::Active(session), from, rows })
    }

    /// Notes a session that the batch admitted.
    fn member(&mut self, item: &BatchItem, session: SessionId) {
        match &item.session {
            BatchSession::Active(active) => assert_eq!(*active, session),
            BatchSession::New(new) => self.admitted(session, new),
        }
    }

    fn ran(&mut self, item: &BatchItem, outcome: &SessionOutcome) {
        let held = self.session(outcome.session);
        assert_eq!(outcome.from, held.position());
        let (tokens, kind) = match &item.rows {
            Rows::Prefill(tokens) | Rows::PrefillSampled(tokens) => (tokens.clone(), Kind::Prompt),
            Rows::Verify(tokens) | Rows::Recompute(tokens) => (tokens.clone(), Kind::Reply),
            Rows::Decode(token) => (vec![*token], Kind::Reply),
        };
        held.run(&tokens, kind, &outcome.sampled);
        assert_eq!(outcome.to, held.position());
        if let Rows::Verify(span) = &item.rows {
            held.open = Some(OpenSpan { start: outcome.from, count: span.len() });
        }
    }

    fn recover(&mut self) {
        match self.sessions.recover() {
            Ok(()) => self.model.lost = false,
            Err(SessionError::NotRecovered(_)) => self.model.lost = true,
            Err(error) => panic!("{error}"),
        }
        let lost = self.model.lost;
        for (&session, held) in &mut self.model.sessions {
            held.life = match self.sessions.tokens(session) {
                Ok(_) => Life::Active,
                Err(SessionError::Stopped { .. }) => Life::Stopped,
                Err(SessionError::Lost { .. }) if lost => Life::Lost,
                Err(error) => panic!("{error}"),
            };
        }
    }

    /// Holds everything that can be asked to the model.
    fn check(&mut self) {
        let mut pages = Vec::new();
        for lane in &self.sessions.lanes {
            if let LaneState::Active(active) = &lane.state {
                pages.extend_from_slice(active.session().pages());
                pages.extend(active.copies.iter().map(|copy| copy.copy().from));
            }
        }
        self.sessions.cache.check_invariants(pages);
        for &session in &self.known {
            let position = self.sessions.position(session);
            let Some(held) = self.model.sessions.get(&session).filter(|held| held.life == Life::Active)
            else {
                let error = position.expect_err("it is not active");
                assert!(self.model.check_refused(session, &error));
                continue;
            };
            let position = position.expect("its counts agree");
            assert_eq!(position.tracked, held.position());
            assert_eq!(self.sessions.tokens(session).expect("it is active"), held.tokens);
            let drawn = self.sessions.signals(session).expect("it is active");
            let drawn: Vec<_> = drawn.iter().map(|drawn| (drawn.place.tokens(), drawn.token)).collect();
            assert_eq!(drawn, held.drawn);
        }
    }

    /// Drops what is left: no page may be held afterwards but by the prefix tree.
    fn end(mut self) {
        for &session in self.model.sessions.keys() {
            self.sessions.drop_session(session).expect("it was not dropped before");
        }
        self.sessions.cache.check_invariants([]);
        assert_eq!(self.sessions.idle_lanes(), LIMITS.lanes_max);
    }
}

/// Some hundreds; `LAVALANE_LONG_TESTS=1` takes ten thousand.
fn cases() -> u32 {
    let long = std::env::var_os("LAVALANE_LONG_TESTS").is_some_and(|value| value == "1");
    if long { 10_000 } else { 800 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..Default::default() })]

    #[test]
    fn sessions_do_what_the_model_says_whatever_fails(operations in prop::collection::vec(operation(), 1..60)) {
        let mut pair = Pair::new();
        for operation in operations {
            pair.apply(operation);
            pair.check();
        }
        pair.end();
    }
}
