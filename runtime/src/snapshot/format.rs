//! The bytes of a snapshot file: a preamble of fixed size, a header, and the pages.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | [`MAGIC`] |
//! | 4 | format version, little-endian |
//! | 4 | length of the header |
//! | 8 | checksum of the header |
//! | … | the header: identity, tokens, one checksum per page |
//! | … | the pages in order, each of the identity's `page_bytes` bytes |
//!
//! Each page has its own checksum, so that a prompt that shares only the first pages of an image need not
//! read the rest. A file that is shorter or longer than its header says is refused. This is the only place
//! that knows bincode, so that it can be replaced.

use super::identity::{Digest, SnapshotIdentity, checksum};
use crate::ids::TokenId;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The first bytes of every snapshot.
pub const MAGIC: [u8; 8] = *b"LAVAKV\r\n";

/// The version of the format that is written, and the only one that is read.
pub const FORMAT_VERSION: u32 = 1;

/// Bytes before the header.
pub const PREAMBLE_BYTES: usize = 24;

/// The longest header that is read, in bytes: room for millions of tokens.
pub const HEADER_BYTES_MAX: usize = 64 << 20;

/// Why bytes are not a snapshot that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// They begin otherwise.
    #[error("this is no snapshot: it does not begin with the format's magic bytes")]
    NotASnapshot,
    /// They are of another version of the format.
    #[error("the snapshot has format version {found}, and only version {FORMAT_VERSION} is known")]
    Version {
        /// The version.
        found: u32,
    },
    /// They end too early.
    #[error("the snapshot is cut: its {field} needs {needed} bytes, and {there} are there")]
    Cut {
        /// What is cut.
        field: &'static str,
        /// Bytes that it needs, from its start.
        needed: u64,
        /// Bytes that are there, from its start.
        there: u64,
    },
    /// They go on after the end.
    #[error("the snapshot should end after {expected} bytes, and has {found}")]
    TooLong {
        /// The length that follows from the header.
        expected: u64,
        /// The length.
        found: u64,
    },
    /// A field's checksum is another.
    #[error("the snapshot is damaged: the checksum of its {field} is wrong")]
    Checksum {
        /// What is damaged.
        field: PartName,
    },
    /// The header cannot be decoded.
    #[error("the snapshot's header cannot be decoded: {0}")]
    Undecodable(String),
    /// A field of the header makes no sense.
    #[error("the snapshot's {field} is {found}, but {rule}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What it must be.
        rule: &'static str,
    },
}

/// A part of a snapshot that has a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartName {
    /// The header.
    Header,
    /// A page, counted from 0.
    Page(usize),
}

impl std::fmt::Display for PartName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header => formatter.write_str("header"),
            Self::Page(page) => write!(formatter, "page {page}"),
        }
    }
}

/// What a snapshot says of itself, checked against its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    /// Who made it.
    pub identity: SnapshotIdentity,
    /// The tokens whose KV it holds, from the sequence's start; there is at least one.
    pub tokens: Vec<TokenId>,
    /// The checksum of each page.
    page_checksums: Vec<u64>,
    /// Where the first page begins, in bytes.
    pages_start: u64,
}

/// The preamble, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// Bytes of the header that follows.
    pub header_bytes: usize,
    header_checksum: u64,
}

/// The header as bincode sees it.
#[derive(Serialize, Deserialize)]
struct EncodedHeader {
    model: u128,
    architecture: String,
    pack: String,
    pack_version: u64,
    driver: String,
    kv_type: String,
    precision: String,
    rope: u128,
    page_tokens: u32,
    page_bytes: u64,
    tokens: Vec<u32>,
    page_checksums: Vec<u64>,
}

fn configuration() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<HEADER_BYTES_MAX>()
}

impl Preamble {
    /// Reads the preamble at the start of `bytes`.
    ///
    /// # Errors
    /// There is none, it is of another version, or promises a header beyond [`HEADER_BYTES_MAX`].
    pub fn read(bytes: &[u8]) -> Result<Self, FormatError> {
        let shown = bytes.len().min(MAGIC.len());
        if bytes[..shown] != MAGIC[..shown] {
            return Err(FormatError::NotASnapshot);
        }
        let cut = || FormatError::Cut {
            field: "preamble",
            needed: PREAMBLE_BYTES as u64,
            there: bytes.len() as u64,
        };
        let field = |range: Range<usize>| bytes.get(range).ok_or_else(cut);
        let word = |range: Range<usize>| field(range).map(little_endian);
        let (version, header_bytes) = (word(8..12)?, word(12..16)?);
        if version != u64::from(FORMAT_VERSION) {
            return Err(FormatError::Version { found: version as u32 });
        }
        if header_bytes > HEADER_BYTES_MAX as u64 {
            let rule = "no header is longer than 64 MiB";
            return Err(FormatError::Field { field: "header length", found: header_bytes, rule });
        }
        Ok(Self { header_bytes: header_bytes as usize, header_checksum: word(16..24)? })
    }
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

impl ImageHeader {
    /// Reads the header that follows `preamble`, and checks it against the whole file's length.
    ///
    /// # Errors
    /// It is damaged, makes no sense, or the file is shorter or longer than it says.
    pub fn read(preamble: Preamble, bytes: &[u8], file_bytes: u64) -> Result<Self, FormatError> {
        let Some(bytes) = bytes.get(..preamble.header_bytes) else {
            let (needed, there) = (preamble.header_bytes as u64, bytes.len() as u64);
            return Err(FormatError::Cut { field: "header", needed, there });
        };
        if checksum(bytes) != preamble.header_checksum {
            return Err(FormatError::Checksum { field: PartName::Header });
        }
        let decoded = bincode::serde::decode_from_slice::<EncodedHeader, _>(bytes, configuration());
        let (encoded, used) = decoded.map_err(|error| FormatError::Undecodable(error.to_string()))?;
        if used != bytes.len() {
            let rule = "the header must end with its last field";
            return Err(FormatError::Field { field: "header length", found: bytes.len() as u64, rule });
        }
        let header = encoded.into_header((PREAMBLE_BYTES + preamble.header_bytes) as u64);
        header.check(file_bytes)?;
        Ok(header)
    }

