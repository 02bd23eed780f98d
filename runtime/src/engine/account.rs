//! What the runners of batches share: the books of a batch's lanes, and what is drawn from a lane's logits.

use crate::batch::{BatchFaultCause, BatchOutcome, LaneFault, LaneOutcome, LogitsUse, PartialBatchError};
use crate::ids::{BatchId, LaneId, Position, TokenId};
use crate::sampling::{Sampled, Sampler};
use crate::vulkan::{RowLogits, VulkanError};

/// What became of a batch's lanes so far.
#[derive(Default)]
pub(super) struct Account {
    pub(super) ran: Vec<LaneOutcome>,
    pub(super) faulted: Vec<LaneFault>,
    pub(super) not_run: Vec<LaneId>,
    pub(super) cut: Option<BatchFaultCause>,
}

impl Account {
    /// The answer to the batch of `lanes`.
    ///
    /// # Panics
    /// When a lane is missing or accounted for twice.
    pub(super) fn answer(self, batch: BatchId, lanes: &[LaneId]) -> Result<BatchOutcome, PartialBatchError> {
        let Self { ran, faulted, not_run, cut } = self;
        if faulted.is_empty() && not_run.is_empty() {
            return Ok(BatchOutcome { batch, ran });
        }
        let cause = cut.unwrap_or(BatchFaultCause::Lanes);
        Err(PartialBatchError::new(batch, lanes, ran, faulted, not_run, cause))
    }
}

/// Which rows' logits a use needs.
pub(super) fn row_logits(logits: LogitsUse) -> RowLogits {
    match logits {
        LogitsUse::None => RowLogits::None,
        LogitsUse::SampleLast => RowLogits::Last,
        LogitsUse::PredictAll => RowLogits::All,
    }
}

/// Draws what `used` asks for from the logits of a lane that ran `tokens` from `from` on; `None` where
/// logits are not finite.
pub(super) fn draw(
    sampler: &Sampler,
    used: LogitsUse,
    from: Position,
    tokens: &[TokenId],
    logits: &[Vec<f32>],
) -> Option<Vec<Sampled>> {
    match used {
        LogitsUse::None => Some(Vec::new()),
        LogitsUse::SampleLast => {
            let to = from.advance(tokens.len());
            logits.iter().map(|row| sampler.draw(row, to)).collect()
        }
        LogitsUse::PredictAll => sampler.draw_each(from, tokens, logits),
    }
}

/// What cut a batch whose submission number `submission` failed.
pub(super) fn cut_by(error: VulkanError, submission: usize) -> BatchFaultCause {
    match error {
        VulkanError::DeviceLost(reason) => BatchFaultCause::DeviceLost(reason),
        other => BatchFaultCause::Submission { submission, reason: other.to_string() },
    }
}
