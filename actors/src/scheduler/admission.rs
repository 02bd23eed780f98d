//! Admission: into the queue, out of it again, and onto a lane with all pages that the transcript
//! needs.

use super::owner::Owner;
use super::queue::{Origin, Place, Turn};
use super::{Scheduler, Submission};
use crate::lane::order::Activate;
use crate::lane::ticket::Ticket;
use crate::lifecycle::LifecycleEvent;
use crate::request::{Failure, Refusal, RequestEvent};
use actix::Context;
use lavalane_runtime::batch::LaneFaultCause;
use lavalane_runtime::ids::{LaneId, TokenId};
use lavalane_runtime::session::{LengthSlot, Session};
use std::time::{Duration, Instant};

impl Scheduler {
    /// Puts a new request into the queue.
    pub(super) fn enqueue(&mut self, submission: Submission) {
        let Submission { id, request, sink, cancellation, permit } = submission;
        let tokens_max = self.shared.sequence_tokens_max();
        let ticket = Ticket::new(id, request, sink, cancellation, permit, tokens_max);
        self.queue_up(Box::new(ticket), Origin::New);
    }

    /// Puts a request into the queue; one that had a lane goes to its front.
    pub(super) fn queue_up(&mut self, ticket: Box<Ticket>, origin: Origin) {
        let turn = Turn {
            origin,
            priority: ticket.request().priority,
            arrival: ticket.id.0,
            submitted: ticket.submitted,
        };
        self.waiting.push(turn, ticket);
        self.publish_gauges();
    }

    /// Ends the waiting requests that were cancelled, have waited or worked too long, or that a
    /// closing engine does not run any more.
    pub(super) fn clear_queue(&mut self, now: Instant) {
        let closed = self.closing.is_past(now);
        let queue_wait_max = self.shared.settings.queue_wait_max;
        let leaving = self.waiting.remove_where(|turn, ticket| {
            closed || ticket.cancellation.is_cancelled() || is_late(turn, ticket, queue_wait_max, now)
        });
        for ticket in leaving {
            self.get_over_loss(ticket.id);
            let event = if ticket.cancellation.is_cancelled() {
                RequestEvent::Cancelled(ticket.usage())
            } else if let Some(work_until) = ticket.work_until {
                // It had a lane before.
                RequestEvent::Failed(if work_until <= now {
                    Failure::WorkTimeout { limit: self.work_limit(&ticket) }
                } else {
                    Failure::EngineStopped("it was shut down".to_owned())
                })
            } else if closed {
                RequestEvent::Refused(Refusal::Draining)
            } else {
                RequestEvent::Refused(Refusal::QueueTimeout { waited: now - ticket.submitted })
            };
            self.publish_gauges();
            ticket.end(event, &self.shared);
        }
    }

    /// How long a request may work.
    pub(super) fn work_limit(&self, ticket: &Ticket) -> Duration {
        ticket.work_limit(self.shared.settings.work_time_max)
    }

    /// The next moment at which somebody must leave, whatever else happens. Requests that have a lane
    /// are looked at in every iteration.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let queue_wait_max = self.shared.settings.queue_wait_max;
        let waiting = self.waiting.iter().filter_map(|(turn, ticket)| deadline(turn, ticket, queue_wait_max));
        let closing = self.next_closing_deadline(Instant::now());
        waiting.chain(closing).min()
    }

    /// Gives waiting requests the free lanes, in their turn, as long as there are pages for their
    /// transcripts. Nobody overtakes a request that waits for pages; one that waits for another to
    /// compute its prompt, or for the disk, is overtaken.
    pub(super) fn admit(&mut self, context: &mut Context<Self>) {
        let mut orders = Vec::new();
        while let Some(lane) = self.lanes.iter().position(|lane| lane.owner.is_none()) {
            let now = Instant::now();
            let place = self.waiting.next(now, |ticket| {
                !self.transfers.is_awaited_by(ticket.id) && !self.is_being_computed(ticket.transcript())
            });
            let Some(place) = place else { break };
            let Some((mut pages, cached)) = self.pages.admit(self.waiting.at(place).transcript()) else {
                if self.give_up_transfers() {
                    continue;
                }
                if self.lanes.iter().all(|lane| lane.owner.is_none()) {
                    self.refuse_for_ever(place);
                    continue;
                }
                break;
            };
            let ticket = self.waiting.take(place);
            let lane = LaneId(lane as u32);
            let mut session = Session::new(LengthSlot(lane.0), ticket.sampler());
            session.adopt_prefix(pages.for_table(), cached);
            let work_limit = self.work_limit(&ticket);
            let entry = &mut self.lanes[lane.index()];
            entry.generation = entry.generation.next();
            entry.owner = Some(Owner::new(&ticket, pages, cached, work_limit));
            let generation = entry.generation;
            self.shared.publish(&LifecycleEvent::Activated { lane, generation, request: ticket.id });
            orders.push((lane, Activate { generation, ticket, session }));
        }
        self.ask(orders, context, Self::transfer);
    }

    /// Ends the next request, which has the whole pool to itself and still does not fit. Submission
    /// checks for that, so this only keeps a mistake there from stopping the queue.
    fn refuse_for_ever(&mut self, place: Place) {
        let ticket = self.waiting.take(place);
        self.publish_gauges();
        ticket.end(RequestEvent::Failed(Failure::Lane(LaneFaultCause::OutOfMemory)), &self.shared);
    }

    /// Whether a running lane will sooner have the beginning of `tokens` ready for all than another
    /// could compute it. That lane's end, however it comes, makes the next waiting request compute.
    fn is_being_computed(&self, tokens: &[TokenId]) -> bool {
        let page_tokens = self.shared.limits.page_tokens;
        let mut computing = self.lanes.iter().filter_map(|lane| lane.owner.as_ref()).filter(|owner| {
            // The first token tells most prompts apart.
            owner.computing.first().is_some_and(|first| tokens.first() == Some(first))
        });
        let Some(known) = self.pages.known(tokens) else { return false };
        computing.any(|owner| {
            let shared = owner.computing.iter().zip(tokens).take_while(|(ours, theirs)| ours == theirs);
            let saved = shared.count().min(tokens.len() - 1).saturating_sub(known);
            let left = owner.computing.len() - owner.step.position().tokens();
            saved >= page_tokens && left <= saved + page_tokens
        })
    }
}

/// When a waiting request leaves the queue: by its queue limit, or by its work limit once it has had a
/// lane.
fn deadline(turn: &Turn, ticket: &Ticket, queue_wait_max: Duration) -> Option<Instant> {
    match turn.origin {
        Origin::New => turn.submitted.checked_add(ticket.request().queue_wait_max.unwrap_or(queue_wait_max)),
        Origin::Resumed => ticket.work_until,
    }
}

fn is_late(turn: &Turn, ticket: &Ticket, queue_wait_max: Duration, now: Instant) -> bool {
    deadline(turn, ticket, queue_wait_max).is_some_and(|deadline| deadline <= now)
}
