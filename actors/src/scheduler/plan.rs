//! Planning one iteration: which lanes run, with how many rows. A pure function of the lanes' steps
//! and the limits.
//!
//! Live decode rows go first. What they leave of the row budget, and not more than the pace allows (see
//! [`super::pace`]), is shared evenly among the prefill slices. A lane that was passed over `bypass_max` times goes before everybody else with at least
//! one row, so that a small budget cannot starve it.
//!
//! A slice ends at a multiple of its limit `b`, and the slice that is sampled starts at
//! `(n - 1) / b * b` for a sequence of `n` tokens and is never split.

use crate::lane::step::{Candidate, LaneStep};
use crate::settings::SLICE_ROWS_MIN;
use lavalane_runtime::batch::LogitsUse;
use lavalane_runtime::contract::{Slice, next_slice};
use lavalane_runtime::ids::{LaneId, Position};
use std::cmp::Reverse;

/// What an iteration may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanLimits {
    /// The most rows, over all lanes.
    pub(crate) rows_max: usize,
    /// The most rows of one prefill slice.
    pub(crate) slice_rows_max: usize,
    /// The most prefill rows, over all lanes; at least 1. A lane that is overdue has its row all the same.
    pub(crate) prefill_rows_max: usize,
    /// After how many times of being passed over a lane goes first.
    pub(crate) bypass_max: u32,
}

/// One lane's part of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedRows {
    /// The lane.
    pub(crate) lane: LaneId,
    /// How many rows it runs; at least 1.
    pub(crate) rows: usize,
    /// What their logits are for.
    pub(crate) logits: LogitsUse,
}

/// Who goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Overdue,
    Decode,
    Prefill,
}

fn turn(candidate: &Candidate, limits: &PlanLimits) -> Turn {
    match candidate.step {
        _ if candidate.bypassed >= limits.bypass_max => Turn::Overdue,
        LaneStep::Decode { .. } => Turn::Decode,
        LaneStep::Prefill { .. } => Turn::Prefill,
    }
}

/// A prefill lane that may get a slice.
struct Prefill {
    lane: LaneId,
    position: Position,
    tokens: usize,
    /// The row that it is sure of because it is overdue: 0 or 1.
    reserved: usize,
}

/// Plans one iteration. Lanes that are not in the answer are passed over. Decode rows come first in
/// the answer.
pub(crate) fn plan(candidates: &[Candidate], limits: &PlanLimits) -> Vec<PlannedRows> {
    let mut order: Vec<&Candidate> = candidates.iter().collect();
    order.sort_by_key(|candidate| {
        (turn(candidate, limits), Reverse(candidate.bypassed), candidate.arrival, candidate.lane)
    });
    let mut planned = Vec::with_capacity(order.len());
    let mut prefills = Vec::new();
    let mut rows_left = limits.rows_max;
    for candidate in order {
        let sure = turn(candidate, limits) < Turn::Prefill && rows_left > 0;
        rows_left -= usize::from(sure);
        match candidate.step {
            LaneStep::Decode { .. } if sure => {
                planned.push(PlannedRows { lane: candidate.lane, rows: 1, logits: LogitsUse::SampleLast });
            }
            LaneStep::Decode { .. } => {}
            LaneStep::Prefill { position, tokens } => {
                prefills.push(Prefill {
                    lane: candidate.lane,
                    position,
                    tokens,
                    reserved: usize::from(sure),
                });
            }
        }
    }
    plan_prefills(&prefills, rows_left, limits, &mut planned);
    planned
}

fn plan_prefills(
    prefills: &[Prefill],
    mut rows_left: usize,
    limits: &PlanLimits,
    planned: &mut Vec<PlannedRows>,
) {
    let reserved: usize = prefills.iter().map(|prefill| prefill.reserved).sum();
    rows_left = rows_left.min(limits.prefill_rows_max.saturating_sub(reserved));
    let share = even_share(prefills, rows_left + reserved).max(SLICE_ROWS_MIN);
    let share = share.min(limits.slice_rows_max);
    for prefill in prefills {
        let limit = share.min(rows_left + prefill.reserved);
        if limit == 0 {
            continue;
        }
        let Slice { rows, logits } = next_slice(prefill.position, prefill.tokens, limit);
        rows_left -= rows - prefill.reserved;
        planned.push(PlannedRows { lane: prefill.lane, rows, logits });
    }
}

