//! Measuring an engine: prefill and decode rates over lanes, and the time per kernel of a step.
//!
//! The figures are of the executor alone: no scheduler, no sockets. Rates are medians over repeats.

use super::{EngineError, VulkanExecutor, WindowRunner};
use crate::batch::{BatchExecutor, IterationBatch, LaneWork, LogitsUse};
use crate::ids::{BatchId, Generation, LaneId, PageId, TokenId};
use crate::sampling::{Sampler, SamplingSettings};
use crate::session::{LengthSlot, Session};
use crate::vulkan::{StageTime, VulkanError};
use std::time::Instant;

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The engine could not be made.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A step failed.
    #[error(transparent)]
    Step(#[from] VulkanError),
    /// A batch was cut short.
    #[error(transparent)]
    Batch(#[from] crate::batch::PartialBatchError),
    /// The engine has too few lanes, pages or tokens of context for the measurement.
    #[error("the measurement needs {needed} {what} and the engine has {available}")]
    TooSmall {
        /// What there is too little of.
        what: &'static str,
        /// How many are needed.
        needed: usize,
        /// How many there are.
        available: usize,
    },
}

/// The median of some rates.
///
/// # Panics
/// When there is none.
pub fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    let middle = rates.len() / 2;
    if rates.len().is_multiple_of(2) { (rates[middle - 1] + rates[middle]) / 2.0 } else { rates[middle] }
}

/// A sequence being measured.
struct Sequence {
    session: Option<Session>,
    next: TokenId,
}

/// Fixed token ids that are spread over the vocabulary.
fn prompt(tokens: usize, vocabulary: usize) -> Vec<TokenId> {
    (0..tokens).map(|at| TokenId(((at * 7919 + 1) % vocabulary) as u32)).collect()
}

fn begin(executor: &VulkanExecutor, lanes: usize, tokens: usize) -> Result<Vec<Sequence>, BenchError> {
    let limits = executor.limits();
    let pages = tokens.div_ceil(limits.page_tokens);
    for (what, needed, available) in [
        ("lanes", lanes, limits.lanes_max),
        ("KV pages", lanes * pages, limits.pages),
        ("tokens of context", tokens, limits.context_tokens_max),
    ] {
        if needed > available {
            return Err(BenchError::TooSmall { what, needed, available });
        }
    }
    let sequence = |lane: usize| {
        let sampler = Sampler::new(SamplingSettings::greedy(), 0);
        let mut session = Session::new(LengthSlot(lane as u32), sampler);
        session.extend_pages((lane * pages..(lane + 1) * pages).map(|page| PageId(page as u32)));
        Sequence { session: Some(session), next: TokenId(1) }
    };
    Ok((0..lanes).map(sequence).collect())
}

/// Runs `tokens` for every sequence in one batch; each goes on with what it drew.
fn run(
    executor: &mut VulkanExecutor,
    sequences: &mut [Sequence],
    tokens: &[Vec<TokenId>],
) -> Result<(), BenchError> {
    let work = sequences.iter_mut().zip(tokens).enumerate().map(|(lane, (sequence, tokens))| {
        let session = sequence.session.take().expect("the session came back from the last batch");
        LaneWork {
            lane: LaneId(lane as u32),
            generation: Generation::default(),
            from: session.length(),
            session,
            tokens: tokens.clone(),
            logits: LogitsUse::SampleLast,
        }
    });
    let batch = IterationBatch { id: BatchId(1), copies: Vec::new(), work: work.collect() };
    let done = executor.run(batch);
    for (lane, session) in done.sessions {
        sequences[lane.index()].session = Some(session);
    }
    for outcome in done.result?.ran {
        sequences[outcome.lane.index()].next = outcome.sampled[0].token;
    }
    Ok(())
}

/// Tokens per second of feeding one prompt of `tokens` tokens in whole batches; the median of `repeats`.
///
/// # Errors
/// The engine is too small, or a batch fails.
pub fn prefill_rate(executor: &mut VulkanExecutor, tokens: usize, repeats: usize) -> Result<f64, BenchError> {
    let prompt = prompt(tokens, executor.limits().vocabulary);
    let slice = executor.limits().batch_rows_max;
    let mut rates = Vec::new();
    for _ in 0..repeats.max(1) {
        let mut sequences = begin(executor, 1, tokens)?;
        let start = Instant::now();
        for part in prompt.chunks(slice) {
            run(executor, &mut sequences, &[part.to_vec()])?;
        }
        rates.push(tokens as f64 / start.elapsed().as_secs_f64());
    }
    Ok(median(rates))
}

