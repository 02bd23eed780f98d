//! Iteration batches and their outcomes: what one step of the engine runs, and what came of it.
//!
//! A batch is rows. Every row is one token of one lane at one position; decode, prefill slices and
//! verify spans differ only in how many rows a lane brings. An answer names every lane of the batch
//! exactly once, so that a failure in the middle advances only the lanes that ran.

use crate::ids::{BatchId, Generation, LaneId, PageId, Position, TokenId};
use crate::sampling::Sampled;
use crate::session::Session;
use crate::snapshot::SnapshotIdentity;
use std::collections::HashSet;

/// Which rows of a lane's work need logits, and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsUse {
    /// No row's: an intermediate prefill slice.
    None,
    /// The last row's, from which one token is drawn.
    SampleLast,
    /// Every row's, from each of which is drawn what would follow there: a verify span. The draw is the
    /// one of a decode step at that place ([`crate::sampling::Sampler::draw_each`]), whatever the settings.
    PredictAll,
}

/// One lane's part of a batch.
#[derive(Debug)]
pub struct LaneWork {
    /// The lane.
    pub lane: LaneId,
    /// The lane's owner when the batch was planned.
    pub generation: Generation,
    /// The lane's session, which moves with the batch and comes back in [`BatchDone`]. Its page
    /// table already covers `from + tokens.len()` tokens.
    pub session: Session,
    /// The position of the first row; equals the session's length.
    pub from: Position,
    /// The tokens to run, one row each; never empty.
    pub tokens: Vec<TokenId>,
    /// What the rows' logits are for.
    pub logits: LogitsUse,
}

/// A page whose content is copied before the batch runs, because its owner will write to it while
/// others read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// The shared page.
    pub from: PageId,
    /// The page that takes the copy.
    pub to: PageId,
}

/// What one step of the engine runs.
#[derive(Debug)]
pub struct IterationBatch {
    /// The batch's id.
    pub id: BatchId,
    /// Page copies to make first, in order.
    pub copies: Vec<PageCopy>,
    /// The lanes' parts; each lane at most once.
    pub work: Vec<LaneWork>,
}

/// A lane that ran.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneOutcome {
    /// The lane.
    pub lane: LaneId,
    /// Its position before the step.
    pub from: Position,
    /// Its position after it, as the device reported it.
    pub to: Position,
    /// What was drawn: nothing, one token, or a prediction per row.
    pub sampled: Vec<Sampled>,
}

/// A lane that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneFault {
    /// The lane.
    pub lane: LaneId,
    /// Why.
    pub cause: LaneFaultCause,
}

/// Why one lane failed while others may have run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneFaultCause {
    /// The lane's logits held a NaN or an infinity.
    #[error("the model's output for this sequence is not finite")]
    LogitsNotFinite,
    /// No memory for this lane.
    #[error("no device memory left for this sequence")]
    OutOfMemory,
    /// The three counts of the lane's position disagree.
    #[error(
        "position mismatch: the lane tracked {tracked}, its session holds {session}, the device holds {device}"
    )]
    PositionMismatch {
        /// The position that the lane tracked.
        tracked: usize,
        /// The session's length.
        session: usize,
        /// The length that the device wrote.
        device: usize,
    },
    /// The lane's work broke a rule of the contract.
    #[error("invalid work: {0}")]
    InvalidWork(&'static str),
    /// The lane's code panicked.
    #[error("the lane's code panicked: {0}")]
    Panicked(String),
}

/// Why a batch was cut short.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchFaultCause {
    /// Lanes failed on their own; the others ran.
    #[error("some lanes failed on their own")]
    Lanes,
    /// A submission to the device failed; the device is still there.
    #[error("submission {submission} of the batch failed: {reason}")]
    Submission {
        /// Which submission, counted from 0.
        submission: usize,
        /// What the driver said.
        reason: String,
    },
    /// The device is lost, with everything in its memory.
    #[error("the device is lost: {0}")]
    DeviceLost(String),
    /// The executor panicked or its thread ended.
    #[error("the executor died: {0}")]
    ExecutorDied(String),
}

/// A batch in which every lane ran.
#[derive(Debug)]
pub struct BatchOutcome {
    /// The batch.
    pub batch: BatchId,
    /// The lanes, in the batch's order.
    pub ran: Vec<LaneOutcome>,
}

/// A batch in which some lane did not run: only the lanes in `ran` advance.
#[derive(Debug, thiserror::Error)]
#[error("batch {batch}: {} lanes ran, {} failed, {} did not run: {cause}", ran.len(), faulted.len(), not_run.len())]
pub struct PartialBatchError {
    batch: BatchId,
    ran: Vec<LaneOutcome>,
    faulted: Vec<LaneFault>,
    not_run: Vec<LaneId>,
    cause: BatchFaultCause,
}

