//! Who waits for whom: a decoding client while a long prompt arrives, and a crowd of short requests beside
//! long ones.

use super::{IdleTokens, block_on};
use crate::request::{EndTokens, Failure, Refusal, RequestEvent, StopRules, ValidRequest};
use crate::settings::{EngineSettings, PrefixReuse, SLICE_ROWS_MIN, StartError};
use crate::statistics::Histogram;
use crate::{Engine, EngineHandle, RequestStream};
use lavalane_runtime::batch::BatchExecutor;
use lavalane_runtime::ids::TokenId;
use lavalane_runtime::sampling::SamplingSettings;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Tokens that the decoding client draws alone, before the prompt arrives.
const TOKENS_ALONE: usize = 32;
/// Tokens of each short prompt of a crowd, and of each of its replies.
const SHORT_PROMPT: usize = 16;
const SHORT_REPLY: u32 = 8;

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum CrowdingError {
    /// The engine did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A request was refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A request failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// A request ended before its reply was complete.
    #[error("a request ended before its reply was complete")]
    Unfinished,
}

/// The times between a client's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// How many there were.
    pub count: usize,
    /// Half of them were no longer.
    pub median: Duration,
    /// 95 of 100 were no longer.
    pub most: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Gaps {
    fn of(mut gaps: Vec<Duration>) -> Self {
        gaps.sort_unstable();
        let Some(last) = gaps.len().checked_sub(1) else { return Self::default() };
        let at = |percent: usize| gaps[last * percent / 100];
        Self { count: gaps.len(), median: at(50), most: at(95), longest: at(100) }
    }
}

/// A decoding client alone, and while a long prompt is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Starvation {
    /// Between its tokens while it was alone.
    pub alone: Gaps,
    /// Between its tokens while the prompt was read.
    pub beside: Gaps,
    /// How long the prompt took to its first token.
    pub prompt_time: Duration,
    /// The prompt's slices.
    pub slices: Slices,
}

/// The slices of a prompt that was read beside a decoding client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slices {
    /// How many there were.
    pub count: u64,
    /// Rows of half of them, at the most; rounded up to a power of two.
    pub rows_median: usize,
    /// How many had no more than [`SLICE_ROWS_MIN`] rows.
    pub at_floor: u64,
}

/// How a decoding client's gaps stand to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They are within it.
    Within,
    /// They are not, and no slice could be shorter: most were at the floor.
    AtFloor,
    /// They are not, although slices were longer than they had to be.
    Beyond,
}

impl Starvation {
    /// By how many per cent the prompt lengthened the median gap.
    pub fn lengthened_percent(&self) -> f64 {
        100.0 * (self.beside.median.as_secs_f64() / self.alone.median.as_secs_f64().max(1e-9) - 1.0)
    }

    /// How that stands to a target in per cent.
    pub fn verdict(&self, lengthening_max_percent: u32) -> Verdict {
        if self.lengthened_percent() <= f64::from(lengthening_max_percent) {
            Verdict::Within
        } else if 2 * self.slices.at_floor >= self.slices.count {
            Verdict::AtFloor
        } else {
            Verdict::Beyond
        }
    }
}

impl Slices {
    fn of(rows: &Histogram) -> Self {
        // Only slices longer than any bound have no bound for their median.
        let longest = rows.bounds().last().copied();
        let rows_median = if rows.count() == 0 { None } else { rows.median_bound().or(longest) };
        Self {
            count: rows.count(),
            rows_median: rows_median.unwrap_or(0.0) as usize,
            at_floor: rows.count_up_to(SLICE_ROWS_MIN as f64),
        }
    }
}

/// A crowd's waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowd {
    /// The most iterations in a row in which some lane was passed over.
    pub passed_over_max: u32,
    /// The most that there may be.
    pub bound: u32,
    /// The longest time from a short request's submission to its first token.
    pub short_wait_max: Duration,
    /// The same of the long ones.
    pub long_wait_max: Duration,
}

