//! An executor that fails by script, around one that does not.
//!
//! A fault is bound to the number of the run in which it happens, counted from 1. What the inner
//! executor did not run, its pages do not hold; what is reported as lost with the device is lost
//! there, too, once the device is made again.

use crate::batch::{
    BatchDone, BatchExecutor, BatchFaultCause, BatchOutcome, ExecutorLimits, IterationBatch, LaneFault,
    LaneFaultCause, LaneOutcome, LaneVerdict, LaneWork, PartialBatchError,
};
use crate::ids::{BatchId, Generation, LaneId, Position, TokenId};
use crate::session::Session;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// When in a step something happens to all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Before any lane ran.
    Before,
    /// After this many lanes ran and were read back.
    During(usize),
    /// After all lanes ran and were read back.
    After,
}

/// Something that goes wrong in one run. Lanes are named by their place in the batch, modulo its
/// length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One lane fails with this cause (no memory, logits that are not finite, …); the others run.
    Lane(usize, LaneFaultCause),
    /// The batch was cut into submissions and one failed: this many lanes ran, the rest did not.
    Submission(usize),
    /// The device is lost, and stays lost until it is made again.
    DeviceLost(When),
    /// The executor panics.
    Panic(When),
    /// The device's length word of one lane is off by one.
    WrongLength(usize),
    /// One lane's session does not come back.
    SessionKept(usize),
    /// The answer leaves one lane out.
    LeftOut(usize),
}

/// What came of one lane in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was reported to have run.
    Ran,
    /// It was reported to have failed.
    Faulted,
    /// It was reported not to have run, or nothing was reported of it.
    NotRun,
}

/// One lane's part in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneRecord {
    /// The lane.
    pub lane: LaneId,
    /// Its owner.
    pub generation: Generation,
    /// Its position before the run.
    pub from: Position,
    /// Its rows.
    pub rows: usize,
    /// What came of it.
    pub fate: Fate,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRecord {
    /// Its number, counted from 1.
    pub run: u64,
    /// The fault that was injected.
    pub fault: Option<Fault>,
    /// Its lanes, in the batch's order.
    pub lanes: Vec<LaneRecord>,
}

#[derive(Debug, Default)]
struct Script {
    faults: BTreeMap<u64, Fault>,
    poison: Option<TokenId>,
    recoveries_to_fail: u32,
    runs: Vec<RunRecord>,
    recoveries: u32,
}

/// Which faults happen when, and what has happened so far; shared with the executor that plays it.
#[derive(Clone, Debug, Default)]
pub struct FaultScript(Arc<Mutex<Script>>);

impl FaultScript {
    /// A script without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fault to run number `run`, counted from 1.
    #[must_use]
    pub fn at(self, run: u64, fault: Fault) -> Self {
        self.0.lock().faults.insert(run, fault);
        self
    }

    /// Adds a fault to the next run.
    pub fn now(&self, fault: Fault) {
        let mut script = self.0.lock();
        let next = script.runs.len() as u64 + 1;
        script.faults.insert(next, fault);
    }

    /// Makes every run panic in which some lane runs `token`.
    #[must_use]
    pub fn panic_on(self, token: TokenId) -> Self {
        self.0.lock().poison = Some(token);
        self
    }

    /// Makes the next `count` attempts to make the device again fail.
    #[must_use]
    pub fn fail_recoveries(self, count: u32) -> Self {
        self.0.lock().recoveries_to_fail = count;
        self
    }

    /// All runs so far.
    pub fn runs(&self) -> Vec<RunRecord> {
        self.0.lock().runs.clone()
    }

    /// How often the device was made again.
    pub fn recoveries(&self) -> u32 {
        self.0.lock().recoveries
    }
}

/// Plays a [`FaultScript`] on another executor.
#[derive(Debug)]
pub struct FaultInjectingExecutor<E> {
    inner: E,
    script: FaultScript,
    lost: bool,
}

impl<E: BatchExecutor> FaultInjectingExecutor<E> {
    /// Wraps `inner`.
    pub fn new(inner: E, script: FaultScript) -> Self {
        Self { inner, script, lost: false }
    }

    /// Notes the run as one in which nothing is proved yet, and returns its fault.
    fn begin(&self, work: &[LaneWork]) -> Option<Fault> {
        let mut script = self.script.0.lock();
        let run = script.runs.len() as u64 + 1;
        let poisoned =
            script.poison.is_some_and(|token| work.iter().any(|work| work.tokens.contains(&token)));
        let scripted = script.faults.remove(&run);
        let fault = if poisoned { Some(Fault::Panic(When::Before)) } else { scripted };
        let lanes = work.iter().map(|work| LaneRecord {
            lane: work.lane,
            generation: work.generation,
            from: work.from,
            rows: work.tokens.len(),
            fate: Fate::NotRun,
        });
        let record = RunRecord { run, fault: fault.clone(), lanes: lanes.collect() };
        script.runs.push(record);
        fault
    }

