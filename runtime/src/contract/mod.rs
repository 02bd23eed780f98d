//! The session contract: what can be done with sequences on one executor, and by which rules.
//!
//! [`Sessions`] owns an executor, the books of its KV pages and up to a fixed number of sessions, and runs
//! everything at once when it is asked to: there is no queue, no thread and no lock. The actors are another
//! user of the same executor, for many clients at once.
//!
//! What always holds:
//! - A session's position moves only by what the executor says has run, or back by a trim.
//! - Only admission makes a session. Every other operation needs one that is active.
//! - Whatever a batch cannot run is refused before any of it runs. Once it runs, its answer names each
//!   session once: it ran, it failed, or it did not run and is as it was.
//! - Position as tracked here, the session's length and the device's length agree, or that session stops
//!   with all three numbers and the others go on.
//! - What is drawn is a function of the session's tokens, its settings and its place, and of nothing else.

mod active;
mod batch;
mod error;
mod image;
mod lifecycle;
mod prefill;
mod recovery;
mod rows;
mod slice;
mod span;
#[cfg(test)]
mod tests;

pub use active::{CheckedPosition, DrawnToken, NewSession, OpenSpan};
pub use error::SessionError;
pub use lifecycle::{SessionEvent, SessionEvents};
pub use rows::{BatchItem, BatchSession, Rows, SessionOutcome};
pub use slice::{Slice, final_slice_start, next_slice};

use crate::batch::{BatchExecutor, ExecutorLimits, LaneFaultCause};
use crate::ids::{Generation, LaneId, PageId, TokenId};
use crate::kv::{KvCache, KvStatistics, PageError, PendingCopy};
use crate::sampling::{SamplingSettings, SignalWindow, signal_window};
use crate::session::LengthSlot;
use active::Active;
use lifecycle::Observers;
use std::fmt;

/// A session: a lane, and which of its owners in turn. It names nobody once the session is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    lane: LaneId,
    generation: Generation,
}

impl SessionId {
    /// The lane that the session is on, by which a [`crate::batch::PartialBatchError`] names it.
    pub fn lane(self) -> LaneId {
        self.lane
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the session on lane {}", self.lane)
    }
}

/// Whether a session may start from pages that another one filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefixReuse {
    /// It may, where the tokens are the same.
    #[default]
    On,
    /// It may not.
    Off,
}

/// What [`Sessions`] are made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionsOptions {
    /// The most sessions at once; `None`, or more than the executor has lanes, takes as many as that.
    pub capacity: Option<usize>,
    /// The most rows of one slice of a prefill; `None`, or more than the executor takes of one lane, takes
    /// as many as that. At least 1.
    pub slice_rows: Option<usize>,
    /// Whether sessions share pages of equal prefixes.
    pub prefix_reuse: PrefixReuse,
}

/// What a lane holds.
enum LaneState {
    Idle,
    Active(Box<Active>),
    /// The session failed and waits to be dropped; it holds no pages.
    Stopped(LaneFaultCause),
}

struct Lane {
    generation: Generation,
    state: LaneState,
}

/// Sessions on one executor; see the [module](self).
pub struct Sessions<E> {
    executor: E,
    limits: ExecutorLimits,
    capacity: usize,
    slice_rows: usize,
    prefix_reuse: PrefixReuse,
    cache: KvCache,
    lanes: Vec<Lane>,
    batches: u64,
    /// Why the executor cannot be used until it is made again: it panicked.
    died: Option<String>,
    observers: Observers,
}

impl<E: BatchExecutor> Sessions<E> {
    /// Takes over an executor that nobody else uses.
    pub fn new(executor: E, options: SessionsOptions) -> Self {
        let limits = executor.limits();
        let rows_max = limits.lane_rows_max.min(limits.batch_rows_max);
        Self {
            capacity: options.capacity.unwrap_or(limits.lanes_max).min(limits.lanes_max),
            slice_rows: options.slice_rows.unwrap_or(rows_max).clamp(1, rows_max),
            prefix_reuse: options.prefix_reuse,
            cache: KvCache::new(limits.pages, limits.page_tokens),
            lanes: Vec::new(),
            batches: 0,
            died: None,
            observers: Observers::default(),
            limits,
            executor,
        }
    }

    /// Gives a session a lane: an idle one, else a new one. It stands at position 0 and holds no page.
    ///
    /// # Errors
    /// [`SessionError::AllLanesBusy`], or [`SessionError::Sampling`] where the settings name a token that
    /// the model has not.
    pub fn admit(&mut self, new: NewSession) -> Result<SessionId, SessionError> {
        self.check_admission([&new])?;
        Ok(self.activate(new))
    }