/// Tokens per second, over all lanes, of decoding `steps` tokens on each of `lanes` lanes after prompts of
/// `prompt_tokens`; the median of `repeats`.
///
/// # Errors
/// The engine is too small, or a batch fails.
pub fn decode_rate(
    executor: &mut VulkanExecutor,
    lanes: usize,
    prompt_tokens: usize,
    steps: usize,
    repeats: usize,
) -> Result<f64, BenchError> {
    let mut rates = Vec::new();
    for _ in 0..repeats.max(1) {
        let mut sequences = begin(executor, lanes, prompt_tokens + steps)?;
        let prompt = prompt(prompt_tokens, executor.limits().vocabulary);
        let slice = (executor.limits().batch_rows_max / lanes).max(1);
        for part in prompt.chunks(slice) {
            run(executor, &mut sequences, &vec![part.to_vec(); lanes])?;
        }
        let start = Instant::now();
        for _ in 0..steps {
            let next: Vec<Vec<TokenId>> = sequences.iter().map(|sequence| vec![sequence.next]).collect();
            run(executor, &mut sequences, &next)?;
        }
        rates.push((lanes * steps) as f64 / start.elapsed().as_secs_f64());
    }
    Ok(median(rates))
}

/// One sequence that is fed to ever later positions, and whose decoding is measured there as often as wanted.
pub struct LongSequence<'a> {
    executor: &'a mut VulkanExecutor,
    position: usize,
}

impl<'a> LongSequence<'a> {
    /// A sequence of no tokens, which has the executor for itself.
    pub fn new(executor: &'a mut VulkanExecutor) -> Self {
        Self { executor, position: 0 }
    }

    /// Feeds the sequence until it has `tokens` tokens.
    ///
    /// # Errors
    /// The engine is too small, or a batch fails.
    pub fn feed_to(&mut self, tokens: usize) -> Result<(), BenchError> {
        let prompt = prompt(tokens, self.executor.limits().vocabulary);
        let mut sequences = self.sequence(tokens)?;
        for part in prompt.get(self.position..).unwrap_or(&[]).chunks(self.executor.limits().lane_rows_max) {
            run(self.executor, &mut sequences, &[part.to_vec()])?;
        }
        self.position = self.position.max(tokens);
        Ok(())
    }

    /// Tokens per second of decoding `steps` tokens after those that were fed.
    ///
    /// # Errors
    /// The engine is too small, or a batch fails.
    pub fn decode_rate(&mut self, steps: usize) -> Result<f64, BenchError> {
        let mut sequences = self.sequence(self.position + steps)?;
        let start = Instant::now();
        for _ in 0..steps {
            let next = vec![sequences[0].next];
            run(self.executor, &mut sequences, &[next])?;
        }
        Ok(steps as f64 / start.elapsed().as_secs_f64())
    }

    /// A session on what was fed, with pages for `tokens` tokens: what it adds counts for nobody else.
    fn sequence(&self, tokens: usize) -> Result<Vec<Sequence>, BenchError> {
        let mut sequences = begin(self.executor, 1, tokens.max(self.position))?;
        for session in sequences.iter_mut().filter_map(|sequence| sequence.session.as_mut()) {
            session.advance(self.position);
        }
        Ok(sequences)
    }
}

/// The time per kernel of one step of `rows` rows of one sequence from position `from` on, after one such
/// step to warm up.
///
/// # Errors
/// A step fails, or the device takes no timestamps.
pub fn stage_times(
    runner: &mut WindowRunner,
    rows: usize,
    from: usize,
) -> Result<Vec<StageTime>, BenchError> {
    let prompt = prompt(from + rows, runner.vocabulary());
    runner.feed(&prompt, 0)?;
    Ok(runner.profile(&prompt[from..], from)?)
}
