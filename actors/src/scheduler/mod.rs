//! The scheduler actor: it owns admission, the bookkeeping of KV pages, the lanes' addresses, and the
//! one batch in flight.
//!
//! It is a chain of steps. Each step decides something synchronously, asks lanes or the executor, and
//! names the step that hears their answers; meanwhile the mailbox goes on being served. See
//! [`iteration`] for the steps of an iteration, [`recovery`] for those after a loss.

mod admission;
mod closing;
#[cfg(any(test, feature = "testing", debug_assertions))]
mod injection;
mod iteration;
mod owner;
mod pace;
mod pages;
mod plan;
mod queue;
mod recovery;
#[cfg(test)]
mod starvation_tests;
mod table;
mod transfers;

use crate::executor::ExecutorClient;
use crate::guard::guarded;
use crate::lane::Lane;
use crate::lane::order::Reply;
use crate::lane::ticket::Ticket;
use crate::request::{Refusal, ValidRequest};
use crate::shared::Shared;
use crate::snapshots::SnapshotClient;
use crate::status::{Health, RequestId};
use crate::stream::{Cancellation, EventSink};
use actix::{Actor, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, SpawnHandle, WrapFuture};
use closing::Closing;
use futures_util::future::join_all;
use iteration::Iteration;
use lavalane_runtime::ids::LaneId;
use lavalane_runtime::tokenizer::TokenText;
use owner::LaneEntry;
use pace::Pace;
use pages::Pages;
use queue::WaitQueue;
use recovery::Losses;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use transfers::Transfers;

/// A request on its way into the scheduler.
#[derive(Message)]
#[rtype(result = "Result<(), Refusal>")]
pub(crate) struct Submission {
    pub(crate) id: RequestId,
    pub(crate) request: Box<ValidRequest>,
    pub(crate) sink: EventSink,
    pub(crate) cancellation: Cancellation,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// What a handle orders.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) enum Command {
    /// Take no more requests.
    Drain,
    /// Drain for at most `deadline`, then stop.
    Stop {
        /// How long.
        deadline: Duration,
    },
    /// Let something go wrong here, for tests.
    #[cfg(any(test, feature = "testing", debug_assertions))]
    Inject(crate::testing::Injection),
}

/// Whether the chain of steps is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing runs and nothing is to be run.
    Idle,
    /// A step waits for an answer.
    Busy,
    /// The scheduler has ended; whatever still comes is ignored.
    Ended,
}

/// The chain of steps that an answer belongs to. A new chain makes the answers to the old one void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chain(u64);

/// The scheduler.
pub(crate) struct Scheduler {
    shared: Arc<Shared>,
    tokenizer: Arc<dyn TokenText>,
    executor: ExecutorClient,
    lanes: Vec<LaneEntry>,
    waiting: WaitQueue<Box<Ticket>>,
    pages: Pages,
    transfers: Transfers,
    pace: Pace,
    phase: Phase,
    chain: Chain,
    closing: Closing,
    iteration: Iteration,
    losses: Losses,
    alarm: Option<(Instant, SpawnHandle)>,
    /// Hears the scheduler's address once requests are taken.
    ready: crossbeam_channel::Sender<Addr<Self>>,
}

impl Scheduler {
    pub(crate) fn new(
        executor: ExecutorClient,
        snapshots: Option<SnapshotClient>,
        tokenizer: Arc<dyn TokenText>,
        shared: Arc<Shared>,
        ready: crossbeam_channel::Sender<Addr<Self>>,
    ) -> Self {
        Self {
            executor,
            tokenizer,
            lanes: Vec::new(),
            waiting: WaitQueue::new(shared.settings.aging_interval),
            pages: Pages::new(&shared.limits, shared.settings.prefix_reuse),
            transfers: Transfers::new(snapshots, shared.settings.snapshots.as_ref()),
            pace: Pace::new(shared.settings.prefill_pacing),
            phase: Phase::Idle,
            chain: Chain(0),
            closing: Closing::Open,
            iteration: Iteration::default(),
            losses: Losses::default(),
            alarm: None,
            ready,
            shared,
        }
    }

    /// Runs one step of the chain. A panic in it is the scheduler's death.
    fn step(&mut self, context: &mut Context<Self>, work: impl FnOnce(&mut Self, &mut Context<Self>)) {
        if let Err(panicked) = guarded(|| work(self, context)) {
            self.die(&format!("the scheduler panicked: {panicked}"), context);
        }
    }

    /// Begins the next iteration, unless one is under way.
    fn wake(&mut self, context: &mut Context<Self>) {
        if self.phase == Phase::Idle {
            self.step(context, Self::begin_iteration);
        }
    }

