//! A file system in memory for tests: it can be full, and the plug can be pulled at any step.
//!
//! What was written but not synced may be lost with the plug, contents and names each on their own; so the
//! test says what survives.

use super::files::{FileEntry, FileSystem, FolderLock, NewFile};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// What is there after the plug was pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Survives {
    /// Everything that was done until then.
    Everything,
    /// Only what was synced.
    OnlySynced,
    /// All names, but of the contents only what was synced.
    NamesOnly,
}

#[derive(Clone, Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    synced_bytes: usize,
    touched: Option<SystemTime>,
}

type Names = BTreeMap<PathBuf, usize>;

#[derive(Debug, Default)]
struct State {
    contents: Vec<Content>,
    names: Names,
    synced_names: Names,
    locked: bool,
    /// Steps until the plug is pulled.
    steps_left: Option<usize>,
    /// Bytes until the disk is full.
    room: Option<usize>,
    steps: usize,
}

/// The file system; clones are the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryFiles(Arc<Mutex<State>>);

struct MemoryFile {
    files: MemoryFiles,
    content: usize,
}

struct MemoryLock(MemoryFiles);

impl FolderLock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.0.0.lock().locked = false;
    }
}

impl State {
    /// Counts a step that changes something. With the last one the plug is pulled.
    fn step(&mut self) -> io::Result<()> {
        self.steps += 1;
        match &mut self.steps_left {
            None => Ok(()),
            Some(0) => Err(io::Error::other("the plug is pulled")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn content(&self, path: &Path) -> io::Result<&Content> {
        self.names.get(path).map(|&at| &self.contents[at]).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl MemoryFiles {
    /// Pulls the plug after `steps` more steps.
    pub(super) fn pull_plug_after(&self, steps: usize) {
        self.0.lock().steps_left = Some(steps);
    }

    /// Lets the disk be full after `bytes` more bytes; `None` empties it.
    pub(super) fn full_after(&self, bytes: Option<usize>) {
        self.0.lock().room = bytes;
    }

    /// How many steps changed something so far.
    pub(super) fn steps(&self) -> usize {
        self.0.lock().steps
    }

    /// The disk as it is found after the plug was pulled.
    pub(super) fn after_crash(&self, survives: Survives) -> Self {
        let state = self.0.lock();
        let mut contents = state.contents.clone();
        if survives != Survives::Everything {
            contents.iter_mut().for_each(|content| content.bytes.truncate(content.synced_bytes));
        }
        contents.iter_mut().for_each(|content| content.synced_bytes = content.bytes.len());
        let names = if survives == Survives::OnlySynced { &state.synced_names } else { &state.names };
        let (names, synced_names) = (names.clone(), names.clone());
        Self(Arc::new(Mutex::new(State { contents, names, synced_names, ..State::default() })))
    }

    /// Changes one byte of every file whose name ends so.
    pub(super) fn damage(&self, name_end: &str, from_end: usize) {
        let mut state = self.0.lock();
        let files: Vec<usize> = matching(&state.names, name_end);
        for file in files {
            let bytes = &mut state.contents[file].bytes;
            let at = bytes.len() - 1 - from_end;
            bytes[at] ^= 1;
        }
    }

    /// Cuts every file whose name ends so to `bytes` bytes.
    pub(super) fn cut(&self, name_end: &str, bytes: usize) {
        let mut state = self.0.lock();
        for file in matching(&state.names, name_end) {
            state.contents[file].bytes.truncate(bytes);
        }
    }

    /// All names, in order.
    pub(super) fn names(&self) -> Vec<String> {
        let state = self.0.lock();
        state.names.keys().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect()
    }

    /// Puts a file there.
    pub(super) fn put(&self, path: &Path, bytes: Vec<u8>) {
        let mut state = self.0.lock();
        let at = state.contents.len();
        state.contents.push(Content { synced_bytes: bytes.len(), bytes, touched: None });
        state.names.insert(path.to_owned(), at);
    }
}

fn matching(names: &Names, name_end: &str) -> Vec<usize> {
    let ends = |path: &Path| path.to_str().is_some_and(|path| path.ends_with(name_end));
    names.iter().filter(|(path, _)| ends(path)).map(|(_, file)| *file).collect()
}

impl NewFile for MemoryFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.files.0.lock();
        let stepped = state.step();
        // A step that is cut off gets half-way.
        let mut count = if stepped.is_ok() { bytes.len() } else { bytes.len() / 2 };
        let mut result = stepped;
        if let Some(room) = &mut state.room {
            if *room < count {
                (count, result) = (*room, Err(io::ErrorKind::StorageFull.into()));
            }
            *room -= count;
        }
        state.contents[self.content].bytes.extend(&bytes[..count]);
        result
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.files.0.lock();
        state.step()?;
        let content = &mut state.contents[self.content];
        content.synced_bytes = content.bytes.len();
        Ok(())
    }
}

impl FileSystem for MemoryFiles {
    fn create_folder(&self, _folder: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _folder: &Path) -> io::Result<Option<Box<dyn FolderLock>>> {
        let mut state = self.0.lock();
        if std::mem::replace(&mut state.locked, true) {
            return Ok(None);
        }
        Ok(Some(Box::new(MemoryLock(self.clone()))))
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<FileEntry>> {
        let state = self.0.lock();
        let inside = state.names.iter().filter(|(path, _)| path.parent() == Some(folder));
        let entry = |(path, &at): (&PathBuf, &usize)| {
            let content = &state.contents[at];
            let name = path.file_name()?.to_str()?.to_owned();
            let touched = content.touched.unwrap_or(SystemTime::UNIX_EPOCH);
            Some(FileEntry { name, bytes: content.bytes.len() as u64, touched })
        };
        Ok(inside.filter_map(entry).collect())
    }

    fn read(&self, path: &Path, from: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let state = self.0.lock();
        let content = state.content(path)?;
        let range = from as usize..from as usize + bytes;
        content.bytes.get(range).map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile + '_>> {
        let mut state = self.0.lock();
        if state.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.step()?;
        let content = state.contents.len();
        state.contents.push(Content::default());
        state.names.insert(path.to_owned(), content);
        Ok(Box::new(MemoryFile { files: self.clone(), content }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.content(from)?;
        state.step()?;
        if let Some(content) = state.names.remove(from) {
            state.names.insert(to.to_owned(), content);
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.content(path)?;
        state.step()?;
        state.names.remove(path);
        Ok(())
    }

    fn sync_folder(&self, _folder: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step()?;
        state.synced_names = state.names.clone();
        Ok(())
    }

    fn touch(&self, path: &Path, at: SystemTime) -> io::Result<()> {
        let mut state = self.0.lock();
        state.content(path)?;
        let content = state.names[path];
        state.contents[content].touched = Some(at);
        Ok(())
    }
}
