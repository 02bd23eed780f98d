//! After the device was lost or the executor died: every lane gives its request back to the queue, a
//! new device is made, and admission runs the transcripts again.

use super::Scheduler;
use crate::lane::order::{Release, Why};
use crate::lifecycle::LifecycleEvent;
use crate::request::Failure;
use crate::status::Health;
use actix::{AsyncContext, Context};
use lavalane_runtime::ids::LaneId;
use std::time::Duration;

/// How long to wait before a device that could not be made is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Losses in a row, with no token drawn between them.
#[derive(Debug, Default)]
pub(super) struct Losses {
    in_a_row: u32,
    /// Tokens drawn before the last loss.
    tokens: u64,
}

impl Losses {
    /// Counts a loss after `tokens` tokens were drawn; returns how many there were in a row.
    fn count(&mut self, tokens: u64) -> u32 {
        self.in_a_row = if tokens == self.tokens { self.in_a_row + 1 } else { 1 };
        self.tokens = tokens;
        self.in_a_row
    }
}

impl Scheduler {
    pub(super) fn lose_device(&mut self, reason: String, context: &mut Context<Self>) {
        let tokens = self.shared.statistics.lock().generation_tokens;
        self.shared.publish(&LifecycleEvent::DeviceLost { reason: reason.clone() });
        if self.losses.count(tokens) > self.shared.settings.recoveries_max {
            return self.die_with(Failure::DeviceLost(reason), context);
        }
        if !self.closing.is_closing() {
            self.shared.set_health(Health::Recovering { reason });
        }
        let owned = self.lanes.iter().enumerate().filter(|(_, entry)| entry.owner.is_some());
        let releases = owned.map(|(lane, entry)| {
            (LaneId(lane as u32), Release { generation: entry.generation, why: Why::Reset })
        });
        let releases = releases.collect();
        self.ask(releases, context, Self::make_device);
    }

    fn make_device(&mut self, context: &mut Context<Self>) {
        match self.executor.recover() {
            Some(answer) => self.then(answer, context, |scheduler, answer, context| match answer {
                Ok(Ok(())) => scheduler.go_on(context),
                Ok(Err(reason)) => scheduler.try_again(reason, context),
                Err(_) => scheduler.die("the executor's thread ended during recovery", context),
            }),
            None => self.die("the executor's thread has ended", context),
        }
    }

    fn try_again(&mut self, reason: String, context: &mut Context<Self>) {
        tracing::error!("the device could not be made again: {reason}");
        let tokens = self.shared.statistics.lock().generation_tokens;
        if self.losses.count(tokens) > self.shared.settings.recoveries_max {
            return self.die_with(Failure::DeviceLost(reason), context);
        }
        let chain = self.chain;
        context.run_later(RETRY_PAUSE, move |scheduler, context| {
            if scheduler.chain == chain {
                scheduler.step(context, Self::make_device);
            }
        });
    }

    fn go_on(&mut self, context: &mut Context<Self>) {
        self.pages.reset();
        self.shared.statistics.lock().recoveries += 1;
        self.shared.publish(&LifecycleEvent::DeviceRecovered);
        if !self.closing.is_closing() {
            self.shared.set_health(Health::Ok);
        }
        self.begin_iteration(context);
    }
}
