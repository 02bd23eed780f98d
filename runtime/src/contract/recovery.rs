//! Making the device again after a loss: every session's tokens are run once more.

use super::active::Origin;
use super::rows::{Afterwards, Work};
use super::{LaneState, PrefixReuse, SessionError, SessionEvent, SessionId, Sessions};
use crate::batch::{BatchExecutor, BatchFaultCause, LaneFaultCause, LogitsUse};
use crate::guard::guarded;
use crate::ids::LaneId;
use crate::kv::KvCache;

/// How often a slice is tried that does not run, before its session stops.
const ATTEMPTS_MAX: usize = 3;

impl<E: BatchExecutor> Sessions<E> {
    /// Makes a new device after it was lost or the executor panicked, and runs every active session's tokens
    /// again: all stand where they stood, and draw what they would have drawn. A session for which that
    /// fails on its own stops, and the others go on.
    ///
    /// # Errors
    /// [`SessionError::NotRecovered`]: there is no device, or it was lost again. Sessions whose tokens have
    /// not all run again give [`SessionError::Lost`] until a later call succeeds.
    pub fn recover(&mut self) -> Result<(), SessionError> {
        let executor = &mut self.executor;
        let recovered = guarded(|| executor.recover()).unwrap_or_else(|panicked| Err(panicked.0));
        recovered.map_err(SessionError::NotRecovered)?;
        self.died = None;
        // The pages' books are as empty as the device: what the sessions hold names nothing any more.
        self.cache = KvCache::new(self.limits.pages, self.limits.page_tokens);
        self.observers.publish(&SessionEvent::DeviceRecovered);
        let mut lost = Vec::new();
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            if let LaneState::Active(active) = &mut lane.state {
                active.start_again();
                lost.push(SessionId { lane: LaneId(index as u32), generation: lane.generation });
            }
        }
        for &session in &lost {
            self.observers.publish(&SessionEvent::Reset { session });
        }
        lost.into_iter().try_for_each(|session| self.replay(session))
    }

    /// Runs what is owed to a session.
    fn replay(&mut self, session: SessionId) -> Result<(), SessionError> {
        let mut attempts = 0;
        while let LaneState::Active(active) = &mut self.lanes[session.lane.index()].state {
            if active.owed().is_empty() {
                active.clear_debt();
                break;
            }
            if self.prefix_reuse == PrefixReuse::On && active.session().pages().is_empty() {
                // Sessions that shared pages before share them again, and need no more than before.
                let hit = self.cache.begin(active.owed());
                active.adopt_owed(hit);
            }
            let owed = active.owed();
            let work = Work {
                session,
                tokens: owed[..self.slice_rows.min(owed.len())].to_vec(),
                logits: LogitsUse::None,
                // What is prompt stays so.
                origin: Origin::Reply,
                afterwards: Afterwards::Keep,
            };
            let Err(error) = self.run(vec![work]) else {
                attempts = 0;
                continue;
            };
            attempts += 1;
            match error.partial().map(|partial| partial.cause()) {
                Some(cause @ (BatchFaultCause::DeviceLost(_) | BatchFaultCause::ExecutorDied(_))) => {
                    return Err(SessionError::NotRecovered(cause.to_string()));
                }
                _ if attempts == ATTEMPTS_MAX => {
                    self.stop(session, LaneFaultCause::InvalidWork("its tokens could not be run again"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