    /// Sends each lane its order, takes in every answer, and goes on with `next`.
    fn ask<M>(
        &mut self,
        orders: Vec<(LaneId, M)>,
        context: &mut Context<Self>,
        next: fn(&mut Self, &mut Context<Self>),
    ) where
        M: Message<Result = Reply> + Send + 'static,
        Lane: Handler<M>,
    {
        if orders.is_empty() {
            return next(self, context);
        }
        let lanes: Vec<LaneId> = orders.iter().map(|(lane, _)| *lane).collect();
        let requests = orders.into_iter().map(|(lane, order)| self.lanes[lane.index()].address.send(order));
        let replies = join_all(requests.collect::<Vec<_>>());
        self.then(replies, context, move |scheduler, replies, context| {
            for (lane, reply) in lanes.into_iter().zip(replies) {
                scheduler.absorb(lane, reply.ok());
            }
            next(scheduler, context);
        });
    }

    /// Awaits `future` without keeping the mailbox waiting, and goes on with `next`, unless another
    /// chain has begun by then.
    fn then<T: 'static>(
        &mut self,
        future: impl Future<Output = T> + 'static,
        context: &mut Context<Self>,
        next: impl FnOnce(&mut Self, T, &mut Context<Self>) + 'static,
    ) {
        let chain = self.chain;
        context.spawn(future.into_actor(self).map(move |output, scheduler, context| {
            if scheduler.chain == chain && scheduler.phase != Phase::Ended {
                scheduler.step(context, |scheduler, context| next(scheduler, output, context));
            }
        }));
    }

    /// Hears the doorbell for as long as the scheduler lives.
    fn listen(&mut self, context: &mut Context<Self>) {
        let shared = self.shared.clone();
        let rung = async move { shared.doorbell.notified().await };
        context.spawn(rung.into_actor(self).map(|(), scheduler, context| {
            scheduler.step(context, Self::look_around);
            if scheduler.phase != Phase::Ended {
                scheduler.listen(context);
            }
        }));
    }

    /// Acts on what needs no lane: requests that leave the queue, a deadline, an engine that everybody
    /// has left.
    fn look_around(&mut self, context: &mut Context<Self>) {
        if self.phase == Phase::Ended {
            return;
        }
        if self.shared.is_abandoned() {
            self.close_until(Instant::now());
        }
        self.clear_queue(Instant::now());
        if self.is_overdue(Instant::now()) {
            self.shared.give_up_on_executor();
            return self.die("the executor did not finish its last batch in time", context);
        }
        self.set_alarm(context);
        self.wake(context);
    }

    /// Sees to it that [`Self::look_around`] is called at the next deadline.
    fn set_alarm(&mut self, context: &mut Context<Self>) {
        let Some(next) = self.next_deadline() else { return };
        match self.alarm {
            Some((set, _)) if set <= next => return,
            Some((_, handle)) => {
                context.cancel_future(handle);
            }
            None => {}
        }
        let wait = next.saturating_duration_since(Instant::now());
        let handle = context.run_later(wait, |scheduler, context| {
            scheduler.alarm = None;
            scheduler.step(context, Self::look_around);
        });
        self.alarm = Some((next, handle));
    }

    fn new_lane(&self, lane: LaneId) -> Addr<Lane> {
        Lane::new(lane, self.tokenizer.clone(), self.shared.clone()).start()
    }
}

impl Actor for Scheduler {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        let lanes = (0..self.shared.settings.lanes as u32).map(LaneId);
        self.lanes = lanes.map(|lane| LaneEntry::new(self.new_lane(lane))).collect();
        self.shared.set_health(Health::Ok);
        self.listen(context);
        // Whoever starts the engine waits for this, unless it is gone; then nobody will ask.
        let _ = self.ready.send(context.address());
    }
}

impl Handler<Submission> for Scheduler {
    type Result = Result<(), Refusal>;

    fn handle(&mut self, submission: Submission, context: &mut Self::Context) -> Self::Result {
        self.closing.check()?;
        self.step(context, |scheduler, context| {
            let request = submission.id;
            scheduler.enqueue(submission);
            scheduler.seek(request, context);
            scheduler.set_alarm(context);
            scheduler.wake(context);
        });
        Ok(())
    }
}

impl Handler<Command> for Scheduler {
    type Result = ();

    fn handle(&mut self, command: Command, context: &mut Self::Context) {
        match command {
            Command::Drain => self.close(),
            Command::Stop { deadline } => {
                let now = Instant::now();
                self.close_until(now.checked_add(deadline).unwrap_or(now));
            }
            #[cfg(any(test, feature = "testing", debug_assertions))]
            Command::Inject(injection) => {
                return self.step(context, |scheduler, _| scheduler.inject(injection));
            }
        }
        self.step(context, Self::look_around);
    }
}
