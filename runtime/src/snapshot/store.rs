//! A folder of snapshots, found by the tokens that they begin with.
//!
//! A file appears whole or not at all: it is written under another name, synced, renamed, and then the
//! folder is synced; whatever a crash leaves is cleared when the store is opened next. One process owns the
//! folder. The index is in memory and locked only for as long as it is looked at, never during an operation
//! on a file, so that finding never waits for the disk.

use super::error::{LoadError, StoreError};
use super::files::{FileEntry, FileSystem, FolderLock, NewFile};
use super::format::{FormatError, ImageHeader, PREAMBLE_BYTES, Preamble};
use super::hits::{self, HITS_BYTES_MAX, HITS_FILE};
use super::identity::{Digest, SnapshotIdentity};
use super::image::Image;
use super::index::{Entry, ImageId, Index};
use crate::ids::TokenId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// How the name of every snapshot ends.
const NAME_END: &str = ".lavakv";

/// How the name of a file that is not finished ends.
const UNFINISHED_END: &str = ".lavakv-part";

/// Bytes of one write.
const WRITE_BYTES: usize = 1 << 20;

/// A stored prefix of some tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPrefix {
    image: ImageId,
    pages: usize,
}

impl StoredPrefix {
    /// How many whole pages of the tokens it holds; at least one.
    pub fn pages(&self) -> usize {
        self.pages
    }
}

/// What became of an image that was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// It is in the store.
    Stored,
    /// The store holds its whole pages already, perhaps in a longer image.
    Known,
    /// It is larger than the whole store may be.
    TooLarge,
    /// It does not fill a page, and so would never be found.
    TooShort,
}

/// The store in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStatistics {
    /// Files.
    pub images: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that they may take.
    pub bytes_max: u64,
    /// Files removed for lack of room since the store was opened.
    pub evicted: u64,
    /// Files found damaged since then, and removed.
    pub damaged: u64,
}

/// The store.
pub struct SnapshotStore {
    files: Arc<dyn FileSystem>,
    folder: PathBuf,
    identity: SnapshotIdentity,
    identity_digest: Digest,
    bytes_max: u64,
    index: Mutex<Index>,
    /// Held while an image is written, so that two do not evict for the same room.
    saving: Mutex<()>,
    /// Held while the uses are written down.
    writing_hits: Mutex<()>,
    evicted: AtomicU64,
    damaged: AtomicU64,
    _lock: Box<dyn FolderLock>,
}