/// Starts an engine for these measurements: without prefix reuse, and with `lanes` lanes.
///
/// # Errors
/// The engine does not start.
pub fn start(executor: Box<dyn BatchExecutor>, lanes: usize) -> Result<EngineHandle, StartError> {
    let hour = Duration::from_secs(3600);
    let settings = EngineSettings {
        lanes,
        prefix_reuse: PrefixReuse::Off,
        queue_wait_max: hour,
        work_time_max: hour,
        events_buffered_max: 1 << 16,
        ..EngineSettings::default()
    };
    Engine::start(executor, Arc::new(IdleTokens), settings)
}

/// Lets one lane decode, alone and while a prompt of `prompt_tokens` tokens is read. The engine needs two
/// lanes and a context of that length.
///
/// # Errors
/// A request did not run to its end.
pub fn starvation(engine: &EngineHandle, prompt_tokens: usize) -> Result<Starvation, CrowdingError> {
    let mut decoder = block_on(engine.submit(request(engine, 1, SHORT_PROMPT, u32::MAX)))?;
    block_on(next_token(&mut decoder))?;
    let mut alone = Vec::new();
    let mut last = Instant::now();
    let mut gap = |stream: &mut RequestStream| {
        block_on(next_token(stream))?;
        let before = std::mem::replace(&mut last, Instant::now());
        Ok::<_, CrowdingError>(last - before)
    };
    for _ in 0..TOKENS_ALONE {
        alone.push(gap(&mut decoder)?);
    }
    let slices_before = engine.statistics().prompt_rows_beside_decodes;
    let submitted = Instant::now();
    let mut long = block_on(engine.submit(request(engine, 2, prompt_tokens, 1)))?;
    let (done, is_done) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let first = block_on(next_token(&mut long));
        // Nobody listens any more where the decoder has failed.
        let _ = done.send(());
        first.map(|()| submitted.elapsed())
    });
    let mut beside = Vec::new();
    while is_done.try_recv() == Err(mpsc::TryRecvError::Empty) {
        beside.push(gap(&mut decoder)?);
    }
    let prompt_time = reader.join().map_err(|_| CrowdingError::Unfinished)??;
    decoder.cancel();
    let slices = Slices::of(&engine.statistics().prompt_rows_beside_decodes.since(&slices_before));
    Ok(Starvation { alone: Gaps::of(alone), beside: Gaps::of(beside), prompt_time, slices })
}

/// Submits two prompts of `long_tokens` tokens and 32 short ones at once, and reads all to their ends. The
/// engine needs 34 lanes.
///
/// # Errors
/// A request did not run to its end.
pub fn crowd(engine: &EngineHandle, long_tokens: usize) -> Result<Crowd, CrowdingError> {
    let mut readers = Vec::new();
    for index in 0..34 {
        let is_long = index < 2;
        let length = if is_long { long_tokens } else { SHORT_PROMPT };
        let request = request(engine, 100 + index, length, SHORT_REPLY);
        let submitted = Instant::now();
        let mut stream = block_on(engine.submit(request))?;
        let reader = std::thread::spawn(move || {
            block_on(async {
                next_token(&mut stream).await?;
                let wait = submitted.elapsed();
                for _ in 1..SHORT_REPLY {
                    next_token(&mut stream).await?;
                }
                Ok::<_, CrowdingError>(wait)
            })
        });
        readers.push((is_long, reader));
    }
    let (mut short_wait_max, mut long_wait_max) = (Duration::ZERO, Duration::ZERO);
    for (is_long, reader) in readers {
        let wait = reader.join().map_err(|_| CrowdingError::Unfinished)??;
        let longest = if is_long { &mut long_wait_max } else { &mut short_wait_max };
        *longest = wait.max(*longest);
    }
    let settings = engine.settings();
    let rows = settings.rows_per_iteration.min(engine.limits().batch_rows_max);
    Ok(Crowd {
        passed_over_max: engine.statistics().passed_over_max,
        bound: settings.bypass_max + settings.lanes.div_ceil(rows) as u32,
        short_wait_max,
        long_wait_max,
    })
}