/// What a batch's end means for one lane.
#[derive(Clone, Debug, PartialEq)]
pub enum LaneVerdict {
    /// It ran: the lane advances.
    Advance(LaneOutcome),
    /// It did not run: the lane keeps its position and is tried again.
    Hold(LaneId),
    /// It failed: the lane ends, and its client is told why.
    Fault(LaneFault),
}

impl LaneVerdict {
    /// The lane that the verdict is about.
    pub fn lane(&self) -> LaneId {
        match self {
            Self::Advance(outcome) => outcome.lane,
            Self::Hold(lane) => *lane,
            Self::Fault(fault) => fault.lane,
        }
    }
}

impl PartialBatchError {
    /// Accounts for every lane of `lanes` (the batch's lanes) once.
    ///
    /// # Panics
    /// When the three lists overlap, repeat a lane, or together are not exactly `lanes`: that is a
    /// broken invariant of the executor, never an operating error.
    pub fn new(
        batch: BatchId,
        lanes: &[LaneId],
        ran: Vec<LaneOutcome>,
        faulted: Vec<LaneFault>,
        not_run: Vec<LaneId>,
        cause: BatchFaultCause,
    ) -> Self {
        let mut seen = HashSet::with_capacity(lanes.len());
        let named = ran.iter().map(|outcome| outcome.lane);
        let named = named.chain(faulted.iter().map(|fault| fault.lane)).chain(not_run.iter().copied());
        for lane in named {
            assert!(seen.insert(lane), "lane {lane} is named twice in the answer to batch {batch}");
            assert!(lanes.contains(&lane), "lane {lane} is not in batch {batch}");
        }
        assert_eq!(seen.len(), lanes.len(), "the answer to batch {batch} leaves out a lane");
        Self { batch, ran, faulted, not_run, cause }
    }

    /// The batch.
    pub fn batch(&self) -> BatchId {
        self.batch
    }

    /// Why the batch was cut short.
    pub fn cause(&self) -> &BatchFaultCause {
        &self.cause
    }

    /// The lanes that ran, and so have advanced.
    pub fn ran(&self) -> &[LaneOutcome] {
        &self.ran
    }

    /// The lanes that failed.
    pub fn faulted(&self) -> &[LaneFault] {
        &self.faulted
    }

    /// The lanes that did not run and are as they were.
    pub fn not_run(&self) -> &[LaneId] {
        &self.not_run
    }

    /// Uses up the error: exactly one verdict per lane of the batch.
    pub fn discharge(self) -> Vec<LaneVerdict> {
        let ran = self.ran.into_iter().map(LaneVerdict::Advance);
        let faulted = self.faulted.into_iter().map(LaneVerdict::Fault);
        let not_run = self.not_run.into_iter().map(LaneVerdict::Hold);
        ran.chain(faulted).chain(not_run).collect()
    }
}

impl BatchOutcome {
    /// Uses up the outcome: one verdict per lane, each to advance.
    pub fn discharge(self) -> Vec<LaneVerdict> {
        self.ran.into_iter().map(LaneVerdict::Advance).collect()
    }
}

/// The answer to a batch: what came of it, and the sessions back.
#[derive(Debug)]
pub struct BatchDone {
    /// What ran.
    pub result: Result<BatchOutcome, PartialBatchError>,
    /// Every session of the batch, whatever came of its lane. Sessions of lanes that ran have
    /// advanced; the others are as they were.
    pub sessions: Vec<(LaneId, Session)>,
}

/// What an executor can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorLimits {
    /// The most rows of one batch, over all lanes.
    pub batch_rows_max: usize,
    /// The most rows of one lane in a batch.
    pub lane_rows_max: usize,
    /// The most lanes: the length of the device's buffer of KV lengths.
    pub lanes_max: usize,
    /// The tokens that one sequence may hold.
    pub context_tokens_max: usize,
    /// Tokens per KV page.
    pub page_tokens: usize,
    /// Pages in the pool.
    pub pages: usize,
    /// The vocabulary's size: sampled ids lie below.
    pub vocabulary: usize,
}

/// Why pages could not be exported or imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageTransferError {
    /// The pool has no such page.
    #[error("KV page {page} is not one of the pool's {pages}")]
    UnknownPage {
        /// The page.
        page: PageId,
        /// Pages in the pool.
        pages: usize,
    },
    /// The bytes are not as many as the pages take.
    #[error("{given} bytes were given for {pages} KV pages of {page_bytes} bytes each")]
    WrongSize {
        /// How many bytes were given.
        given: usize,
        /// How many pages were named.
        pages: usize,
        /// Bytes of one page.
        page_bytes: u64,
    },
    /// The device is lost, with everything in its memory.
    #[error("the device is lost: {0}")]
    DeviceLost(String),
    /// The device refused.
    #[error("the device refused to move KV pages: {0}")]
    Device(String),
    /// The executor panicked or its thread ended.
    #[error("the executor died: {0}")]
    ExecutorDied(String),
}

