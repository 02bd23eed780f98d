//! Prefixes that outlive the engine: found on the disk after a new start, with the same tokens; and whatever
//! happens to the disk or the device meanwhile, every request ends as it would have without it.

mod support;

use lavalane_actors::lifecycle::LifecycleEvent;
use lavalane_actors::testing::{
    Fault, FaultInjectingExecutor, FaultScript, Gate, ScriptedExecutor, ScriptedTokens, TransferFault,
};
use lavalane_actors::testing::{When, scripted_limits};
use lavalane_actors::{Engine, EngineHandle, EngineSettings, SnapshotSettings, StartError};
use lavalane_runtime::batch::ExecutorLimits;
use lavalane_runtime::snapshot::{Digest, StoreError};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::files::{Folder, TestFiles};
use support::{HANG_GUARD, ask, block_on, expected, finish, prompt, read, request, settings, until};

/// What one engine is started with.
struct Start {
    limits: ExecutorLimits,
    script: FaultScript,
    files: TestFiles,
    model: Digest,
    gate: Option<Gate>,
    load_time_max: Duration,
}

impl Default for Start {
    fn default() -> Self {
        Self {
            limits: scripted_limits(),
            script: FaultScript::new(),
            files: TestFiles::open(),
            model: Digest(1),
            gate: None,
            load_time_max: HANG_GUARD,
        }
    }
}

impl Start {
    /// With a disk that does not answer reads until its gate opens.
    fn with_reading_shut() -> Self {
        Self { files: TestFiles { reading: Gate::shut(), ..TestFiles::open() }, ..Self::default() }
    }

    fn at(&self, folder: &Folder) -> EngineHandle {
        self.try_at(folder).expect("the engine starts")
    }

    fn try_at(&self, folder: &Folder) -> Result<EngineHandle, StartError> {
        let snapshots = SnapshotSettings {
            load_time_max: self.load_time_max,
            // One page of the scripted executor.
            transfer_bytes_max: 64,
            ..SnapshotSettings::new(&folder.0, 1 << 20)
        };
        let settings = EngineSettings { snapshots: Some(snapshots), ..settings() };
        let mut executor = ScriptedExecutor::new(self.limits).with_model(self.model);
        if let Some(gate) = &self.gate {
            executor = executor.with_gate(gate.clone());
        }
        let executor = Box::new(FaultInjectingExecutor::new(executor, self.script.clone()));
        let files = Arc::new(self.files.clone());
        Engine::start_with_files(executor, Arc::new(ScriptedTokens), settings, files)
    }
}

/// Answers one prompt of 70 tokens with an engine that then ends, and leaves its snapshot.
fn leave_a_snapshot(folder: &Folder) {
    let engine = Start::default().at(folder);
    block_on(async {
        let cold = ask(&engine, request(prompt(1, 70), 10)).await;
        assert_eq!((cold.usage().cached_tokens, cold.tokens), (0, expected(&request(prompt(1, 70), 10))));
        engine.shutdown(HANG_GUARD).await;
    });
    assert_eq!(folder.snapshots().len(), 1, "the engine's end waits for what is being written");
}

/// Asks for the same prompt again: the reply is right, and so many tokens of it were found.
fn check_second(start: &Start, folder: &Folder, cached_tokens: usize) -> EngineHandle {
    let engine = start.at(folder);
    block_on(async {
        let warm = ask(&engine, request(prompt(1, 70), 10)).await;
        assert_eq!(warm.tokens, expected(&request(prompt(1, 70), 10)));
        assert_eq!(warm.usage().cached_tokens, cached_tokens);
        engine.drain().await;
        until(|| engine.statistics().kv_pages_used == 0).await;
        finish(&engine).await;
    });
    engine
}

#[test]
fn a_prompt_is_found_on_the_disk_after_a_new_start() {
    let folder = Folder::new();
    leave_a_snapshot(&folder);
    let start = Start::default();
    let engine = check_second(&start, &folder, 64);
    assert_eq!((start.script.transfers().imported, engine.statistics().snapshots_loaded), (4, 1));
    let rows: usize = start.script.runs().iter().flat_map(|run| &run.lanes).map(|lane| lane.rows).sum();
    assert_eq!(rows, 6 + 9, "what was found is not computed again");
}

#[test]
fn the_disk_gives_only_what_the_pool_s_pages_do_not_hold() {
    let folder = Folder::new();
    leave_a_snapshot(&folder);
    let start = Start::default();
    let engine = start.at(&folder);
    block_on(async {
        // Two pages of the prompt come from the disk with another request, which goes on otherwise.
        let mut other = prompt(2, 70);
        other[..40].copy_from_slice(&prompt(1, 70)[..40]);
        for (prompt, cached_tokens, imported, loaded) in
            [(other, 32, 2, 1), (prompt(1, 70), 64, 4, 2), (prompt(1, 70), 64, 4, 2)]
        {
            let reply = ask(&engine, request(prompt.clone(), 10)).await;
            assert_eq!(reply.tokens, expected(&request(prompt, 10)));
            // The pages alone may hold more than the disk: a part of the last one, too.
            assert!(reply.usage().cached_tokens >= cached_tokens, "{:?}", reply.usage());
            let found = (start.script.transfers().imported, engine.statistics().snapshots_loaded);
            assert_eq!(found, (imported, loaded));
        }
        finish(&engine).await;
    });
}

