//! A disk that fails by plan, for `lavalane serve --fault`: full, or slow, or the last thing that the process
//! saw of it.

use super::{FaultScript, PlannedFault};
use lavalane_runtime::snapshot::files::{FileSystem, LocalFiles, NewFile};
use std::io;
use std::path::Path;
use std::time::Duration;

/// Something that goes wrong with the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// It takes no more bytes.
    Full,
    /// Every read and write takes so much longer.
    Slow(Duration),
    /// The process is killed in the middle of a write.
    ProcessKilled,
}

/// The operating system's files with planned faults; the run is the last one that a script has seen.
#[derive(Clone, Debug)]
pub struct FaultyFiles {
    planned: Vec<PlannedFault>,
    script: FaultScript,
}

struct FaultyFile<'a> {
    file: Box<dyn NewFile + 'a>,
    files: &'a FaultyFiles,
}

impl FaultyFiles {
    /// Files with those of `planned` that are the disk's.
    pub fn new(planned: Vec<PlannedFault>, script: FaultScript) -> Self {
        Self { planned, script }
    }

    fn faults(&self) -> impl Iterator<Item = DiskFault> {
        let run = self.script.run_count();
        self.planned.iter().filter_map(move |fault| fault.disk(run))
    }

    fn slow_down(&self) {
        for fault in self.faults() {
            if let DiskFault::Slow(time) = fault {
                std::thread::sleep(time);
            }
        }
    }
}

impl NewFile for FaultyFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.files.slow_down();
        if self.files.faults().any(|fault| fault == DiskFault::Full) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if self.files.faults().any(|fault| fault == DiskFault::ProcessKilled) {
            // Whether the half of it can be written makes no difference any more.
            let _ = self.file.write(&bytes[..bytes.len() / 2]);
            std::process::abort();
        }
        self.file.write(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }
}

impl FileSystem for FaultyFiles {
    fn read(&self, path: &Path, from: u64, bytes: usize) -> io::Result<Vec<u8>> {
        self.slow_down();
        LocalFiles.read(path, from, bytes)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile + '_>> {
        Ok(Box::new(FaultyFile { file: LocalFiles.create(path)?, files: self }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_full_in_the_planned_runs_only() {
        let path = std::env::temp_dir().join(format!("lavalane-faulty-files-{}", std::process::id()));
        for (plan, expected) in
            [("disk-full@1", Ok(())), ("disk-full@1+", Ok(())), ("disk-slow:1@1+", Ok(()))]
        {
            // Nothing has run yet.
            let files = FaultyFiles::new(vec![plan.parse().expect("a fault")], FaultScript::new());
            let written =
                files.create(&path).expect("a new file").write(b"bytes").map_err(|error| error.kind());
            assert_eq!(written, expected, "{plan}");
            std::fs::remove_file(&path).expect("it was made");
        }
        let full: PlannedFault = "disk-full@3+".parse().expect("a fault");
        let runs: Vec<u64> = (0..6).filter(|run| full.disk(*run) == Some(DiskFault::Full)).collect();
        assert_eq!(runs, [3, 4, 5]);
    }
}
