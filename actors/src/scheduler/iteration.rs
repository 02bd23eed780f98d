//! The steps of one iteration: release, admit, plan, take sessions, run, settle, and again.

use super::pace::StepRows;
use super::plan::{PlanLimits, PlannedRows, plan};
use super::{Phase, Scheduler};
use crate::executor::Answer;
use crate::lane::order::{Begin, Release, Settle, Settled, Why};
use crate::lane::step::Candidate;
use crate::lane::ticket::Suspicion;
use crate::request::{Failure, RequestEvent};
use actix::Context;
use lavalane_runtime::batch::{
    BatchDone, BatchFaultCause, IterationBatch, LaneFault, LaneFaultCause, LaneVerdict, LaneWork,
};
use lavalane_runtime::ids::{BatchId, Generation, LaneId};
use lavalane_runtime::session::Session;
use std::time::Instant;

/// What the steps of an iteration hand on to one another.
#[derive(Debug, Default)]
pub(super) struct Iteration {
    /// How many batches were run.
    batches: u64,
    begins: Vec<(LaneId, Begin)>,
    /// The lanes' parts, as they come in.
    pub(super) work: Vec<LaneWork>,
    /// The lanes of the batch in flight.
    in_flight: Vec<(LaneId, Generation)>,
    /// Their rows.
    rows: StepRows,
    /// Why the device must be made again after this iteration.
    lost: Option<String>,
    /// Lanes whose requests are to end by an injected fault, for tests.
    #[cfg(any(test, feature = "testing", debug_assertions))]
    pub(super) injected: Vec<(LaneId, Why)>,
    run_at: Option<Instant>,
    settled_at: Option<Instant>,
}

impl Scheduler {
    /// Releases the lanes whose requests are to end, then admits.
    pub(super) fn begin_iteration(&mut self, context: &mut Context<Self>) {
        self.phase = Phase::Busy;
        let now = Instant::now();
        self.clear_queue(now);
        let closed = self.closing.is_past(now);
        if closed {
            self.give_up_transfers();
        }
        let owners = self.lanes.iter().enumerate();
        let releases = owners.filter_map(|(lane, entry)| {
            let owner = entry.owner.as_ref()?;
            let why = if owner.cancellation.is_cancelled() {
                Why::Cancelled
            } else if closed {
                let failure = Failure::EngineStopped("it was shut down".to_owned());
                Why::Ended(RequestEvent::Failed(failure))
            } else if owner.work_until <= now {
                Why::Ended(RequestEvent::Failed(Failure::WorkTimeout { limit: owner.work_limit }))
            } else {
                return None;
            };
            Some((LaneId(lane as u32), Release { generation: entry.generation, why }))
        });
        #[allow(unused_mut, reason = "only builds with injected faults add to it")]
        let mut releases: Vec<(LaneId, Release)> = releases.collect();
        #[cfg(any(test, feature = "testing", debug_assertions))]
        for (lane, why) in std::mem::take(&mut self.iteration.injected) {
            releases.retain(|(released, _)| *released != lane);
            let owned = self.lanes.get(lane.index()).filter(|entry| entry.owner.is_some());
            releases.extend(owned.map(|entry| (lane, Release { generation: entry.generation, why })));
        }
        self.ask(releases, context, Self::admit);
    }

    /// Plans the batch and finds pages for it.
    pub(super) fn prepare(&mut self, context: &mut Context<Self>) {
        let candidates = self.candidates();
        if candidates.is_empty() {
            return self.rest(context);
        }
        let decode_rows = candidates.iter().filter(|candidate| candidate.step.is_decode()).count();
        let settings = &self.shared.settings;
        let limits = PlanLimits {
            rows_max: settings.rows_per_iteration.min(self.shared.limits.batch_rows_max),
            slice_rows_max: settings.prefill_slice_rows_max,
            prefill_rows_max: self.pace.prefill_rows_max(decode_rows),
            bypass_max: settings.bypass_max,
        };
        let planned = plan(&candidates, &limits);
        if planned.iter().all(|part| self.grow(part)) {
            self.write_orders(&candidates, &planned);
            return self.launch(context);
        }
        if self.give_up_transfers() {
            return self.prepare(context);
        }
        // The pool is exhausted. The youngest gives way, and the plan is made anew without it.
        let preempted = self.youngest().map(|lane| {
            let generation = self.lanes[lane.index()].generation;
            (lane, Release { generation, why: Why::Preempted })
        });
        self.ask(preempted.into_iter().collect(), context, Self::prepare);
    }

