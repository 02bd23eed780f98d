//! One snapshot in memory: the KV of a sequence's tokens, and whose it is.
//!
//! An image is taken of a session, or put together from exported pages, and restored into an empty session
//! of any executor of an equal identity. The bytes of its last page beyond the tokens are whatever lay in
//! the device's page; nothing that is computed depends on them.

use super::format::{FormatError, ImageHeader, PREAMBLE_BYTES, Preamble, encode};
use super::identity::{Incompatible, SnapshotIdentity};
use crate::batch::{BatchExecutor, PageTransferError};
use crate::ids::{PageId, Position, TokenId};
use crate::session::Session;

/// A snapshot in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    identity: SnapshotIdentity,
    tokens: Vec<TokenId>,
    payload: Vec<u8>,
}

/// What becomes of an image that another kind of executor made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenIncompatible {
    /// It is refused, with the reason.
    Refuse,
    /// Its tokens are handed back, to be run again: slower, and the bits are this executor's own. Whether
    /// another model's tokens mean the same here is the caller's to know.
    Replay,
}

/// What became of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restored {
    /// The session holds the image's tokens.
    Imported,
    /// The session is as it was; these tokens are to be run in it.
    ToReplay(Vec<TokenId>),
}

/// Why an image could not be taken or restored; the session is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// Its bytes are not whole.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Another kind of executor made it.
    #[error(transparent)]
    Incompatible(#[from] Incompatible),
    /// The pages could not be moved.
    #[error(transparent)]
    Transfer(#[from] PageTransferError),
    /// The session is not empty.
    #[error(
        "a snapshot is restored into an empty session, and this one holds {tokens} tokens and {pages} KV pages"
    )]
    SessionNotEmpty {
        /// The session's length.
        tokens: usize,
        /// Its pages.
        pages: usize,
    },
    /// The session holds nothing that could be kept.
    #[error("an empty session has no snapshot")]
    SessionEmpty,
    /// The tokens that the caller names are not as many as the session holds.
    #[error("the session holds {session} tokens, and {named} were named")]
    OtherTokens {
        /// The session's length.
        session: usize,
        /// The tokens that were named.
        named: usize,
    },
    /// Too few pages were brought for it.
    #[error("the snapshot's {tokens} tokens take {needed} KV pages, and {given} were given")]
    TooFewPages {
        /// The image's tokens.
        tokens: usize,
        /// Pages that they take.
        needed: usize,
        /// Pages that were given.
        given: usize,
    },
    /// It is longer than the executor's context.
    #[error("the snapshot holds {tokens} tokens, more than the context of {context}")]
    TooLong {
        /// The image's tokens.
        tokens: usize,
        /// The executor's context, in tokens.
        context: usize,
    },
    /// It names a token that the model has not.
    #[error("the snapshot names token {token}, and the vocabulary has {vocabulary}")]
    UnknownToken {
        /// The token.
        token: TokenId,
        /// The vocabulary's size.
        vocabulary: usize,
    },
}

impl Image {
    /// The image of `tokens`, whose pages an executor of `identity` exported.
    ///
    /// # Errors
    /// There is no token, or the payload is not as long as their pages.
    pub fn new(
        identity: SnapshotIdentity,
        tokens: Vec<TokenId>,
        payload: Vec<u8>,
    ) -> Result<Self, FormatError> {
        let head = encode(&identity, &tokens, &payload);
        let file_bytes = (head.len() + payload.len()) as u64;
        ImageHeader::read(Preamble::read(&head)?, &head[PREAMBLE_BYTES..], file_bytes)?;
        Ok(Self { identity, tokens, payload })
    }

