//! The engine's two threads: one runs the actors on a system of their own, one owns the executor. Where
//! snapshots are kept, there are two more for their files.

use crate::executor;
use crate::guard::guarded;
use crate::scheduler::Scheduler;
use crate::settings::StartError;
use crate::shared::Shared;
use crate::snapshots;
use crate::status::Health;
use actix::{Actor, Addr, System};
use lavalane_runtime::batch::BatchExecutor;
use lavalane_runtime::snapshot::SnapshotStore;
use lavalane_runtime::tokenizer::TokenText;
use std::sync::Arc;

const ACTORS: &str = "lavalane-actors";
const EXECUTOR: &str = "lavalane-executor";
const SNAPSHOTS: &str = "lavalane-snapshots";

/// Starts both threads and waits for the scheduler's address.
pub(crate) fn start(
    executor: Box<dyn BatchExecutor>,
    tokenizer: Arc<dyn TokenText>,
    store: Option<Arc<SnapshotStore>>,
    shared: &Arc<Shared>,
) -> Result<Addr<Scheduler>, StartError> {
    let (client, executor_thread) =
        executor::start(executor).map_err(|source| StartError::Thread { name: EXECUTOR, source })?;
    let snapshots = store.map(|store| snapshots::start(store, shared)).transpose();
    let snapshots = snapshots.map_err(|source| StartError::Thread { name: SNAPSHOTS, source })?;
    let (snapshots, snapshots_end) = snapshots.unzip();
    let (give_address, address) = crossbeam_channel::bounded(1);
    let shared = shared.clone();
    let actors = move || {
        let for_scheduler = shared.clone();
        let ended = guarded(move || {
            let system = System::new();
            system.block_on(async move {
                Scheduler::new(client, snapshots, tokenizer, for_scheduler, give_address).start();
            });
            system.run()
        });
        if !shared.is_executor_given_up() && executor_thread.join().is_err() {
            tracing::error!("the executor's thread panicked");
        }
        snapshots_end.iter().for_each(snapshots::SnapshotsEnd::wait);
        // The scheduler says why it ended, where it can; only then is what is said here not heard.
        shared.set_health(match ended {
            Ok(Ok(())) => Health::Stopped,
            Ok(Err(error)) => Health::Dead { reason: format!("the actor system failed: {error}") },
            Err(panicked) => Health::Dead { reason: format!("the actor system panicked: {panicked}") },
        });
    };
    std::thread::Builder::new()
        .name(ACTORS.to_owned())
        .spawn(actors)
        .map_err(|source| StartError::Thread { name: ACTORS, source })?;
    address.recv().map_err(|_| StartError::ActorSystem)
}
