//! The lane actor: it holds one session between iterations and one request's progress.
//!
//! A lane is told what to do by the scheduler and answers with what it could do next, or with the
//! request that it gives up. While its session is away in a batch it holds none. Its position moves
//! only by an outcome that agrees with the lane's count, the session's length and the device's.

pub(crate) mod order;
pub(crate) mod step;
pub(crate) mod ticket;

use crate::guard::guarded;
use crate::request::{Failure, RequestEvent};
use crate::shared::Shared;
use actix::{Actor, Context, Handler};
use lavalane_runtime::batch::{LaneFaultCause, LaneOutcome, LaneVerdict, LaneWork, LogitsUse};
use lavalane_runtime::ids::{Generation, LaneId, Position};
use lavalane_runtime::session::Session;
use lavalane_runtime::tokenizer::TokenText;
use order::{Activate, Begin, Ready, Release, Reply, Settle, Settled, Why};
use std::sync::Arc;
use step::LaneStep;
use ticket::{AfterToken, Suspicion, Ticket};

/// Where a lane's session is.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a lane holds its session most of the time")]
enum Place {
    /// Here.
    Held(Session),
    /// In a batch, which runs this many of the lane's rows.
    Running { rows: usize, logits: LogitsUse },
}

/// A lane's owner.
#[derive(Debug)]
struct Owner {
    ticket: Box<Ticket>,
    position: Position,
    place: Place,
}

impl Owner {
    /// What it could run next.
    fn step(&self) -> LaneStep {
        let tokens = self.ticket.transcript().len();
        let position = self.position;
        if self.ticket.generated_tokens() > 0 && position.tokens() + 1 == tokens {
            LaneStep::Decode { position }
        } else {
            LaneStep::Prefill { position, tokens }
        }
    }
}

/// One lane.
pub(crate) struct Lane {
    id: LaneId,
    generation: Generation,
    owner: Option<Owner>,
    tokenizer: Arc<dyn TokenText>,
    shared: Arc<Shared>,
}

impl Lane {
    pub(crate) fn new(id: LaneId, tokenizer: Arc<dyn TokenText>, shared: Arc<Shared>) -> Self {
        Self { id, generation: Generation::default(), owner: None, tokenizer, shared }
    }

    /// Runs `work` for the owner of `generation`; a panic in it ends that owner's request.
    fn for_owner(&mut self, generation: Generation, work: impl FnOnce(&mut Self) -> Reply) -> Reply {
        if generation != self.generation || self.owner.is_none() {
            return Reply::Stale;
        }
        guarded(|| work(self)).unwrap_or_else(|panicked| self.fault(LaneFaultCause::Panicked(panicked.0)))
    }

    fn activate(&mut self, order: Activate) -> Reply {
        debug_assert!(self.owner.is_none(), "lane {} is busy", self.id);
        self.generation = order.generation;
        let position = order.session.length();
        self.owner = Some(Owner { ticket: order.ticket, position, place: Place::Held(order.session) });
        self.for_owner(order.generation, |lane| lane.start())
    }

    fn start(&mut self) -> Reply {
        let Some(owner) = &mut self.owner else { return Reply::Stale };
        let ticket = &mut owner.ticket;
        let limit = ticket.work_limit(self.shared.settings.work_time_max);
        match ticket.start(self.id, owner.position.tokens(), limit, &self.shared) {
            Ok(()) => self.ready(),
            Err(slow) => self.end(RequestEvent::Failed(Failure::SlowReader { buffered: slow.buffered })),
        }
    }

    fn begin(&mut self, order: Begin) -> Reply {
        let Some(owner) = &mut self.owner else { return Reply::Stale };
        let from = owner.position;
        let rows = from.tokens()..from.tokens() + order.rows;
        let Some(tokens) = owner.ticket.transcript().get(rows).map(<[_]>::to_vec) else {
            return self.fault(LaneFaultCause::InvalidWork("more rows were planned than are known"));
        };
        let running = Place::Running { rows: order.rows, logits: order.logits };
        let mut session = match std::mem::replace(&mut owner.place, running) {
            Place::Held(session) => session,
            Place::Running { .. } => {
                return self.fault(LaneFaultCause::InvalidWork("the lane's session is already in a batch"));
            }
        };
        if session.length() != from {
            return self.fault(mismatch(from, session.length(), session.length()));
        }
        session.extend_pages(order.pages);
        let (lane, generation, logits) = (self.id, self.generation, order.logits);
        Reply::Work(Box::new(LaneWork { lane, generation, session, from, tokens, logits }))
    }

