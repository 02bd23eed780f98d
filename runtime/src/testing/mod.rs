//! Executors without a device, for tests of whatever is built on batches (feature `testing`; debug builds
//! have it too).
//!
//! [`ScriptedExecutor`] is a small deterministic model over real page tables: what it draws depends on
//! every token that it reads back from its pages, so a wrong table, position or replay changes the
//! reply. [`FaultInjectingExecutor`] wraps any executor and makes it fail by script.

mod faults;
mod gate;
mod script;
mod scripted;

pub use faults::FaultInjectingExecutor;
pub use gate::Gate;
pub use script::{Fate, Fault, FaultScript, LaneRecord, RunRecord, TransferFault, Transfers, When};
pub use scripted::{SCRIPTED_END, ScriptedExecutor, ScriptedTokens, expected_reply, scripted_limits};
