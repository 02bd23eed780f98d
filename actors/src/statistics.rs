//! Counters, gauges and histograms of the engine, as plain data.
//!
//! The engine keeps one record behind a lock that is held for a few additions at a time;
//! [`crate::EngineHandle::statistics`] copies it out. Turning it into a metrics format is its
//! reader's business.

use std::time::Duration;

/// Upper bounds of the time-to-first-token and recovery-time histograms, in seconds.
pub const FIRST_TOKEN_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0,
];
/// Upper bounds of the inter-token-latency and iteration-time histograms, in seconds.
pub const TOKEN_BOUNDS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 10.0,
];
/// Upper bounds of the whole-request and queue-time histograms, in seconds.
pub const REQUEST_BOUNDS: &[f64] = &[
    0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0,
];
/// Upper bounds of the rows-per-iteration histogram.
pub const ROW_BOUNDS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0];

/// A histogram with fixed buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// An empty histogram; `bounds` are the buckets' inclusive upper bounds, ascending.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Counts one value.
    pub fn record(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }

    /// Counts a length of time, in seconds.
    pub fn record_time(&mut self, time: Duration) {
        self.record(time.as_secs_f64());
    }

    /// The buckets' inclusive upper bounds, ascending; a last bucket without a bound follows.
    pub fn bounds(&self) -> &'static [f64] {
        self.bounds
    }

    /// The values in each bucket alone (not cumulative); one more entry than there are bounds.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The sum of all values.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// What was counted since an earlier copy of this histogram was made.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let pairs = self.counts.iter().zip(&earlier.counts);
        let counts = pairs.map(|(now, before)| now.saturating_sub(*before)).collect();
        Self { bounds: self.bounds, counts, sum: self.sum - earlier.sum }
    }

    /// The upper bound of the bucket that holds the middle value; `None` before the first, and where the
    /// bucket has no bound.
    pub fn median_bound(&self) -> Option<f64> {
        let (half, mut counted) = (self.count().div_ceil(2), 0);
        let middle = self.counts.iter().position(|count| {
            counted += count;
            half > 0 && counted >= half
        });
        self.bounds.get(middle?).copied()
    }

    /// How many values were at most `bound`, which must be one of the buckets' bounds to be exact.
    pub fn count_up_to(&self, bound: f64) -> u64 {
        self.counts[..self.bounds.partition_point(|own| *own <= bound)].iter().sum()
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The mean of all values; `None` before the first.
    pub fn mean(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.sum / count as f64)
    }
}

/// What the engine has done since it started, and what it is doing.
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    /// Requests that have a lane now.
    pub requests_running: usize,
    /// Requests that wait for a lane now, preempted ones included.
    pub requests_waiting: usize,
    /// Requests ended by an end token, a stop token or a stop text.
    pub requests_stopped: u64,
    /// Requests ended by their token limit or the context's end.
    pub requests_length: u64,
    /// Requests cancelled by their client.
    pub requests_cancelled: u64,
    /// Requests that failed after they were admitted.
    pub requests_failed: u64,
    /// Requests refused, at once or in the queue.
    pub requests_refused: u64,
    /// Prompt tokens of requests that got a lane, cached ones included.
    pub prompt_tokens: u64,
    /// Prompt tokens that were found in the cache.
    pub cached_tokens: u64,
    /// Tokens drawn.
    pub generation_tokens: u64,
    /// Requests of which a prefix was found in the cache.
    pub prefix_hits: u64,
    /// Prefixes that came from the disk.
    pub snapshots_loaded: u64,
    /// Sequences that were written to the disk.
    pub snapshots_saved: u64,
    /// Sequences that were to be written and were not: the writer was busy, the disk full, or their pages
    /// were needed.
    pub snapshots_dropped: u64,
    /// Iterations run.
    pub iterations: u64,
    /// Rows run, over all iterations.
    pub rows: u64,
    /// Iterations in which some lane did not run.
    pub partial_batches: u64,
    /// Lanes whose pages were taken for an older request; each goes on later.
    pub preemptions: u64,
    /// The most iterations in a row in which a lane that could run was passed over.
    pub passed_over_max: u32,
    /// Devices lost and made again.
    pub recoveries: u64,
    /// Lifecycle events that an observer was too slow for.
    pub lifecycle_events_dropped: u64,
    /// KV pages held by running requests.
    pub kv_pages_used: usize,
    /// KV pages that hold nothing but reusable prefixes.
    pub kv_pages_cached: usize,
    /// KV pages in the pool.
    pub kv_pages_total: usize,
    /// Rows of an iteration.
    pub iteration_rows: Histogram,
    /// Rows of prompts in an iteration in which other lanes decoded.
    pub prompt_rows_beside_decodes: Histogram,
    /// Time from a batch's start to its answer.
    pub iteration_time: Histogram,
    /// Time that the scheduler itself spent between two batches while it had work.
    pub scheduling_time: Histogram,
    /// Time from submission to the first drawn token.
    pub first_token_time: Histogram,
    /// Time between two tokens of one request.
    pub inter_token_time: Histogram,
    /// Time from submission to a lane.
    pub queue_time: Histogram,
    /// Time from submission to the end, of finished requests.
    pub request_time: Histogram,
    /// Time from the loss of a device to another in its place, with the model on it.
    pub recovery_time: Histogram,
    /// Time from the loss of a device until each request that was running has drawn its next token, or
    /// has ended.
    pub resumption_time: Histogram,
}

