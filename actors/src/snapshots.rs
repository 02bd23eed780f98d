//! The two threads of the snapshot store: one writes, one reads, each behind a short queue.
//!
//! Nobody ever waits for the disk: a full queue drops what was to be kept, or says that there is nothing to
//! be had, and the engine computes instead.

use crate::guard::guarded;
use crate::shared::Shared;
use crossbeam_channel::{Receiver, Sender, bounded};
use lavalane_runtime::ids::TokenId;
use lavalane_runtime::snapshot::{
    FormatError, Image, LoadError, Saved, SnapshotIdentity, SnapshotStore, StoreError, StoredPrefix,
};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::oneshot;

/// Images that may wait to be written, beside the one that is being written: each may be as large as a
/// whole context's KV.
const SAVES_WAITING_MAX: usize = 1;

/// Prefixes that may wait to be read.
const LOADS_WAITING_MAX: usize = 4;

/// How long an engine that ends waits for what is still being written or read.
const END_TIME_MAX: Duration = Duration::from_secs(30);

struct Save {
    tokens: Vec<TokenId>,
    payload: Vec<u8>,
}

struct Load {
    prefix: StoredPrefix,
    first_page: usize,
    answer: oneshot::Sender<Result<Vec<u8>, LoadError>>,
}

/// The scheduler's way to the store. The threads end when it is dropped.
#[derive(Debug)]
pub(crate) struct SnapshotClient {
    store: Arc<SnapshotStore>,
    saves: Sender<Save>,
    loads: Sender<Load>,
}

/// Hears of both threads' end.
#[derive(Debug)]
pub(crate) struct SnapshotsEnd(Receiver<()>);

/// Why an image was not kept.
#[derive(Debug, thiserror::Error)]
enum NotKept {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error("writing it panicked: {0}")]
    Panicked(String),
}

impl SnapshotClient {
    /// The longest stored prefix of whole pages of `tokens`. It waits for no disk.
    pub(crate) fn find(&self, tokens: &[TokenId]) -> Option<StoredPrefix> {
        self.store.find(tokens)
    }

    /// Whether all whole pages of `tokens` are stored, or could never be, because they are too many.
    pub(crate) fn needs_no_save(&self, tokens: &[TokenId]) -> bool {
        let identity = self.identity();
        let pages = tokens.len() / identity.page_tokens as usize;
        let bytes = (pages as u64).saturating_mul(identity.page_bytes);
        bytes > self.store.statistics().bytes_max || self.store.covers(tokens)
    }

    /// Whose pages the store keeps.
    pub(crate) fn identity(&self) -> &SnapshotIdentity {
        self.store.identity()
    }

    /// Hands an image over to be written; false where the writer is busy with others.
    pub(crate) fn save(&self, tokens: Vec<TokenId>, payload: Vec<u8>) -> bool {
        self.saves.try_send(Save { tokens, payload }).is_ok()
    }

    /// Asks for the pages of a prefix from `first_page` on; `None` where the reader is busy with others.
    pub(crate) fn load(
        &self,
        prefix: StoredPrefix,
        first_page: usize,
    ) -> Option<oneshot::Receiver<Result<Vec<u8>, LoadError>>> {
        let (answer, receiver) = oneshot::channel();
        self.loads.try_send(Load { prefix, first_page, answer }).ok().map(|()| receiver)
    }
}

impl SnapshotsEnd {
    /// Waits until everything that was handed over is written and the folder is free, for a bounded time.
    pub(crate) fn wait(&self) {
        if let Err(crossbeam_channel::RecvTimeoutError::Timeout) = self.0.recv_timeout(END_TIME_MAX) {
            tracing::warn!("the disk does not answer: what is still being written is given up");
        }
    }
}

/// Starts both threads.
pub(crate) fn start(
    store: Arc<SnapshotStore>,
    shared: &Arc<Shared>,
) -> std::io::Result<(SnapshotClient, SnapshotsEnd)> {
    let (saves, waiting_saves) = bounded(SAVES_WAITING_MAX);
    let (loads, waiting_loads) = bounded::<Load>(LOADS_WAITING_MAX);
    let (end_of_writer, ended) = bounded::<()>(0);
    let end_of_reader = end_of_writer.clone();
    let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
    let (of_writer, of_reader) = (store.clone(), store.clone());
    let shared = shared.clone();
    thread("lavalane-snapshot-writer").spawn(move || {
        // The end is dropped last, so that the store is free when it is heard.
        let (_end, store) = (end_of_writer, of_writer);
        write(&store, &waiting_saves, &shared);
    })?;
    thread("lavalane-snapshot-reader").spawn(move || {
        let (_end, store) = (end_of_reader, of_reader);
        while let Ok(load) = waiting_loads.recv() {
            let read = guarded(|| store.load(&load.prefix, load.first_page, SystemTime::now()));
            if let Ok(read) = read {
                // Whoever gave up waiting has gone on without it.
                let _ = load.answer.send(read);
            }
        }
    })?;
    Ok((SnapshotClient { store, saves, loads }, SnapshotsEnd(ended)))
}

fn write(store: &SnapshotStore, saves: &Receiver<Save>, shared: &Shared) {
    // A disk that is full stays so for many images: it is said once.
    let mut was_well = true;
    while let Ok(Save { tokens, payload }) = saves.recv() {
        let saved = guarded(|| -> Result<Saved, NotKept> {
            let image = Image::new(store.identity().clone(), tokens, payload)?;
            Ok(store.save(&image, SystemTime::now())?)
        });
        let saved = saved.unwrap_or_else(|panicked| Err(NotKept::Panicked(panicked.0)));
        {
            let mut statistics = shared.statistics.lock();
            match &saved {
                Ok(Saved::Stored) => statistics.snapshots_saved += 1,
                Ok(Saved::Known | Saved::TooLarge | Saved::TooShort) => {}
                Err(_) => statistics.snapshots_dropped += 1,
            }
        }
        match &saved {
            Err(error) if was_well => tracing::warn!("snapshots cannot be kept: {error}"),
            Ok(_) if !was_well => tracing::info!("snapshots are kept again"),
            _ => {}
        }
        was_well = saved.is_ok();
    }
}
