//! Snapshots: the KV of a sequence's tokens outside of the device, to be restored into another session, on
//! another lane, or after a restart.
//!
//! [`Image`] is one snapshot in memory, [`mod@format`] its bytes in a file, [`SnapshotStore`] a folder of them
//! that is searched by the tokens of a prompt. What is restored was made by an executor of an equal
//! [`SnapshotIdentity`], and so is what would have been computed, to the bit; anything else is refused with
//! the reason, or replayed from its tokens where the caller says so.

mod error;
pub mod files;
pub mod format;
mod hits;
mod identity;
mod image;
mod index;
#[cfg(test)]
mod memory_files;
pub mod score;
mod store;

pub use error::{LoadError, StoreError};
pub use format::FormatError;
pub use identity::{Digest, IdentityField, Incompatible, SnapshotIdentity};
pub use image::{Image, ImageError, Restored, WhenIncompatible};
pub use index::ImageId;
pub use store::{Saved, SnapshotStore, StoreStatistics, StoredPrefix};
