//! Spans: many tokens verified in one pass, then kept, or cut back to those that were right.

use super::active::Active;
use super::{OpenSpan, Rows, SessionError, SessionEvent, SessionId, Sessions, check};
use crate::batch::BatchExecutor;
use crate::ids::{Position, TokenId};
use crate::sampling::Sampled;

impl<E: BatchExecutor> Sessions<E> {
    /// Runs a span of tokens in one pass and draws after each of them what would follow there: what
    /// decoding the span's tokens one by one would draw, whatever the settings. The session then holds the
    /// whole span, which is open until it is retired ([`Sessions::retire`]) or trimmed ([`Sessions::trim`]).
    ///
    /// # Errors
    /// As [`Sessions::iteration_batch`]; a span runs whole or not at all.
    pub fn verify(&mut self, session: SessionId, span: &[TokenId]) -> Result<Vec<Sampled>, SessionError> {
        self.run_one(session, Rows::Verify(span.to_vec()))
    }

    /// As [`Sessions::verify`], with the same result, by one pass for each token.
    ///
    /// # Errors
    /// As [`Sessions::verify`]. Where a pass did not run, the session is cut back to where it was.
    pub fn verify_serial(
        &mut self,
        session: SessionId,
        span: &[TokenId],
    ) -> Result<Vec<Sampled>, SessionError> {
        let start = self.active_ref(session)?.position();
        if span.is_empty() {
            return Err(SessionError::Empty);
        }
        if let Some(span) = self.active_ref(session)?.span {
            return Err(SessionError::SpanOpen { session, span });
        }
        self.check_sequence(start, span)?;
        let mut drawn = Vec::with_capacity(span.len());
        for token in span {
            // Each pass is a span of one token, so that none of it can be found by others before the whole
            // is retired.
            match self.verify(session, std::slice::from_ref(token)) {
                Ok(mut sampled) => drawn.append(&mut sampled),
                Err(error) => {
                    // A session that stopped has nothing to be cut back.
                    let _ = self.align_if_ahead(session, start.tokens());
                    return Err(error);
                }
            }
            self.active(session)?.span = None;
        }
        self.active(session)?.span = Some(OpenSpan { start, count: span.len() });
        Ok(drawn)
    }

    /// Keeps all of the open span, which must be the one of `count` tokens from `start`: its tokens are as
    /// good as decoded ones from now on.
    ///
    /// # Errors
    /// [`SessionError::NotTheOpenSpan`], and then nothing changes; [`SessionError::Inactive`] and
    /// [`SessionError::Stopped`].
    pub fn retire(&mut self, session: SessionId, start: Position, count: usize) -> Result<(), SessionError> {
        let active = self.active(session)?;
        let asked = OpenSpan { start, count };
        if active.span != Some(asked) {
            return Err(SessionError::NotTheOpenSpan { session, asked, open: active.span });
        }
        active.span = None;
        self.publish(session, start);
        Ok(())
    }

    /// Cuts the session back to its first `tokens` tokens: what was drawn, counted and computed for those
    /// after them is as if it had never been. An open span is closed, also where nothing is cut off. Gives
    /// the new position.
    ///
    /// # Errors
    /// [`SessionError::TrimForward`] where the session has fewer tokens, and then nothing changes;
    /// [`SessionError::Inactive`] and [`SessionError::Stopped`].
    pub fn trim(&mut self, session: SessionId, tokens: usize) -> Result<Position, SessionError> {
        let page_tokens = self.limits.page_tokens;
        let active = self.active(session)?;
        let from = active.position();
        if tokens > from.tokens() {
            return Err(SessionError::TrimForward { session, asked: tokens, position: from });
        }
        let span = active.span;
        let pages = active.trim(tokens, page_tokens);
        let to = active.position();
        // What was copied for a page that is given back is not needed any more.
        let (kept, unneeded) =
            std::mem::take(&mut active.copies).into_iter().partition(|copy| !pages.contains(&copy.copy().to));
        active.copies = kept;
        let unneeded: Vec<_> = unneeded;
        unneeded.into_iter().for_each(|copy| check(self.cache.copy_done(copy)));
        check(self.cache.release(&pages));
        // What is left of a span is kept for good.
        span.into_iter().for_each(|span| self.publish(session, span.start));
        if to != from {
            self.observers.publish(&SessionEvent::Trimmed { session, from, to });
        }
        Ok(to)
    }

    /// Cuts the session back to `tokens` tokens where it holds more, and does nothing at all where it does
    /// not. Gives the position.
    ///
    /// # Errors
    /// [`SessionError::Inactive`] and [`SessionError::Stopped`].
    pub fn align_if_ahead(&mut self, session: SessionId, tokens: usize) -> Result<Position, SessionError> {
        let position = self.active_ref(session).map(Active::position)?;
        match position.tokens() > tokens {
            true => self.trim(session, tokens),
            false => Ok(position),
        }
    }
}
