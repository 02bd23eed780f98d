//! The scheduler's table of lanes: taking in their answers, and publishing what they do.

use super::Scheduler;
use super::owner::{LaneEntry, Owner};
use super::queue::Origin;
use crate::lane::order::{Ready, Reply, Why};
use crate::lane::step::LaneStep;
use crate::lane::ticket::Ticket;
use crate::lifecycle::LifecycleEvent;
use crate::request::RequestEvent;
use lavalane_runtime::ids::{LaneId, Position};

impl Scheduler {
    /// Takes in a lane's answer; `None` where the lane is dead.
    pub(super) fn absorb(&mut self, lane: LaneId, reply: Option<Reply>) {
        match reply {
            Some(Reply::Ready(ready)) => self.note(lane, ready),
            Some(Reply::Work(work)) => self.iteration.work.push(*work),
            Some(Reply::GivenUp { ticket, position, why }) => self.take_back(lane, ticket, position, why),
            // The lane no longer has the request that it was thought to have: whoever dropped the
            // ticket has thereby answered its client.
            Some(Reply::Stale) => self.forget(lane),
            None => {
                tracing::error!("lane {lane} is dead and is made anew");
                let generation = self.lanes[lane.index()].generation;
                let address = self.new_lane(lane);
                self.forget(lane);
                self.lanes[lane.index()] = LaneEntry { generation, ..LaneEntry::new(address) };
            }
        }
    }

    fn take_back(&mut self, lane: LaneId, ticket: Box<Ticket>, position: Option<Position>, why: Why) {
        let generation = self.lanes[lane.index()].generation;
        let request = ticket.id;
        if let Some(owner) = self.free(lane) {
            match position {
                Some(valid) => self.give_back(owner, &ticket, valid, &why),
                None => self.pages.release(owner.pages),
            }
        }
        self.publish_slot(lane);
        let event = match why {
            Why::Preempted => {
                self.shared.statistics.lock().preemptions += 1;
                self.shared.publish(&LifecycleEvent::Preempted { lane, generation, request });
                return self.queue_up(ticket, Origin::Resumed);
            }
            Why::Reset => {
                self.shared.publish(&LifecycleEvent::Reset { lane, generation, request });
                return self.queue_up(ticket, Origin::Resumed);
            }
            Why::Ended(event) => event,
            Why::Cancelled => RequestEvent::Cancelled(ticket.usage()),
            #[cfg(any(test, feature = "testing", debug_assertions))]
            Why::Panic => unreachable!("a lane that is told to panic answers with a fault"),
        };
        self.get_over_loss(request);
        self.shared.publish(&LifecycleEvent::Reclaimed { lane, generation, request });
        self.publish_gauges();
        ticket.end(event, &self.shared);
    }

    /// Takes back the pages of a lane that vouches for the first `valid` tokens of its transcript.
    fn give_back(&mut self, mut owner: Owner, ticket: &Ticket, valid: Position, why: &Why) {
        if valid > owner.step.position() {
            self.pages.copied(&mut owner.pages);
        }
        // A request that goes on is kept when it ends.
        if matches!(why, Why::Ended(_) | Why::Cancelled) && owner.pages.copy().is_none() {
            self.keep(&owner.pages, ticket, valid);
        }
        self.pages.finish(owner.pages, ticket.transcript(), valid);
    }

    fn note(&mut self, lane: LaneId, ready: Ready) {
        let Some(owner) = &mut self.lanes[lane.index()].owner else { return };
        let position = ready.step.position();
        if position > owner.step.position() {
            self.pages.copied(&mut owner.pages);
        }
        if matches!(ready.step, LaneStep::Decode { .. }) && !owner.computing.is_empty() {
            // The step that drew from them had finite logits: the pages may be relied on.
            let computed = std::mem::take(&mut owner.computing);
            self.pages.publish(&owner.pages, &computed, Position::START.advance(computed.len()));
        }
        let has_drawn = ready.generated_tokens > owner.generated_tokens;
        owner.step = ready.step;
        owner.generated_tokens = ready.generated_tokens;
        owner.tokens_per_second = ready.tokens_per_second;
        owner.suspicion = ready.suspicion;
        let id = owner.id;
        if has_drawn {
            self.get_over_loss(id);
        }
    }

    /// Frees a lane whose ticket is gone.
    fn forget(&mut self, lane: LaneId) {
        if let Some(owner) = self.free(lane) {
            self.get_over_loss(owner.id);
            self.shared.statistics.lock().requests_failed += 1;
            self.pages.release(owner.pages);
        }
        self.publish_slot(lane);
        self.publish_gauges();
    }

    fn free(&mut self, lane: LaneId) -> Option<Owner> {
        self.lanes[lane.index()].owner.take()
    }

    pub(super) fn publish_slot(&self, lane: LaneId) {
        self.shared.slots.lock()[lane.index()] = self.lanes[lane.index()].status(lane);
    }

    /// Publishes every lane and the gauges.
    pub(super) fn publish_slots(&mut self) {
        {
            let mut slots = self.shared.slots.lock();
            for (index, (slot, entry)) in slots.iter_mut().zip(&self.lanes).enumerate() {
                *slot = entry.status(LaneId(index as u32));
            }
        }
        self.publish_gauges();
    }

    pub(super) fn publish_gauges(&mut self) {
        let pages = self.pages.in_use();
        let mut statistics = self.shared.statistics.lock();
        statistics.requests_running = self.lanes.iter().filter(|lane| lane.owner.is_some()).count();
        statistics.requests_waiting = self.waiting.len();
        statistics.kv_pages_used = pages.used;
        statistics.kv_pages_cached = pages.cached;
    }
}