    /// Ends a session, active or stopped. What it computed may still be found by others while its pages are
    /// not needed.
    ///
    /// # Errors
    /// [`SessionError::Inactive`].
    pub fn drop_session(&mut self, session: SessionId) -> Result<(), SessionError> {
        let lane = self.lane(session)?;
        if let LaneState::Active(active) = std::mem::replace(&mut lane.state, LaneState::Idle) {
            self.give_back(*active);
        }
        self.observers.publish(&SessionEvent::Reclaimed { session });
        Ok(())
    }

    /// The session's position in three counts that agree: as tracked here, as its page table says, and as
    /// the device last wrote it.
    ///
    /// # Errors
    /// [`SessionError::Stopped`] with all three where they disagree: that session ends and no other is
    /// touched. Also [`SessionError::Inactive`].
    pub fn position(&mut self, session: SessionId) -> Result<CheckedPosition, SessionError> {
        let position = self.active(session)?.counts();
        match position.mismatch() {
            None => Ok(position),
            Some(cause) => Err(self.stop(session, cause)),
        }
    }

    /// The tokens that the session holds, in order: as many as its position says.
    ///
    /// # Errors
    /// [`SessionError::Inactive`] or [`SessionError::Stopped`].
    pub fn tokens(&self, session: SessionId) -> Result<&[TokenId], SessionError> {
        self.active_ref(session).map(Active::tokens)
    }

    /// What was drawn for the session so far, with signals: nothing unless its settings ask for them. A
    /// draw is forgotten when a trim cuts its row off.
    ///
    /// # Errors
    /// [`SessionError::Inactive`] or [`SessionError::Stopped`].
    pub fn signals(&self, session: SessionId) -> Result<&[DrawnToken], SessionError> {
        self.active_ref(session).map(Active::drawn)
    }

    /// The signals of the last `count` draws together; `None` where there were none with signals.
    ///
    /// # Errors
    /// [`SessionError::Inactive`] or [`SessionError::Stopped`].
    pub fn signal_window(
        &self,
        session: SessionId,
        count: usize,
    ) -> Result<Option<SignalWindow>, SessionError> {
        let drawn = self.signals(session)?;
        let window = &drawn[drawn.len() - count.min(drawn.len())..];
        let pairs: Vec<_> = window.iter().map(|drawn| (drawn.token, drawn.signals)).collect();
        Ok(signal_window(&pairs))
    }

    /// Changes how the session's next tokens are drawn; the penalties go on counting the same tokens.
    ///
    /// # Errors
    /// [`SessionError::Sampling`] where a bias names a token that the model has not; then nothing changes.
    /// Also [`SessionError::Inactive`] and [`SessionError::Stopped`].
    pub fn configure_sampling(
        &mut self,
        session: SessionId,
        sampling: SamplingSettings,
    ) -> Result<(), SessionError> {
        sampling.check_vocabulary(self.limits.vocabulary)?;
        self.active(session)?.configure_sampling(sampling);
        Ok(())
    }

    /// Adds an observer that may lag `capacity` events behind before it loses some.
    pub fn observe(&mut self, capacity: usize) -> SessionEvents {
        self.observers.observe(capacity)
    }

    /// The session on a lane, active or stopped.
    pub fn session_on(&self, lane: LaneId) -> Option<SessionId> {
        let found = self.lanes.get(lane.index())?;
        match found.state {
            LaneState::Idle => None,
            _ => Some(SessionId { lane, generation: found.generation }),
        }
    }

    /// The most sessions at once.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// What the executor takes.
    pub fn limits(&self) -> ExecutorLimits {
        self.limits
    }

    /// The KV cache in numbers.
    pub fn kv_statistics(&self) -> KvStatistics {
        self.cache.statistics()
    }

    /// Lanes that hold no session, made or not.
    fn idle_lanes(&self) -> usize {
        let busy = self.lanes.iter().filter(|lane| !matches!(lane.state, LaneState::Idle)).count();
        self.capacity - busy
    }

