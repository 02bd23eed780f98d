//! Lifecycle events: what happens to lanes and the device, for observers that are never waited for.
//!
//! Each observer has a bounded channel of its own. An event that finds it full is dropped for that
//! observer and counted, so that a slow observer costs nothing but its own completeness.

use crate::status::RequestId;
use lavalane_runtime::ids::{Generation, LaneId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;

/// Something that happened to a lane or to the device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LifecycleEvent {
    /// A lane was given to a request.
    Activated {
        /// The lane.
        lane: LaneId,
        /// Its new owner.
        generation: Generation,
        /// The request.
        request: RequestId,
    },
    /// A lane's pages were taken for an older request; its own request waits to go on.
    Preempted {
        /// The lane.
        lane: LaneId,
        /// Its last owner.
        generation: Generation,
        /// The request.
        request: RequestId,
    },
    /// A request ended, however it did, and its lane is free.
    Reclaimed {
        /// The lane.
        lane: LaneId,
        /// Its last owner.
        generation: Generation,
        /// The request.
        request: RequestId,
    },
    /// A lane lost its session with the device; its request's transcript is run again, on this lane
    /// or another.
    Reset {
        /// The lane.
        lane: LaneId,
        /// Its last owner.
        generation: Generation,
        /// The request.
        request: RequestId,
    },
    /// A finished sequence's KV was read out of the device, to be kept on the disk.
    Exported {
        /// How many of its tokens.
        tokens: usize,
    },
    /// A prefix's KV came from the disk, and can be found by requests now.
    Imported {
        /// How many tokens the prefix has.
        tokens: usize,
    },
    /// The device was lost.
    DeviceLost {
        /// What the driver said.
        reason: String,
    },
    /// The device was made again.
    DeviceRecovered,
}

/// One observer's events.
#[derive(Debug)]
pub struct LifecycleEvents {
    receiver: mpsc::Receiver<LifecycleEvent>,
    dropped: Arc<AtomicU64>,
}

impl LifecycleEvents {
    /// The next event; `None` once the engine is gone and all events were read.
    pub async fn next(&mut self) -> Option<LifecycleEvent> {
        self.receiver.recv().await
    }

    /// The next event, where one waits.
    pub fn try_next(&mut self) -> Option<LifecycleEvent> {
        self.receiver.try_recv().ok()
    }

    /// How many events were dropped because this observer had not read its earlier ones.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Observer {
    sender: mpsc::Sender<LifecycleEvent>,
    dropped: Arc<AtomicU64>,
}

/// The engine's side: all observers.
#[derive(Debug, Default)]
pub(crate) struct Observers(Mutex<Vec<Observer>>);

impl Observers {
    /// Adds an observer that may lag `capacity` events behind.
    pub(crate) fn observe(&self, capacity: usize) -> LifecycleEvents {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        let dropped = Arc::new(AtomicU64::new(0));
        self.0.lock().push(Observer { sender, dropped: dropped.clone() });
        LifecycleEvents { receiver, dropped }
    }

    /// Tells every observer, forgets those that are gone, and returns how many missed the event.
    pub(crate) fn publish(&self, event: &LifecycleEvent) -> u64 {
        let mut missed = 0;
        self.0.lock().retain(|observer| match observer.sender.try_send(event.clone()) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                observer.dropped.fetch_add(1, Ordering::Relaxed);
                missed += 1;
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        });
        missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_observer_loses_events_with_a_count_and_the_others_none() {
        let observers = Observers::default();
        let mut narrow = observers.observe(1);
        let mut wide = observers.observe(8);
        let missed: u64 = (0..3).map(|_| observers.publish(&LifecycleEvent::DeviceRecovered)).sum();
        assert_eq!((missed, narrow.dropped(), wide.dropped()), (2, 2, 0));
        let count = |events: &mut LifecycleEvents| std::iter::from_fn(|| events.try_next()).count();
        assert_eq!((count(&mut narrow), count(&mut wide)), (1, 3));
    }

    #[test]
    fn an_observer_that_is_gone_is_forgotten() {
        let observers = Observers::default();
        drop(observers.observe(1));
        observers.publish(&LifecycleEvent::DeviceRecovered);
        assert!(observers.0.lock().is_empty());
    }
}