    /// Nothing can run now. Requests may still wait when all that were admitted ended at once, and pages
    /// may still have to be moved. A request that waits for the disk is heard of again.
    fn rest(&mut self, context: &mut Context<Self>) {
        let can_go_on = self.waiting.iter().any(|(_, ticket)| !self.transfers.is_awaited_by(ticket.id));
        if can_go_on || self.transfers.has_work() {
            return self.begin_iteration(context);
        }
        self.phase = Phase::Idle;
        self.iteration.settled_at = None;
        self.publish_slots();
        if self.waiting.len() == 0 {
            self.stop_if_closed();
        }
    }

    /// The lanes that may run. Where some are suspected of having killed the executor, the oldest of
    /// them runs alone.
    fn candidates(&self) -> Vec<Candidate> {
        let owners = self
            .lanes
            .iter()
            .enumerate()
            .filter_map(|(lane, entry)| entry.owner.as_ref().map(|owner| (LaneId(lane as u32), owner)));
        let suspect = owners.clone().filter(|(_, owner)| owner.suspicion == Suspicion::Suspect);
        match suspect.min_by_key(|(_, owner)| owner.arrival()) {
            Some((lane, owner)) => vec![owner.candidate(lane)],
            None => owners.map(|(lane, owner)| owner.candidate(lane)).collect(),
        }
    }

    /// Sees to it that a planned lane's pages cover its rows; false where the pool is exhausted.
    fn grow(&mut self, part: &PlannedRows) -> bool {
        let Some(owner) = &mut self.lanes[part.lane.index()].owner else { return true };
        let tokens = owner.step.position().tokens() + part.rows;
        self.pages.grow(&mut owner.pages, tokens)
    }

    fn youngest(&self) -> Option<LaneId> {
        let lanes = (0..self.lanes.len() as u32).map(LaneId);
        let owned = lanes
            .filter_map(|lane| self.lanes[lane.index()].owner.as_ref().map(|owner| (owner.arrival(), lane)));
        owned.max().map(|(_, lane)| lane)
    }

    /// Writes the planned lanes' orders, and counts whom the plan passes over.
    fn write_orders(&mut self, candidates: &[Candidate], planned: &[PlannedRows]) {
        for candidate in candidates {
            if let Some(owner) = &mut self.lanes[candidate.lane.index()].owner {
                owner.bypassed += 1;
            }
        }
        self.iteration.begins.clear();
        for part in planned {
            let entry = &mut self.lanes[part.lane.index()];
            let generation = entry.generation;
            let Some(owner) = &mut entry.owner else { continue };
            owner.bypassed = 0;
            let pages = owner.pages.for_table();
            self.iteration
                .begins
                .push((part.lane, Begin { generation, rows: part.rows, logits: part.logits, pages }));
        }
        if planned.len() < candidates.len() {
            let owners = self.lanes.iter().filter_map(|lane| lane.owner.as_ref());
            let passed_over = owners.map(|owner| owner.bypassed).max().unwrap_or(0);
            let mut statistics = self.shared.statistics.lock();
            statistics.passed_over_max = statistics.passed_over_max.max(passed_over);
        }
    }

    /// Takes the planned lanes' sessions.
    fn launch(&mut self, context: &mut Context<Self>) {
        let begins = std::mem::take(&mut self.iteration.begins);
        self.iteration.work.clear();
        self.ask(begins, context, Self::run);
    }

    /// Hands the batch to the executor.
    fn run(&mut self, context: &mut Context<Self>) {
        let work = std::mem::take(&mut self.iteration.work);
        if work.is_empty() {
            // Every planned lane ended instead: there is something new to plan.
            return self.begin_iteration(context);
        }
        self.publish_slots();
        self.iteration.batches += 1;
        self.iteration.in_flight = work.iter().map(|work| (work.lane, work.generation)).collect();
        let rows = self.step_rows(&work);
        self.iteration.rows = rows;
        let now = Instant::now();
        {
            let mut statistics = self.shared.statistics.lock();
            statistics.iterations += 1;
            statistics.rows += (rows.decode + rows.prefill) as u64;
            statistics.iteration_rows.record((rows.decode + rows.prefill) as f64);
            if rows.decode > 0 && rows.prefill > 0 {
                statistics.prompt_rows_beside_decodes.record(rows.prefill as f64);
            }
            if let Some(settled_at) = self.iteration.settled_at.take() {
                statistics.scheduling_time.record_time(now - settled_at);
            }
        }
        self.iteration.run_at = Some(now);
        let owners = work.iter().filter_map(|work| self.lanes[work.lane.index()].owner.as_ref());
        let copies = owners.filter_map(|owner| owner.pages.copy()).collect();
        let batch = IterationBatch { id: BatchId(self.iteration.batches), copies, work };
        match self.executor.run(batch) {
            Ok(answer) => {
                self.then(answer, context, |scheduler, answer, context| match answer {
                    Ok(answer) => scheduler.settle(answer, context),
                    Err(_) => scheduler.die("the executor's thread ended during a batch", context),
                });
                self.set_alarm(context);
            }
            Err(batch) => {
                drop(batch);
                self.die("the executor's thread has ended", context);
            }
        }
    }

