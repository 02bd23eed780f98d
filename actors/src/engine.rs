//! The engine's start and its handle: the only way in.
//!
//! The actors run on a thread and an actor system of their own, so that a program may embed the
//! engine whatever runtime it awaits the streams with, or none until then.

use crate::lifecycle::LifecycleEvents;
use crate::request::{Refusal, ValidRequest};
use crate::scheduler::{Command, Scheduler, Submission};
use crate::settings::{EngineSettings, PrefixReuse, SnapshotSettings, StartError};
use crate::shared::Shared;
use crate::statistics::Statistics;
use crate::status::{Health, SlotStatus};
use crate::stream::{self, Cancellation, RequestStream};
use actix::Addr;
use lavalane_runtime::batch::{BatchExecutor, ExecutorLimits};
use lavalane_runtime::snapshot::SnapshotStore;
use lavalane_runtime::snapshot::files::{FileSystem, LocalFiles};
use lavalane_runtime::tokenizer::TokenText;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Starts engines.
#[derive(Debug)]
pub struct Engine;

impl Engine {
    /// Starts the actors and the executor's thread, and returns the handle. It may be called inside
    /// or outside of any runtime, and blocks only while two threads start.
    ///
    /// # Errors
    /// A setting is out of range, the folder of snapshots cannot be used, or a thread could not be made.
    pub fn start(
        executor: Box<dyn BatchExecutor>,
        tokenizer: Arc<dyn TokenText>,
        settings: EngineSettings,
    ) -> Result<EngineHandle, StartError> {
        Self::start_with_files(executor, tokenizer, settings, Arc::new(LocalFiles))
    }

    /// As [`Engine::start`], with snapshots in another file system than the operating system's.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start_with_files(
        executor: Box<dyn BatchExecutor>,
        tokenizer: Arc<dyn TokenText>,
        settings: EngineSettings,
        files: Arc<dyn FileSystem>,
    ) -> Result<EngineHandle, StartError> {
        let limits = executor.limits();
        settings.check(&limits)?;
        let snapshots = settings.snapshots.as_ref().filter(|_| settings.prefix_reuse == PrefixReuse::On);
        let open = |snapshots: &SnapshotSettings| {
            let (folder, bytes_max) = (&snapshots.folder, snapshots.bytes_max);
            SnapshotStore::open(files, folder, executor.identity(), bytes_max, SystemTime::now())
        };
        let store = snapshots.map(open).transpose()?.map(Arc::new);
        let shared = Arc::new(Shared::new(settings, limits));
        let scheduler = crate::threads::start(executor, tokenizer, store, &shared)?;
        Ok(EngineHandle { inner: Arc::new(Inner { shared, scheduler }) })
    }
}

/// The way to a running engine; cheap to clone. When the last handle and the last stream are gone,
/// the engine stops.
#[derive(Clone)]
pub struct EngineHandle {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    scheduler: Addr<Scheduler>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.abandon();
    }
}

impl std::fmt::Debug for EngineHandle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("EngineHandle").field("health", &self.health()).finish()
    }
}

impl EngineHandle {
    /// Hands a request in. It returns at once, whether or not a lane is free: the stream's first
    /// event says when the request has one ([`RequestEvent::Started`]) or that it will get none
    /// ([`RequestEvent::Refused`]).
    ///
    /// [`RequestEvent::Started`]: crate::request::RequestEvent::Started
    /// [`RequestEvent::Refused`]: crate::request::RequestEvent::Refused
    ///
    /// # Errors
    /// The request can never run (empty, longer than the context or the KV pool), the queue is full,
    /// or the engine takes no requests.
    pub async fn submit(&self, request: ValidRequest) -> Result<RequestStream, Refusal> {
        let result = self.try_submit(request).await;
        if result.is_err() {
            self.inner.shared.statistics.lock().requests_refused += 1;
        }
        result
    }

    async fn try_submit(&self, request: ValidRequest) -> Result<RequestStream, Refusal> {
        let shared = &self.inner.shared;
        self.check_can_run(&request)?;
        self.check_health()?;
        let permit = shared.permits.clone().try_acquire_owned().map_err(|_| Refusal::QueueFull {
            capacity: shared.settings.queue_capacity,
            retry_after: shared.retry_after(),
        })?;
        let id = shared.number_request();
        let cancellation = Cancellation::new(shared.clone());
        let buffered_max = shared.settings.events_buffered_max;
        let (sink, stream) = stream::channel(id, buffered_max, cancellation.clone(), self.inner.clone());
        let submission = Submission { id, request: Box::new(request), sink, cancellation, permit };
        match self.inner.scheduler.send(submission).await {
            Ok(accepted) => accepted.map(|()| stream),
            Err(_) => Err(self.not_running()),
        }
    }

