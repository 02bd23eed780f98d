//! Prompts and tokens: prefill in slices, resuming at what is held, and decoding.

use super::active::Active;
use super::{LaneState, PrefixReuse, Rows, SessionError, SessionEvent, SessionId};
use super::{Sessions, Slice, Trust, next_slice};
use crate::batch::{BatchExecutor, LogitsUse};
use crate::ids::{Position, TokenId};
use crate::sampling::Sampled;

impl<E: BatchExecutor> Sessions<E> {
    /// Runs part of a prompt in slices and draws nothing. Each slice but the last ends at a multiple of the
    /// slice limit, counted from the sequence's start.
    ///
    /// # Errors
    /// [`SessionError::Empty`] for no tokens, and other refusals of [`Sessions::iteration_batch`], before
    /// anything runs. [`SessionError::Partial`] where a slice did not run: the session then stands where the
    /// slices before it left it.
    pub fn prefill(&mut self, session: SessionId, tokens: &[TokenId]) -> Result<(), SessionError> {
        self.check_prompt(session, tokens)?;
        let mut rest = tokens;
        while !rest.is_empty() {
            let from = self.active_ref(session)?.position().tokens();
            let rows = (self.slice_rows - from % self.slice_rows).min(rest.len());
            self.run_one(session, Rows::Prefill(rest[..rows].to_vec()))?;
            rest = &rest[rows..];
        }
        Ok(())
    }

    /// Runs the rest of a prompt and draws the token that follows it. The last slice runs whole: with `b`
    /// as the slice limit it starts at `(n - 1) / b * b` for a sequence of `n` tokens, or where the session
    /// stands if that is later.
    ///
    /// # Errors
    /// As [`Sessions::prefill`].
    pub fn prefill_sampled(
        &mut self,
        session: SessionId,
        tokens: &[TokenId],
    ) -> Result<Sampled, SessionError> {
        self.check_prompt(session, tokens)?;
        let start = self.active_ref(session)?.position();
        let end = start.tokens() + tokens.len();
        loop {
            let from = self.active_ref(session)?.position();
            let Slice { rows, logits } = next_slice(from, end, self.slice_rows);
            let first = from.tokens() - start.tokens();
            let slice = tokens[first..first + rows].to_vec();
            match logits {
                LogitsUse::SampleLast => return self.run_drawing(session, Rows::PrefillSampled(slice)),
                _ => drop(self.run_one(session, Rows::Prefill(slice))?),
            }
        }
    }

    /// Runs one token and draws the next.
    ///
    /// # Errors
    /// As [`Sessions::iteration_batch`].
    pub fn decode(&mut self, session: SessionId, token: TokenId) -> Result<Sampled, SessionError> {
        self.run_drawing(session, Rows::Decode(token))
    }

    /// Makes the session hold as much of `prompt` as is known, and says how much that is: run the rest from
    /// there. At least the prompt's last token is left to run, since what follows it is wanted.
    ///
    /// A session whose tokens all begin the prompt stays where it is; any other is cut back to what it has
    /// in common with the prompt, and not further. Where other sessions' pages hold more of the prompt than
    /// that, the session starts from those instead. A verified span that is left in counts as retired.
    ///
    /// # Errors
    /// [`SessionError::Empty`] for an empty prompt; [`SessionError::Inactive`] and
    /// [`SessionError::Stopped`].
    pub fn resume(&mut self, session: SessionId, prompt: &[TokenId]) -> Result<Position, SessionError> {
        let active = self.active_ref(session)?;
        let Some((_, all_but_last)) = prompt.split_last() else { return Err(SessionError::Empty) };
        let same = active.tokens().iter().zip(all_but_last).take_while(|(one, other)| one == other);
        let own = same.count();
        let page = self.limits.page_tokens;
        let known = match self.prefix_reuse {
            PrefixReuse::On => self.cache.peek(prompt),
            PrefixReuse::Off => 0,
        };
        // A page that is known only in part costs a copy and may find no room: no reason to move, unless
        // there is nothing to lose.
        if known > own && (own == 0 || known / page * page > own) {
            let from = active.position();
            if own < from.tokens() {
                let to = Position::START.advance(own);
                self.observers.publish(&SessionEvent::Trimmed { session, from, to });
            }
            return Ok(self.adopt(session, prompt));
        }
        match own < active.position().tokens() {
            true => self.trim(session, own),
            false => {
                let span = self.active(session)?.span.take();
                span.into_iter().for_each(|span| self.publish(session, span.start));
                self.active_ref(session).map(Active::position)
            }
        }
    }

    /// Leaves the session's own pages for those that others have of `prompt`.
    fn adopt(&mut self, session: SessionId, prompt: &[TokenId]) -> Position {
        let LaneState::Active(active) = &mut self.lanes[session.lane().index()].state else {
            unreachable!("the caller has looked: the session is active")
        };
        let trust = Trust::of(active);
        let (tokens, pages, copies) = active.take_pages();
        self.take_pages_back(&tokens, &pages, copies, trust);
        let hit = self.cache.begin(prompt);
        let position = Position::START.advance(hit.tokens);
        if let LaneState::Active(active) = &mut self.lanes[session.lane.index()].state {
            active.adopt(prompt, hit);
        }
        position
    }

    fn check_prompt(&self, session: SessionId, tokens: &[TokenId]) -> Result<(), SessionError> {
        let active = self.active_ref(session)?;
        match tokens.is_empty() {
            true => Err(SessionError::Empty),
            false => self.check_sequence(active.position(), tokens),
        }
    }

    /// Runs rows that draw one token.
    fn run_drawing(&mut self, session: SessionId, rows: Rows) -> Result<Sampled, SessionError> {
        let mut sampled = self.run_one(session, rows)?;
        Ok(sampled.pop().expect("a session that ran has drawn as many tokens as were asked for"))
    }
}