impl Statistics {
    /// Statistics of an engine that has done nothing, over a pool of `kv_pages_total` pages.
    pub fn new(kv_pages_total: usize) -> Self {
        Self {
            requests_running: 0,
            requests_waiting: 0,
            requests_stopped: 0,
            requests_length: 0,
            requests_cancelled: 0,
            requests_failed: 0,
            requests_refused: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            generation_tokens: 0,
            prefix_hits: 0,
            snapshots_loaded: 0,
            snapshots_saved: 0,
            snapshots_dropped: 0,
            iterations: 0,
            rows: 0,
            partial_batches: 0,
            preemptions: 0,
            passed_over_max: 0,
            recoveries: 0,
            lifecycle_events_dropped: 0,
            kv_pages_used: 0,
            kv_pages_cached: 0,
            kv_pages_total,
            iteration_rows: Histogram::new(ROW_BOUNDS),
            prompt_rows_beside_decodes: Histogram::new(ROW_BOUNDS),
            iteration_time: Histogram::new(TOKEN_BOUNDS),
            scheduling_time: Histogram::new(TOKEN_BOUNDS),
            first_token_time: Histogram::new(FIRST_TOKEN_BOUNDS),
            inter_token_time: Histogram::new(TOKEN_BOUNDS),
            queue_time: Histogram::new(REQUEST_BOUNDS),
            request_time: Histogram::new(REQUEST_BOUNDS),
            recovery_time: Histogram::new(FIRST_TOKEN_BOUNDS),
            resumption_time: Histogram::new(FIRST_TOKEN_BOUNDS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_falls_into_that_bound_s_bucket() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        for value in [0.5, 1.0, 1.5, 2.0, 9.0] {
            histogram.record(value);
        }
        assert_eq!(histogram.counts(), [2, 2, 1]);
        assert_eq!((histogram.count(), histogram.sum()), (5, 14.0));
    }

    #[test]
    fn a_histogram_since_an_earlier_copy_holds_what_came_after_it() {
        let mut histogram = Histogram::new(&[1.0, 2.0, 4.0]);
        histogram.record(9.0);
        let earlier = histogram.clone();
        assert_eq!(histogram.since(&earlier).median_bound(), None);
        [0.5, 2.0, 2.0, 3.0].into_iter().for_each(|value| histogram.record(value));
        let since = histogram.since(&earlier);
        assert_eq!((since.counts(), since.sum()), (&[1, 2, 1, 0][..], 7.5));
        assert_eq!((since.median_bound(), since.count_up_to(2.0)), (Some(2.0), 3));
    }

    #[test]
    fn all_bounds_ascend() {
        for bounds in [FIRST_TOKEN_BOUNDS, TOKEN_BOUNDS, REQUEST_BOUNDS, ROW_BOUNDS] {
            assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]), "{bounds:?}");
        }
    }
}
