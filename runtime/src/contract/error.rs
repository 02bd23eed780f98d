//! Why an operation of the contract did not do what was asked.

use super::{OpenSpan, SessionId};
use crate::batch::{LaneFaultCause, PartialBatchError};
use crate::ids::{Position, TokenId};
use crate::kv::OutOfPages;
use crate::sampling::SamplingError;
use crate::snapshot::ImageError;

/// Why an operation did not do what was asked. Unless it is [`SessionError::Partial`] or
/// [`SessionError::Stopped`], nothing ran and nothing changed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Every lane holds a session.
    #[error("all {capacity} lanes hold a session")]
    AllLanesBusy {
        /// How many lanes there are.
        capacity: usize,
    },
    /// There is no such session: it was dropped, and its lane may hold another by now.
    #[error("{session} is not active")]
    Inactive {
        /// What was named.
        session: SessionId,
    },
    /// The session failed, in this operation or before, and can only be dropped.
    #[error("{session} has stopped: {cause}")]
    Stopped {
        /// The session.
        session: SessionId,
        /// Why it stopped.
        cause: LaneFaultCause,
    },
    /// The session waits for [`super::Sessions::recover`] to run its tokens again, which was cut short.
    #[error("{session} waits for a lost device to be made again")]
    Lost {
        /// The session.
        session: SessionId,
    },
    /// An operation that runs rows was given none.
    #[error("there is nothing to run: no rows were given")]
    Empty,
    /// A batch names a session twice.
    #[error("{session} is in the batch twice")]
    Duplicate {
        /// The session.
        session: SessionId,
    },
    /// Rows were given for another position than the session's.
    #[error("rows from position {given} were given for {session}, which stands at {tracked}")]
    WrongPosition {
        /// The session.
        session: SessionId,
        /// The position that was given.
        given: Position,
        /// The session's position.
        tracked: Position,
    },
    /// More rows than one batch, or one lane of it, takes.
    #[error("{rows} rows are more than the {most} that are taken at once")]
    TooManyRows {
        /// How many were given.
        rows: usize,
        /// How many are taken.
        most: usize,
    },
    /// The sequence would be longer than the context.
    #[error("{tokens} tokens do not fit the context of {most}")]
    ContextFull {
        /// How long the sequence would be, in tokens.
        tokens: usize,
        /// The context, in tokens.
        most: usize,
    },
    /// A token that the model does not know.
    #[error("token {token} is outside the vocabulary of {vocabulary} tokens")]
    TokenOutsideVocabulary {
        /// The token.
        token: TokenId,
        /// The vocabulary's size.
        vocabulary: usize,
    },
    /// A trim to more tokens than there are.
    #[error("{session} holds {position} tokens and cannot be cut back to {asked}")]
    TrimForward {
        /// The session.
        session: SessionId,
        /// How many tokens were to be left.
        asked: usize,
        /// How many there are.
        position: Position,
    },
    /// A verified span has to be retired or trimmed before the session runs anything else.
    #[error("{session} has {span} open, which must be retired or trimmed first")]
    SpanOpen {
        /// The session.
        session: SessionId,
        /// The span.
        span: OpenSpan,
    },
    /// What was to be retired is not the open span.
    #[error("{session} cannot retire {asked}: {}", open.map_or("no span is open".to_owned(), |open| format!("{open} is open")))]
    NotTheOpenSpan {
        /// The session.
        session: SessionId,
        /// What was to be retired.
        asked: OpenSpan,
        /// The open span.
        open: Option<OpenSpan>,
    },
    /// Sampling settings that the model's vocabulary does not allow.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// A snapshot could not be taken or restored; the session is as it was.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// There are too few KV pages for a snapshot; the session is as it was.
    #[error(transparent)]
    OutOfPages(#[from] OutOfPages),
    /// Not every session ran; the error names each of them once. Those that ran have advanced.
    #[error(transparent)]
    Partial(#[from] Box<PartialBatchError>),
    /// The device could not be made again.
    #[error("the device could not be made again: {0}")]
    NotRecovered(String),
}

impl SessionError {
    /// The account of a batch of which not every session ran.
    pub fn partial(&self) -> Option<&PartialBatchError> {
        match self {
            Self::Partial(partial) => Some(partial),
            _ => None,
        }
    }
}