    /// Notes what is reported of the run's lanes.
    fn report(&self, accounts: &Accounts) {
        let mut script = self.script.0.lock();
        let Some(run) = script.runs.last_mut() else { return };
        for record in &mut run.lanes {
            if accounts.ran.iter().any(|outcome| outcome.lane == record.lane) {
                record.fate = Fate::Ran;
            } else if accounts.faulted.iter().any(|fault| fault.lane == record.lane) {
                record.fate = Fate::Faulted;
            }
        }
    }
}

/// The books of one run.
#[derive(Default)]
struct Accounts {
    ran: Vec<LaneOutcome>,
    faulted: Vec<LaneFault>,
    not_run: Vec<LaneId>,
    sessions: Vec<(LaneId, Session)>,
    cause: Option<BatchFaultCause>,
}

impl Accounts {
    fn skip(&mut self, work: Vec<LaneWork>) {
        for work in work {
            self.not_run.push(work.lane);
            self.sessions.push((work.lane, work.session));
        }
    }

    fn run(&mut self, executor: &mut dyn BatchExecutor, batch: IterationBatch) {
        if batch.work.is_empty() {
            return;
        }
        let done = executor.run(batch);
        self.sessions.extend(done.sessions);
        let (verdicts, cause) = match done.result {
            Ok(outcome) => (outcome.discharge(), None),
            Err(partial) => {
                let cause = partial.cause().clone();
                (partial.discharge(), Some(cause))
            }
        };
        self.cause = self.cause.take().or(cause);
        for verdict in verdicts {
            match verdict {
                LaneVerdict::Advance(outcome) => self.ran.push(outcome),
                LaneVerdict::Hold(lane) => self.not_run.push(lane),
                LaneVerdict::Fault(fault) => self.faulted.push(fault),
            }
        }
    }

    fn answer(self, id: BatchId, lanes: &[LaneId]) -> BatchDone {
        let result = match self.cause {
            None => Ok(BatchOutcome { batch: id, ran: self.ran }),
            Some(cause) => {
                Err(PartialBatchError::new(id, lanes, self.ran, self.faulted, self.not_run, cause))
            }
        };
        BatchDone { result, sessions: self.sessions }
    }
}

impl<E: BatchExecutor> BatchExecutor for FaultInjectingExecutor<E> {
    fn limits(&self) -> ExecutorLimits {
        self.inner.limits()
    }

    fn run(&mut self, mut batch: IterationBatch) -> BatchDone {
        let fault = self.begin(&batch.work);
        let id = batch.id;
        let lanes: Vec<LaneId> = batch.work.iter().map(|work| work.lane).collect();
        let lane_at = |index: usize| lanes[index % lanes.len()];
        let mut accounts = Accounts::default();
        if self.lost {
            accounts.cause = Some(BatchFaultCause::DeviceLost("it was lost before".to_owned()));
            accounts.skip(batch.work);
            return accounts.answer(id, &lanes);
        }
        if let Some(Fault::Lane(index, cause)) = &fault {
            let work = batch.work.remove(index % lanes.len());
            accounts.faulted.push(LaneFault { lane: work.lane, cause: cause.clone() });
            accounts.sessions.push((work.lane, work.session));
            accounts.cause = Some(BatchFaultCause::Lanes);
        }
        let first = match &fault {
            Some(Fault::Submission(lanes)) => *lanes,
            Some(Fault::DeviceLost(when) | Fault::Panic(when)) => match when {
                When::Before => 0,
                When::During(lanes) => *lanes,
                When::After => usize::MAX,
            },
            _ => usize::MAX,
        };
        let rest = batch.work.split_off(first.min(batch.work.len()));
        accounts.run(&mut self.inner, batch);
        accounts.skip(rest);
        match fault {
            Some(Fault::Submission(submission)) => {
                let reason = "injected".to_owned();
                accounts.cause = Some(BatchFaultCause::Submission { submission, reason });
            }
            Some(Fault::DeviceLost(_)) => {
                self.lost = true;
                accounts.cause = Some(BatchFaultCause::DeviceLost("injected".to_owned()));
            }
            Some(Fault::Panic(_)) => {
                self.lost = true;
                panic!("injected");
            }
            Some(Fault::WrongLength(index)) => {
                let lane = lane_at(index);
                let outcome = accounts.ran.iter_mut().find(|outcome| outcome.lane == lane);
                outcome.into_iter().for_each(|outcome| outcome.to = outcome.to.advance(1));
            }
            Some(Fault::SessionKept(index)) => {
                accounts.sessions.retain(|(lane, _)| *lane != lane_at(index));
            }
            Some(Fault::LeftOut(index)) => accounts.ran.retain(|outcome| outcome.lane != lane_at(index)),
            Some(Fault::Lane(..)) | None => {}
        }
        self.report(&accounts);
        accounts.answer(id, &lanes)
    }

    fn recover(&mut self) -> Result<(), String> {
        let mut script = self.script.0.lock();
        if script.recoveries_to_fail > 0 {
            script.recoveries_to_fail -= 1;
            return Err("injected".to_owned());
        }
        script.recoveries += 1;
        drop(script);
        self.lost = false;
        self.inner.recover()
    }
}
