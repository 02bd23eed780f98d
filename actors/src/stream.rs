//! A request's stream of events: the reader's end and the engine's end.
//!
//! The channel between them is bounded, and one of its places is kept for the final event from the
//! start. So a reader that does not read can be cut without ever being waited for, and it still
//! learns why; and a sink that is dropped for whatever reason still ends its stream with exactly one
//! final event.

use crate::request::{Failure, RequestEvent};
use crate::shared::Shared;
use crate::status::RequestId;
use futures_util::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// The events of one request, in order. The last is final (see [`RequestEvent::is_final`]); after
/// it comes `None`.
///
/// Dropping the stream before its final event cancels the request: its lane is free within one
/// iteration.
pub struct RequestStream {
    id: RequestId,
    receiver: mpsc::Receiver<RequestEvent>,
    cancellation: Cancellation,
    ended: bool,
    /// Keeps the engine running while a stream is read, even when every handle was dropped.
    _engine: Arc<dyn Send + Sync>,
}

impl std::fmt::Debug for RequestStream {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RequestStream").field("id", &self.id).field("ended", &self.ended).finish()
    }
}

impl RequestStream {
    /// The request's number, as `slots()` shows it.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The next event; `None` after the final one. Safe to cancel: no event is lost.
    pub async fn next(&mut self) -> Option<RequestEvent> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    /// Cancels the request. The stream goes on to its final event, which is `Cancelled` unless the
    /// request had already ended.
    pub fn cancel(&self) {
        self.cancellation.cancel();
    }

    /// Something that can cancel the request from elsewhere while the stream is being read.
    pub fn cancellation(&self) -> Cancellation {
        self.cancellation.clone()
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<RequestEvent>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = std::task::ready!(self.receiver.poll_recv(context));
        self.ended = event.as_ref().is_none_or(RequestEvent::is_final);
        Poll::Ready(event)
    }
}

impl Stream for RequestStream {
    type Item = RequestEvent;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<RequestEvent>> {
        self.get_mut().poll_event(context)
    }
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        if !self.ended {
            self.cancellation.cancel();
        }
    }
}

/// Cancels one request; cheap to clone.
#[derive(Clone)]
pub struct Cancellation {
    flag: Arc<AtomicBool>,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Cancellation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Cancellation").field("cancelled", &self.is_cancelled()).finish()
    }
}

impl Cancellation {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { flag: Arc::new(AtomicBool::new(false)), shared }
    }

    /// Cancels the request; more than once is the same as once.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Release);
        self.shared.doorbell.notify_one();
    }

    /// Whether the request was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }
}

/// The engine's end of a request's stream. Whatever becomes of its owner, the stream gets exactly
/// one final event.
#[derive(Debug)]
pub(crate) struct EventSink {
    sender: mpsc::Sender<RequestEvent>,
    final_place: Option<mpsc::OwnedPermit<RequestEvent>>,
    capacity: usize,
}

/// The reader did not keep up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReaderTooSlow {
    /// How many events were waiting.
    pub(crate) buffered: usize,
}

impl EventSink {
    /// Says an event that is not final, without ever waiting. A reader that is gone hears nothing;
    /// its cancellation says so elsewhere.
    pub(crate) fn say(&self, event: RequestEvent) -> Result<(), ReaderTooSlow> {
        match self.sender.try_send(event) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => Err(ReaderTooSlow { buffered: self.capacity }),
        }
    }

    /// Ends the stream with its final event.
    pub(crate) fn end(mut self, event: RequestEvent) {
        debug_assert!(event.is_final(), "{event:?} is not final");
        if let Some(place) = self.final_place.take() {
            place.send(event);
        }
    }
}

impl Drop for EventSink {
    fn drop(&mut self) {
        if let Some(place) = self.final_place.take() {
            let failure = Failure::EngineStopped("the request's owner ended without an answer".to_owned());
            place.send(RequestEvent::Failed(failure));
        }
    }
}

/// Makes both ends of a request's stream, in which `buffered_max` events may wait.
pub(crate) fn channel(
    id: RequestId,
    buffered_max: usize,
    cancellation: Cancellation,
    engine: Arc<dyn Send + Sync>,
) -> (EventSink, RequestStream) {
    let (sender, receiver) = mpsc::channel(buffered_max + 1);
    let final_place = sender.clone().try_reserve_owned().ok();
    debug_assert!(final_place.is_some(), "a new channel has a free place");
    let sink = EventSink { sender, final_place, capacity: buffered_max };
    (sink, RequestStream { id, receiver, cancellation, ended: false, _engine: engine })
}
