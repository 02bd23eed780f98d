//! Snapshots in the scheduler: prefixes of prompts come from the disk into the prefix tree before their
//! requests are admitted, and finished sequences' pages go out to it.
//!
//! The disk is read and written on threads of its own. Pages pass through the executor between two
//! batches, a few at a time, so that a live decode waits for no more than that. What is on its way holds
//! its pages; where those are needed for a request, it is given up.

use super::Scheduler;
use super::pages::Held;
use crate::lane::ticket::Ticket;
use crate::lifecycle::LifecycleEvent;
use crate::settings::SnapshotSettings;
use crate::snapshots::SnapshotClient;
use crate::status::RequestId;
use actix::Context;
use lavalane_runtime::batch::PageTransferError;
use lavalane_runtime::ids::{PageId, Position, TokenId};
use lavalane_runtime::snapshot::{LoadError, StoredPrefix};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::oneshot::error::RecvError;
use tokio::time::error::Elapsed;

/// Prefixes that may be on their way in at one time: each may take as much memory as a context's KV.
const LOADS_MAX: usize = 2;

/// Sequences that may be on their way out at one time.
const EXPORTS_MAX: usize = 4;

/// What the reader's thread answers, if it does in time.
type Loaded = Result<Result<Result<Vec<u8>, LoadError>, RecvError>, Elapsed>;

/// Everything that is on its way.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    client: Option<SnapshotClient>,
    /// Pages of one transfer.
    chunk_pages: usize,
    /// How long a request waits for the disk.
    load_time_max: Duration,
    loads: Vec<Load>,
    imports: VecDeque<Import>,
    exports: VecDeque<Export>,
}

/// A prefix that is being read.
#[derive(Debug)]
struct Load {
    prefix: StoredPrefix,
    waiters: Vec<RequestId>,
}

/// A prefix whose pages are being filled.
#[derive(Debug)]
struct Import {
    waiters: Vec<RequestId>,
    /// The tokens of its pages.
    tokens: Vec<TokenId>,
    held: Held,
    /// The first of its pages that is not filled yet.
    next: usize,
    payload: Vec<u8>,
    /// How many of those bytes are used up.
    used_bytes: usize,
}

/// A sequence whose pages are being read out.
#[derive(Debug)]
struct Export {
    tokens: Vec<TokenId>,
    held: Held,
    payload: Vec<u8>,
}

impl Transfers {
    pub(super) fn new(client: Option<SnapshotClient>, settings: Option<&SnapshotSettings>) -> Self {
        let (Some(client), Some(settings)) = (client, settings) else { return Self::default() };
        let page_bytes = client.identity().page_bytes.max(1);
        let chunk_pages = (settings.transfer_bytes_max as u64 / page_bytes).max(1) as usize;
        let load_time_max = settings.load_time_max;
        Self { client: Some(client), chunk_pages, load_time_max, ..Self::default() }
    }

    /// Whether a request waits for its prefix.
    pub(super) fn is_awaited_by(&self, request: RequestId) -> bool {
        let loads = self.loads.iter().map(|load| &load.waiters);
        loads.chain(self.imports.iter().map(|import| &import.waiters)).any(|all| all.contains(&request))
    }

    /// Whether pages are to be moved.
    pub(super) fn has_work(&self) -> bool {
        !self.imports.is_empty() || !self.exports.is_empty()
    }

    /// Forgets all that pass through the device, whose memory is gone; their requests go on without.
    pub(super) fn forget(&mut self) {
        self.imports.clear();
        self.exports.clear();
    }

    fn page_bytes(&self) -> usize {
        self.client.as_ref().map_or(0, |client| client.identity().page_bytes as usize)
    }
}