    fn check(&self, file_bytes: u64) -> Result<(), FormatError> {
        let refuse = |field, found, rule| Err(FormatError::Field { field, found, rule });
        if self.tokens.is_empty() {
            return refuse("number of tokens", 0, "there is at least one");
        }
        if self.identity.page_tokens == 0 {
            return refuse("tokens of a page", 0, "a page holds at least one");
        }
        if self.identity.page_bytes == 0 {
            return refuse("bytes of a page", 0, "a page takes at least one");
        }
        let pages = self.tokens.len().div_ceil(self.identity.page_tokens as usize);
        if pages != self.page_checksums.len() {
            return refuse("number of checksums", self.page_checksums.len() as u64, "each page has one");
        }
        let payload = (pages as u64).checked_mul(self.identity.page_bytes);
        let Some(expected) = payload.and_then(|payload| payload.checked_add(self.pages_start)) else {
            return refuse("bytes of a page", self.identity.page_bytes, "all pages together fit 64 bits");
        };
        if file_bytes < expected {
            let (needed, there) = (expected - self.pages_start, file_bytes.saturating_sub(self.pages_start));
            return Err(FormatError::Cut { field: "pages", needed, there });
        }
        if file_bytes > expected {
            return Err(FormatError::TooLong { expected, found: file_bytes });
        }
        Ok(())
    }

    /// How many pages there are.
    pub fn pages(&self) -> usize {
        self.page_checksums.len()
    }

    /// Where some pages lie in the file, in bytes.
    ///
    /// # Panics
    /// When the image has not so many.
    pub fn page_bytes(&self, pages: Range<usize>) -> Range<u64> {
        assert!(pages.end <= self.pages(), "the image has only {} pages", self.pages());
        let at = |page: usize| self.pages_start + page as u64 * self.identity.page_bytes;
        at(pages.start)..at(pages.end)
    }

    /// Checks the content of some pages, from `first` on.
    ///
    /// # Errors
    /// The bytes are not whole pages of the image, or a page is damaged.
    pub fn check_pages(&self, first: usize, bytes: &[u8]) -> Result<(), FormatError> {
        let page_bytes = self.identity.page_bytes as usize;
        let checksums = self.page_checksums.get(first..).unwrap_or(&[]);
        let (found, rule) = (bytes.len() as u64, "these are not whole pages of the image");
        if !bytes.len().is_multiple_of(page_bytes) || bytes.len() / page_bytes > checksums.len() {
            return Err(FormatError::Field { field: "length in bytes", found, rule });
        }
        let pages = bytes.chunks_exact(page_bytes).zip(checksums);
        match pages.into_iter().position(|(page, expected)| checksum(page) != *expected) {
            Some(page) => Err(FormatError::Checksum { field: PartName::Page(first + page) }),
            None => Ok(()),
        }
    }
}

/// Preamble and header of an image; the pages follow them.
///
/// # Panics
/// When the header takes more than [`HEADER_BYTES_MAX`]: contexts are far shorter.
pub(super) fn encode(identity: &SnapshotIdentity, tokens: &[TokenId], pages: &[u8]) -> Vec<u8> {
    let pages = pages.chunks_exact((identity.page_bytes as usize).max(1));
    let encoded = EncodedHeader {
        model: identity.model.0,
        architecture: identity.architecture.clone(),
        pack: identity.pack.clone(),
        pack_version: identity.pack_version,
        driver: identity.driver.clone(),
        kv_type: identity.kv_type.clone(),
        precision: identity.precision.clone(),
        rope: identity.rope.0,
        page_tokens: identity.page_tokens,
        page_bytes: identity.page_bytes,
        tokens: tokens.iter().map(|token| token.0).collect(),
        page_checksums: pages.map(checksum).collect(),
    };
    let header = bincode::serde::encode_to_vec(&encoded, configuration()).expect("plain data can be encoded");
    assert!(header.len() <= HEADER_BYTES_MAX, "a header of {} bytes", header.len());
    let mut bytes = Vec::with_capacity(PREAMBLE_BYTES + header.len());
    bytes.extend(MAGIC);
    bytes.extend(FORMAT_VERSION.to_le_bytes());
    bytes.extend((header.len() as u32).to_le_bytes());
    bytes.extend(checksum(&header).to_le_bytes());
    bytes.extend(header);
    bytes
}

impl EncodedHeader {
    fn into_header(self, pages_start: u64) -> ImageHeader {
        let identity = SnapshotIdentity {
            model: Digest(self.model),
            architecture: self.architecture,
            pack: self.pack,
            pack_version: self.pack_version,
            driver: self.driver,
            kv_type: self.kv_type,
            precision: self.precision,
            rope: Digest(self.rope),
            page_tokens: self.page_tokens,
            page_bytes: self.page_bytes,
        };
        let tokens = self.tokens.into_iter().map(TokenId).collect();
        ImageHeader { identity, tokens, page_checksums: self.page_checksums, pages_start }
    }
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
