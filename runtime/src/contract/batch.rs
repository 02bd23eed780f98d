//! Iteration batches: checked whole, run once, and settled session by session.

use super::active::Active;
use super::rows::{Afterwards, BatchItem, BatchSession, Rows, SessionOutcome, Work};
use super::{LaneState, OpenSpan, PrefixReuse, SessionError, SessionEvent, SessionId, Sessions, check};
use crate::batch::{
    BatchDone, BatchExecutor, BatchFaultCause, IterationBatch, LaneFault, LaneFaultCause, LaneOutcome,
    LaneVerdict, LaneWork, LogitsUse, PartialBatchError,
};
use crate::guard::guarded;
use crate::ids::{BatchId, LaneId, PageId, Position, TokenId};
use crate::kv::OutOfPages;
use crate::sampling::Sampled;
use crate::session::Session;
use std::collections::{HashMap, HashSet};

/// What is kept of a lane's work while its session is away.
struct Sent {
    work: Work,
    pages: Vec<PageId>,
}

/// The books of one batch's lanes.
#[derive(Default)]
struct Account {
    outcomes: Vec<SessionOutcome>,
    ran: Vec<LaneOutcome>,
    faulted: Vec<LaneFault>,
    not_run: Vec<LaneId>,
    cause: Option<BatchFaultCause>,
}

impl<E: BatchExecutor> Sessions<E> {
    /// Runs one batch: any mix of prefill slices, decode rows, verify spans and recomputed tokens, of
    /// sessions that are active and of new ones. Gives what came of each, in the batch's order; the new
    /// sessions' ids are in it.
    ///
    /// # Errors
    /// Everything that can be refused is refused before anything runs or is admitted: nothing to run
    /// ([`SessionError::Empty`]), a session named twice, one that is not active or has a span open, a
    /// position that is not the session's, more rows than fit the batch or the context, a token that the
    /// model has not, or more new sessions than there are idle lanes.
    ///
    /// [`SessionError::Partial`] where not every session ran. Those that ran have advanced; those that did
    /// not are as they were, also those that found no memory; any other that failed has stopped. New
    /// sessions are admitted all the same: [`Sessions::session_on`] finds them by their lanes.
    pub fn iteration_batch(&mut self, items: Vec<BatchItem>) -> Result<Vec<SessionOutcome>, SessionError> {
        self.check_items(&items)?;
        let work = items.into_iter().map(|item| {
            let session = match item.session {
                BatchSession::Active(session) => session,
                BatchSession::New(new) => self.activate(new),
            };
            item.rows.work(session)
        });
        let work = work.collect();
        self.run(work)
    }

    /// Runs one token of each of several sessions and draws the next of each, in the order given.
    ///
    /// # Errors
    /// As [`Sessions::iteration_batch`].
    pub fn decode_batch(&mut self, tokens: &[(SessionId, TokenId)]) -> Result<Vec<Sampled>, SessionError> {
        let item = |&(session, token): &(SessionId, TokenId)| {
            let from = self.active_ref(session)?.position();
            let rows = Rows::Decode(token);
            Ok(BatchItem { session: BatchSession::Active(session), from, rows })
        };
        let items = tokens.iter().map(item).collect::<Result<_, SessionError>>()?;
        let outcomes = self.iteration_batch(items)?;
        Ok(outcomes.into_iter().flat_map(|outcome| outcome.sampled).collect())
    }

    /// Runs rows of one session, from where it stands.
    pub(super) fn run_one(&mut self, session: SessionId, rows: Rows) -> Result<Vec<Sampled>, SessionError> {
        let from = self.active_ref(session)?.position();
        let outcomes =
            self.iteration_batch(vec![BatchItem { session: BatchSession::Active(session), from, rows }])?;
        Ok(outcomes.into_iter().flat_map(|outcome| outcome.sampled).collect())
    }

    fn check_items(&self, items: &[BatchItem]) -> Result<(), SessionError> {
        if items.is_empty() {
            return Err(SessionError::Empty);
        }
        let mut seen = HashSet::with_capacity(items.len());
        for item in items {
            let position = match &item.session {
                BatchSession::New(_) => Position::START,
                BatchSession::Active(session) if !seen.insert(*session) => {
                    return Err(SessionError::Duplicate { session: *session });
                }
                BatchSession::Active(session) => self.check_place(*session, item.from)?,
            };
            self.check_rows(position, item.rows.tokens())?;
        }
        let rows = items.iter().map(|item| item.rows.tokens().len()).sum();
        if rows > self.limits.batch_rows_max {
            return Err(SessionError::TooManyRows { rows, most: self.limits.batch_rows_max });
        }
        self.check_admission(items.iter().filter_map(|item| match &item.session {
            BatchSession::New(new) => Some(new),
            BatchSession::Active(_) => None,
        }))
    }

