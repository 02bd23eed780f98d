//! The scheduler actor: it owns admission, the lanes' addresses, and the one batch in flight.

use crate::executor::ExecutorClient;
use crate::request::{Refusal, RequestEvent, Usage, ValidRequest};
use crate::shared::Shared;
use crate::status::{Health, RequestId};
use crate::stream::{Cancellation, EventSink};
use actix::{Actor, AsyncContext, Context, Handler, Message, System};
use lavalane_runtime::tokenizer::TokenText;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;

/// A request on its way into the scheduler, with everything that must outlive its lane.
#[derive(Message)]
#[rtype(result = "Result<(), Refusal>")]
pub(crate) struct Submission {
    pub(crate) id: RequestId,
    pub(crate) request: Box<ValidRequest>,
    pub(crate) sink: EventSink,
    pub(crate) cancellation: Cancellation,
    pub(crate) permit: OwnedSemaphorePermit,
    pub(crate) submitted: Instant,
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
}

/// The scheduler.
pub(crate) struct Scheduler {
    executor: Option<ExecutorClient>,
    tokenizer: Arc<dyn TokenText>,
    shared: Arc<Shared>,
    waiting: Vec<Submission>,
}

impl Scheduler {
    pub(crate) fn new(executor: ExecutorClient, tokenizer: Arc<dyn TokenText>, shared: Arc<Shared>) -> Self {
        Self { executor: Some(executor), tokenizer, shared, waiting: Vec::new() }
    }
}

impl Actor for Scheduler {
    type Context = Context<Self>;

    fn started(&mut self, _context: &mut Self::Context) {
        self.shared.set_health(Health::Ok);
    }
}

impl Handler<Submission> for Scheduler {
    type Result = Result<(), Refusal>;

    fn handle(&mut self, submission: Submission, context: &mut Self::Context) -> Self::Result {
        let wait_max = submission.request.queue_wait_max.unwrap_or(self.shared.settings.queue_wait_max);
        let id = submission.id;
        self.waiting.push(submission);
        context.run_later(wait_max, move |scheduler, _| {
            if let Some(place) = scheduler.waiting.iter().position(|waiting| waiting.id == id) {
                let submission = scheduler.waiting.swap_remove(place);
                let event = if submission.cancellation.is_cancelled() {
                    RequestEvent::Cancelled(Usage::default())
                } else {
                    RequestEvent::Refused(Refusal::QueueTimeout { waited: submission.submitted.elapsed() })
                };
                submission.sink.end(event);
                drop(submission.permit);
            }
        });
        Ok(())
    }
}

impl Handler<Command> for Scheduler {
    type Result = ();

    fn handle(&mut self, command: Command, context: &mut Self::Context) {
        self.shared.set_health(Health::Draining);
        if let Command::Stop { deadline } = command {
            context.run_later(deadline, |scheduler, _| {
                scheduler.executor = None;
                tracing::debug!("stopping; {} tokenizer references", Arc::strong_count(&scheduler.tokenizer));
                System::current().stop();
            });
        }
    }
}
