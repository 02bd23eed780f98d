//! The engine's settings: how many lanes and waiting requests it takes, and every limit in time.
//!
//! Plain data with defaults; [`crate::Engine::start`] checks them against the executor's limits.

use lavalane_runtime::batch::ExecutorLimits;
use lavalane_runtime::snapshot::StoreError;
use std::path::PathBuf;
use std::time::Duration;

/// Whether finished sequences leave their KV pages behind for later requests to reuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefixReuse {
    /// They do, until the pages are needed.
    #[default]
    On,
    /// Every request computes its whole prompt.
    Off,
}

/// A slice of a prompt is not made shorter than this for anybody's sake: each costs a whole pass over the weights.
pub const SLICE_ROWS_MIN: usize = 16;

/// How many rows of prompts run beside live decodes, and in one iteration at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefillPacing {
    /// As many as the other limits allow.
    Off,
    /// As many as the times of earlier steps allow, but at least [`SLICE_ROWS_MIN`].
    Adaptive {
        /// By how many per cent prompts may lengthen a step in which other lanes decode; at least 1.
        lengthening_max_percent: u32,
        /// How long a step may take in which nothing decodes: for so long nobody new gets a lane, and
        /// a client that leaves keeps its own. More than zero.
        step_time_max: Duration,
    },
}

impl Default for PrefillPacing {
    fn default() -> Self {
        Self::Adaptive { lengthening_max_percent: 50, step_time_max: Duration::from_secs(1) }
    }
}

/// Where finished sequences' KV outlives the device's memory and the engine itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotSettings {
    /// The folder; it is made where it is not there, and belongs to one engine at a time.
    pub folder: PathBuf,
    /// The most bytes that its files may take.
    pub bytes_max: u64,
    /// How long a request waits for its prefix to be read before it computes it instead.
    pub load_time_max: Duration,
    /// How many bytes of pages pass the device between two batches; one page at the least.
    pub transfer_bytes_max: usize,
}

impl SnapshotSettings {
    /// A folder for at most `bytes_max` bytes.
    pub fn new(folder: impl Into<PathBuf>, bytes_max: u64) -> Self {
        Self {
            folder: folder.into(),
            bytes_max,
            load_time_max: Duration::from_secs(10),
            transfer_bytes_max: 8 << 20,
        }
    }
}

/// What the engine is started with.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSettings {
    /// How many requests run at once; at least 1 and at most the executor's `lanes_max`.
    pub lanes: usize,
    /// How many requests may wait beyond those; at least 1.
    pub queue_capacity: usize,
    /// The most rows of one iteration, over all lanes; at least 1. The executor's `batch_rows_max`
    /// limits it too.
    pub rows_per_iteration: usize,
    /// The most rows of one lane's prefill slice; at least 1.
    pub prefill_slice_rows_max: usize,
    /// How many prefill rows there may be within those limits.
    pub prefill_pacing: PrefillPacing,
    /// After how many iterations in which it was passed over a lane goes before the others; at
    /// least 1.
    pub bypass_max: u32,
    /// How long a request waits for a lane where it sets no limit of its own.
    pub queue_wait_max: Duration,
    /// How long a request may take once it has a lane, where it sets no limit of its own.
    pub work_time_max: Duration,
    /// How long a request waits to gain one step of priority; more than zero.
    pub aging_interval: Duration,
    /// How many events of one request may wait for its reader before it is cut; at least 2.
    pub events_buffered_max: usize,
    /// How many times in a row a lane's work is tried again before its request fails.
    pub holds_max: u32,
    /// How many device losses in a row, with no token drawn between them, end the engine.
    pub recoveries_max: u32,
    /// Whether prompts reuse KV pages of earlier ones.
    pub prefix_reuse: PrefixReuse,
    /// Where prefixes outlive the engine, if they are to and prompts reuse them at all.
    pub snapshots: Option<SnapshotSettings>,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            lanes: 4,
            queue_capacity: 64,
            rows_per_iteration: 512,
            prefill_slice_rows_max: 512,
            prefill_pacing: PrefillPacing::default(),
            bypass_max: 4,
            queue_wait_max: Duration::from_secs(60),
            work_time_max: Duration::from_secs(600),
            aging_interval: Duration::from_secs(5),
            events_buffered_max: 1024,
            holds_max: 3,
            recoveries_max: 3,
            prefix_reuse: PrefixReuse::On,
            snapshots: None,
        }
    }
}

