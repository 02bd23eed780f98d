//! The script of faults: what goes wrong in which run, and what was seen of the runs so far.
//!
//! A fault is bound to the number of the run in which it happens, counted from 1.

use super::gate::Gate;
use crate::batch::{LaneFaultCause, LaneWork};
use crate::ids::{Generation, LaneId, Position, TokenId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

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
    /// The run takes this much longer.
    Slow(Duration),
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

/// Which runs are kept for [`FaultScript::runs`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Records {
    /// All of them.
    #[default]
    Kept,
    /// None, so that memory stays the same however long the executor runs.
    Dropped,
}

#[derive(Debug, Default)]
struct Script {
    faults: BTreeMap<u64, Fault>,
    /// Faults of every run from one on, unless the run has its own.
    repeated: BTreeMap<u64, Fault>,
    poison: Option<TokenId>,
    recoveries_to_fail: u32,
    recovery_gate: Option<Gate>,
    records: Records,
    run_count: u64,
    runs: Vec<RunRecord>,
    recoveries: u32,
    transfer_faults: VecDeque<TransferFault>,
    transfers: Transfers,
}

/// What goes wrong when pages are to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferFault {
    /// The device refuses, and nothing else is wrong with it.
    Refused,
    /// The device is lost, and stays lost until it is made again.
    DeviceLost,
    /// The executor panics.
    Panic,
}

/// How many pages were moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Out of the device.
    pub exported: usize,
    /// Into the device.
    pub imported: usize,
    /// Into it since the last run.
    imported_since_run: usize,
    /// The most that were moved into it between two runs.
    pub imported_between_runs_max: usize,
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

    /// Adds a fault to every run from number `run` on that has none of its own.
    #[must_use]
    pub fn from(self, run: u64, fault: Fault) -> Self {
        self.0.lock().repeated.insert(run, fault);
        self
    }

    /// Adds a fault to the next run.
    pub fn now(&self, fault: Fault) {
        let mut script = self.0.lock();
        let next = script.run_count + 1;
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

    /// Makes the next `count` exports and imports of pages fail.
    #[must_use]
    pub fn fail_transfers(self, count: usize, fault: TransferFault) -> Self {
        self.0.lock().transfer_faults.extend(std::iter::repeat_n(fault, count));
        self
    }

    /// How many pages were moved so far.
    pub fn transfers(&self) -> Transfers {
        self.0.lock().transfers
    }

    /// Lets the device be made again only as often as a gate allows.
    #[must_use]
    pub fn with_recovery_gate(self, gate: Gate) -> Self {
        self.0.lock().recovery_gate = Some(gate);
        self
    }

    /// Keeps no record of the runs, for programs that run long.
    #[must_use]
    pub fn without_records(self) -> Self {
        self.0.lock().records = Records::Dropped;
        self
    }

    /// All runs so far; empty where they are not kept.
    pub fn runs(&self) -> Vec<RunRecord> {
        self.0.lock().runs.clone()
    }

    /// How many runs there were.
    pub fn run_count(&self) -> u64 {
        self.0.lock().run_count
    }

    /// How often the device was made again.
    pub fn recoveries(&self) -> u32 {
        self.0.lock().recoveries
    }

    /// Notes a run as one in which nothing is proved yet; returns its number and its fault.
    pub(super) fn begin(&self, work: &[LaneWork]) -> (u64, Option<Fault>) {
        let mut script = self.0.lock();
        script.run_count += 1;
        script.transfers.imported_since_run = 0;
        let run = script.run_count;
        let poisoned =
            script.poison.is_some_and(|token| work.iter().any(|work| work.tokens.contains(&token)));
        let scripted = script.faults.remove(&run);
        let repeated = || script.repeated.range(..=run).next_back().map(|(_, fault)| fault.clone());
        let fault = if poisoned { Some(Fault::Panic(When::Before)) } else { scripted.or_else(repeated) };
        if script.records == Records::Kept {
            let lanes = work.iter().map(|work| LaneRecord {
                lane: work.lane,
                generation: work.generation,
                from: work.from,
                rows: work.tokens.len(),
                fate: Fate::NotRun,
            });
            let record = RunRecord { run, fault: fault.clone(), lanes: lanes.collect() };
            script.runs.push(record);
        }
        (run, fault)
    }

    /// Notes what is reported of the last run's lanes.
    pub(super) fn report(&self, fate: impl Fn(LaneId) -> Fate) {
        if let Some(run) = self.0.lock().runs.last_mut() {
            run.lanes.iter_mut().for_each(|record| record.fate = fate(record.lane));
        }
    }

    /// Notes that pages are to be moved; returns what goes wrong.
    pub(super) fn begin_transfer(&self) -> Option<TransferFault> {
        self.0.lock().transfer_faults.pop_front()
    }

    pub(super) fn note_exported(&self, pages: usize) {
        self.0.lock().transfers.exported += pages;
    }

    pub(super) fn note_imported(&self, pages: usize) {
        let transfers = &mut self.0.lock().transfers;
        transfers.imported += pages;
        transfers.imported_since_run += pages;
        let longest = transfers.imported_between_runs_max.max(transfers.imported_since_run);
        transfers.imported_between_runs_max = longest;
    }

    /// Notes that the device is to be made again; an error where that fails by script.
    pub(super) fn recover(&self) -> Result<(), String> {
        let gate = self.0.lock().recovery_gate.clone();
        if let Some(gate) = gate {
            gate.pass();
        }
        let mut script = self.0.lock();
        if script.recoveries_to_fail > 0 {
            script.recoveries_to_fail -= 1;
            return Err("injected".to_owned());
        }
        script.recoveries += 1;
        Ok(())
    }
}