    fn step_rows(&self, work: &[LaneWork]) -> StepRows {
        let mut rows = StepRows::default();
        for work in work {
            let owner = self.lanes[work.lane.index()].owner.as_ref();
            match owner.is_some_and(|owner| owner.step.is_decode()) {
                true => rows.decode += work.tokens.len(),
                false => rows.prefill += work.tokens.len(),
            }
        }
        rows
    }

    /// Tells every lane of the batch what came of its part.
    fn settle(&mut self, answer: Answer, context: &mut Context<Self>) {
        let now = Instant::now();
        self.iteration.settled_at = Some(now);
        let in_flight = std::mem::take(&mut self.iteration.in_flight);
        let (verdicts, sessions, cause) = match answer {
            Answer::Done(done) => self.account(done),
            Answer::Died(reason) => {
                self.iteration.lost = Some(reason.clone());
                (Vec::new(), Vec::new(), reason)
            }
        };
        {
            let mut statistics = self.shared.statistics.lock();
            statistics.partial_batches += u64::from(!cause.is_empty());
            if let Some(run_at) = self.iteration.run_at.take() {
                statistics.iteration_time.record_time(now - run_at);
                if cause.is_empty() {
                    self.pace.record(self.iteration.rows, now - run_at);
                }
            }
        }
        let died = self.iteration.lost.is_some() && sessions.is_empty();
        let mut verdicts = by_lane(self.lanes.len(), verdicts.into_iter().map(|part| (part.lane(), part)));
        let mut sessions = by_lane(self.lanes.len(), sessions);
        let settles = in_flight.into_iter().map(|(lane, generation)| {
            let verdict = verdicts[lane.index()].take().unwrap_or_else(|| left_out(lane));
            let settled = match sessions[lane.index()].take() {
                Some(session) => Settled::Verdict(verdict, session),
                None if died => Settled::SessionLost,
                None => Settled::SessionKept,
            };
            (lane, Settle { generation, settled, cause: cause.clone() })
        });
        let settles = settles.collect();
        self.ask(settles, context, Self::after_batch);
    }

    /// Reads an answer into verdicts, sessions, and the cause where the batch was cut.
    fn account(&mut self, done: BatchDone) -> (Vec<LaneVerdict>, Vec<(LaneId, Session)>, String) {
        match done.result {
            Ok(outcome) => (outcome.discharge(), done.sessions, String::new()),
            Err(partial) => {
                let cause = partial.cause().clone();
                if let BatchFaultCause::DeviceLost(reason) | BatchFaultCause::ExecutorDied(reason) = &cause {
                    self.iteration.lost = Some(reason.clone());
                }
                tracing::warn!("{partial}");
                (partial.discharge(), done.sessions, cause.to_string())
            }
        }
    }

    /// Goes on with the next iteration, or with a new device.
    fn after_batch(&mut self, context: &mut Context<Self>) {
        match self.iteration.lost.take() {
            Some(reason) => self.lose_device(reason, context),
            None => self.begin_iteration(context),
        }
    }
}

/// The parts of an executor's answer by lane; the first of several for one lane, and none for lanes that
/// there are not.
fn by_lane<T>(lanes: usize, parts: impl IntoIterator<Item = (LaneId, T)>) -> Vec<Option<T>> {
    let mut table: Vec<Option<T>> = std::iter::repeat_with(|| None).take(lanes).collect();
    for (lane, part) in parts {
        if let Some(place) = table.get_mut(lane.index()) {
            place.get_or_insert(part);
        }
    }
    table
}

/// The verdict on a lane that the executor does not name. It has failed: its state is not known.
fn left_out(lane: LaneId) -> LaneVerdict {
    let cause = LaneFaultCause::InvalidWork("the executor's answer leaves the lane out");
    LaneVerdict::Fault(LaneFault { lane, cause })
}
