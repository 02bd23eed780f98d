//! After the device was lost or the executor died: every lane gives its request back to the queue, a
//! new device is made, and admission runs the transcripts again.

use super::Scheduler;
use super::queue::Origin;
use crate::lane::order::{Release, Why};
use crate::lifecycle::LifecycleEvent;
use crate::request::Failure;
use crate::status::{Health, RequestId};
use actix::{AsyncContext, Context};
use lavalane_runtime::ids::LaneId;
use std::time::{Duration, Instant};

/// How long to wait before a device that could not be made is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Losses in a row, with no token drawn between them.
#[derive(Debug, Default)]
pub(super) struct Losses {
    in_a_row: u32,
    /// Tokens drawn before the last loss.
    tokens: u64,
    /// When the device was lost that some requests have not got over yet.
    since: Option<Instant>,
    /// Those requests.
    resuming: Vec<RequestId>,
}

impl Losses {
    /// Counts a loss after `tokens` tokens were drawn; returns how many there were in a row.
    fn count(&mut self, tokens: u64) -> u32 {
        self.in_a_row = if tokens == self.tokens { self.in_a_row + 1 } else { 1 };
        self.tokens = tokens;
        self.in_a_row
    }

    /// Notes when the device was lost and who was running.
    fn begin(&mut self, now: Instant, running: impl Iterator<Item = RequestId>) {
        self.since.get_or_insert(now);
        for request in running {
            if !self.resuming.contains(&request) {
                self.resuming.push(request);
            }
        }
    }

    /// Notes that a request goes on or has ended; when it was the last, tells when the device was lost.
    fn get_over(&mut self, request: RequestId) -> Option<Instant> {
        if self.resuming.is_empty() {
            return None;
        }
        self.resuming.retain(|resuming| *resuming != request);
        self.resuming.is_empty().then(|| self.since.take()).flatten()
    }
}

impl Scheduler {
    pub(super) fn lose_device(&mut self, reason: String, context: &mut Context<Self>) {
        let tokens = self.shared.statistics.lock().generation_tokens;
        self.shared.publish(&LifecycleEvent::DeviceLost { reason: reason.clone() });
        if self.losses.count(tokens) > self.shared.settings.recoveries_max {
            return self.die_with(Failure::DeviceLost(reason), context);
        }
        let running = self.lanes.iter().filter_map(|lane| lane.owner.as_ref()).map(|owner| owner.id);
        // Those whose sessions were lost with the executor wait in the queue by now.
        let waiting = self.waiting.iter().filter(|(turn, _)| turn.origin == Origin::Resumed);
        let running = running.chain(waiting.map(|(_, ticket)| ticket.id));
        self.losses.begin(Instant::now(), running);
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

    /// Notes that a request has drawn a token or has ended.
    pub(super) fn get_over_loss(&mut self, request: RequestId) {
        if let Some(since) = self.losses.get_over(request) {
            self.shared.statistics.lock().resumption_time.record_time(since.elapsed());
        }
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
        self.transfers.forget();
        self.pages.reset();
        {
            let mut statistics = self.shared.statistics.lock();
            statistics.recoveries += 1;
            if let Some(since) = self.losses.since {
                statistics.recovery_time.record_time(since.elapsed());
            }
        }
        if self.losses.resuming.is_empty() {
            self.losses.since = None;
        }
        self.shared.publish(&LifecycleEvent::DeviceRecovered);
        if !self.closing.is_closing() {
            self.shared.set_health(Health::Ok);
        }
        self.begin_iteration(context);
    }
}
