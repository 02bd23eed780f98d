//! How many prefill rows an iteration may have: learned from how long the steps before took.
//!
//! A step's time is taken as that of its decode rows alone plus a constant for each prefill row. Both
//! parts follow the measurements with a decaying mean, so they keep up with a context that grows and a
//! machine that others use too. Times are inputs: nothing here asks a clock.
//!
//! The answer is a power of two, so that a slice limit that changes between turns keeps the slices'
//! ends aligned: a limit of 64 after one of 16 finds the position at a multiple of 16.

use crate::settings::{PrefillPacing, SLICE_ROWS_MIN};
use std::time::Duration;

/// The limit while nothing was measured and nobody decodes: short enough for a slow machine.
const UNKNOWN_ROWS: usize = 64;

/// How far one measurement moves a mean.
const WEIGHT: f64 = 0.25;

/// Decode times are kept per power of two of rows.
const BUCKETS: usize = 16;

/// A prefill row is taken to cost at least this part of its step's time, over all its rows: a step that
/// seems to cost nothing was measured badly.
const COST_MIN: f64 = 0.02;

/// The rows of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepRows {
    /// Rows of lanes that decode.
    pub(crate) decode: usize,
    /// Rows of prefill slices.
    pub(crate) prefill: usize,
}

/// What is known of the steps' times.
#[derive(Debug)]
pub(crate) struct Pace {
    pacing: PrefillPacing,
    /// Seconds of a step of decode rows alone, per power of two of rows.
    decode_s: [Option<f64>; BUCKETS],
    /// Seconds that one prefill row adds.
    prefill_row_s: Option<f64>,
}

impl Pace {
    /// Nothing is known yet.
    pub(crate) fn new(pacing: PrefillPacing) -> Self {
        Self { pacing, decode_s: [None; BUCKETS], prefill_row_s: None }
    }

    /// The most prefill rows, over all lanes, of an iteration in which `decode_rows` lanes decode.
    pub(crate) fn prefill_rows_max(&self, decode_rows: usize) -> usize {
        let PrefillPacing::Adaptive { lengthening_max_percent, step_time_max } = self.pacing else {
            return usize::MAX;
        };
        let rows = match (decode_rows, self.prefill_row_s) {
            (0, None) => UNKNOWN_ROWS as f64,
            (0, Some(row_s)) => step_time_max.as_secs_f64() / row_s,
            (_, None) => 0.0,
            (_, Some(row_s)) => {
                let decode_s = self.decode_s(decode_rows).unwrap_or(0.0);
                decode_s * f64::from(lengthening_max_percent) / 100.0 / row_s
            }
        };
        // The cast takes what is too large to the largest number there is.
        1 << (rows as usize).clamp(SLICE_ROWS_MIN, 1 << 30).ilog2()
    }

    /// Learns from a step that ran whole.
    pub(crate) fn record(&mut self, rows: StepRows, time: Duration) {
        let time_s = time.as_secs_f64().max(1e-9);
        match rows {
            StepRows { decode: 0, prefill: 0 } => {}
            StepRows { decode, prefill: 0 } => follow(&mut self.decode_s[bucket(decode)], time_s, WEIGHT),
            StepRows { decode, prefill } => {
                let rest_s = (time_s - self.decode_s(decode).unwrap_or(0.0)).max(time_s * COST_MIN);
                // A few rows say little of one row's cost.
                let weight = WEIGHT * prefill as f64 / (prefill + SLICE_ROWS_MIN) as f64;
                follow(&mut self.prefill_row_s, rest_s / prefill as f64, weight);
            }
        }
    }

    /// The time of a step of decode rows alone: that of the nearest number of rows that was measured,
    /// the smaller one first. A step without any takes what one row takes: the pass over the weights.
    fn decode_s(&self, rows: usize) -> Option<f64> {
        let (below, above) = self.decode_s.split_at(bucket(rows) + 1);
        below.iter().rev().chain(above).find_map(|time| *time)
    }
}

fn bucket(rows: usize) -> usize {
    (rows.max(1).next_power_of_two().ilog2() as usize).min(BUCKETS - 1)
}