    fn settle(&mut self, order: Settle) -> Reply {
        match order.settled {
            Settled::Verdict(verdict, session) => match verdict {
                LaneVerdict::Advance(outcome) => self.advance(outcome, session),
                LaneVerdict::Hold(_) => self.hold(session, &order.cause),
                LaneVerdict::Fault(fault) => self.fault(fault.cause),
            },
            Settled::SessionLost => self.lose(order.cause),
            Settled::SessionKept => {
                self.fault(LaneFaultCause::InvalidWork("the executor kept the lane's session"))
            }
        }
    }

    fn advance(&mut self, outcome: LaneOutcome, mut session: Session) -> Reply {
        let Some(owner) = &mut self.owner else { return Reply::Stale };
        let Place::Running { rows, logits } = owner.place else {
            return self.fault(LaneFaultCause::InvalidWork("the lane had no work in the batch"));
        };
        let from = owner.position;
        if outcome.from != from {
            return self.fault(mismatch(from, session.length(), outcome.from));
        }
        let position = from.advance(rows);
        if session.length() != position || outcome.to != position {
            return self.fault(mismatch(position, session.length(), outcome.to));
        }
        let drawn = match (logits, outcome.sampled.len()) {
            (LogitsUse::None, 0) => None,
            (LogitsUse::SampleLast, 1) => outcome.sampled.into_iter().next(),
            _ => return self.fault(LaneFaultCause::InvalidWork("the step drew what was not asked for")),
        };
        owner.position = position;
        owner.ticket.holds = 0;
        if let Some(sampled) = &drawn {
            session.sampler_mut().accept(&[sampled.token]);
        }
        owner.place = Place::Held(session);
        if let Some(sampled) = drawn
            && let AfterToken::End(event) =
                owner.ticket.take_token(sampled, self.tokenizer.as_ref(), &self.shared)
        {
            return self.end(event);
        }
        self.ready()
    }

    /// The lane did not run: it keeps its position and is tried again, a bounded number of times.
    fn hold(&mut self, session: Session, cause: &str) -> Reply {
        let Some(owner) = &mut self.owner else { return Reply::Stale };
        let position = owner.position;
        if session.length() != position {
            return self.fault(mismatch(position, session.length(), session.length()));
        }
        owner.place = Place::Held(session);
        owner.ticket.holds += 1;
        let attempts = owner.ticket.holds;
        if attempts > self.shared.settings.holds_max {
            return self.end(RequestEvent::Failed(Failure::NotRun { attempts, reason: cause.to_owned() }));
        }
        self.ready()
    }

    /// The executor died with the lane's session. A request that was its only company is the cause;
    /// any other goes on from its transcript, alone until it has drawn a token.
    fn lose(&mut self, reason: String) -> Reply {
        let Some(owner) = &mut self.owner else { return Reply::Stale };
        if owner.ticket.suspicion == Suspicion::Suspect {
            return self.fault(LaneFaultCause::Panicked(reason));
        }
        owner.ticket.suspicion = Suspicion::Suspect;
        self.give_up(Why::Reset)
    }

    fn ready(&mut self) -> Reply {
        let Some(owner) = &self.owner else { return Reply::Stale };
        Reply::Ready(Ready {
            step: owner.step(),
            generated_tokens: owner.ticket.generated_tokens(),
            tokens_per_second: owner.ticket.tokens_per_second(),
            suspicion: owner.ticket.suspicion,
        })
    }

    fn give_up(&mut self, why: Why) -> Reply {
        #[cfg(any(test, feature = "testing", debug_assertions))]
        assert!(!matches!(why, Why::Panic), "injected");
        let Some(owner) = self.owner.take() else { return Reply::Stale };
        let position = match owner.place {
            Place::Held(_) => Some(owner.position),
            // What a batch that did not come back has written is not known.
            Place::Running { .. } => None,
        };
        Reply::GivenUp { ticket: owner.ticket, position, why }
    }

    fn end(&mut self, event: RequestEvent) -> Reply {
        self.give_up(Why::Ended(event))
    }

    fn fault(&mut self, cause: LaneFaultCause) -> Reply {
        match self.give_up(Why::Ended(RequestEvent::Failed(Failure::Lane(cause)))) {
            // A faulted lane's KV is shared with nobody.
            Reply::GivenUp { ticket, why, .. } => Reply::GivenUp { ticket, position: None, why },
            other => other,
        }
    }
}

fn mismatch(tracked: Position, session: Position, device: Position) -> LaneFaultCause {
    LaneFaultCause::PositionMismatch {
        tracked: tracked.tokens(),
        session: session.tokens(),
        device: device.tokens(),
    }
}

