//! What sessions bring to a batch, and what they get from it.

use super::active::Origin;
use super::{NewSession, SessionId};
use crate::batch::LogitsUse;
use crate::ids::{Position, TokenId};
use crate::sampling::Sampled;

/// Whose rows they are.
#[derive(Clone, Debug, PartialEq)]
pub enum BatchSession {
    /// A session that is active.
    Active(SessionId),
    /// One that this batch admits.
    New(NewSession),
}

/// What a session brings to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rows {
    /// A slice of a prompt; nothing is drawn.
    Prefill(Vec<TokenId>),
    /// The last slice of a prompt: a token is drawn after it.
    PrefillSampled(Vec<TokenId>),
    /// One token, after which the next is drawn.
    Decode(TokenId),
    /// A span of tokens, after each of which what would follow there is drawn. The session then holds the
    /// whole span, and it is open.
    Verify(Vec<TokenId>),
    /// Part of a sequence that was computed before and lost its pages; nothing is drawn. Its tokens count as
    /// reply, as drawn tokens do; run those that count as prompt by [`Rows::Prefill`] first.
    Recompute(Vec<TokenId>),
}

/// One session's part of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchItem {
    /// Whose rows they are.
    pub session: BatchSession,
    /// The position of the first row: the session's own, or a new one's start.
    pub from: Position,
    /// The rows.
    pub rows: Rows,
}

/// What came of one session's part of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionOutcome {
    /// The session.
    pub session: SessionId,
    /// Its position before.
    pub from: Position,
    /// Its position after.
    pub to: Position,
    /// What was drawn: nothing, one token, or one for each row of a span.
    pub sampled: Vec<Sampled>,
}

/// Rows of one session, in the terms of the executor.
pub(super) struct Work {
    pub(super) session: SessionId,
    pub(super) tokens: Vec<TokenId>,
    pub(super) logits: LogitsUse,
    pub(super) origin: Origin,
    pub(super) afterwards: Afterwards,
}

/// What becomes of the rows once they ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Afterwards {
    /// They stay.
    Keep,
    /// They are a span that waits to be retired or trimmed.
    Open,
}

impl Rows {
    pub(super) fn tokens(&self) -> &[TokenId] {
        match self {
            Self::Prefill(tokens)
            | Self::PrefillSampled(tokens)
            | Self::Verify(tokens)
            | Self::Recompute(tokens) => tokens,
            Self::Decode(token) => std::slice::from_ref(token),
        }
    }

    pub(super) fn work(self, session: SessionId) -> Work {
        let (logits, origin, afterwards) = match &self {
            Self::Prefill(_) => (LogitsUse::None, Origin::Prompt, Afterwards::Keep),
            Self::PrefillSampled(_) => (LogitsUse::SampleLast, Origin::Prompt, Afterwards::Keep),
            Self::Decode(_) => (LogitsUse::SampleLast, Origin::Reply, Afterwards::Keep),
            Self::Verify(_) => (LogitsUse::PredictAll, Origin::Reply, Afterwards::Open),
            Self::Recompute(_) => (LogitsUse::None, Origin::Reply, Afterwards::Keep),
        };
        Work { session, tokens: self.tokens().to_vec(), logits, origin, afterwards }
    }
}
