//! The executor's thread: the only owner of the device, behind a channel of one place.
//!
//! A batch goes in with a oneshot for its answer. A panic while it runs comes back as an answer too,
//! without the sessions that moved into the batch; a oneshot whose sender was dropped means that the
//! thread itself is gone.

use crate::guard::guarded;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use lavalane_runtime::batch::{BatchDone, BatchExecutor, IterationBatch, PageTransferError};
use lavalane_runtime::ids::PageId;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long there is nothing to do before the executor prepares for later: longer than between two steps of a
/// lane that decodes.
const IDLE: Duration = Duration::from_millis(200);

/// What came of a batch that was handed to the executor.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The executor accounted for every lane.
    Done(BatchDone),
    /// It panicked: nothing is proved to have run, and the batch's sessions are gone.
    Died(String),
}

enum Job {
    Run { batch: IterationBatch, answer: oneshot::Sender<Answer> },
    Recover { answer: oneshot::Sender<Result<(), String>> },
    Export { pages: Vec<PageId>, answer: oneshot::Sender<Result<Vec<u8>, PageTransferError>> },
    Import { pages: Vec<PageId>, bytes: Vec<u8>, answer: oneshot::Sender<Result<(), PageTransferError>> },
}

/// The scheduler's way to the executor. The thread ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ExecutorClient {
    jobs: Sender<Job>,
}

impl ExecutorClient {
    /// Hands over a batch without ever waiting. The receiver yields its answer; an error there says
    /// that the thread is gone.
    ///
    /// # Errors
    /// Gives the batch back where the thread is gone, or, against the rule of one batch in flight,
    /// still has a job before it.
    pub(crate) fn run(&self, batch: IterationBatch) -> Result<oneshot::Receiver<Answer>, IterationBatch> {
        let (answer, receiver) = oneshot::channel();
        match self.jobs.try_send(Job::Run { batch, answer }) {
            Ok(()) => Ok(receiver),
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => match job {
                Job::Run { batch, .. } => Err(batch),
                _ => unreachable!("the job that comes back is the one that was sent"),
            },
        }
    }

    /// Asks for a new device. The receiver yields what came of it; an error there, or one from here,
    /// says that the thread is gone.
    pub(crate) fn recover(&self) -> Option<oneshot::Receiver<Result<(), String>>> {
        let (answer, receiver) = oneshot::channel();
        self.jobs.try_send(Job::Recover { answer }).ok().map(|()| receiver)
    }

    /// Asks for the content of pages. `None`, or an error of the receiver, says that the thread is gone.
    pub(crate) fn export(
        &self,
        pages: Vec<PageId>,
    ) -> Option<oneshot::Receiver<Result<Vec<u8>, PageTransferError>>> {
        let (answer, receiver) = oneshot::channel();
        self.jobs.try_send(Job::Export { pages, answer }).ok().map(|()| receiver)
    }

    /// Fills pages with content. `None`, or an error of the receiver, says that the thread is gone.
    pub(crate) fn import(
        &self,
        pages: Vec<PageId>,
        bytes: Vec<u8>,
    ) -> Option<oneshot::Receiver<Result<(), PageTransferError>>> {
        let (answer, receiver) = oneshot::channel();
        self.jobs.try_send(Job::Import { pages, bytes, answer }).ok().map(|()| receiver)
    }
}

/// Starts the executor's thread.
pub(crate) fn start(executor: Box<dyn BatchExecutor>) -> std::io::Result<(ExecutorClient, JoinHandle<()>)> {
    let (jobs, receiver) = bounded(1);
    let thread = std::thread::Builder::new()
        .name("lavalane-executor".to_owned())
        .spawn(move || serve(executor, &receiver))?;
    Ok((ExecutorClient { jobs }, thread))
}

fn serve(mut executor: Box<dyn BatchExecutor>, jobs: &Receiver<Job>) {
    let mut preparing = true;
    loop {
        let next = if preparing { jobs.recv_timeout(IDLE) } else { jobs.recv().map_err(Into::into) };
        let job = match next {
            Ok(job) => job,
            Err(RecvTimeoutError::Timeout) => {
                preparing = guarded(|| executor.prepare()).unwrap_or(false);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        // Nobody may be waiting any more: then the scheduler is gone and its channel closes next.
        match job {
            Job::Run { batch, answer } => {
                let done = guarded(|| executor.run(batch));
                let _ = answer.send(done.map_or_else(|panicked| Answer::Died(panicked.0), Answer::Done));
            }
            Job::Recover { answer } => {
                let recovered = guarded(|| executor.recover()).unwrap_or_else(|panicked| Err(panicked.0));
                let _ = answer.send(recovered);
                preparing = true;
            }
            Job::Export { pages, answer } => {
                let _ = answer.send(moved(|| executor.export_pages(&pages)));
            }
            Job::Import { pages, bytes, answer } => {
                let _ = answer.send(moved(|| executor.import_pages(&pages, &bytes)));
            }
        }
    }
    if let Err(panicked) = guarded(|| drop(executor)) {
        tracing::error!("the executor panicked while it was dropped: {panicked}");
    }
}

/// A panic while pages move comes back as an answer, as one while a batch runs does.
fn moved<T>(work: impl FnOnce() -> Result<T, PageTransferError>) -> Result<T, PageTransferError> {
    guarded(work).unwrap_or_else(|panicked| Err(PageTransferError::ExecutorDied(panicked.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::scripted_limits;
    use lavalane_runtime::batch::ExecutorLimits;
    use lavalane_runtime::snapshot::SnapshotIdentity;
    use lavalane_runtime::testing::ScriptedExecutor;

    const PARTS: usize = 3;

    /// Tells of every part that it prepares.
    struct Preparing {
        inner: ScriptedExecutor,
        left: usize,
        prepared: Sender<usize>,
    }

    impl BatchExecutor for Preparing {
        fn limits(&self) -> ExecutorLimits {
            self.inner.limits()
        }

        fn run(&mut self, batch: IterationBatch) -> BatchDone {
            self.inner.run(batch)
        }

        fn recover(&mut self) -> Result<(), String> {
            self.left = PARTS;
            self.inner.recover()
        }

        fn prepare(&mut self) -> bool {
            self.left -= 1;
            self.prepared.send(self.left).expect("the test listens");
            self.left > 0
        }

        fn identity(&self) -> SnapshotIdentity {
            self.inner.identity()
        }

        fn export_pages(&mut self, pages: &[PageId]) -> Result<Vec<u8>, PageTransferError> {
            self.inner.export_pages(pages)
        }

        fn import_pages(&mut self, pages: &[PageId], bytes: &[u8]) -> Result<(), PageTransferError> {
            self.inner.import_pages(pages, bytes)
        }
    }

    #[test]
    fn an_executor_with_nothing_to_do_prepares_until_all_is_ready_and_again_on_a_new_device() {
        let (prepared, told) = bounded(2 * PARTS);
        let inner = ScriptedExecutor::new(scripted_limits());
        let (client, thread) = start(Box::new(Preparing { inner, left: PARTS, prepared })).expect("a thread");
        let wait = || told.recv_timeout(Duration::from_secs(60)).expect("it prepares");
        assert_eq!([wait(), wait(), wait()], [2, 1, 0]);
        let recovered = client.recover().expect("the thread runs");
        recovered.blocking_recv().expect("it answers").expect("it recovers");
        assert_eq!([wait(), wait(), wait()], [2, 1, 0]);
        drop(client);
        thread.join().expect("it ends without a panic");
        assert!(told.is_empty(), "what is ready is not prepared again");
    }
}
