//! Executors without a device, for tests of whatever is built on the engine (feature `testing`): those of
//! the runtime, which has tests of its own for them.

pub use lavalane_runtime::testing::{
    Fate, Fault, FaultInjectingExecutor, FaultScript, Gate, LaneRecord, RunRecord, SCRIPTED_END,
    ScriptedExecutor, ScriptedTokens, When, expected_reply, scripted_limits,
};