/// Why the engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting is out of range.
    #[error("the setting `{name}` is {value}, but {rule}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: usize,
        /// What it must be.
        rule: String,
    },
    /// A thread could not be made.
    #[error("the thread `{name}` could not be started")]
    Thread {
        /// The thread.
        name: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The folder of snapshots cannot be used.
    #[error(transparent)]
    Snapshots(#[from] StoreError),
    /// The actor system ended before it gave its address.
    #[error("the actor system ended while it started")]
    ActorSystem,
}

impl EngineSettings {
    /// Checks every setting against its range and the executor's limits.
    ///
    /// # Errors
    /// [`StartError::Setting`] names the first setting that is out of range.
    pub fn check(&self, limits: &ExecutorLimits) -> Result<(), StartError> {
        at_least("lanes", self.lanes, 1)?;
        at_least("queue_capacity", self.queue_capacity, 1)?;
        at_least("rows_per_iteration", self.rows_per_iteration, 1)?;
        at_least("prefill_slice_rows_max", self.prefill_slice_rows_max, 1)?;
        if let PrefillPacing::Adaptive { lengthening_max_percent, step_time_max } = self.prefill_pacing {
            at_least("prefill_pacing's lengthening_max_percent", lengthening_max_percent as usize, 1)?;
            at_least("prefill_pacing's step_time_max (ms)", step_time_max.as_millis() as usize, 1)?;
        }
        at_least("bypass_max", self.bypass_max as usize, 1)?;
        at_least("events_buffered_max", self.events_buffered_max, 2)?;
        at_least("aging_interval (ms)", self.aging_interval.as_millis() as usize, 1)?;
        at_least("executor's batch_rows_max", limits.batch_rows_max, 1)?;
        at_least("executor's page_tokens", limits.page_tokens, 1)?;
        at_least("executor's pages", limits.pages, 1)?;
        if self.lanes > limits.lanes_max {
            let rule = format!("this device takes at most {} lanes", limits.lanes_max);
            return Err(StartError::Setting { name: "lanes", value: self.lanes, rule });
        }
        Ok(())
    }
}

fn at_least(name: &'static str, value: usize, least: usize) -> Result<(), StartError> {
    if value < least {
        return Err(StartError::Setting { name, value, rule: format!("it must be at least {least}") });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ExecutorLimits = ExecutorLimits {
        batch_rows_max: 64,
        lane_rows_max: 64,
        lanes_max: 8,
        context_tokens_max: 256,
        page_tokens: 16,
        pages: 64,
        vocabulary: 100,
    };

    fn check(change: impl FnOnce(&mut EngineSettings), expected: Option<&str>) {
        let mut settings = EngineSettings::default();
        change(&mut settings);
        let message = settings.check(&LIMITS).err().map(|error| error.to_string());
        match (message, expected) {
            (None, None) => {}
            (Some(message), Some(expected)) => assert!(message.contains(expected), "{message}"),
            (message, expected) => panic!("{message:?} where {expected:?} was expected"),
        }
    }

    #[test]
    fn the_defaults_are_in_range() {
        check(|_| {}, None);
    }

    #[test]
    fn more_lanes_than_the_device_takes_are_refused_with_both_numbers() {
        check(|settings| settings.lanes = 9, Some("`lanes` is 9, but this device takes at most 8"));
    }

    #[test]
    fn a_zero_is_refused_with_the_setting_s_name() {
        check(|settings| settings.queue_capacity = 0, Some("`queue_capacity` is 0"));
        check(|settings| settings.rows_per_iteration = 0, Some("`rows_per_iteration` is 0"));
    }
}