/// The largest slice limit that all lanes can have within `rows` together, given that some need less.
fn even_share(prefills: &[Prefill], rows: usize) -> usize {
    let mut needs: Vec<usize> =
        prefills.iter().map(|prefill| prefill.tokens - prefill.position.tokens()).collect();
    needs.sort_unstable();
    let mut rows_left = rows;
    let mut share = 0;
    for (served, need) in needs.iter().enumerate() {
        share = rows_left.div_ceil(needs.len() - served);
        rows_left -= share.min(*need).min(rows_left);
    }
    share
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefill(lane: u32, from: usize, tokens: usize) -> Candidate {
        let step = LaneStep::Prefill { position: Position::START.advance(from), tokens };
        Candidate { lane: LaneId(lane), step, bypassed: 0, arrival: u64::from(lane) }
    }

    fn decode(lane: u32, from: usize) -> Candidate {
        let step = LaneStep::Decode { position: Position::START.advance(from) };
        Candidate { lane: LaneId(lane), step, bypassed: 0, arrival: u64::from(lane) }
    }

    fn limits(rows_max: usize, slice_rows_max: usize) -> PlanLimits {
        PlanLimits { rows_max, slice_rows_max, prefill_rows_max: usize::MAX, bypass_max: 3 }
    }

    /// The starts of all slices of a prompt that runs alone.
    fn slice_starts(tokens: usize, limit: usize) -> Vec<usize> {
        let mut from = 0;
        let mut starts = Vec::new();
        while from < tokens {
            starts.push(from);
            let planned = plan(&[prefill(0, from, tokens)], &limits(limit, limit));
            assert_eq!(planned[0].logits == LogitsUse::SampleLast, from + planned[0].rows == tokens);
            from += planned[0].rows;
        }
        starts
    }

    fn check(candidates: &[Candidate], limits: PlanLimits, expected: &[(u32, usize)]) {
        let planned = plan(candidates, &limits);
        let rows: Vec<(u32, usize)> = planned.iter().map(|part| (part.lane.0, part.rows)).collect();
        assert_eq!(rows, expected);
    }

    #[test]
    fn the_sampled_slice_starts_at_the_last_multiple_below_the_end() {
        assert_eq!(slice_starts(512, 512), [0]);
        assert_eq!(slice_starts(513, 512), [0, 512]);
        assert_eq!(slice_starts(6603, 2048), [0, 2048, 4096, 6144]);
        assert_eq!(slice_starts(3, 1), [0, 1, 2]);
    }

    #[test]
    fn an_intermediate_slice_ends_at_a_multiple_of_its_limit() {
        check(&[prefill(0, 7, 100)], limits(32, 32), &[(0, 25)]);
    }

    #[test]
    fn decode_rows_go_first_and_prefill_gets_the_rest() {
        let candidates = [prefill(0, 0, 500), decode(1, 9), prefill(2, 0, 500), decode(3, 9)];
        check(&candidates, limits(66, 512), &[(1, 1), (3, 1), (0, 32), (2, 32)]);
    }

    #[test]
    fn what_a_short_prompt_does_not_need_goes_to_the_long_one() {
        check(&[prefill(0, 0, 10), prefill(1, 0, 500)], limits(100, 512), &[(0, 10), (1, 90)]);
    }

    #[test]
    fn an_overdue_prefill_gets_a_row_although_decodes_fill_the_budget() {
        let overdue = Candidate { bypassed: 3, ..prefill(9, 0, 50) };
        let candidates = [decode(0, 1), decode(1, 1), overdue];
        check(&candidates, limits(2, 512), &[(0, 1), (9, 1)]);
    }

    #[test]
    fn the_pace_limits_all_prefills_together_and_whoever_got_nothing_goes_first() {
        let paced = PlanLimits { prefill_rows_max: 16, ..limits(512, 512) };
        let waiting = |lane, bypassed| Candidate { bypassed, ..prefill(lane, 0, 500) };
        check(&[decode(0, 9), waiting(1, 0), waiting(2, 0)], paced, &[(0, 1), (1, 16)]);
        check(&[decode(0, 9), waiting(1, 0), waiting(2, 1)], paced, &[(0, 1), (2, 16)]);
        check(
            &[waiting(1, 0), waiting(2, 0)],
            PlanLimits { prefill_rows_max: 64, ..paced },
            &[(1, 32), (2, 32)],
        );
    }

    #[test]
    fn the_sampled_slice_stays_whole_whatever_the_pace_becomes_between_turns() {
        for paces in [[16, 64, 512], [512, 16, 64], [64, 512, 16]] {
            let mut from = 0;
            for turn in 0.. {
                let pace = paces[turn % 3];
                let paced = PlanLimits { prefill_rows_max: pace, ..limits(512, 512) };
                let part = plan(&[prefill(0, from, 1500)], &paced)[0];
                if part.logits == LogitsUse::SampleLast {
                    assert!(from >= 1499 / pace * pace && from + part.rows == 1500);
                    break;
                }
                from += part.rows;
                assert!(from % pace == 0 && from < 1500);
            }
        }
    }

    /// One simulated lane: how many prompt tokens it runs before it decodes for ever.
    #[derive(Clone, Debug)]
    struct Simulated {
        prompt: usize,
        joins_at: usize,
    }

    fn simulated() -> impl Strategy<Value = Vec<Simulated>> {
        let lane = (1usize..300, 0usize..20);
        let lane = lane.prop_map(|(prompt, joins_at)| Simulated { prompt, joins_at });
        proptest::collection::vec(lane, 1..12)
    }

    fn step(lane: &Simulated, position: usize) -> LaneStep {
        let at = Position::START.advance(position);
        if position < lane.prompt {
            LaneStep::Prefill { position: at, tokens: lane.prompt }
        } else {
            LaneStep::Decode { position: at }
        }
    }

    /// One iteration's rules, whatever its candidates.
    fn check_plan(candidates: &[Candidate], limits: &PlanLimits) -> Vec<PlannedRows> {
        let planned = plan(candidates, limits);
        assert_eq!(planned, plan(candidates, limits), "the plan is a function of its input");
        assert!(planned.iter().map(|part| part.rows).sum::<usize>() <= limits.rows_max);
        assert!(planned.iter().all(|part| part.rows >= 1 && part.rows <= limits.slice_rows_max.max(1)));
        let prefill_rows = |part: &&PlannedRows| {
            !candidates.iter().any(|candidate| {
                candidate.lane == part.lane && matches!(candidate.step, LaneStep::Decode { .. })
            })
        };
        let prefill_rows: usize = planned.iter().filter(prefill_rows).map(|part| part.rows).sum();
        assert!(prefill_rows <= limits.prefill_rows_max.max(candidates.len()), "the pace is kept");
        assert!(candidates.is_empty() || !planned.is_empty(), "an iteration makes progress");
        let is_decode = |lane: LaneId| {
            let candidate = candidates.iter().find(|candidate| candidate.lane == lane);
            candidate.is_some_and(|candidate| matches!(candidate.step, LaneStep::Decode { .. }))
        };
        let decodes = planned.iter().take_while(|part| is_decode(part.lane)).count();
        assert!(!planned[decodes..].iter().any(|part| is_decode(part.lane)), "decode rows come first");
        let decodes_all = candidates.iter().filter(|candidate| is_decode(candidate.lane)).count();
        let overdue = candidates.iter().any(|candidate| candidate.bypassed >= limits.bypass_max);
        if !overdue {
            assert_eq!(decodes, decodes_all.min(limits.rows_max), "every live decode has its row");
        }
        planned
    }

    proptest! {
        #[test]
        fn nobody_is_passed_over_more_than_the_bound_and_the_budget_is_kept(
            lanes in simulated(),
            rows_max in 1usize..64,
            slice_rows_max in 1usize..64,
            prefill_rows_max in 1usize..64,
            bypass_max in 1u32..5,
        ) {
            let limits = PlanLimits { rows_max, slice_rows_max, prefill_rows_max, bypass_max };
            let bound = bypass_max + lanes.len().div_ceil(rows_max) as u32;
            let mut positions = vec![0; lanes.len()];
            let mut bypassed = vec![0u32; lanes.len()];
            for iteration in 0..60 {
                let present = |lane: &usize| lanes[*lane].joins_at <= iteration;
                let candidates: Vec<Candidate> = (0..lanes.len())
                    .filter(present)
                    .map(|lane| Candidate {
                        lane: LaneId(lane as u32),
                        step: step(&lanes[lane], positions[lane]),
                        bypassed: bypassed[lane],
                        arrival: lane as u64,
                    })
                    .collect();
                let planned = check_plan(&candidates, &limits);
                for candidate in &candidates {
                    let lane = candidate.lane.index();
                    match planned.iter().find(|part| part.lane == candidate.lane) {
                        Some(part) => {
                            positions[lane] += part.rows;
                            bypassed[lane] = 0;
                        }
                        None => bypassed[lane] += 1,
                    }
                    prop_assert!(bypassed[lane] <= bound, "lane {lane} was passed over {} times", bypassed[lane]);
                }
            }
        }
    }
}