impl Actor for Lane {
    type Context = Context<Self>;
}

impl Handler<Activate> for Lane {
    type Result = Reply;

    fn handle(&mut self, order: Activate, _context: &mut Self::Context) -> Reply {
        self.activate(order)
    }
}

impl Handler<Begin> for Lane {
    type Result = Reply;

    fn handle(&mut self, order: Begin, _context: &mut Self::Context) -> Reply {
        self.for_owner(order.generation, |lane| lane.begin(order))
    }
}

impl Handler<Settle> for Lane {
    type Result = Reply;

    fn handle(&mut self, order: Settle, _context: &mut Self::Context) -> Reply {
        self.for_owner(order.generation, |lane| lane.settle(order))
    }
}

impl Handler<Release> for Lane {
    type Result = Reply;

    fn handle(&mut self, order: Release, _context: &mut Self::Context) -> Reply {
        self.for_owner(order.generation, |lane| lane.give_up(order.why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EngineSettings;
    use crate::request::ValidRequest;
    use crate::stream::{Cancellation, channel};
    use crate::testing::{ScriptedTokens, scripted_limits};
    use lavalane_runtime::ids::TokenId;
    use lavalane_runtime::sampling::SamplingSettings;
    use lavalane_runtime::session::LengthSlot;

    /// A lane whose second owner has a prompt of five tokens.
    fn lane() -> (Lane, Generation) {
        let shared = Arc::new(Shared::new(EngineSettings::default(), scripted_limits()));
        let mut lane = Lane::new(LaneId(0), Arc::new(ScriptedTokens), shared.clone());
        let id = shared.number_request();
        let cancellation = Cancellation::new(shared.clone());
        let (sink, _stream) = channel(id, 16, cancellation.clone(), shared.clone());
        let permit = shared.permits.clone().try_acquire_owned().expect("the engine is empty");
        let request = ValidRequest::new(vec![TokenId(9); 5], SamplingSettings::greedy(), 3);
        let ticket = Box::new(Ticket::new(id, Box::new(request), sink, cancellation, permit, 100));
        let mut session = Session::new(LengthSlot(0), ticket.sampler());
        session.extend_pages([lavalane_runtime::ids::PageId(0)]);
        let generation = Generation::default().next().next();
        let reply = lane.activate(Activate { generation, ticket, session });
        assert!(matches!(reply, Reply::Ready(_)), "{reply:?}");
        (lane, generation)
    }

    fn begin(generation: Generation) -> Begin {
        Begin { generation, rows: 5, logits: LogitsUse::None, pages: Vec::new() }
    }

    #[test]
    fn a_late_message_to_the_last_owner_changes_nothing() {
        let (mut lane, generation) = lane();
        let late = Generation::default().next();
        assert!(matches!(lane.for_owner(late, |lane| lane.begin(begin(late))), Reply::Stale));
        assert!(matches!(lane.for_owner(late, |lane| lane.give_up(Why::Cancelled)), Reply::Stale));
        assert!(matches!(lane.for_owner(generation, |lane| lane.begin(begin(generation))), Reply::Work(_)));
    }

    /// Runs five rows and answers with an outcome from `from` to `to`; the lane must end with these
    /// three numbers.
    fn check_mismatch(from: usize, to: usize, advances: usize, numbers: (usize, usize, usize)) {
        let (mut lane, generation) = lane();
        let Reply::Work(work) = lane.for_owner(generation, |lane| lane.begin(begin(generation))) else {
            panic!("the lane has work");
        };
        let mut session = work.session;
        session.advance(advances);
        let at = |tokens| Position::START.advance(tokens);
        let outcome = LaneOutcome { lane: LaneId(0), from: at(from), to: at(to), sampled: Vec::new() };
        let settled = Settled::Verdict(LaneVerdict::Advance(outcome), session);
        let order = Settle { generation, settled, cause: String::new() };
        let reply = lane.for_owner(generation, |lane| lane.settle(order));
        let Reply::GivenUp { position: None, why: Why::Ended(RequestEvent::Failed(failure)), .. } = reply
        else {
            panic!("{reply:?}");
        };
        let (tracked, session, device) = numbers;
        assert_eq!(failure, Failure::Lane(LaneFaultCause::PositionMismatch { tracked, session, device }));
    }

    #[test]
    fn positions_that_disagree_end_the_lane_with_all_three_numbers() {
        check_mismatch(1, 5, 5, (0, 5, 1));
        check_mismatch(0, 4, 5, (5, 5, 4));
        check_mismatch(0, 5, 4, (5, 4, 5));
    }
}