    /// Takes an image of a session, which stays as it is; `tokens` are those that it holds.
    ///
    /// # Errors
    /// The session is empty or holds another number of tokens, or its pages cannot be exported.
    pub fn take(
        executor: &mut dyn BatchExecutor,
        session: &Session,
        tokens: &[TokenId],
    ) -> Result<Self, ImageError> {
        let held = session.length().tokens();
        if held == 0 {
            return Err(ImageError::SessionEmpty);
        }
        if held != tokens.len() {
            return Err(ImageError::OtherTokens { session: held, named: tokens.len() });
        }
        let identity = executor.identity();
        let pages = held.div_ceil(identity.page_tokens as usize);
        let Some(pages) = session.pages().get(..pages) else {
            let (needed, given) = (pages, session.pages().len());
            return Err(ImageError::TooFewPages { tokens: held, needed, given });
        };
        let payload = executor.export_pages(pages)?;
        Ok(Self::new(identity, tokens.to_vec(), payload)?)
    }

    /// Restores the image into an empty session: the session takes `pages`, of which the first hold the
    /// image's tokens, and stands at their end. Everything is checked before anything is written, and an
    /// error leaves the session as it was; the pages are the caller's again then, and hold garbage. The
    /// caller tells the session's sampler of the tokens, as of any others.
    ///
    /// # Errors
    /// The session is not empty, the pages are too few, the image does not fit the executor (see
    /// [`WhenIncompatible`]), or the device fails.
    pub fn restore(
        &self,
        executor: &mut dyn BatchExecutor,
        session: &mut Session,
        pages: &[PageId],
        when: WhenIncompatible,
    ) -> Result<Restored, ImageError> {
        let limits = executor.limits();
        let tokens = self.tokens.len();
        if session.length() != Position::START || !session.pages().is_empty() {
            let (tokens, pages) = (session.length().tokens(), session.pages().len());
            return Err(ImageError::SessionNotEmpty { tokens, pages });
        }
        if tokens > limits.context_tokens_max {
            return Err(ImageError::TooLong { tokens, context: limits.context_tokens_max });
        }
        let unknown = self.tokens.iter().find(|token| token.index() >= limits.vocabulary);
        if let Some(&token) = unknown {
            return Err(ImageError::UnknownToken { token, vocabulary: limits.vocabulary });
        }
        match (executor.identity().check(&self.identity), when) {
            (Ok(()), _) => {}
            (Err(incompatible), WhenIncompatible::Refuse) => return Err(incompatible.into()),
            (Err(_), WhenIncompatible::Replay) => return Ok(Restored::ToReplay(self.tokens.clone())),
        }
        let needed = self.pages();
        let Some(filled) = pages.get(..needed) else {
            return Err(ImageError::TooFewPages { tokens, needed, given: pages.len() });
        };
        executor.import_pages(filled, &self.payload)?;
        session.adopt_prefix(pages.to_vec(), Position::START.advance(tokens));
        Ok(Restored::Imported)
    }

    /// Reads an image from the bytes of a snapshot file.
    ///
    /// # Errors
    /// They are not one, or are damaged; see [`FormatError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let preamble = Preamble::read(bytes)?;
        let header = ImageHeader::read(preamble, &bytes[PREAMBLE_BYTES..], bytes.len() as u64)?;
        let payload = &bytes[PREAMBLE_BYTES + preamble.header_bytes..];
        header.check_pages(0, payload)?;
        Ok(Self { identity: header.identity, tokens: header.tokens, payload: payload.to_vec() })
    }

    /// The bytes of a snapshot file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.head();
        bytes.extend(&self.payload);
        bytes
    }

    /// The bytes of the file before the pages.
    pub(super) fn head(&self) -> Vec<u8> {
        encode(&self.identity, &self.tokens, &self.payload)
    }

    /// Who made it.
    pub fn identity(&self) -> &SnapshotIdentity {
        &self.identity
    }

    /// The tokens whose KV it holds.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// How many pages it takes.
    pub fn pages(&self) -> usize {
        self.tokens.len().div_ceil(self.identity.page_tokens as usize)
    }

    /// The pages' bytes, in order.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
