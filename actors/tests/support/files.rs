//! Folders and files of tests that keep snapshots.

use lavalane_actors::testing::Gate;
use lavalane_runtime::snapshot::files::{FileSystem, LocalFiles, NewFile};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A folder of its own for each test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("lavalane-snapshots-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    pub(crate) fn snapshots(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(&self.0).expect("the engine made it");
        let paths = files.map(|file| file.expect("it can be read").path());
        paths.filter(|path| path.extension().is_some_and(|ending| ending == "lavakv")).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A test that fails early has none.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The system's files, behind gates and on a disk that may be full. Nothing is synced: no test here pulls the
/// plug, and the disk is spared.
#[derive(Clone)]
pub(crate) struct TestFiles {
    pub(crate) reading: Gate,
    pub(crate) writing: Gate,
    pub(crate) full: Arc<AtomicBool>,
}

impl TestFiles {
    pub(crate) fn open() -> Self {
        let files = Self { reading: Gate::shut(), writing: Gate::shut(), full: Arc::default() };
        files.reading.open();
        files.writing.open();
        files
    }
}

struct TestFile<'a>(Box<dyn NewFile + 'a>, &'a TestFiles);

impl NewFile for TestFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.1.writing.pass();
        if self.1.full.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.write(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl FileSystem for TestFiles {
    fn read(&self, path: &Path, from: u64, bytes: usize) -> io::Result<Vec<u8>> {
        // Headers are read when the store is opened; pages come after them.
        if from > 24 {
            self.reading.pass();
        }
        LocalFiles.read(path, from, bytes)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile + '_>> {
        Ok(Box::new(TestFile(LocalFiles.create(path)?, self)))
    }

    fn sync_folder(&self, _folder: &Path) -> io::Result<()> {
        Ok(())
    }
}