    /// Whether all of these could be admitted at once.
    fn check_admission<'a>(&self, new: impl IntoIterator<Item = &'a NewSession>) -> Result<(), SessionError> {
        let mut count = 0;
        for session in new {
            session.sampling.check_vocabulary(self.limits.vocabulary)?;
            count += 1;
        }
        match count > self.idle_lanes() {
            true => Err(SessionError::AllLanesBusy { capacity: self.capacity }),
            false => Ok(()),
        }
    }

    /// Gives a session the first idle lane.
    ///
    /// # Panics
    /// When there is none: the caller has checked.
    fn activate(&mut self, new: NewSession) -> SessionId {
        let idle = self.lanes.iter().position(|lane| matches!(lane.state, LaneState::Idle));
        let index = idle.unwrap_or(self.lanes.len());
        assert!(index < self.capacity, "admission was checked before");
        if index == self.lanes.len() {
            self.lanes.push(Lane { generation: Generation::default(), state: LaneState::Idle });
        }
        let lane = &mut self.lanes[index];
        lane.generation = lane.generation.next();
        lane.state = LaneState::Active(Box::new(Active::new(LengthSlot(index as u32), new)));
        let session = SessionId { lane: LaneId(index as u32), generation: lane.generation };
        self.observers.publish(&SessionEvent::Activated { session });
        session
    }

    fn lane(&mut self, session: SessionId) -> Result<&mut Lane, SessionError> {
        let lane = self.lanes.get_mut(session.lane.index());
        lane.filter(|lane| lane.generation == session.generation && !matches!(lane.state, LaneState::Idle))
            .ok_or(SessionError::Inactive { session })
    }

    fn active(&mut self, session: SessionId) -> Result<&mut Active, SessionError> {
        match &mut self.lane(session)?.state {
            LaneState::Active(active) if active.is_owed() => Err(SessionError::Lost { session }),
            LaneState::Active(active) => Ok(active),
            LaneState::Stopped(cause) => Err(SessionError::Stopped { session, cause: cause.clone() }),
            LaneState::Idle => Err(SessionError::Inactive { session }),
        }
    }

    fn active_ref(&self, session: SessionId) -> Result<&Active, SessionError> {
        let inactive = SessionError::Inactive { session };
        let lane = self.lanes.get(session.lane.index());
        match lane.filter(|lane| lane.generation == session.generation).map(|lane| &lane.state) {
            Some(LaneState::Active(active)) if active.is_owed() => Err(SessionError::Lost { session }),
            Some(LaneState::Active(active)) => Ok(active),
            Some(LaneState::Stopped(cause)) => Err(SessionError::Stopped { session, cause: cause.clone() }),
            Some(LaneState::Idle) | None => Err(inactive),
        }
    }

    /// Stops a session. Its pages are given back unshared, since nobody may rely on them.
    fn stop(&mut self, session: SessionId, cause: LaneFaultCause) -> SessionError {
        let stopped = LaneState::Stopped(cause.clone());
        match self.lane(session).map(|lane| std::mem::replace(&mut lane.state, stopped)) {
            Ok(LaneState::Active(active)) => {
                let (pages, copies) = active.into_pages();
                copies.into_iter().for_each(|copy| check(self.cache.copy_done(copy)));
                check(self.cache.release(&pages));
                self.observers.publish(&SessionEvent::Stopped { session, cause: cause.clone() });
                SessionError::Stopped { session, cause }
            }
            Ok(LaneState::Stopped(_) | LaneState::Idle) => SessionError::Stopped { session, cause },
            Err(inactive) => inactive,
        }
    }

    /// Takes a sound session's pages back, and lets others find what they hold.
    fn give_back(&mut self, active: Active) {
        let trust = Trust::of(&active);
        let tokens = active.tokens().to_vec();
        let (pages, copies) = active.into_pages();
        self.take_pages_back(&tokens, &pages, copies, trust);
    }

    /// Takes back the pages of `tokens` and their pending copies.
    fn take_pages_back(
        &mut self,
        tokens: &[TokenId],
        pages: &[PageId],
        copies: Vec<PendingCopy>,
        trust: Trust,
    ) {
        // A copy that has not run leaves a page that holds nothing.
        let is_filled = copies.is_empty();
        copies.into_iter().for_each(|copy| check(self.cache.copy_done(copy)));
        match trust {
            Trust::Retired if is_filled && self.prefix_reuse == PrefixReuse::On => {
                check(self.cache.finish(tokens, pages, tokens.len()));
            }
            _ => check(self.cache.release(pages)),
        }
    }
}

/// Whether what a session holds may be found by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// It may.
    Retired,
    /// Part of it is a span that nobody has retired.
    Draft,
}

impl Trust {
    fn of(active: &Active) -> Self {
        match active.span {
            None => Self::Retired,
            Some(_) => Self::Draft,
        }
    }
}

/// A page that is given back twice is a mistake in this module's books. It is reported and does not stop
/// the sessions.
fn check(result: Result<(), PageError>) {
    if let Err(error) = result {
        debug_assert!(false, "the books of KV pages are wrong: {error}");
        tracing::error!("the books of KV pages are wrong: {error}");
    }
}