    /// The session's position, where it may run rows from `from` on.
    fn check_place(&self, session: SessionId, from: Position) -> Result<Position, SessionError> {
        let active = self.active_ref(session)?;
        let tracked = active.position();
        if let Some(span) = active.span {
            return Err(SessionError::SpanOpen { session, span });
        }
        match from == tracked {
            true => Ok(tracked),
            false => Err(SessionError::WrongPosition { session, given: from, tracked }),
        }
    }

    /// Whether a sequence at `position` may run `tokens` in one slice.
    fn check_rows(&self, position: Position, tokens: &[TokenId]) -> Result<(), SessionError> {
        let limits = &self.limits;
        if tokens.is_empty() {
            return Err(SessionError::Empty);
        }
        let most = limits.lane_rows_max.min(limits.batch_rows_max);
        if tokens.len() > most {
            return Err(SessionError::TooManyRows { rows: tokens.len(), most });
        }
        self.check_sequence(position, tokens)
    }

    /// Whether a sequence at `position` may go on with `tokens`, in however many slices.
    pub(super) fn check_sequence(&self, position: Position, tokens: &[TokenId]) -> Result<(), SessionError> {
        let limits = &self.limits;
        let end = position.tokens() + tokens.len();
        if end > limits.context_tokens_max {
            return Err(SessionError::ContextFull { tokens: end, most: limits.context_tokens_max });
        }
        let vocabulary = limits.vocabulary;
        match tokens.iter().find(|token| token.index() >= vocabulary) {
            Some(&token) => Err(SessionError::TokenOutsideVocabulary { token, vocabulary }),
            None => Ok(()),
        }
    }

    /// Runs work that was checked.
    pub(super) fn run(&mut self, work: Vec<Work>) -> Result<Vec<SessionOutcome>, SessionError> {
        self.batches += 1;
        let id = BatchId(self.batches);
        let lanes: Vec<LaneId> = work.iter().map(|work| work.session.lane).collect();
        let mut account = Account::default();
        let mut batch = IterationBatch { id, copies: Vec::new(), work: Vec::new() };
        let mut sent = Vec::with_capacity(work.len());
        if let Some(reason) = &self.died {
            account.not_run.clone_from(&lanes);
            account.cause = Some(BatchFaultCause::ExecutorDied(reason.clone()));
        } else {
            for work in work {
                match self.send(&work, &mut batch) {
                    Ok(pages) => sent.push(Sent { work, pages }),
                    Err(OutOfPages { .. }) => account
                        .faulted
                        .push(LaneFault { lane: work.session.lane, cause: LaneFaultCause::OutOfMemory }),
                }
            }
        }
        if !sent.is_empty() {
            self.execute(batch, sent, &mut account);
        }
        if account.ran.len() == lanes.len() {
            return Ok(account.outcomes);
        }
        let cause = account.cause.unwrap_or(BatchFaultCause::Lanes);
        let Account { ran, faulted, not_run, .. } = account;
        Err(Box::new(PartialBatchError::new(id, &lanes, ran, faulted, not_run, cause)).into())
    }

    /// Puts a session's work into the batch, with pages for its rows; gives the session's pages.
    fn send(&mut self, work: &Work, batch: &mut IterationBatch) -> Result<Vec<PageId>, OutOfPages> {
        let LaneState::Active(active) = &mut self.lanes[work.session.lane.index()].state else {
            unreachable!("the work was checked: its sessions are active")
        };
        let from = active.position();
        let held = active.session().pages().len();
        let pages = self.cache.grow(held, from.tokens() + work.tokens.len())?;
        active.session_mut().extend_pages(pages);
        if !from.tokens().is_multiple_of(self.limits.page_tokens) {
            let index = from.tokens() / self.limits.page_tokens;
            if let Some(copy) = self.cache.copy_on_write(active.session().pages()[index])? {
                active.session_mut().replace_page(index, copy.copy().to);
                active.copies.push(copy);
            }
        }
        batch.copies.extend(active.copies.iter().map(|copy| copy.copy()));
        let session = active.lend(&work.tokens, work.origin);
        let pages = session.pages().to_vec();
        let SessionId { lane, generation } = work.session;
        let (tokens, logits) = (work.tokens.clone(), work.logits);
        batch.work.push(LaneWork { lane, generation, session, from, tokens, logits });
        Ok(pages)
    }

