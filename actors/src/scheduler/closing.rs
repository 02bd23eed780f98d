//! The engine's end: draining, stopping at a deadline, and the scheduler's death.

use super::{Chain, Phase, Scheduler};
use crate::guard::guarded;
use crate::lane::order::{Release, Why};
use crate::request::{Failure, Refusal, RequestEvent};
use crate::status::Health;
use actix::{Context, System};
use lavalane_runtime::ids::LaneId;
use std::time::{Duration, Instant};

/// How long a batch in flight may go on after the deadline of a shutdown.
const GRACE: Duration = Duration::from_secs(30);

/// How the engine is closing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    /// It is not.
    Open,
    /// It runs what it has and takes nothing new.
    Draining,
    /// It does so until this moment, and then stops.
    Until(Instant),
    /// It failed.
    Dead(String),
}

impl Closing {
    /// Whether requests are taken.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        match self {
            Self::Open => Ok(()),
            Self::Draining | Self::Until(_) => Err(Refusal::Draining),
            Self::Dead(reason) => Err(Refusal::NotRunning(reason.clone())),
        }
    }

    /// Whether it takes nothing new.
    pub(super) fn is_closing(&self) -> bool {
        *self != Self::Open
    }

    /// Whether what still runs is to be ended.
    pub(super) fn is_past(&self, now: Instant) -> bool {
        matches!(self, Self::Until(deadline) if *deadline <= now)
    }
}

impl Scheduler {
    /// Takes nothing new from now on.
    pub(super) fn close(&mut self) {
        if self.closing == Closing::Open {
            self.closing = Closing::Draining;
            self.shared.set_health(Health::Draining);
        }
    }

    /// Takes nothing new, and ends everything at `deadline`. The earliest deadline holds.
    pub(super) fn close_until(&mut self, deadline: Instant) {
        self.close();
        self.closing = match &self.closing {
            Closing::Until(set) => Closing::Until(deadline.min(*set)),
            Closing::Dead(reason) => Closing::Dead(reason.clone()),
            Closing::Open | Closing::Draining => Closing::Until(deadline),
        };
    }

    pub(super) fn next_closing_deadline(&self, now: Instant) -> Option<Instant> {
        match self.closing {
            Closing::Until(deadline) if deadline > now => Some(deadline),
            Closing::Until(deadline) => deadline.checked_add(GRACE),
            Closing::Open | Closing::Draining | Closing::Dead(_) => None,
        }
    }

    /// Whether a batch goes on although the shutdown's deadline and its grace have passed.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.phase == Phase::Busy
            && matches!(self.closing, Closing::Until(deadline) if deadline.checked_add(GRACE).is_some_and(|end| end <= now))
    }

    /// Stops when nothing is left and the engine was told to.
    pub(super) fn stop_if_closed(&mut self) {
        if matches!(self.closing, Closing::Until(_)) {
            self.stop();
        }
    }

    fn stop(&mut self) {
        self.phase = Phase::Ended;
        System::current().stop();
    }

    /// Ends the scheduler: every request fails with the reason, and health turns red.
    pub(super) fn die(&mut self, reason: &str, context: &mut Context<Self>) {
        self.die_with(Failure::EngineStopped(reason.to_owned()), context);
    }

    pub(super) fn die_with(&mut self, failure: Failure, context: &mut Context<Self>) {
        if matches!(self.closing, Closing::Dead(_)) {
            // It died while it was dying: the tickets that are left answer as they are dropped.
            return self.stop();
        }
        let reason = failure.to_string();
        tracing::error!("the engine dies: {reason}");
        self.shared.set_health(Health::Dead { reason: reason.clone() });
        self.closing = Closing::Dead(reason);
        self.chain = Chain(self.chain.0 + 1);
        self.phase = Phase::Busy;
        if guarded(|| self.fail_all(&failure, context)).is_err() {
            self.stop();
        }
    }

    fn fail_all(&mut self, failure: &Failure, context: &mut Context<Self>) {
        let waiting = self.waiting.remove_where(|_, _| true);
        self.publish_gauges();
        for ticket in waiting {
            ticket.end(RequestEvent::Failed(failure.clone()), &self.shared);
        }
        let owned = self.lanes.iter().enumerate().filter(|(_, entry)| entry.owner.is_some());
        let releases = owned.map(|(lane, entry)| {
            let why = Why::Ended(RequestEvent::Failed(failure.clone()));
            (LaneId(lane as u32), Release { generation: entry.generation, why })
        });
        let releases = releases.collect();
        self.ask(releases, context, |scheduler, _context| {
            scheduler.publish_slots();
            scheduler.stop();
        });
    }
}
