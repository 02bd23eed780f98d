//! An executor that fails by script, around one that does not.
//!
//! What the inner executor did not run, its pages do not hold; what is reported as lost with the device
//! is lost there, too, once the device is made again.

use super::script::{Fate, Fault, FaultScript, TransferFault, When};
use crate::batch::{
    BatchDone, BatchExecutor, BatchFaultCause, BatchOutcome, ExecutorLimits, IterationBatch, LaneFault,
    LaneOutcome, LaneVerdict, LaneWork, PageTransferError, PartialBatchError,
};
use crate::ids::{BatchId, LaneId, PageId};
use crate::session::Session;
use crate::snapshot::SnapshotIdentity;

/// Plays a [`FaultScript`] on another executor.
pub struct FaultInjectingExecutor<E> {
    inner: E,
    script: FaultScript,
    observer: Option<Observer>,
    lost: bool,
}

/// Hears each run's number before its work begins.
type Observer = Box<dyn FnMut(u64) + Send>;

impl<E: std::fmt::Debug> std::fmt::Debug for FaultInjectingExecutor<E> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = formatter.debug_struct("FaultInjectingExecutor");
        text.field("inner", &self.inner).field("script", &self.script).field("lost", &self.lost).finish()
    }
}

impl<E: BatchExecutor> FaultInjectingExecutor<E> {
    /// Wraps `inner`.
    pub fn new(inner: E, script: FaultScript) -> Self {
        Self { inner, script, observer: None, lost: false }
    }

    /// Calls `observer` with each run's number before its work begins.
    #[must_use]
    pub fn with_observer(mut self, observer: impl FnMut(u64) + Send + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Why pages cannot be moved now, if they cannot.
    fn check_transfer(&mut self) -> Result<(), PageTransferError> {
        if self.lost {
            return Err(PageTransferError::DeviceLost("it was lost before".to_owned()));
        }
        match self.script.begin_transfer() {
            None => Ok(()),
            Some(TransferFault::Refused) => Err(PageTransferError::Device("injected".to_owned())),
            Some(TransferFault::DeviceLost) => {
                self.lost = true;
                Err(PageTransferError::DeviceLost("injected".to_owned()))
            }
            Some(TransferFault::Panic) => {
                self.lost = true;
                panic!("injected");
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

    /// What is reported of a lane.
    fn fate(&self, lane: LaneId) -> Fate {
        if self.ran.iter().any(|outcome| outcome.lane == lane) {
            Fate::Ran
        } else if self.faulted.iter().any(|fault| fault.lane == lane) {
            Fate::Faulted
        } else {
            Fate::NotRun
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
        let (run, fault) = self.script.begin(&batch.work);
        if let Some(observer) = &mut self.observer {
            observer(run);
        }
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
            Some(Fault::Slow(time)) => std::thread::sleep(time),
            Some(Fault::Lane(..)) | None => {}
        }
        self.script.report(|lane| accounts.fate(lane));
        accounts.answer(id, &lanes)
    }

    fn recover(&mut self) -> Result<(), String> {
        self.script.recover()?;
        self.lost = false;
        self.inner.recover()
    }

    fn prepare(&mut self) -> bool {
        self.inner.prepare()
    }

    fn identity(&self) -> SnapshotIdentity {
        self.inner.identity()
    }

    fn export_pages(&mut self, pages: &[PageId]) -> Result<Vec<u8>, PageTransferError> {
        self.check_transfer()?;
        let bytes = self.inner.export_pages(pages)?;
        self.script.note_exported(pages.len());
        Ok(bytes)
    }

    fn import_pages(&mut self, pages: &[PageId], bytes: &[u8]) -> Result<(), PageTransferError> {
        self.check_transfer()?;
        self.inner.import_pages(pages, bytes)?;
        self.script.note_imported(pages.len());
        Ok(())
    }
}
