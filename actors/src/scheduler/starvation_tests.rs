//! A long prompt beside a live decode on machines whose steps take scripted times: the planner and the pace together,
//! without a clock.

use super::pace::{Pace, StepRows};
use super::plan::{PlanLimits, plan};
use crate::lane::step::{Candidate, LaneStep};
use crate::settings::{PrefillPacing, SLICE_ROWS_MIN};
use lavalane_runtime::batch::LogitsUse;
use lavalane_runtime::ids::{LaneId, Position};
use std::time::Duration;

const PROMPT: usize = 8000;
const TARGET_PERCENT: f64 = 50.0;
/// Milliseconds of a step of the decode row alone.
const DECODE_MS: f64 = 30.0;

/// One step in which the decode row and a slice ran.
#[derive(Clone, Copy, Debug)]
struct Step {
    position: usize,
    rows: usize,
    /// By how many per cent the slice lengthened the decode row's step.
    lengthened: f64,
}

/// Reads the prompt beside one lane that decodes; `row_ms` is what a row of the prompt costs at its position.
fn read_prompt(row_ms: impl Fn(usize) -> f64) -> Vec<Step> {
    let mut pace = Pace::new(PrefillPacing::default());
    let time = |ms: f64| Duration::from_secs_f64(ms / 1e3);
    for _ in 0..32 {
        pace.record(StepRows { decode: 1, prefill: 0 }, time(DECODE_MS));
    }
    let candidate =
        |lane, step| Candidate { lane: LaneId(lane), step, bypassed: 0, arrival: u64::from(lane) };
    let (mut steps, mut position) = (Vec::new(), 0);
    loop {
        let decode = LaneStep::Decode { position: Position::START.advance(100 + steps.len()) };
        let prefill = LaneStep::Prefill { position: Position::START.advance(position), tokens: PROMPT };
        let limits = PlanLimits {
            rows_max: 512,
            slice_rows_max: 512,
            prefill_rows_max: pace.prefill_rows_max(1),
            bypass_max: 4,
        };
        let planned = plan(&[candidate(0, decode), candidate(1, prefill)], &limits);
        let [own, slice] = planned[..] else { panic!("both are in every step: {planned:?}") };
        assert_eq!((own.lane, own.rows, own.logits), (LaneId(0), 1, LogitsUse::SampleLast));
        let slice_ms: f64 = (position..position + slice.rows).map(&row_ms).sum();
        steps.push(Step { position, rows: slice.rows, lengthened: 100.0 * slice_ms / DECODE_MS });
        pace.record(StepRows { decode: 1, prefill: slice.rows }, time(DECODE_MS + slice_ms));
        position += slice.rows;
        if slice.logits == LogitsUse::SampleLast {
            assert_eq!(position, PROMPT, "the prompt is read to its end");
            return steps;
        }
    }
}

/// That each slice keeps the target, or is at the floor. `slack` is how far the estimate may lag behind costs that
/// rise, as a part of the target.
fn check(steps: &[Step], slack: f64) {
    for step in steps {
        let kept = step.lengthened <= TARGET_PERCENT * (1.0 + slack);
        assert!(kept || step.rows <= SLICE_ROWS_MIN, "{step:?}");
    }
}

fn rows_from(steps: &[Step], position: usize) -> usize {
    steps.iter().find(|step| step.position >= position).expect("the prompt reaches so far").rows
}

#[test]
fn where_rows_are_cheap_a_slice_is_as_long_as_the_target_allows() {
    for (row_ms, rows) in [(0.05, 256), (0.1, 128), (0.4, 32)] {
        let steps = read_prompt(|_| row_ms);
        check(&steps, 0.0);
        assert_eq!(steps[0].rows, SLICE_ROWS_MIN, "nothing is known at first");
        // The second slice ends where slices of the new limit end.
        assert_eq!(steps[1].rows, rows - SLICE_ROWS_MIN);
        assert!(steps[2..steps.len() - 1].iter().all(|step| step.rows == rows), "{row_ms}: {steps:?}");
    }
}

#[test]
fn where_rows_are_dear_every_slice_is_at_the_floor_and_no_shorter() {
    for row_ms in [1.0, 2.0, 20.0] {
        let steps = read_prompt(|_| row_ms);
        assert!(steps.iter().all(|step| step.rows == SLICE_ROWS_MIN), "{row_ms}: {steps:?}");
        assert_eq!(steps.len(), PROMPT / SLICE_ROWS_MIN);
        assert!(steps[0].lengthened > TARGET_PERCENT, "the floor goes before the target");
    }
}

#[test]
fn slices_shorten_down_to_the_floor_as_rows_cost_more_with_the_position() {
    let steps = read_prompt(|position| 0.1 + position as f64 * 0.00005);
    check(&steps, 0.2);
    let late = steps.iter().filter(|step| step.rows > SLICE_ROWS_MIN && step.lengthened > TARGET_PERCENT);
    assert!(8 * late.count() < steps.len(), "the estimate catches up within a few slices: {steps:?}");
    assert_eq!([200, 2000, 4000, 7900].map(|position| rows_from(&steps, position)), [128, 64, 32, 16]);
    let mut slices = steps[2..].windows(2);
    assert!(slices.all(|pair| pair[1].rows <= pair[0].rows), "costs that only rise never lengthen a slice");
}

#[test]
fn slices_lengthen_again_where_rows_become_cheaper() {
    // Another program had the machine's cores until the prompt's middle.
    let steps = read_prompt(|position| if position < 4000 { 1.5 } else { 0.1 });
    assert_eq!([2000, 5000, 7000].map(|position| rows_from(&steps, position)), [16, 128, 128]);
    check(&steps, 0.0);
}
