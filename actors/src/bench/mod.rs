//! Measuring the engine itself: what an iteration costs with an executor that does nothing, and in
//! [`crowding`] who waits for whom, and in [`throughput`] how fast requests are served together.

pub mod crowding;
pub mod throughput;

use crate::request::{EndTokens, RequestEvent, StopRules, ValidRequest};
use crate::settings::{EngineSettings, PrefixReuse, StartError};
use crate::{Engine, RequestStream};
use lavalane_runtime::batch::{
    BatchDone, BatchExecutor, BatchOutcome, ExecutorLimits, IterationBatch, LaneOutcome, LogitsUse,
    PageTransferError,
};
use lavalane_runtime::ids::{PageId, TokenId};
use lavalane_runtime::sampling::{Sampled, SamplingSettings};
use lavalane_runtime::snapshot::{Digest, SnapshotIdentity};
use lavalane_runtime::tokenizer::TokenText;
use std::sync::Arc;
use std::time::Duration;

/// What one iteration costs beside the executor's own work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SchedulingCost {
    /// How many lanes decoded.
    pub lanes: usize,
    /// How many iterations were measured.
    pub iterations: u64,
    /// The mean time from a batch's answer to the next batch: the scheduler's and the lanes' own work.
    pub scheduling: Duration,
    /// The mean time from a batch's start to its answer: two switches between threads.
    pub handing_over: Duration,
}

/// Lets `lanes` lanes draw `tokens` tokens each on an executor that does nothing.
///
/// # Errors
/// The engine does not start.
///
/// # Panics
/// A request is refused or does not end.
pub fn scheduling_cost(lanes: usize, tokens: u32) -> Result<SchedulingCost, StartError> {
    let settings = EngineSettings {
        lanes,
        // Nobody reads before the end, so that no reader is woken while the iterations are measured.
        events_buffered_max: tokens as usize + 2,
        prefix_reuse: PrefixReuse::Off,
        ..EngineSettings::default()
    };
    let executor = IdleExecutor { limits: idle_limits(lanes, tokens as usize + 2) };
    let engine = Engine::start(Box::new(executor), Arc::new(IdleTokens), settings)?;
    let waiting = async {
        let mut streams: Vec<RequestStream> = Vec::new();
        for _ in 0..lanes {
            let stop = StopRules { end_tokens: EndTokens::Ignore, ..StopRules::default() };
            let request = ValidRequest::new(vec![TokenId(1)], SamplingSettings::greedy(), tokens);
            let stream = engine.submit(ValidRequest { stop, ..request }).await;
            streams.push(stream.expect("there is a lane for each request"));
        }
        engine.drain().await;
        for mut stream in streams {
            let mut last = None;
            while let Some(event) = stream.next().await {
                last = Some(event);
            }
            assert!(matches!(last, Some(RequestEvent::Finished(_))), "a request ended with {last:?}");
        }
    };
    block_on(waiting);
    let statistics = engine.statistics();
    let mean = |mean: Option<f64>| Duration::from_secs_f64(mean.unwrap_or(0.0));
    Ok(SchedulingCost {
        lanes,
        iterations: statistics.iterations,
        scheduling: mean(statistics.scheduling_time.mean()),
        handing_over: mean(statistics.iteration_time.mean()),
    })
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime without drivers can be made").block_on(future)
}

/// Page and context sizes for `lanes` sequences of `tokens` tokens.
fn idle_limits(lanes: usize, tokens: usize) -> ExecutorLimits {
    let page_tokens = 32;
    ExecutorLimits {
        batch_rows_max: 512,
        lane_rows_max: 512,
        lanes_max: lanes,
        context_tokens_max: tokens,
        page_tokens,
        pages: lanes * (tokens.div_ceil(page_tokens) + 1),
        vocabulary: 2,
    }
}

/// Says that everything ran, and that the same token was drawn.
#[derive(Debug)]
struct IdleExecutor {
    limits: ExecutorLimits,
}

impl BatchExecutor for IdleExecutor {
    fn limits(&self) -> ExecutorLimits {
        self.limits
    }

    fn run(&mut self, batch: IterationBatch) -> BatchDone {
        let mut ran = Vec::with_capacity(batch.work.len());
        let mut sessions = Vec::with_capacity(batch.work.len());
        for mut work in batch.work {
            work.session.advance(work.tokens.len());
            let sampled = match work.logits {
                LogitsUse::None => Vec::new(),
                _ => vec![Sampled { token: TokenId(1), logprob: 0.0, top: Vec::new(), signals: None }],
            };
            let (from, to) = (work.from, work.session.length());
            ran.push(LaneOutcome { lane: work.lane, from, to, sampled });
            sessions.push((work.lane, work.session));
        }
        BatchDone { result: Ok(BatchOutcome { batch: batch.id, ran }), sessions }
    }

    fn recover(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn identity(&self) -> SnapshotIdentity {
        SnapshotIdentity {
            model: Digest(0),
            architecture: "idle".to_owned(),
            pack: "none".to_owned(),
            pack_version: 1,
            driver: "none".to_owned(),
            kv_type: "none".to_owned(),
            precision: "none".to_owned(),
            rope: Digest(0),
            page_tokens: self.limits.page_tokens as u32,
            page_bytes: 1,
        }
    }

    fn export_pages(&mut self, pages: &[PageId]) -> Result<Vec<u8>, PageTransferError> {
        PageTransferError::check(pages, pages.len(), self.limits.pages, 1)?;
        Ok(vec![0; pages.len()])
    }

    fn import_pages(&mut self, pages: &[PageId], bytes: &[u8]) -> Result<(), PageTransferError> {
        PageTransferError::check(pages, bytes.len(), self.limits.pages, 1)
    }
}

/// One word of one letter.
#[derive(Debug)]
struct IdleTokens;

impl TokenText for IdleTokens {
    fn token_bytes(&self, _token: TokenId) -> &[u8] {
        b"x"
    }

    fn is_end_of_generation(&self, _token: TokenId) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_iteration_of_every_lane_is_counted() {
        for lanes in [1, 3] {
            let cost = scheduling_cost(lanes, 20).expect("the engine starts");
            // Whoever comes later begins later; nobody takes more steps than it has tokens.
            assert!((20..20 * lanes as u64 + 1).contains(&cost.iterations), "{cost:?}");
            assert!(cost.scheduling > Duration::ZERO && cost.handing_over > Duration::ZERO, "{cost:?}");
        }
    }
}
