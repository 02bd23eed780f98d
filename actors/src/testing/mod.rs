//! Executors without a device, for tests of whatever is built on the engine (feature `testing`): those of
//! the runtime, which has tests of its own for them. [`Injection`] is what can go wrong in the actors
//! themselves. Debug builds have all of it, for `lavalane serve --fault`.

mod disk;
mod plan;

pub use disk::{DiskFault, FaultyFiles};
pub use lavalane_runtime::testing::{
    Fate, Fault, FaultInjectingExecutor, FaultScript, Gate, LaneRecord, RunRecord, SCRIPTED_END,
    ScriptedExecutor, ScriptedTokens, TransferFault, When, expected_reply, scripted_limits,
};
pub use plan::{PlannedFault, PlannedFaultError};

use lavalane_runtime::ids::LaneId;
use std::time::Duration;

/// Something that goes wrong in the actors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// The scheduler panics.
    SchedulerPanic,
    /// The scheduler does nothing for so long, while more and more waits for it.
    SchedulerSlow(Duration),
    /// The lane panics, if it has a request.
    LanePanic(LaneId),
    /// The client of every request that has a lane is found to read too slowly.
    ReadersSlow,
    /// The client of every request that has a lane goes away.
    ReadersVanish,
}
