//! One active session: its tokens, its three counts, and the sampler that follows them.
//!
//! Outside of a batch the sampler has been told exactly the session's tokens. A batch that draws needs the
//! tokens that it runs to be told before, so they are told when it is made, and taken back where they did
//! not run.

use crate::batch::LaneFaultCause;
use crate::ids::{PageId, Position, TokenId};
use crate::kv::{PendingCopy, PrefixHit};
use crate::sampling::{Sampled, Sampler, SamplingSettings, TokenSignals};
use crate::session::{LengthSlot, Session};
use std::fmt;

/// What a session is admitted with.
#[derive(Clone, Debug, PartialEq)]
pub struct NewSession {
    /// How its tokens are drawn.
    pub sampling: SamplingSettings,
    /// Which of several choices for one prompt it is: they differ in their random numbers.
    pub choice_index: u32,
}

impl NewSession {
    /// A session with these settings.
    pub fn new(sampling: SamplingSettings) -> Self {
        Self { sampling, choice_index: 0 }
    }
}

/// A session's position in three counts, all in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedPosition {
    /// As the contract tracks it.
    pub tracked: Position,
    /// The session's length.
    pub session: Position,
    /// The length that the device wrote with the session's last rows, less what was trimmed since.
    pub device: Position,
}

impl CheckedPosition {
    /// The three counts, where they disagree.
    pub(super) fn mismatch(self) -> Option<LaneFaultCause> {
        let Self { tracked, session, device } = self;
        (tracked != session || session != device).then(|| LaneFaultCause::PositionMismatch {
            tracked: tracked.tokens(),
            session: session.tokens(),
            device: device.tokens(),
        })
    }
}

/// A span of tokens that was verified and is neither retired nor trimmed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenSpan {
    /// The place of its first token.
    pub start: Position,
    /// How many tokens it has.
    pub count: usize,
}

impl fmt::Display for OpenSpan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the span of {} tokens from {}", self.count, self.start)
    }
}

/// A token that was drawn, and how certain the model was of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DrawnToken {
    /// The place that it was drawn for: how many tokens come before it.
    pub place: Position,
    /// The token.
    pub token: TokenId,
    /// The model's certainty.
    pub signals: TokenSignals,
}

/// Whether tokens count as prompt or as reply: the frequency and presence penalties count only replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// They, and all before them, are prompt.
    Prompt,
    /// They are reply, unless they lie within what was prompt before.
    Reply,
}

/// An active session.
pub(super) struct Active {
    /// Away only while a batch runs.
    session: Option<Session>,
    slot: LengthSlot,
    tokens: Vec<TokenId>,
    tracked: Position,
    device: Position,
    /// How many of the first tokens count as prompt.
    prompt_tokens: usize,
    sampling: SamplingSettings,
    choice_index: u32,
    /// Copies that must run before the session's next rows.
    pub(super) copies: Vec<PendingCopy>,
    pub(super) span: Option<OpenSpan>,
    drawn: Vec<DrawnToken>,
    /// The tokens that the session held when the device was lost, until they have all run again.
    owed: Vec<TokenId>,
}

impl Active {
    /// An empty session.
    pub(super) fn new(slot: LengthSlot, new: NewSession) -> Self {
        let sampler = Sampler::new(new.sampling.clone(), new.choice_index);
        Self {
            session: Some(Session::new(slot, sampler)),
            slot,
            tokens: Vec::new(),
            tracked: Position::START,
            device: Position::START,
            prompt_tokens: 0,
            sampling: new.sampling,
            choice_index: new.choice_index,
            copies: Vec::new(),
            span: None,
            drawn: Vec::new(),
            owed: Vec::new(),
        }
    }

    pub(super) fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    pub(super) fn drawn(&self) -> &[DrawnToken] {
        &self.drawn
    }

    pub(super) fn position(&self) -> Position {
        self.tracked
    }

    pub(super) fn counts(&self) -> CheckedPosition {
        CheckedPosition { tracked: self.tracked, session: self.session().length(), device: self.device }
    }

    /// # Panics
    /// While a batch has it.
    pub(super) fn session(&self) -> &Session {
        self.session.as_ref().expect("outside of a batch a session is at home")
    }

    /// # Panics
    /// While a batch has it.
    pub(super) fn session_mut(&mut self) -> &mut Session {
        self.session.as_mut().expect("outside of a batch a session is at home")
    }

    /// Gives the session away for a batch that runs `tokens`, and tells its sampler of them.
    ///
    /// # Panics
    /// When a batch has it already.
    pub(super) fn lend(&mut self, tokens: &[TokenId], origin: Origin) -> Session {
        match origin {
            Origin::Prompt => {
                let mut sampler = self.sampler(self.tokens.len() + tokens.len());
                sampler.accept(tokens);
                *self.session_mut().sampler_mut() = sampler;
            }
            Origin::Reply => self.session_mut().sampler_mut().accept(tokens),
        }
        self.session.take().expect("a session is lent once")
    }

    /// Takes the session back from a batch that did not run it; `None` makes it anew from its `pages`.
    pub(super) fn take_back(&mut self, session: Option<Session>, pages: Vec<PageId>) {
        let sampler = self.sampler(self.prompt_tokens);
        let mut session = session.unwrap_or_else(|| {
            let mut session = Session::new(self.slot, sampler.clone());
            session.adopt_prefix(pages, self.tracked);
            session
        });
        *session.sampler_mut() = sampler;
        self.session = Some(session);
    }

