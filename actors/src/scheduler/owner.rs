//! What the scheduler knows of a lane: its address, whose it is, and what its owner could run next.

use super::pages::Held;
use crate::lane::Lane;
use crate::lane::step::{Candidate, LaneStep};
use crate::lane::ticket::{Suspicion, Ticket};
use crate::status::{RequestId, SlotState, SlotStatus};
use crate::stream::Cancellation;
use actix::Addr;
use lavalane_runtime::ids::{Generation, LaneId, Position, TokenId};
use std::time::{Duration, Instant};

/// One lane.
pub(crate) struct LaneEntry {
    pub(crate) address: Addr<Lane>,
    pub(crate) generation: Generation,
    pub(crate) owner: Option<Owner>,
}

impl LaneEntry {
    pub(crate) fn new(address: Addr<Lane>) -> Self {
        Self { address, generation: Generation::default(), owner: None }
    }

    /// The lane as `/slots` shows it.
    pub(crate) fn status(&self, lane: LaneId) -> SlotStatus {
        let Some(owner) = &self.owner else { return SlotStatus::idle(lane, self.generation) };
        SlotStatus {
            lane,
            state: match owner.step {
                LaneStep::Decode { .. } => SlotState::Decode,
                LaneStep::Prefill { .. } => SlotState::Prefill,
            },
            generation: self.generation,
            request: Some(owner.id),
            position: owner.step.position().tokens(),
            prompt_tokens: owner.prompt_tokens,
            generated_tokens: owner.generated_tokens,
            tokens_per_second: owner.tokens_per_second,
            kv_pages: owner.pages.len(),
        }
    }
}

/// A lane's owner, as the scheduler sees it. The ticket itself is with the lane.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) id: RequestId,
    pub(crate) cancellation: Cancellation,
    /// Until when it may work, and how long that was from the start.
    pub(crate) work_until: Instant,
    pub(crate) work_limit: Duration,
    pub(crate) prompt_tokens: usize,
    pub(crate) generated_tokens: usize,
    pub(crate) tokens_per_second: f64,
    pub(crate) suspicion: Suspicion,
    /// The pages that it holds.
    pub(crate) pages: Held,
    pub(crate) step: LaneStep,
    /// The tokens that it computes before it draws: others may wait for them, and can find them once
    /// they are all computed. Empty from then on.
    pub(crate) computing: Vec<TokenId>,
    /// In how many iterations it was passed over since it last ran.
    pub(crate) bypassed: u32,
}

impl Owner {
    pub(crate) fn new(ticket: &Ticket, pages: Held, position: Position, work_limit: Duration) -> Self {
        let now = Instant::now();
        Self {
            id: ticket.id,
            cancellation: ticket.cancellation.clone(),
            work_until: ticket.work_until.or_else(|| now.checked_add(work_limit)).unwrap_or(now),
            work_limit,
            prompt_tokens: ticket.prompt_tokens(),
            generated_tokens: ticket.generated_tokens(),
            tokens_per_second: ticket.tokens_per_second(),
            suspicion: ticket.suspicion,
            pages,
            step: LaneStep::Prefill { position, tokens: ticket.transcript().len() },
            computing: ticket.transcript().to_vec(),
            bypassed: 0,
        }
    }

    /// The owner's place in the order of arrival.
    pub(crate) fn arrival(&self) -> u64 {
        self.id.0
    }

    /// The lane as the planner sees it.
    pub(crate) fn candidate(&self, lane: LaneId) -> Candidate {
        Candidate { lane, step: self.step, bypassed: self.bypassed, arrival: self.arrival() }
    }
}