fn follow(mean: &mut Option<f64>, value: f64, weight: f64) {
    *mean = Some(mean.map_or(value, |mean| mean + weight * (value - mean)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADAPTIVE: PrefillPacing =
        PrefillPacing::Adaptive { lengthening_max_percent: 50, step_time_max: Duration::from_secs(1) };

    /// A machine whose step takes `decode_ms` for its decode rows and `row_ms` for each prefill row.
    #[derive(Clone, Copy)]
    struct Machine {
        decode_ms: f64,
        row_ms: f64,
    }

    impl Machine {
        fn run(self, pace: &mut Pace, decode: usize, prefill: usize) -> f64 {
            let time_ms = self.decode_ms + self.row_ms * prefill as f64;
            pace.record(StepRows { decode, prefill }, Duration::from_secs_f64(time_ms / 1e3));
            time_ms
        }
    }

    /// What is granted once `steps` steps were measured, each with as many rows as were granted.
    fn settle(pace: &mut Pace, machine: Machine, decode: usize, steps: usize) -> usize {
        for _ in 0..steps {
            machine.run(pace, decode, 0);
            let granted = pace.prefill_rows_max(decode);
            machine.run(pace, decode, granted);
        }
        pace.prefill_rows_max(decode)
    }

    fn check(decode_ms: f64, row_ms: f64, beside_decodes: usize, alone: usize) {
        let mut pace = Pace::new(ADAPTIVE);
        let machine = Machine { decode_ms, row_ms };
        assert_eq!(settle(&mut pace, machine, 4, 20), beside_decodes);
        assert_eq!(pace.prefill_rows_max(0), alone);
    }

    #[test]
    fn slices_are_short_beside_decodes_and_long_alone() {
        // 15 ms for 0.1 ms each are 150 rows; 15 ms for 5 ms each are three, and fewer than 16 is never.
        check(30.0, 0.1, 128, 8192);
        check(30.0, 1.0, 16, 512);
        check(30.0, 5.0, 16, 128);
        check(200.0, 0.05, 1024, 16384);
    }

    #[test]
    fn a_slice_lengthens_a_decode_step_by_no_more_than_the_target() {
        for row_us in [1, 7, 30, 100, 333, 900] {
            let machine = Machine { decode_ms: 30.0, row_ms: f64::from(row_us) / 1e3 };
            let mut pace = Pace::new(ADAPTIVE);
            let granted = settle(&mut pace, machine, 2, 30);
            let lengthened = machine.run(&mut pace, 2, granted);
            assert!(granted == SLICE_ROWS_MIN || lengthened <= 45.0 + 1e-6, "{row_us}: {lengthened}");
        }
    }

    #[test]
    fn nothing_is_known_at_first_and_the_slice_is_the_shortest_beside_a_decode() {
        let pace = Pace::new(ADAPTIVE);
        assert_eq!((pace.prefill_rows_max(0), pace.prefill_rows_max(3)), (UNKNOWN_ROWS, SLICE_ROWS_MIN));
    }

    #[test]
    fn a_machine_that_slows_down_is_followed() {
        let mut pace = Pace::new(ADAPTIVE);
        let quick = Machine { decode_ms: 30.0, row_ms: 0.1 };
        assert_eq!(settle(&mut pace, quick, 1, 20), 128);
        assert_eq!(settle(&mut pace, Machine { row_ms: 0.8, ..quick }, 1, 40), 16);
        assert_eq!(settle(&mut pace, quick, 1, 60), 128);
    }

    #[test]
    fn other_numbers_of_decode_rows_are_judged_by_the_nearest_that_was_measured() {
        let mut pace = Pace::new(ADAPTIVE);
        settle(&mut pace, Machine { decode_ms: 30.0, row_ms: 0.1 }, 8, 20);
        assert_eq!((pace.prefill_rows_max(1), pace.prefill_rows_max(32)), (128, 128));
    }

    #[test]
    fn steps_that_take_no_time_and_pacing_that_is_off_limit_nothing() {
        let mut pace = Pace::new(ADAPTIVE);
        pace.record(StepRows { decode: 1, prefill: 0 }, Duration::ZERO);
        pace.record(StepRows { decode: 0, prefill: 64 }, Duration::ZERO);
        assert!(pace.prefill_rows_max(0) >= 1 << 20);
        assert_eq!(Pace::new(PrefillPacing::Off).prefill_rows_max(3), usize::MAX);
    }
}
