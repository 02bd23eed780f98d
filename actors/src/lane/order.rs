//! The messages between the scheduler and a lane. Each names the lane's owner by its generation; a
//! message to an owner that is gone is answered with [`Reply::Stale`] and changes nothing.

use crate::lane::step::LaneStep;
use crate::lane::ticket::{Suspicion, Ticket};
use crate::request::RequestEvent;
use actix::{Message, MessageResponse};
use lavalane_runtime::batch::{LaneVerdict, LaneWork, LogitsUse};
use lavalane_runtime::ids::{Generation, PageId, Position};
use lavalane_runtime::session::Session;

/// Take over a request.
#[derive(Debug, Message)]
#[rtype(result = "Reply")]
pub(crate) struct Activate {
    /// The lane's new owner.
    pub(crate) generation: Generation,
    pub(crate) ticket: Box<Ticket>,
    /// A new session; its length is what was found in the cache.
    pub(crate) session: Session,
}

/// Give the session away for a batch.
#[derive(Debug, Message)]
#[rtype(result = "Reply")]
pub(crate) struct Begin {
    pub(crate) generation: Generation,
    pub(crate) rows: usize,
    pub(crate) logits: LogitsUse,
    /// Pages to append to the session's table first.
    pub(crate) pages: Vec<PageId>,
}

/// What came of a lane's part of a batch.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the session comes back almost always")]
pub(crate) enum Settled {
    /// The executor's verdict, and the session back.
    Verdict(LaneVerdict, Session),
    /// The executor died, and the session with it.
    SessionLost,
    /// The executor answered, but did not give the session back.
    SessionKept,
}

/// Hear what came of the batch.
#[derive(Debug, Message)]
#[rtype(result = "Reply")]
pub(crate) struct Settle {
    pub(crate) generation: Generation,
    pub(crate) settled: Settled,
    /// Why the batch was cut, where it was.
    pub(crate) cause: String,
}

/// Give up the request.
#[derive(Debug, Message)]
#[rtype(result = "Reply")]
pub(crate) struct Release {
    pub(crate) generation: Generation,
    pub(crate) why: Why,
}

/// Why a lane gives up its request.
#[derive(Debug)]
pub(crate) enum Why {
    /// Its pages are needed; it goes on later, on this lane or another.
    Preempted,
    /// The device is made anew; it goes on later, on this lane or another.
    Reset,
    /// It ended with this final event.
    Ended(RequestEvent),
    /// Its client cancelled it.
    Cancelled,
    /// The lane is to panic, for tests.
    #[cfg(any(test, feature = "testing", debug_assertions))]
    Panic,
}

/// How far a lane is, and what it could run next.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) step: LaneStep,
    pub(crate) generated_tokens: usize,
    pub(crate) tokens_per_second: f64,
    pub(crate) suspicion: Suspicion,
}

/// A lane's answer.
#[derive(Debug, MessageResponse)]
pub(crate) enum Reply {
    /// The message was for an owner that is gone.
    Stale,
    /// The lane can go on.
    Ready(Ready),
    /// The lane's part of the batch.
    Work(Box<LaneWork>),
    /// The lane is free.
    GivenUp {
        ticket: Box<Ticket>,
        /// How many tokens of the transcript are surely in the KV cache; `None` where that is not
        /// known.
        position: Option<Position>,
        why: Why,
    },
}