#[test]
fn observers_hear_what_goes_to_the_disk_and_what_comes_from_it() {
    let folder = Folder::new();
    let engine = Start::default().at(&folder);
    let mut events = engine.observe(100);
    block_on(async {
        ask(&engine, request(prompt(1, 70), 10)).await;
        engine.shutdown(HANG_GUARD).await;
        while events.next().await.expect("it is told") != (LifecycleEvent::Exported { tokens: 64 }) {}
    });
    let engine = Start::default().at(&folder);
    let mut events = engine.observe(100);
    block_on(async {
        ask(&engine, request(prompt(1, 70), 10)).await;
        let imported = LifecycleEvent::Imported { tokens: 64 };
        assert_eq!(events.next().await, Some(imported), "before the request has its lane");
        finish(&engine).await;
    });
}

#[test]
fn another_model_s_snapshots_never_hit() {
    let folder = Folder::new();
    leave_a_snapshot(&folder);
    let engine = check_second(&Start { model: Digest(2), ..Start::default() }, &folder, 0);
    assert_eq!(engine.statistics().snapshots_loaded, 0);
    assert_eq!(folder.snapshots().len(), 2, "each model has its own");
}

#[test]
fn a_damaged_snapshot_is_removed_and_the_prompt_computed() {
    let folder = Folder::new();
    leave_a_snapshot(&folder);
    let path = &folder.snapshots()[0];
    let mut bytes = std::fs::read(path).expect("it can be read");
    *bytes.last_mut().expect("it is not empty") ^= 1;
    std::fs::write(path, bytes).expect("it can be written");
    check_second(&Start::default(), &folder, 0);
    check_second(&Start::default(), &folder, 64);
}

#[test]
fn a_device_that_refuses_pages_computes_instead() {
    let folder = Folder::new();
    leave_a_snapshot(&folder);
    let script = FaultScript::new().fail_transfers(1, TransferFault::Refused);
    check_second(&Start { script, ..Start::default() }, &folder, 0);
    let folder = Folder::new();
    let script = FaultScript::new().fail_transfers(1, TransferFault::Refused);
    let engine = check_second(&Start { script, ..Start::default() }, &folder, 0);
    assert_eq!(engine.statistics().snapshots_dropped, 1);
    assert!(folder.snapshots().is_empty());
}

#[test]
fn a_device_lost_after_the_import_goes_on_with_the_same_tokens() {
    let folder = Folder::new();
    leave_a_snapshot(&folder);
    for run in 1..4 {
        let script = FaultScript::new().at(run, Fault::DeviceLost(When::Before));
        let start = Start { script, ..Start::default() };
        check_second(&start, &folder, 64);
        assert_eq!(start.script.recoveries(), 1);
    }
}

#[test]
fn a_device_lost_while_pages_move_is_made_again_and_loses_nothing() {
    for fault in [TransferFault::DeviceLost, TransferFault::Panic] {
        // On their way out, when the request has its reply.
        let folder = Folder::new();
        let script = FaultScript::new().fail_transfers(1, fault);
        let start = Start { script, ..Start::default() };
        let engine = start.at(&folder);
        block_on(async {
            for _ in 0..2 {
                let reply = ask(&engine, request(prompt(1, 70), 10)).await;
                assert_eq!(reply.tokens, expected(&request(prompt(1, 70), 10)));
            }
            until(|| engine.statistics().snapshots_saved == 1).await;
            finish(&engine).await;
        });
        assert_eq!(start.script.recoveries(), 1, "{fault:?}");
        // On their way in, while a request waits for them.
        let script = FaultScript::new().fail_transfers(1, fault);
        let start = Start { script, ..Start::default() };
        check_second(&start, &folder, 0);
        assert_eq!(start.script.recoveries(), 1, "{fault:?}");
    }
}

#[test]
fn a_full_disk_costs_snapshots_and_nothing_else() {
    let folder = Folder::new();
    let start = Start::default();
    start.files.full.store(true, Ordering::Relaxed);
    let engine = check_second(&start, &folder, 0);
    let statistics = engine.statistics();
    assert_eq!((statistics.snapshots_saved, statistics.snapshots_dropped), (0, 1));
    assert!(folder.snapshots().is_empty());
}

#[test]
fn a_disk_that_hangs_while_it_writes_holds_nobody_up() {
    let folder = Folder::new();
    let start = Start { files: TestFiles { writing: Gate::shut(), ..TestFiles::open() }, ..Start::default() };
    let engine = start.at(&folder);
    block_on(async {
        for seed in 0..6 {
            let reply = ask(&engine, request(prompt(seed, 40), 5)).await;
            assert_eq!(reply.tokens, expected(&request(prompt(seed, 40), 5)));
            start.files.writing.wait_for_arrival(1);
        }
        // One is being written, one waits; the others are dropped.
        until(|| engine.statistics().snapshots_dropped == 4).await;
        start.files.writing.open();
        until(|| engine.statistics().snapshots_saved == 2).await;
        finish(&engine).await;
    });
}