impl std::fmt::Debug for SnapshotStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SnapshotStore").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl SnapshotStore {
    /// Opens a folder, making it where it is not there, for images of executors of `identity`, which may
    /// take `bytes_max` bytes together. Files that are damaged or unfinished are removed; those of other
    /// executors stay, are never found, and are the first to go. Files that are not snapshots by their name
    /// are left alone.
    ///
    /// # Errors
    /// Another process has the folder, or the system refuses.
    pub fn open(
        files: Arc<dyn FileSystem>,
        folder: &Path,
        identity: SnapshotIdentity,
        bytes_max: u64,
        now: SystemTime,
    ) -> Result<Self, StoreError> {
        let io = |doing, source| StoreError::Io { doing, path: folder.to_owned(), source };
        files.create_folder(folder).map_err(|source| io("making the snapshot folder", source))?;
        let lock = files.lock(folder).map_err(|source| io("locking the snapshot folder", source))?;
        let Some(lock) = lock else { return Err(StoreError::InUse { folder: folder.to_owned() }) };
        let entries = files.list(folder).map_err(|source| io("listing the snapshot folder", source))?;
        let store = Self {
            index: Mutex::new(Index::new(identity.page_tokens.max(1) as usize)),
            identity_digest: identity.digest(),
            identity,
            folder: folder.to_owned(),
            files,
            bytes_max,
            saving: Mutex::new(()),
            writing_hits: Mutex::new(()),
            evicted: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            _lock: lock,
        };
        let hits = store.read_hits(&entries);
        for file in entries {
            if file.name.ends_with(UNFINISHED_END) {
                tracing::info!("removing the unfinished snapshot {}", file.name);
                store.remove_file(&file.name);
            } else if file.name.ends_with(NAME_END) {
                let hits = hits.get(&file.name).copied().unwrap_or(0);
                store.take_in(file, hits);
            }
        }
        store.make_room(0, now);
        Ok(store)
    }

    /// The longest prefix of whole pages of `tokens` that is stored. It waits for no disk.
    pub fn find(&self, tokens: &[TokenId]) -> Option<StoredPrefix> {
        let found = self.index.lock().find(tokens)?;
        Some(StoredPrefix { image: found.image, pages: found.pages })
    }

    /// Whether all whole pages of `tokens` are stored.
    pub fn covers(&self, tokens: &[TokenId]) -> bool {
        let pages = tokens.len() / self.identity.page_tokens as usize;
        pages == 0 || self.find(tokens).is_some_and(|found| found.pages == pages)
    }

    /// Reads pages `first..` of a prefix that was found, checks them, and counts the hit. An image that
    /// cannot be read is found no more.
    ///
    /// # Errors
    /// It is gone, damaged, or the system refuses.
    pub fn load(&self, prefix: &StoredPrefix, first: usize, now: SystemTime) -> Result<Vec<u8>, LoadError> {
        let (name, header) = {
            let mut index = self.index.lock();
            let entry = index.touch(prefix.image, now).ok_or(LoadError::Gone)?;
            (entry.name.clone(), entry.header.clone().ok_or(LoadError::Gone)?)
        };
        let path = self.folder.join(&name);
        let range = header.page_bytes(first.min(prefix.pages)..prefix.pages);
        let read = self.files.read(&path, range.start, (range.end - range.start) as usize);
        let problem = match read {
            Ok(bytes) => match header.check_pages(first, &bytes) {
                Ok(()) => {
                    // Only a better order after the next start depends on these.
                    let _ = self.files.touch(&path, now);
                    self.write_hits();
                    return Ok(bytes);
                }
                Err(problem) => LoadError::Damaged { path, problem },
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => LoadError::Gone,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => LoadError::Shortened { path },
            Err(source) => LoadError::Io { path, source },
        };
        self.index.lock().remove(prefix.image);
        if let LoadError::Damaged { path, .. } | LoadError::Shortened { path } = &problem {
            self.discard(path, &problem);
        }
        Err(problem)
    }

    /// Keeps an image, evicting others where there is no room, and those that it makes superfluous.
    ///
    /// # Errors
    /// It is of another kind of executor, or the system refuses; a full disk is one such case. Nothing of
    /// it is left then.
    pub fn save(&self, image: &Image, now: SystemTime) -> Result<Saved, StoreError> {
        self.identity.check(image.identity())?;
        let _saving = self.saving.lock();
        if image.tokens().len() < self.identity.page_tokens as usize {
            return Ok(Saved::TooShort);
        }
        if self.covers(image.tokens()) {
            return Ok(Saved::Known);
        }
        let head = image.head();
        let bytes = (head.len() + image.payload().len()) as u64;
        if bytes > self.bytes_max {
            return Ok(Saved::TooLarge);
        }
        self.make_room(bytes, now);
        let name = self.name(image.tokens());
        self.write(&name, &head, image.payload())?;
        let header = Preamble::read(&head)
            .and_then(|preamble| ImageHeader::read(preamble, &head[PREAMBLE_BYTES..], bytes))
            .expect("a header that was just encoded can be read");
        let superseded: Vec<Entry> = {
            let mut index = self.index.lock();
            index.insert(Entry { name, header: Some(Arc::new(header)), bytes, hits: 0, last_used: now });
            let superseded = index.superseded_by(image.tokens());
            superseded.into_iter().filter_map(|image| index.remove(image)).collect()
        };
        superseded.iter().for_each(|entry| self.remove_file(&entry.name));
        Ok(Saved::Stored)
    }

    /// The store in numbers.
    pub fn statistics(&self) -> StoreStatistics {
        let index = self.index.lock();
        StoreStatistics {
            images: index.len(),
            bytes: index.bytes(),
            bytes_max: self.bytes_max,
            evicted: self.evicted.load(Ordering::Relaxed),
            damaged: self.damaged.load(Ordering::Relaxed),
        }
    }

    /// Whose images the store keeps.
    pub fn identity(&self) -> &SnapshotIdentity {
        &self.identity
    }

    /// A name that depends on what the image is and on nothing else.
    fn name(&self, tokens: &[TokenId]) -> String {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.0.to_le_bytes()).collect();
        let digest = Digest::of([&self.identity_digest.0.to_le_bytes()[..], &bytes]);
        format!("{digest}{NAME_END}")
    }

    /// Takes a file of the folder into the index, or removes it where it is damaged.
    fn take_in(&self, file: FileEntry, hits: u32) {
        let FileEntry { name, bytes, touched } = file;
        let path = self.folder.join(&name);
        match self.read_header(&path, bytes) {
            Ok(Ok(header)) => {
                let ours = self.identity.check(&header.identity);
                if let Err(incompatible) = &ours {
                    tracing::info!("{name} is of no use here: {incompatible}");
                }
                let header = ours.is_ok().then(|| Arc::new(header));
                self.index.lock().insert(Entry { name, header, bytes, hits, last_used: touched });
            }
            Ok(Err(problem)) => self.discard(&path, &problem),
            Err(error) => tracing::warn!("the snapshot {} cannot be read: {error}", path.display()),
        }
    }

    /// How often each file was used, as far as it is known.
    fn read_hits(&self, entries: &[FileEntry]) -> HashMap<String, u32> {
        let Some(file) = entries.iter().find(|file| file.name == HITS_FILE) else { return HashMap::new() };
        let bytes = self.files.read(&self.folder.join(HITS_FILE), 0, file.bytes.min(HITS_BYTES_MAX) as usize);
        let hits = bytes.ok().and_then(|bytes| hits::decode(&bytes));
        hits.unwrap_or_else(|| {
            tracing::info!("how often the snapshots were used is not known any more: the file is damaged");
            HashMap::new()
        })
    }

    /// Writes down how often each file was used. Where that fails, what was written before stays.
    fn write_hits(&self) {
        let _writing = self.writing_hits.lock();
        let bytes = hits::encode(self.index.lock().hits());
        let unfinished = self.folder.join(format!("{HITS_FILE}{UNFINISHED_END}"));
        let written = self.write_unfinished(&unfinished, &bytes, &[]).is_ok();
        if !written || self.files.rename(&unfinished, &self.folder.join(HITS_FILE)).is_err() {
            let _ = self.files.remove(&unfinished);
        }
    }

    fn read_header(&self, path: &Path, bytes: u64) -> io::Result<Result<ImageHeader, FormatError>> {
        let beginning = self.files.read(path, 0, bytes.min(PREAMBLE_BYTES as u64) as usize)?;
        let preamble = match Preamble::read(&beginning) {
            Ok(preamble) => preamble,
            Err(problem) => return Ok(Err(problem)),
        };
        let there = bytes - PREAMBLE_BYTES as u64;
        let wanted = (preamble.header_bytes as u64).min(there) as usize;
        let header = self.files.read(path, PREAMBLE_BYTES as u64, wanted)?;
        Ok(ImageHeader::read(preamble, &header, bytes))
    }

    /// Removes a damaged file and says so.
    fn discard(&self, path: &Path, problem: &dyn std::fmt::Display) {
        tracing::warn!("removing the snapshot {}: {problem}", path.display());
        self.damaged.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.files.remove(path) {
            tracing::warn!("{} could not be removed: {error}", path.display());
        }
    }

    /// Evicts until `bytes` more fit.
    fn make_room(&self, bytes: u64, now: SystemTime) {
        loop {
            let evicted = {
                let mut index = self.index.lock();
                if index.bytes().saturating_add(bytes) <= self.bytes_max {
                    return;
                }
                index.least(now).and_then(|image| index.remove(image))
            };
            let Some(entry) = evicted else { return };
            tracing::debug!("evicting the snapshot {}", entry.name);
            self.evicted.fetch_add(1, Ordering::Relaxed);
            self.remove_file(&entry.name);
        }
    }

    fn remove_file(&self, name: &str) {
        match self.files.remove(&self.folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("the snapshot {name} could not be removed: {error}");
            }
            _ => {}
        }
    }

    /// Writes a file so that it is there whole or not at all.
    fn write(&self, name: &str, head: &[u8], pages: &[u8]) -> Result<(), StoreError> {
        let unfinished = self.folder.join(format!("{}{UNFINISHED_END}", name.trim_end_matches(NAME_END)));
        let path = self.folder.join(name);
        let written = self.write_unfinished(&unfinished, head, pages);
        let written = written.and_then(|()| {
            let renamed = self.files.rename(&unfinished, &path);
            renamed.map_err(|source| io_error("renaming the snapshot", &unfinished, source))
        });
        if let Err(error) = written {
            // What cannot be removed now is removed when the store is opened next.
            let _ = self.files.remove(&unfinished);
            return Err(error);
        }
        self.files.sync_folder(&self.folder).map_err(|source| {
            // Whether it would be there after a crash is not known; so it is not to be there at all.
            let _ = self.files.remove(&path);
            io_error("syncing the snapshot folder", &self.folder, source)
        })
    }

    fn write_unfinished(&self, path: &Path, head: &[u8], pages: &[u8]) -> Result<(), StoreError> {
        let mut file = match self.files.create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Left by a write that failed and could not be cleared then.
                let _ = self.files.remove(path);
                self.files.create(path)
            }
            created => created,
        }
        .map_err(|source| io_error("making the snapshot", path, source))?;
        let write = |file: &mut dyn NewFile| {
            for part in [head].into_iter().chain(pages.chunks(WRITE_BYTES)) {
                file.write(part)?;
            }
            file.sync()
        };
        write(file.as_mut()).map_err(|source| io_error("writing the snapshot", path, source))
    }
}

fn io_error(doing: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Io { doing, path: path.to_owned(), source }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