impl PageTransferError {
    /// Checks that the pool has each of `pages`, and that `given` bytes are what they take.
    ///
    /// # Errors
    /// [`Self::UnknownPage`] or [`Self::WrongSize`].
    pub fn check(
        pages: &[PageId],
        given: usize,
        pool_pages: usize,
        page_bytes: u64,
    ) -> Result<(), PageTransferError> {
        if let Some(&page) = pages.iter().find(|page| page.index() >= pool_pages) {
            return Err(Self::UnknownPage { page, pages: pool_pages });
        }
        if (pages.len() as u64).checked_mul(page_bytes) != Some(given as u64) {
            return Err(Self::WrongSize { given, pages: pages.len(), page_bytes });
        }
        Ok(())
    }
}

/// Runs batches on one device group. It is owned by one plain thread, the only one that touches the
/// group's queues.
pub trait BatchExecutor: Send {
    /// What this executor can take; constant over its life.
    fn limits(&self) -> ExecutorLimits;

    /// Runs one batch to its end and accounts for each of its lanes.
    fn run(&mut self, batch: IterationBatch) -> BatchDone;

    /// Makes a new device after a loss and uploads the model again. All KV content is gone, and
    /// every session made before is void.
    ///
    /// # Errors
    /// The device cannot be made again; the text says why.
    fn recover(&mut self) -> Result<(), String>;

    /// Makes ready a part of what later batches may need and the first ones do without; called while there is
    /// nothing to run. Whether there is more to make ready.
    fn prepare(&mut self) -> bool {
        false
    }

    /// What decides the content of a page besides its tokens; constant over the executor's life. The first
    /// call may take as long as reading the model's file.
    fn identity(&self) -> SnapshotIdentity;

    /// The content of pages, in order: `pages.len()` times the identity's `page_bytes`. What lies beyond the
    /// tokens that a sequence holds is garbage. Nothing of the executor's state changes.
    ///
    /// # Errors
    /// A page that the pool has not, or the device's refusal or loss.
    fn export_pages(&mut self, pages: &[PageId]) -> Result<Vec<u8>, PageTransferError>;

    /// Replaces the content of pages by `bytes`, which an executor of an equal identity exported: rows that
    /// attend to them afterwards get the same bits as if the tokens had run here. The caller owns the pages
    /// alone, and knows that the bytes are whole.
    ///
    /// # Errors
    /// A page that the pool has not, too few or too many bytes (nothing is written then), or the device's
    /// refusal or loss (the pages hold garbage then).
    fn import_pages(&mut self, pages: &[PageId], bytes: &[u8]) -> Result<(), PageTransferError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(lane: u32) -> LaneOutcome {
        LaneOutcome {
            lane: LaneId(lane),
            from: Position::START,
            to: Position::START.advance(1),
            sampled: Vec::new(),
        }
    }

    fn partial(lanes: &[u32], ran: &[u32], faulted: &[u32], not_run: &[u32]) -> PartialBatchError {
        let ids = |lanes: &[u32]| lanes.iter().copied().map(LaneId).collect::<Vec<_>>();
        let faults =
            ids(faulted).into_iter().map(|lane| LaneFault { lane, cause: LaneFaultCause::OutOfMemory });
        PartialBatchError::new(
            BatchId(1),
            &ids(lanes),
            ran.iter().copied().map(outcome).collect(),
            faults.collect(),
            ids(not_run),
            BatchFaultCause::Lanes,
        )
    }

    #[test]
    fn discharge_yields_one_verdict_per_lane() {
        let verdicts = partial(&[1, 2, 3], &[2], &[3], &[1]).discharge();
        let mut lanes: Vec<u32> = verdicts.iter().map(|verdict| verdict.lane().0).collect();
        lanes.sort_unstable();
        assert_eq!(lanes, [1, 2, 3]);
    }

    #[test]
    #[should_panic(expected = "named twice")]
    fn a_lane_in_two_lists_is_refused() {
        partial(&[1, 2], &[1, 2], &[2], &[]);
    }

    #[test]
    #[should_panic(expected = "leaves out a lane")]
    fn a_lane_in_no_list_is_refused() {
        partial(&[1, 2], &[1], &[], &[]);
    }

    #[test]
    #[should_panic(expected = "not in batch")]
    fn a_foreign_lane_is_refused() {
        partial(&[1], &[1, 7], &[], &[]);
    }
}
