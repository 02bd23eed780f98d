//! Why a folder of snapshots could not be used.

use super::format::FormatError;
use std::io;
use std::path::PathBuf;

/// Why a store could not be opened, or an image not be kept in it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has the folder.
    #[error("the snapshot folder {folder} is in use by another process")]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The system refused; nothing is stored.
    #[error("{doing} {path}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The image is of another kind of executor than the store.
    #[error(transparent)]
    Incompatible(#[from] super::Incompatible),
}

/// Why a stored prefix could not be read. The image is forgotten, and its file removed where it is damaged.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It was evicted in the meantime.
    #[error("the snapshot is not stored any more")]
    Gone,
    /// The file is damaged.
    #[error("{path}: {problem}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How.
        problem: FormatError,
    },
    /// The file is shorter than it was.
    #[error("{path} is shorter than it was when it was taken in")]
    Shortened {
        /// The file.
        path: PathBuf,
    },
    /// The system refused.
    #[error("reading {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}