pub(super) async fn next_token(stream: &mut RequestStream) -> Result<(), CrowdingError> {
    loop {
        match stream.next().await {
            Some(RequestEvent::Started { .. }) => {}
            Some(RequestEvent::Token(_)) => return Ok(()),
            Some(RequestEvent::Failed(failure)) => return Err(failure.into()),
            Some(RequestEvent::Refused(refusal)) => return Err(refusal.into()),
            Some(RequestEvent::Finished(_) | RequestEvent::Cancelled(_)) | None => {
                return Err(CrowdingError::Unfinished);
            }
        }
    }
}

/// Token ids that are spread over the vocabulary, others for each seed, from the first on.
pub fn prompt(vocabulary: usize, seed: usize, tokens: usize) -> impl Iterator<Item = TokenId> {
    (0..tokens).map(move |at| TokenId(((at * 7919 + seed * 104_729 + 1) % vocabulary) as u32))
}

/// Greedy; another prompt for each seed.
pub(super) fn request(
    engine: &EngineHandle,
    seed: usize,
    prompt_tokens: usize,
    tokens_max: u32,
) -> ValidRequest {
    let prompt = prompt(engine.limits().vocabulary, seed, prompt_tokens).collect();
    let stop = StopRules { end_tokens: EndTokens::Ignore, ..StopRules::default() };
    ValidRequest { stop, ..ValidRequest::new(prompt, SamplingSettings::greedy(), tokens_max) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fault, FaultInjectingExecutor, FaultScript, ScriptedExecutor, scripted_limits};
    use lavalane_runtime::batch::ExecutorLimits;

    fn engine(lanes: usize) -> EngineHandle {
        let limits =
            ExecutorLimits { lanes_max: lanes, context_tokens_max: 4096, pages: 700, ..scripted_limits() };
        // No step is so short that a client cannot follow.
        let script = FaultScript::new().from(1, Fault::Slow(Duration::from_millis(1))).without_records();
        let executor = FaultInjectingExecutor::new(ScriptedExecutor::new(limits), script);
        start(Box::new(executor), lanes).expect("the engine starts")
    }

    #[test]
    fn a_decoder_draws_tokens_while_a_long_prompt_is_read() {
        let starvation = starvation(&engine(2), 1000).expect("all run");
        assert_eq!(starvation.alone.count, TOKENS_ALONE);
        assert!(starvation.beside.count > 1, "{starvation:?}");
        assert!(starvation.alone.median <= starvation.alone.longest);
        assert!(starvation.prompt_time > Duration::ZERO);
        let slices = starvation.slices;
        assert!(slices.count > 1 && slices.at_floor <= slices.count, "{slices:?}");
        assert!(slices.rows_median >= SLICE_ROWS_MIN, "{slices:?}");
    }

    #[test]
    fn gaps_are_within_the_target_or_the_slices_at_their_floor_or_neither() {
        for (beside_ms, at_floor, verdict) in [
            (15, 0, Verdict::Within),
            (15, 10, Verdict::Within),
            (16, 10, Verdict::AtFloor),
            (16, 5, Verdict::AtFloor),
            (16, 4, Verdict::Beyond),
        ] {
            let gaps = |ms| Gaps::of(vec![Duration::from_millis(ms)]);
            let slices = Slices { count: 10, rows_median: SLICE_ROWS_MIN, at_floor };
            let (alone, beside, prompt_time) = (gaps(10), gaps(beside_ms), Duration::from_secs(1));
            let starvation = Starvation { alone, beside, prompt_time, slices };
            assert_eq!(starvation.verdict(50), verdict, "{beside_ms} ms, {at_floor} of 10 at the floor");
        }
    }

    #[test]
    fn in_a_crowd_nobody_is_passed_over_beyond_the_bound() {
        let crowd = crowd(&engine(34), 600).expect("all run");
        assert!(crowd.passed_over_max > 0, "there was no crowd: {crowd:?}");
        assert!(crowd.passed_over_max <= crowd.bound, "{crowd:?}");
    }
}
