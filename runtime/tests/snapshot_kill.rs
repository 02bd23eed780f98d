//! A process that is killed in the middle of keeping a snapshot, at each of its steps, leaves a store that
//! opens, holds nothing broken, and goes on.
//!
//! The child is this test program itself. It stops for ever at the step that it is told, says so, and is
//! killed there: no moment is left to chance.

use lavalane_runtime::ids::TokenId;
use lavalane_runtime::snapshot::files::{FileSystem, LocalFiles, NewFile};
use lavalane_runtime::snapshot::{Digest, Image, Saved, SnapshotIdentity, SnapshotStore};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

/// Tells the child its folder and its step.
const FOLDER: &str = "LAVALANE_TEST_KILL_FOLDER";
const STEP: &str = "LAVALANE_TEST_KILL_STEP";
const CHILD_TEST: &str = "the_child_keeps_snapshots_until_it_stops";
const STOPPED: &str = "stopped at its step";
const PAGE_BYTES: usize = 300_000;

/// The operating system's files, with a place to stop at before and in the middle of each change.
struct Stopping {
    steps_left: AtomicUsize,
}

impl Stopping {
    fn step(&self) {
        if self.steps_left.fetch_sub(1, Ordering::Relaxed) == 0 {
            println!("{STOPPED}");
            io::stdout().flush().expect("the parent listens");
            loop {
                std::thread::park();
            }
        }
    }
}

struct StoppingFile<'a> {
    stopping: &'a Stopping,
    file: Box<dyn NewFile + 'a>,
}

impl NewFile for StoppingFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        self.file.write(first)?;
        self.stopping.step();
        self.file.write(second)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.stopping.step();
        self.file.sync()
    }
}

impl FileSystem for Stopping {
    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile + '_>> {
        self.step();
        Ok(Box::new(StoppingFile { stopping: self, file: LocalFiles.create(path)? }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step();
        LocalFiles.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step();
        LocalFiles.remove(path)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.step();
        LocalFiles.sync_folder(folder)
    }
}

fn identity() -> SnapshotIdentity {
    SnapshotIdentity {
        model: Digest(1),
        architecture: "none".to_owned(),
        pack: "none".to_owned(),
        pack_version: 1,
        driver: "none".to_owned(),
        kv_type: "f16".to_owned(),
        precision: "default".to_owned(),
        rope: Digest(2),
        page_tokens: 4,
        page_bytes: PAGE_BYTES as u64,
    }
}

fn tokens(from: u32, pages: u32) -> Vec<TokenId> {
    (from..from + 4 * pages).map(TokenId).collect()
}

fn payload(from: u32, pages: u32) -> Vec<u8> {
    (from..from + pages).flat_map(|page| vec![page as u8; PAGE_BYTES]).collect()
}

fn image(from: u32, pages: u32) -> Image {
    Image::new(identity(), tokens(from, pages), payload(from, pages)).expect("whole pages")
}

fn open(files: Arc<dyn FileSystem>, folder: &Path) -> SnapshotStore {
    let bytes_max = 8 * PAGE_BYTES as u64;
    SnapshotStore::open(files, folder, identity(), bytes_max, SystemTime::now()).expect("the folder is free")
}

/// What the child does: keeps one image, then one that takes its place, then one that evicts, and reads each.
#[test]
fn the_child_keeps_snapshots_until_it_stops() {
    let (Some(folder), Ok(step)) = (std::env::var_os(FOLDER), std::env::var(STEP)) else {
        println!("skipped: only a child of the test beside it does this");
        return;
    };
    let step = step.parse().expect("the parent gives a number");
    let files = Stopping { steps_left: AtomicUsize::new(step) };
    let store = open(Arc::new(files), Path::new(&folder));
    for (from, pages) in [(10, 3), (10, 5), (100, 6)] {
        store.save(&image(from, pages), SystemTime::now()).expect("the disk has room");
        let prefix = store.find(&tokens(from, pages)).expect("it was just kept");
        store.load(&prefix, 0, SystemTime::now()).expect("it can be read");
    }
}

/// Runs the child and kills it at `step`; false where it came to its end before.
fn kill_at(step: usize, folder: &Path) -> bool {
    let mut child = Command::new(std::env::current_exe().expect("this program has a path"))
        .args(["--exact", CHILD_TEST, "--nocapture"])
        .env(FOLDER, folder)
        .env(STEP, step.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the child starts");
    let output = BufReader::new(child.stdout.take().expect("its output is piped"));
    let stopped = output.lines().map_while(Result::ok).any(|line| line.contains(STOPPED));
    if stopped {
        child.kill().expect("it waits to be killed");
    }
    let status = child.wait().expect("it has ended");
    assert!(stopped || status.success(), "the child failed: {status}");
    stopped
}

#[test]
fn a_process_killed_at_any_step_leaves_a_valid_store() {
    let name = format!("lavalane-snapshot-kill-{}", std::process::id());
    let folder: PathBuf = std::env::temp_dir().join(name);
    let mut step = 0;
    loop {
        // What a failed test run left there.
        let _ = std::fs::remove_dir_all(&folder);
        let killed = kill_at(step, &folder);
        let store = open(Arc::new(LocalFiles), &folder);
        for (from, pages) in [(10, 5), (100, 6)] {
            if let Some(prefix) = store.find(&tokens(from, pages)) {
                let bytes = store.load(&prefix, 0, SystemTime::now()).expect("what is found is whole");
                assert!(bytes == payload(from, prefix.pages() as u32), "killed at step {step}");
            }
        }
        let names = std::fs::read_dir(&folder).expect("the folder is there").map(|file| {
            file.expect("the folder can be read").file_name().into_string().expect("names are plain")
        });
        let mut names: Vec<String> = names.filter(|name| name != "lock" && name != "hits").collect();
        names.sort();
        assert_eq!(names.len(), store.statistics().images, "killed at step {step}: {names:?}");
        assert!(names.iter().all(|name| name.ends_with(".lavakv")), "killed at step {step}: {names:?}");
        let saved = store.save(&image(200, 2), SystemTime::now()).expect("the store goes on");
        assert_eq!(saved, Saved::Stored);
        drop(store);
        if !killed {
            break;
        }
        step += 1;
    }
    assert!(step > 12, "there were only {step} steps to be killed at");
    std::fs::remove_dir_all(&folder).expect("the folder is this test's own");
}
