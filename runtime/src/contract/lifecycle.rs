//! Lifecycle events: what happens to sessions and the device, for observers that are never waited for.
//!
//! Each observer has a bounded channel of its own. An event that finds it full is dropped for that
//! observer and counted, so that a slow observer costs nothing but its own completeness.

use super::SessionId;
use crate::batch::LaneFaultCause;
use crate::ids::Position;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

/// Something that happened to a session or to the device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionEvent {
    /// A lane was given to a new session.
    Activated {
        /// The session.
        session: SessionId,
    },
    /// A session was cut back.
    Trimmed {
        /// The session.
        session: SessionId,
        /// Its position before.
        from: Position,
        /// Its position after.
        to: Position,
    },
    /// An image was taken of a session.
    Exported {
        /// The session.
        session: SessionId,
        /// How much it holds.
        position: Position,
    },
    /// A session took over what an image holds.
    Imported {
        /// The session.
        session: SessionId,
        /// Its position now.
        position: Position,
    },
    /// A session failed and can only be dropped; its pages are free.
    Stopped {
        /// The session.
        session: SessionId,
        /// Why.
        cause: LaneFaultCause,
    },
    /// A session was dropped and its lane is free.
    Reclaimed {
        /// The session.
        session: SessionId,
    },
    /// A session lost its KV with the device; its tokens are run again.
    Reset {
        /// The session.
        session: SessionId,
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
pub struct SessionEvents {
    receiver: Receiver<SessionEvent>,
    dropped: Arc<AtomicU64>,
}

impl SessionEvents {
    /// Waits for the next event; `None` once the sessions are gone and all events were read.
    pub fn wait(&self) -> Option<SessionEvent> {
        self.receiver.recv().ok()
    }

    /// The next event, where one waits.
    pub fn try_next(&self) -> Option<SessionEvent> {
        self.receiver.try_recv().ok()
    }

    /// How many events were dropped because this observer had not read its earlier ones.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Observer {
    sender: SyncSender<SessionEvent>,
    dropped: Arc<AtomicU64>,
}

/// All observers.
#[derive(Debug, Default)]
pub(super) struct Observers(Vec<Observer>);

impl Observers {
    /// Adds an observer that may lag `capacity` events behind.
    pub(super) fn observe(&mut self, capacity: usize) -> SessionEvents {
        let (sender, receiver) = sync_channel(capacity.max(1));
        let dropped = Arc::new(AtomicU64::new(0));
        self.0.push(Observer { sender, dropped: dropped.clone() });
        SessionEvents { receiver, dropped }
    }

    /// Tells every observer, and forgets those that are gone.
    pub(super) fn publish(&mut self, event: &SessionEvent) {
        self.0.retain(|observer| match observer.sender.try_send(event.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                observer.dropped.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_observer_loses_events_with_a_count_and_the_others_none() {
        let mut observers = Observers::default();
        let (narrow, wide) = (observers.observe(1), observers.observe(8));
        (0..3).for_each(|_| observers.publish(&SessionEvent::DeviceRecovered));
        assert_eq!((narrow.dropped(), wide.dropped()), (2, 0));
        let count = |events: &SessionEvents| std::iter::from_fn(|| events.try_next()).count();
        assert_eq!((count(&narrow), count(&wide)), (1, 3));
    }

    #[test]
    fn an_observer_that_is_gone_is_forgotten() {
        let mut observers = Observers::default();
        drop(observers.observe(1));
        observers.publish(&SessionEvent::DeviceRecovered);
        assert!(observers.0.is_empty());
    }
}