    /// Runs the batch and settles each of its lanes.
    fn execute(&mut self, batch: IterationBatch, sent: Vec<Sent>, account: &mut Account) {
        let executor = &mut self.executor;
        let (mut verdicts, mut sessions) = (HashMap::new(), HashMap::new());
        match guarded(|| executor.run(batch)) {
            Ok(BatchDone { result, sessions: returned }) => {
                sessions.extend(returned);
                let discharged = match result {
                    Ok(outcome) => outcome.discharge(),
                    Err(partial) => {
                        account.cause = Some(partial.cause().clone());
                        partial.discharge()
                    }
                };
                verdicts.extend(discharged.into_iter().map(|verdict| (verdict.lane(), verdict)));
            }
            Err(panicked) => {
                // What ran is not known, so nothing counts as run; the sessions went with the batch.
                account.cause = Some(BatchFaultCause::ExecutorDied(panicked.0.clone()));
                self.died = Some(panicked.0);
            }
        }
        if let Some(BatchFaultCause::DeviceLost(reason) | BatchFaultCause::ExecutorDied(reason)) =
            &account.cause
        {
            self.observers.publish(&SessionEvent::DeviceLost { reason: reason.clone() });
        }
        for sent in sent {
            let lane = sent.work.session.lane;
            let (verdict, session) = (verdicts.remove(&lane), sessions.remove(&lane));
            self.settle(sent, verdict, session, account);
        }
    }

    fn settle(
        &mut self,
        sent: Sent,
        verdict: Option<LaneVerdict>,
        session: Option<Session>,
        account: &mut Account,
    ) {
        let Sent { work, pages } = sent;
        let (id, lane) = (work.session, work.session.lane);
        let LaneState::Active(active) = &mut self.lanes[lane.index()].state else {
            unreachable!("a session whose work was sent is active")
        };
        let returned = session.is_some();
        let fault = match (verdict, session) {
            (Some(LaneVerdict::Advance(outcome)), Some(session)) => {
                let from = active.position();
                match finish(active, &work, session, &outcome) {
                    Ok(()) => {
                        self.keep(&work, from);
                        account.outcomes.push(SessionOutcome {
                            session: id,
                            from,
                            to: outcome.to,
                            sampled: outcome.sampled.clone(),
                        });
                        return account.ran.push(outcome);
                    }
                    Err(cause) => cause,
                }
            }
            (verdict, session) => {
                active.take_back(session, pages);
                match verdict {
                    _ if self.died.is_some() => return account.not_run.push(lane),
                    Some(LaneVerdict::Fault(LaneFault { cause, .. }))
                        if cause != LaneFaultCause::OutOfMemory =>
                    {
                        cause
                    }
                    _ if !returned => LaneFaultCause::InvalidWork("the executor kept the session"),
                    None => LaneFaultCause::InvalidWork("the batch's answer left the session out"),
                    Some(verdict) => match active.counts().mismatch() {
                        Some(cause) => cause,
                        None => return account.hold(verdict),
                    },
                }
            }
        };
        self.stop(id, fault.clone());
        account.faulted.push(LaneFault { lane, cause: fault });
    }

    /// Keeps the books of rows that ran: their copies are made, and what they filled can be found.
    fn keep(&mut self, work: &Work, from: Position) {
        let LaneState::Active(active) = &mut self.lanes[work.session.lane.index()].state else { return };
        active.copies.drain(..).for_each(|copy| check(self.cache.copy_done(copy)));
        match work.afterwards {
            Afterwards::Open => active.span = Some(OpenSpan { start: from, count: work.tokens.len() }),
            Afterwards::Keep => self.publish(work.session, from),
        }
    }

    /// Lets others find the pages that a session filled since it stood at `from`.
    pub(super) fn publish(&mut self, session: SessionId, from: Position) {
        let LaneState::Active(active) = &self.lanes[session.lane.index()].state else { return };
        let (position, page) = (active.position().tokens(), self.limits.page_tokens);
        if self.prefix_reuse == PrefixReuse::On && position / page > from.tokens() / page {
            check(self.cache.publish(active.tokens(), active.session().pages(), position));
        }
    }
}

impl Account {
    /// Notes a lane that is as it was.
    fn hold(&mut self, verdict: LaneVerdict) {
        match verdict {
            LaneVerdict::Fault(fault) => self.faulted.push(fault),
            LaneVerdict::Hold(lane) => self.not_run.push(lane),
            LaneVerdict::Advance(outcome) => self.not_run.push(outcome.lane),
        }
    }
}

/// Takes a session back that ran, and checks what its outcome says.
fn finish(
    active: &mut Active,
    work: &Work,
    session: Session,
    outcome: &LaneOutcome,
) -> Result<(), LaneFaultCause> {
    let before = active.position();
    let wanted = match work.logits {
        LogitsUse::None => 0,
        LogitsUse::SampleLast => 1,
        LogitsUse::PredictAll => work.tokens.len(),
    };
    active.advance(session, &work.tokens, work.origin, outcome.to, &outcome.sampled);
    if let Some(cause) = active.counts().mismatch() {
        return Err(cause);
    }
    if outcome.from != before {
        return Err(LaneFaultCause::InvalidWork("the rows ran from another position"));
    }
    match outcome.sampled.len() == wanted {
        true => Ok(()),
        false => Err(LaneFaultCause::InvalidWork("the step drew what was not asked for")),
    }
}
