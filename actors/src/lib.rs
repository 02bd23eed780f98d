//! Lanes, scheduler and executor of Lavalane as actors. They know no HTTP.

pub mod bench;
mod engine;
mod executor;
mod lane;
pub mod lifecycle;
pub mod request;
mod scheduler;
pub mod settings;
mod shared;
mod snapshots;
pub mod statistics;
pub mod status;
pub mod stream;
#[cfg(any(test, feature = "testing", debug_assertions))]
pub mod testing;
mod threads;

use lavalane_runtime::guard;

pub use engine::{Engine, EngineHandle};
pub use settings::{EngineSettings, SnapshotSettings, StartError};
pub use stream::RequestStream;