impl Scheduler {
    /// Begins to read a waiting request's prefix, where the disk has more of it than the device.
    pub(super) fn seek(&mut self, request: RequestId, context: &mut Context<Self>) {
        let Some(client) = &self.transfers.client else { return };
        let ticket = self.waiting.iter().map(|(_, ticket)| ticket).find(|ticket| ticket.id == request);
        let Some(transcript) = ticket.map(|ticket| ticket.transcript()) else { return };
        // The last token is left to compute.
        let Some(prefix) = client.find(&transcript[..transcript.len() - 1]) else { return };
        let page_tokens = self.shared.limits.page_tokens;
        let live = self.pages.known(transcript).unwrap_or(0) / page_tokens;
        if prefix.pages() <= live {
            return;
        }
        if let Some(load) = self.transfers.loads.iter_mut().find(|load| load.prefix == prefix) {
            return load.waiters.push(request);
        }
        if self.transfers.loads.len() + self.transfers.imports.len() >= LOADS_MAX {
            return;
        }
        let Some(answer) = client.load(prefix, live) else { return };
        let tokens = transcript[..prefix.pages() * page_tokens].to_vec();
        self.transfers.loads.push(Load { prefix, waiters: vec![request] });
        let time_max = self.transfers.load_time_max;
        let answer = async move { tokio::time::timeout(time_max, answer).await };
        self.then(answer, context, move |scheduler, loaded, context| {
            scheduler.take_in(prefix, live, tokens, loaded);
            scheduler.wake(context);
        });
    }

    /// Takes in what was read, pages `first..` of a prefix.
    fn take_in(&mut self, prefix: StoredPrefix, first: usize, tokens: Vec<TokenId>, loaded: Loaded) {
        let load = self.transfers.loads.iter().position(|load| load.prefix == prefix);
        let Some(load) = load.map(|index| self.transfers.loads.swap_remove(index)) else { return };
        let payload = match loaded {
            Ok(Ok(Ok(payload))) => payload,
            Ok(Ok(Err(error))) => return tracing::warn!("a snapshot is of no use: {error}"),
            Ok(Err(_)) => return tracing::warn!("reading a snapshot failed"),
            Err(_) => {
                return tracing::warn!("reading a snapshot takes too long: the prompt is computed instead");
            }
        };
        let waiting = |request: &RequestId| self.waiting.iter().any(|(_, ticket)| ticket.id == *request);
        let waiters: Vec<RequestId> = load.waiters.into_iter().filter(waiting).collect();
        if waiters.is_empty() {
            return;
        }
        let Some((held, live)) = self.pages.hold_prefix(&tokens) else { return };
        if live < first || live * self.shared.limits.page_tokens >= tokens.len() {
            // What was live has been evicted since, or everything has been computed since.
            return self.pages.release(held);
        }
        let used_bytes = (live - first) * self.transfers.page_bytes();
        self.transfers.imports.push_back(Import { waiters, tokens, held, next: live, payload, used_bytes });
    }

    /// Notes that a sequence has ended whose first `valid` tokens are surely in its pages: they are to be
    /// kept, unless they are already or too many others are on their way.
    pub(super) fn keep(&mut self, held: &Held, ticket: &Ticket, valid: Position) {
        let Some(client) = &self.transfers.client else { return };
        let page_tokens = self.shared.limits.page_tokens;
        let pages = valid.tokens() / page_tokens;
        let tokens = &ticket.transcript()[..pages * page_tokens];
        if pages == 0 || client.needs_no_save(tokens) {
            return;
        }
        if self.transfers.exports.iter().any(|export| export.tokens.starts_with(tokens)) {
            return;
        }
        if self.transfers.exports.len() >= EXPORTS_MAX {
            self.shared.statistics.lock().snapshots_dropped += 1;
            return;
        }
        let held = self.pages.hold_again(held, pages);
        let payload = Vec::with_capacity(pages * self.transfers.page_bytes());
        self.transfers.exports.push_back(Export { tokens: tokens.to_vec(), held, payload });
    }