    /// Takes the session back from a batch that ran `tokens`, which leave it at `device` by what the device
    /// says. The counts may disagree afterwards: the caller asks.
    pub(super) fn advance(
        &mut self,
        session: Session,
        tokens: &[TokenId],
        origin: Origin,
        device: Position,
        sampled: &[Sampled],
    ) {
        let from = self.tracked;
        self.session = Some(session);
        self.tokens.extend_from_slice(tokens);
        self.tracked = from.advance(tokens.len());
        self.device = device;
        if origin == Origin::Prompt {
            self.prompt_tokens = self.tokens.len();
        }
        // One draw is the last row's; as many as rows are each row's.
        let first = tokens.len() - sampled.len().min(tokens.len());
        for (row, sampled) in sampled.iter().enumerate() {
            if let Some(signals) = sampled.signals {
                let place = from.advance(first + row + 1);
                self.drawn.push(DrawnToken { place, token: sampled.token, signals });
            }
        }
    }

    /// Cuts the sequence back to `tokens` tokens, which it has, and gives back the pages it needs no more.
    ///
    /// # Panics
    /// When it has fewer tokens.
    pub(super) fn trim(&mut self, tokens: usize, page_tokens: usize) -> Vec<PageId> {
        let pages = self.session_mut().trim(tokens, page_tokens).expect("the session holds as many");
        self.tracked = self.tracked.trim(tokens).expect("the session holds as many");
        self.device = self.device.trim(tokens).unwrap_or(self.device);
        self.tokens.truncate(tokens);
        self.drawn.retain(|drawn| drawn.place.tokens() <= tokens);
        self.span = None;
        if tokens < self.prompt_tokens {
            self.prompt_tokens = tokens;
            *self.session_mut().sampler_mut() = self.sampler(tokens);
        }
        pages
    }

    /// Starts over with what is known of `prompt`. The session's own pages have been taken away before.
    pub(super) fn adopt(&mut self, prompt: &[TokenId], hit: PrefixHit) {
        self.tokens = prompt[..hit.tokens].to_vec();
        self.tracked = Position::START.advance(hit.tokens);
        self.device = self.tracked;
        self.prompt_tokens = hit.tokens;
        self.drawn.clear();
        self.span = None;
        self.copies.extend(hit.copy);
        let mut session = Session::new(self.slot, self.sampler(hit.tokens));
        session.adopt_prefix(hit.pages, self.tracked);
        self.session = Some(session);
    }

    /// Takes the session's pages and pending copies from it and leaves it empty; gives its tokens too.
    pub(super) fn take_pages(&mut self) -> (Vec<TokenId>, Vec<PageId>, Vec<PendingCopy>) {
        let tokens = std::mem::take(&mut self.tokens);
        let empty = Session::new(self.slot, self.sampler(0));
        let pages = std::mem::replace(self.session_mut(), empty).into_pages();
        self.tracked = Position::START;
        self.device = Position::START;
        (tokens, pages, std::mem::take(&mut self.copies))
    }

    /// Begins again without any page, after the device was lost; what it held is owed to it.
    pub(super) fn start_again(&mut self) {
        let (tokens, _, _) = self.take_pages();
        if tokens.len() > self.owed.len() {
            self.owed = tokens;
        }
        // The sampler is told the tokens again as they run, of which the same ones are prompt.
        *self.session_mut().sampler_mut() = self.sampler(self.prompt_tokens);
    }

    /// Takes over what others have run of the owed tokens already.
    pub(super) fn adopt_owed(&mut self, hit: PrefixHit) {
        self.tokens = self.owed[..hit.tokens].to_vec();
        self.tracked = Position::START.advance(hit.tokens);
        self.device = self.tracked;
        self.copies.extend(hit.copy);
        let mut session = Session::new(self.slot, self.sampler(self.prompt_tokens));
        session.adopt_prefix(hit.pages, self.tracked);
        self.session = Some(session);
    }

    /// What is left to run again; nothing once the session holds all that it held.
    pub(super) fn owed(&self) -> &[TokenId] {
        self.owed.get(self.tokens.len()..).unwrap_or_default()
    }

    /// Says that everything ran again.
    pub(super) fn clear_debt(&mut self) {
        self.owed.clear();
    }

    /// Whether tokens wait to be run again.
    pub(super) fn is_owed(&self) -> bool {
        !self.owed.is_empty()
    }

    pub(super) fn into_pages(mut self) -> (Vec<PageId>, Vec<PendingCopy>) {
        let (_, pages, copies) = self.take_pages();
        (pages, copies)
    }

    pub(super) fn configure_sampling(&mut self, sampling: SamplingSettings) {
        self.sampling = sampling;
        *self.session_mut().sampler_mut() = self.sampler(self.prompt_tokens);
    }

    /// A sampler that was told the session's tokens, of which the first `prompt_tokens` are prompt.
    fn sampler(&self, prompt_tokens: usize) -> Sampler {
        let sampler = Sampler::new(self.sampling.clone(), self.choice_index);
        let mut sampler = sampler.with_prompt_tokens(prompt_tokens);
        sampler.accept(&self.tokens);
        sampler
    }

    /// Pretends that the device wrote another length, as a fault would have it.
    #[cfg(test)]
    pub(super) fn corrupt_device_length(&mut self, device: Position) {
        self.device = device;
    }
}