#[test]
fn a_request_that_waits_for_the_disk_is_overtaken_and_then_hits() {
    let folder = Folder::new();
    leave_a_snapshot(&folder);
    let start = Start::with_reading_shut();
    let engine = start.at(&folder);
    block_on(async {
        let waiting = engine.submit(request(prompt(1, 70), 10)).await.expect("it is taken");
        start.files.reading.wait_for_arrival(1);
        let other = ask(&engine, request(prompt(7, 20), 5)).await;
        assert_eq!(other.tokens, expected(&request(prompt(7, 20), 5)));
        assert_eq!(engine.statistics().requests_waiting, 1);
        start.files.reading.open();
        let hit = read(waiting).await;
        assert_eq!((hit.usage().cached_tokens, &hit.tokens), (64, &expected(&request(prompt(1, 70), 10))));
        until(|| engine.statistics().kv_pages_used == 0).await;
        finish(&engine).await;
    });
}

#[test]
fn a_request_whose_client_leaves_while_it_waits_for_the_disk_leaves_nothing_behind() {
    let folder = Folder::new();
    leave_a_snapshot(&folder);
    let start = Start::with_reading_shut();
    let engine = start.at(&folder);
    block_on(async {
        let waiting = engine.submit(request(prompt(1, 70), 10)).await.expect("it is taken");
        start.files.reading.wait_for_arrival(1);
        drop(waiting);
        until(|| engine.statistics().requests_cancelled == 1).await;
        start.files.reading.open();
        let reply = ask(&engine, request(prompt(1, 70), 10)).await;
        assert_eq!(reply.tokens, expected(&request(prompt(1, 70), 10)));
        until(|| engine.statistics().kv_pages_used == 0).await;
        finish(&engine).await;
    });
}

#[test]
fn a_prefix_that_is_too_long_in_coming_is_computed() {
    let folder = Folder::new();
    leave_a_snapshot(&folder);
    let start = Start { load_time_max: Duration::ZERO, ..Start::with_reading_shut() };
    let engine = start.at(&folder);
    block_on(async {
        let reply = ask(&engine, request(prompt(1, 70), 10)).await;
        assert_eq!((reply.usage().cached_tokens, &reply.tokens), (0, &expected(&request(prompt(1, 70), 10))));
        start.files.reading.open();
        until(|| engine.statistics().kv_pages_used == 0).await;
        finish(&engine).await;
    });
}

#[test]
fn a_live_decode_waits_for_one_transfer_between_two_steps_at_the_most() {
    let folder = Folder::new();
    leave_a_snapshot(&folder);
    let start = Start { gate: Some(Gate::shut()), ..Start::default() };
    let gate = start.gate.clone().expect("it was just made");
    let engine = start.at(&folder);
    block_on(async {
        let decoding = engine.submit(request(prompt(7, 5), 240)).await.expect("it is taken");
        gate.allow(2);
        gate.wait_for_arrival(3);
        let hit = engine.submit(request(prompt(1, 70), 10)).await.expect("it is taken");
        start.files.reading.wait_for_arrival(1);
        // The decoding lane has steps enough for a read of some hundred bytes.
        while start.script.transfers().imported < 4 {
            gate.allow(1);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let transfers = start.script.transfers();
        assert_eq!((transfers.imported, transfers.imported_between_runs_max), (4, 1));
        gate.open();
        assert_eq!(read(hit).await.usage().cached_tokens, 64);
        assert_eq!(read(decoding).await.tokens, expected(&request(prompt(7, 5), 240)));
        until(|| engine.statistics().kv_pages_used == 0).await;
        finish(&engine).await;
    });
}

#[test]
fn a_small_pool_gives_up_snapshots_before_requests() {
    let folder = Folder::new();
    leave_a_snapshot(&folder);
    let limits = ExecutorLimits { pages: 6, ..scripted_limits() };
    let engine = Start { limits, ..Start::default() }.at(&folder);
    block_on(async {
        let requests = [1, 2, 3, 1, 2, 3].map(|seed| request(prompt(seed, 70), 20));
        let replies = support::ask_all(&engine, requests.into()).await;
        for (reply, seed) in replies.iter().zip([1, 2, 3, 1, 2, 3]) {
            assert_eq!(reply.tokens, expected(&request(prompt(seed, 70), 20)));
        }
        engine.drain().await;
        until(|| engine.statistics().kv_pages_used == 0).await;
        finish(&engine).await;
    });
}

#[test]
fn a_folder_that_another_engine_has_is_refused() {
    let folder = Folder::new();
    let engine = Start::default().at(&folder);
    let second = Start::default().try_at(&folder);
    assert!(matches!(second, Err(StartError::Snapshots(StoreError::InUse { .. }))), "{second:?}");
    block_on(async { finish(&engine).await });
    block_on(async { finish(&Start::default().at(&folder)).await });
}
