//! What an observer may know of the engine at any moment: its health and its lanes.
//!
//! Both are published by the scheduler and read without asking it, so that a health check answers
//! while a long iteration runs.

use lavalane_runtime::ids::{Generation, LaneId};
use std::fmt;

/// How the engine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The actors are being made.
    Starting,
    /// It takes and runs requests.
    Ok,
    /// The device was lost and is being made again; requests wait.
    Recovering {
        /// What was lost.
        reason: String,
    },
    /// It finishes what it has and takes nothing new.
    Draining,
    /// It has stopped, as it was told to.
    Stopped,
    /// It has failed for good.
    Dead {
        /// Why.
        reason: String,
    },
}

impl Health {
    /// Whether requests are taken.
    pub fn takes_requests(&self) -> bool {
        matches!(self, Self::Ok | Self::Recovering { .. })
    }

    /// Whether nothing runs any more.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Stopped | Self::Dead { .. })
    }
}

impl fmt::Display for Health {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => formatter.write_str("starting"),
            Self::Ok => formatter.write_str("ok"),
            Self::Recovering { reason } => write!(formatter, "recovering: {reason}"),
            Self::Draining => formatter.write_str("draining"),
            Self::Stopped => formatter.write_str("stopped"),
            Self::Dead { reason } => write!(formatter, "dead: {reason}"),
        }
    }
}

/// A request's number, counted from 1 since the engine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

impl fmt::Display for RequestId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

/// What a lane is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// It has no request.
    Idle,
    /// It runs its prompt, or runs a transcript again after a preemption or a device loss.
    Prefill,
    /// It draws tokens.
    Decode,
}

impl SlotState {
    /// The state's name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// One lane, as `/slots` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotStatus {
    /// The lane.
    pub lane: LaneId,
    /// What it does.
    pub state: SlotState,
    /// Which owner it has, or had last.
    pub generation: Generation,
    /// Its request.
    pub request: Option<RequestId>,
    /// Tokens of its sequence in the KV cache.
    pub position: usize,
    /// Tokens of its request's prompt.
    pub prompt_tokens: usize,
    /// Tokens drawn for its request.
    pub generated_tokens: usize,
    /// Tokens drawn per second since the first; 0 before the second.
    pub tokens_per_second: f64,
    /// KV pages that it holds, shared ones included.
    pub kv_pages: usize,
}

impl SlotStatus {
    /// A lane that has no request.
    pub fn idle(lane: LaneId, generation: Generation) -> Self {
        Self {
            lane,
            state: SlotState::Idle,
            generation,
            request: None,
            position: 0,
            prompt_tokens: 0,
            generated_tokens: 0,
            tokens_per_second: 0.0,
            kv_pages: 0,
        }
    }
}
