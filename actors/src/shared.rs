//! What handles, streams, the scheduler and the lanes share: permits, the doorbell, and the published
//! state. Nothing here is ever waited for while a lock is held.

use crate::lifecycle::{LifecycleEvent, Observers};
use crate::settings::EngineSettings;
use crate::statistics::Statistics;
use crate::status::{Health, RequestId, SlotStatus};
use lavalane_runtime::batch::ExecutorLimits;
use lavalane_runtime::ids::{Generation, LaneId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, watch};

/// The most that a refused client is told to wait.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

pub(crate) struct Shared {
    pub(crate) settings: EngineSettings,
    pub(crate) limits: ExecutorLimits,
    /// One permit per request that may be in the engine: lanes plus waiting places.
    pub(crate) permits: Arc<Semaphore>,
    /// Rung when a request was cancelled or the engine is to stop. It keeps one ring, so that a ring
    /// is never lost and never queued.
    pub(crate) doorbell: Notify,
    pub(crate) health: watch::Sender<Health>,
    pub(crate) statistics: Mutex<Statistics>,
    pub(crate) slots: Mutex<Vec<SlotStatus>>,
    observers: Observers,
    abandoned: AtomicBool,
    executor_given_up: AtomicBool,
    requests: AtomicU64,
}

impl Shared {
    pub(crate) fn new(settings: EngineSettings, limits: ExecutorLimits) -> Self {
        let lanes = (0..settings.lanes as u32).map(LaneId);
        Self {
            permits: Arc::new(Semaphore::new(settings.lanes + settings.queue_capacity)),
            doorbell: Notify::new(),
            health: watch::Sender::new(Health::Starting),
            statistics: Mutex::new(Statistics::new(limits.pages)),
            slots: Mutex::new(lanes.map(|lane| SlotStatus::idle(lane, Generation::default())).collect()),
            observers: Observers::default(),
            abandoned: AtomicBool::new(false),
            executor_given_up: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            settings,
            limits,
        }
    }

    /// The next request's number.
    pub(crate) fn number_request(&self) -> RequestId {
        RequestId(self.requests.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// How many tokens one sequence can hold: the context, or the whole pool where that is smaller.
    pub(crate) fn sequence_tokens_max(&self) -> usize {
        self.limits.context_tokens_max.min(self.limits.pages.saturating_mul(self.limits.page_tokens))
    }

    /// Sets the health, unless the engine has ended: that is not taken back.
    pub(crate) fn set_health(&self, health: Health) {
        self.health.send_if_modified(|current| {
            let change = !current.is_final() && *current != health;
            if change {
                *current = health;
            }
            change
        });
    }

    /// Publishes a lifecycle event to every observer.
    pub(crate) fn publish(&self, event: &LifecycleEvent) {
        let missed = self.observers.publish(event);
        if missed > 0 {
            self.statistics.lock().lifecycle_events_dropped += missed;
        }
    }

    pub(crate) fn observers(&self) -> &Observers {
        &self.observers
    }

    /// Says that the last handle and the last stream are gone.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.doorbell.notify_one();
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Says that the executor does not answer: nobody is to wait for its thread.
    pub(crate) fn give_up_on_executor(&self) {
        self.executor_given_up.store(true, Ordering::Release);
    }

    pub(crate) fn is_executor_given_up(&self) -> bool {
        self.executor_given_up.load(Ordering::Acquire)
    }

    /// When a refused client may try again: the time until about one request in the engine ends.
    pub(crate) fn retry_after(&self) -> Duration {
        let mean_s = self.statistics.lock().request_time.mean().unwrap_or(1.0);
        let wait = Duration::try_from_secs_f64(mean_s / self.settings.lanes as f64);
        wait.unwrap_or(RETRY_AFTER_MAX).clamp(Duration::from_secs(1), RETRY_AFTER_MAX)
    }
}
