//! The few operations on files that snapshots need, as a trait, so that tests can fill the disk or pull the
//! plug at any of them; and the operating system's own.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::SystemTime;

/// A file in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Its name within the folder.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was last written or touched.
    pub touched: SystemTime,
}

/// A file that is being written.
pub trait NewFile {
    /// Appends bytes.
    ///
    /// # Errors
    /// The system's, a full disk for one.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Returns once everything written is on the disk.
    ///
    /// # Errors
    /// The system's.
    fn sync(&mut self) -> io::Result<()>;
}

/// What keeps a folder for one owner, until it is dropped or the process ends in whatever way.
pub trait FolderLock: Send + Sync {}

/// A file system, as far as snapshots need one. Every method's errors are the system's. What a file system
/// does not do in a way of its own is done by the operating system.
pub trait FileSystem: Send + Sync {
    /// Makes a folder and those above it, where they are not there.
    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        std::fs::create_dir_all(folder)
    }

    /// Locks a folder; `None` where another owner has it.
    fn lock(&self, folder: &Path) -> io::Result<Option<Box<dyn FolderLock>>> {
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).open(folder.join(LOCK_FILE))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(LocalLock { _file: file }))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The folder's files, in any order. Names that are not UTF-8 are left out.
    fn list(&self, folder: &Path) -> io::Result<Vec<FileEntry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if let (true, Ok(name)) = (metadata.is_file(), entry.file_name().into_string()) {
                let touched = metadata.modified()?;
                entries.push(FileEntry { name, bytes: metadata.len(), touched });
            }
        }
        Ok(entries)
    }

    /// Exactly `bytes` bytes from byte `from` on; a shorter file is [`io::ErrorKind::UnexpectedEof`].
    fn read(&self, path: &Path, from: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let there = file.metadata()?.len().saturating_sub(from);
        if there < bytes as u64 {
            // Said before anything is allocated for it.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.seek(SeekFrom::Start(from))?;
        let mut content = vec![0; bytes];
        file.read_exact(&mut content)?;
        Ok(content)
    }

    /// Makes a file that is not there yet.
    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile + '_>> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(Box::new(LocalFile(file)))
    }

    /// Gives a file another name in its folder, in place of a file that has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    /// Returns once the folder's names are on the disk.
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }

    /// Notes that a file was used.
    fn touch(&self, path: &Path, at: SystemTime) -> io::Result<()> {
        OpenOptions::new().write(true).open(path)?.set_modified(at)
    }
}

/// The file in a folder whose lock keeps it for one process.
const LOCK_FILE: &str = "lock";

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalFiles;

struct LocalFile(File);

struct LocalLock {
    /// The system gives the lock back when this is closed.
    _file: File,
}

impl FolderLock for LocalLock {}

impl NewFile for LocalFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_all()
    }
}

impl FileSystem for LocalFiles {}