    /// Moves some pages, if any are to be moved, and goes on to the plan. Those that a request waits for
    /// go first.
    pub(super) fn transfer(&mut self, context: &mut Context<Self>) {
        let (chunk, page_bytes) = (self.transfers.chunk_pages, self.transfers.page_bytes());
        if let Some(import) = self.transfers.imports.front_mut() {
            let pages: Vec<PageId> =
                import.held.all().iter().skip(import.next).take(chunk).copied().collect();
            let bytes = import.payload[import.used_bytes..][..pages.len() * page_bytes].to_vec();
            import.used_bytes += bytes.len();
            import.next += pages.len();
            match self.executor.import(pages, bytes) {
                Some(answer) => self.then(answer, context, |scheduler, answer, context| {
                    let answer = answer.unwrap_or_else(|_| Err(thread_ended()));
                    scheduler.transferred(answer, Self::imported, Self::give_up_import, context);
                }),
                None => self.die("the executor's thread has ended", context),
            }
        } else if let Some(export) = self.transfers.exports.front() {
            let done = export.payload.len() / page_bytes.max(1);
            let pages: Vec<PageId> = export.held.all().iter().skip(done).take(chunk).copied().collect();
            match self.executor.export(pages) {
                Some(answer) => self.then(answer, context, |scheduler, answer, context| {
                    let answer = answer.unwrap_or_else(|_| Err(thread_ended()));
                    scheduler.transferred(answer, Self::exported, Self::give_up_export, context);
                }),
                None => self.die("the executor's thread has ended", context),
            }
        } else {
            self.prepare(context);
        }
    }

    fn transferred<T>(
        &mut self,
        answer: Result<T, PageTransferError>,
        done: fn(&mut Self, T),
        give_up: fn(&mut Self),
        context: &mut Context<Self>,
    ) {
        match answer {
            Ok(moved) => done(self, moved),
            Err(PageTransferError::DeviceLost(reason) | PageTransferError::ExecutorDied(reason)) => {
                return self.lose_device(reason, context);
            }
            Err(error) => {
                tracing::warn!("a snapshot is given up: {error}");
                give_up(self);
            }
        }
        self.publish_gauges();
        self.prepare(context);
    }

    /// Makes a prefix findable once all its pages are filled.
    fn imported(&mut self, (): ()) {
        let all_filled = |import: &Import| import.next == import.held.len();
        if !self.transfers.imports.front().is_some_and(all_filled) {
            return;
        }
        if let Some(import) = self.transfers.imports.pop_front() {
            let valid = Position::START.advance(import.tokens.len());
            self.pages.finish(import.held, &import.tokens, valid);
            self.shared.statistics.lock().snapshots_loaded += 1;
            self.shared.publish(&LifecycleEvent::Imported { tokens: valid.tokens() });
        }
    }

    fn give_up_import(&mut self) {
        if let Some(import) = self.transfers.imports.pop_front() {
            self.pages.release(import.held);
        }
    }

    /// Hands a sequence over to be written once all its pages are read out.
    fn exported(&mut self, bytes: Vec<u8>) {
        let page_bytes = self.transfers.page_bytes();
        let Some(export) = self.transfers.exports.front_mut() else { return };
        export.payload.extend(bytes);
        if export.payload.len() < export.held.len() * page_bytes {
            return;
        }
        if let Some(export) = self.transfers.exports.pop_front() {
            self.pages.release(export.held);
            self.shared.publish(&LifecycleEvent::Exported { tokens: export.tokens.len() });
            let client = self.transfers.client.as_ref();
            if !client.is_some_and(|client| client.save(export.tokens, export.payload)) {
                self.shared.statistics.lock().snapshots_dropped += 1;
            }
        }
    }

    fn give_up_export(&mut self) {
        if let Some(export) = self.transfers.exports.pop_front() {
            self.pages.release(export.held);
            self.shared.statistics.lock().snapshots_dropped += 1;
        }
    }

    /// Gives up everything that holds pages; false where that is nothing.
    pub(super) fn give_up_transfers(&mut self) -> bool {
        let had_work = self.transfers.has_work();
        while !self.transfers.imports.is_empty() {
            self.give_up_import();
        }
        while !self.transfers.exports.is_empty() {
            self.give_up_export();
        }
        had_work
    }
}

fn thread_ended() -> PageTransferError {
    PageTransferError::ExecutorDied("its thread ended while pages were moved".to_owned())
}
