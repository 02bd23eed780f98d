//! Snapshots of sessions: taken to host memory, and restored into any session of an equal executor.

use super::{LaneState, SessionError, SessionEvent, SessionId, Sessions, Trust, check};
use crate::batch::{BatchExecutor, PageTransferError};
use crate::guard::guarded;
use crate::ids::{PageId, Position};
use crate::kv::PrefixHit;
use crate::sampling::{Sampler, SamplingSettings};
use crate::session::Session;
use crate::snapshot::{Image, ImageError, Restored, WhenIncompatible};

impl<E: BatchExecutor> Sessions<E> {
    /// Takes an image of what the session holds; the session stays as it is.
    ///
    /// # Errors
    /// [`SessionError::Image`]: the session is empty, or the device refuses or is lost. Also
    /// [`SessionError::Inactive`] and [`SessionError::Stopped`].
    pub fn snapshot(&mut self, session: SessionId) -> Result<Image, SessionError> {
        self.check_alive()?;
        let active = self.active_ref(session)?;
        let tokens = active.tokens().to_vec();
        if tokens.is_empty() {
            return Err(ImageError::SessionEmpty.into());
        }
        let filled = &active.session().pages()[..self.cache.pages_for(tokens.len())];
        // A page whose copy has not run yet is read where it will be copied from.
        let source = |page: &PageId| {
            let copy = active.copies.iter().map(|copy| copy.copy()).find(|copy| copy.to == *page);
            copy.map_or(*page, |copy| copy.from)
        };
        let pages: Vec<PageId> = filled.iter().map(source).collect();
        let executor = &mut self.executor;
        let taken = guarded(|| {
            let payload = executor.export_pages(&pages)?;
            Ok::<_, ImageError>(Image::new(executor.identity(), tokens, payload)?)
        });
        let image = taken.unwrap_or_else(|panicked| Err(self.die(panicked.0)))?;
        let position = self.active_ref(session)?.position();
        self.observers.publish(&SessionEvent::Exported { session, position });
        Ok(image)
    }

    /// Makes the session hold what the image holds, instead of what it held. All of its tokens count as
    /// prompt. Where another kind of executor made the image, `when` says whether it is refused or its
    /// tokens are handed back to be run.
    ///
    /// # Errors
    /// [`SessionError::Image`]: the image does not fit this executor or its context, or the device refuses
    /// or is lost. [`SessionError::OutOfPages`]. The session is as it was then. Also
    /// [`SessionError::Inactive`] and [`SessionError::Stopped`].
    pub fn restore(
        &mut self,
        session: SessionId,
        image: &Image,
        when: WhenIncompatible,
    ) -> Result<Restored, SessionError> {
        self.check_alive()?;
        let slot = self.active_ref(session)?.session().slot();
        let tokens = image.tokens().len();
        let most = self.limits.context_tokens_max;
        if tokens > most {
            return Err(ImageError::TooLong { tokens, context: most }.into());
        }
        let pages = self.cache.grow(0, tokens)?;
        // It goes into a session of its own first, so that this one can stay as it is.
        let mut fresh = Session::new(slot, Sampler::new(SamplingSettings::greedy(), 0));
        let executor = &mut self.executor;
        let restored = guarded(|| image.restore(executor, &mut fresh, &pages, when));
        let restored = restored.unwrap_or_else(|panicked| Err(self.die(panicked.0)));
        if !matches!(restored, Ok(Restored::Imported)) {
            check(self.cache.release(&pages));
            return Ok(restored?);
        }
        let LaneState::Active(active) = &mut self.lanes[session.lane.index()].state else {
            unreachable!("it was looked at above: the session is active")
        };
        let trust = Trust::of(active);
        let (held, old, copies) = active.take_pages();
        active.adopt(image.tokens(), PrefixHit { pages, tokens, copy: None });
        let position = active.position();
        self.take_pages_back(&held, &old, copies, trust);
        self.publish(session, Position::START);
        self.observers.publish(&SessionEvent::Imported { session, position });
        Ok(Restored::Imported)
    }

    fn check_alive(&self) -> Result<(), SessionError> {
        match &self.died {
            Some(reason) => Err(ImageError::from(PageTransferError::ExecutorDied(reason.clone())).into()),
            None => Ok(()),
        }
    }

    /// Notes that the executor panicked.
    fn die(&mut self, reason: String) -> ImageError {
        self.died = Some(reason.clone());
        self.observers.publish(&SessionEvent::DeviceLost { reason: reason.clone() });
        PageTransferError::ExecutorDied(reason).into()
    }
}
