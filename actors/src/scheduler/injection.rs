//! What goes wrong in the actors on order, for tests and `lavalane serve --fault`.

use super::Scheduler;
use crate::lane::order::Why;
use crate::request::{Failure, RequestEvent};
use crate::testing::Injection;
use lavalane_runtime::ids::LaneId;

impl Scheduler {
    /// Lets it happen: at once, or to a lane before the next batch.
    pub(super) fn inject(&mut self, injection: Injection) {
        match injection {
            Injection::SchedulerPanic => panic!("injected"),
            Injection::SchedulerSlow(time) => std::thread::sleep(time),
            Injection::LanePanic(lane) => self.iteration.injected.push((lane, Why::Panic)),
            Injection::ReadersSlow => {
                let buffered = self.shared.settings.events_buffered_max;
                let lanes = (0..self.lanes.len() as u32).map(LaneId);
                let owned = lanes.filter(|lane| self.lanes[lane.index()].owner.is_some());
                let cut = || Why::Ended(RequestEvent::Failed(Failure::SlowReader { buffered }));
                self.iteration.injected.extend(owned.map(|lane| (lane, cut())));
            }
            Injection::ReadersVanish => {
                let owners = self.lanes.iter().filter_map(|lane| lane.owner.as_ref());
                owners.for_each(|owner| owner.cancellation.cancel());
            }
        }
    }
}
