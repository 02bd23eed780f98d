//! What the runners of batches share: the books of a batch's lanes, and what is drawn from a lane's logits.

use crate::batch::{BatchFaultCause, BatchOutcome, LaneFault, LaneOutcome, LogitsUse, PartialBatchError};
use crate::cores::cores;
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

/// What a lane draws from the logits of the rows that it ran.
#[derive(Clone, Copy)]
pub(super) struct Draw<'a> {
    pub(super) sampler: &'a Sampler,
    pub(super) used: LogitsUse,
    /// The position of the first of the tokens that ran.
    pub(super) from: Position,
    pub(super) tokens: &'a [TokenId],
}

impl Draw<'_> {
    /// `None` where logits are not finite.
    fn draw(self, logits: &[Vec<f32>]) -> Option<Vec<Sampled>> {
        match self.used {
            LogitsUse::None => Some(Vec::new()),
            LogitsUse::SampleLast => {
                let to = self.from.advance(self.tokens.len());
                logits.iter().map(|row| self.sampler.draw(row, to)).collect()
            }
            LogitsUse::PredictAll => self.sampler.draw_each(self.from, self.tokens, logits),
        }
    }
}

/// The least that a thread of its own is worth, in logits: some tenths of a millisecond's work.
const LOGITS_PER_THREAD: usize = 1 << 17;

/// Draws for each lane from the logits of its rows, in order; `None` where they are not finite. What a lane draws
/// depends on nothing but its own logits and sampler: so all cores take part where there is much to look at.
pub(super) fn draw_all(draws: &[Draw<'_>], logits: &[Vec<Vec<f32>>]) -> Vec<Option<Vec<Sampled>>> {
    let draw_some = |draws: &[Draw<'_>], logits: &[Vec<Vec<f32>>]| -> Vec<Option<Vec<Sampled>>> {
        draws.iter().zip(logits).map(|(draw, rows)| draw.draw(rows)).collect()
    };
    let all: usize = logits.iter().flatten().map(Vec::len).sum();
    let threads = (all / LOGITS_PER_THREAD).min(cores()).min(draws.len());
    if threads < 2 {
        return draw_some(draws, logits);
    }
    let share = draws.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let others = draws.chunks(share).zip(logits.chunks(share)).skip(1).map(|(draws, logits)| {
            let draw_share = move || draw_some(draws, logits);
            (std::thread::Builder::new().spawn_scoped(scope, draw_share), draw_share)
        });
        let others: Vec<_> = others.collect();
        let mut drawn = draw_some(&draws[..share], &logits[..share]);
        for (thread, draw_share) in others {
            drawn.extend(match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // The system has no thread to give.
                Err(_) => draw_share(),
            });
        }
        drawn
    })
}

/// What cut a batch whose submission number `submission` failed.
pub(super) fn cut_by(error: VulkanError, submission: usize) -> BatchFaultCause {
    match error {
        VulkanError::DeviceLost(reason) => BatchFaultCause::DeviceLost(reason),
        other => BatchFaultCause::Submission { submission, reason: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{SamplingOptions, SamplingSettings};

    #[test]
    fn lanes_that_are_drawn_side_by_side_draw_what_each_draws_alone() {
        let lanes = 5;
        let sampler = |lane: u32| {
            let options = SamplingOptions { temperature: 0.5 * lane as f32, ..SamplingOptions::default() };
            Sampler::new(SamplingSettings::new(options, 0).expect("the options are in range"), lane)
        };
        let samplers: Vec<Sampler> = (0..lanes).map(sampler).collect();
        let draw = |(lane, sampler)| Draw {
            sampler,
            used: if lane == 1 { LogitsUse::None } else { LogitsUse::SampleLast },
            from: Position::default(),
            tokens: &[TokenId(3), TokenId(7)],
        };
        let draws: Vec<Draw<'_>> = samplers.iter().enumerate().map(draw).collect();
        let row = |lane: usize| -> Vec<f32> {
            (0..LOGITS_PER_THREAD).map(|at| ((at * 7919 + lane * 104_729) % 10_007) as f32 * 1e-3).collect()
        };
        let mut logits: Vec<Vec<Vec<f32>>> = (0..lanes as usize).map(|lane| vec![row(lane)]).collect();
        logits[1].clear();
        logits[4][0][3] = f32::NAN;
        let drawn = draw_all(&draws, &logits);
        assert_eq!(drawn.len(), draws.len());
        for ((draw, rows), drawn) in draws.iter().zip(&logits).zip(&drawn) {
            assert_eq!(*drawn, draw.draw(rows));
        }
        let tokens: Vec<Option<usize>> = drawn.iter().map(|drawn| drawn.as_ref().map(Vec::len)).collect();
        assert_eq!(tokens, [Some(1), Some(0), Some(1), Some(1), None]);
    }
}