    fn check_can_run(&self, request: &ValidRequest) -> Result<(), Refusal> {
        let limits = &self.inner.shared.limits;
        let prompt_tokens = request.prompt.len();
        if prompt_tokens == 0 {
            return Err(Refusal::EmptyPrompt);
        }
        if prompt_tokens >= limits.context_tokens_max {
            return Err(Refusal::PromptTooLong { prompt_tokens, context_tokens: limits.context_tokens_max });
        }
        let needed_pages = (prompt_tokens + 1).div_ceil(limits.page_tokens);
        if needed_pages > limits.pages {
            return Err(Refusal::PoolTooSmall { needed_pages, pool_pages: limits.pages });
        }
        Ok(())
    }

    fn check_health(&self) -> Result<(), Refusal> {
        match &*self.inner.shared.health.borrow() {
            health if health.takes_requests() => Ok(()),
            Health::Draining => Err(Refusal::Draining),
            health => Err(Refusal::NotRunning(health.to_string())),
        }
    }

    fn not_running(&self) -> Refusal {
        match &*self.inner.shared.health.borrow() {
            Health::Draining | Health::Stopped => Refusal::Draining,
            Health::Dead { reason } => Refusal::NotRunning(reason.clone()),
            _ => Refusal::NotRunning("the scheduler does not answer".to_owned()),
        }
    }

    /// How the engine is, at this moment; never waits for the engine.
    pub fn health(&self) -> Health {
        self.inner.shared.health.borrow().clone()
    }

    /// Every lane as it was after the last iteration; never waits for the engine.
    pub fn slots(&self) -> Vec<SlotStatus> {
        self.inner.shared.slots.lock().clone()
    }

    /// What the engine has done and is doing; never waits for the engine.
    pub fn statistics(&self) -> Statistics {
        self.inner.shared.statistics.lock().clone()
    }

    /// The executor's limits.
    pub fn limits(&self) -> ExecutorLimits {
        self.inner.shared.limits
    }

    /// The settings that the engine was started with.
    pub fn settings(&self) -> &EngineSettings {
        &self.inner.shared.settings
    }

    /// Lifecycle events from now on, for an observer that may lag `capacity` events behind.
    pub fn observe(&self, capacity: usize) -> LifecycleEvents {
        self.inner.shared.observers().observe(capacity)
    }

    /// Lets something go wrong in the actors, for tests. It happens before the next batch.
    #[cfg(any(test, feature = "testing", debug_assertions))]
    pub fn inject(&self, injection: crate::testing::Injection) {
        // A scheduler that is gone has nothing left to go wrong.
        if self.inner.scheduler.try_send(Command::Inject(injection)).is_err() {
            tracing::warn!("the scheduler does not take {injection:?}");
        }
    }

    /// Takes no more requests, and waits until all that were taken have ended. Requests that still
    /// wait for a lane run, too.
    pub async fn drain(&self) {
        if self.inner.scheduler.send(Command::Drain).await.is_ok() {
            let idle = self.inner.shared.settings.lanes + self.inner.shared.settings.queue_capacity;
            // Whoever has all permits knows that no request is in the engine. The permits are given
            // back at once; the engine stays closed because it is draining.
            let permits = self.inner.shared.permits.acquire_many(idle as u32).await;
            drop(permits);
        }
    }

    /// Drains for at most `deadline`, fails what has not ended by then, stops the engine's threads
    /// and waits for their end.
    pub async fn shutdown(&self, deadline: Duration) {
        let mut health = self.inner.shared.health.subscribe();
        if self.inner.scheduler.send(Command::Stop { deadline }).await.is_ok() {
            // An error says that the sender is gone, which this handle itself prevents.
            let _ = health.wait_for(Health::is_final).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Failure, RequestEvent};
    use crate::testing::{Gate, Injection, ScriptedExecutor, ScriptedTokens, scripted_limits};
    use lavalane_runtime::ids::TokenId;
    use lavalane_runtime::sampling::SamplingSettings;

    #[tokio::test]
    async fn the_scheduler_s_death_answers_every_request_and_turns_health_red() {
        let gate = Gate::shut();
        let executor = ScriptedExecutor::new(scripted_limits()).with_gate(gate.clone());
        let settings = EngineSettings { lanes: 1, ..EngineSettings::default() };
        let engine = Engine::start(Box::new(executor), Arc::new(ScriptedTokens), settings);
        let engine = engine.expect("the engine starts");
        let request = || ValidRequest::new(vec![TokenId(7); 9], SamplingSettings::greedy(), 5);
        let mut running = engine.submit(request()).await.expect("it is taken");
        let mut waiting = engine.submit(request()).await.expect("it is taken");
        gate.wait_for_arrival(1);
        // The scheduler may be gone before it can say that it has heard the order.
        let _ = engine.inner.scheduler.send(Command::Inject(Injection::SchedulerPanic)).await;
        let reason = "the scheduler panicked: injected".to_owned();
        let failed = Some(RequestEvent::Failed(Failure::EngineStopped(reason.clone())));
        assert_eq!(waiting.next().await, failed);
        assert!(matches!(running.next().await, Some(RequestEvent::Started { .. })));
        assert_eq!(running.next().await, failed);
        assert!(matches!(engine.health(), Health::Dead { reason: told } if told.contains(&reason)));
        assert!(matches!(engine.submit(request()).await.err(), Some(Refusal::NotRunning(_))));
        gate.open();
    }
}
