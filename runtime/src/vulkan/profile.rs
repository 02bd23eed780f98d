//! Time per kernel, by timestamps between the stages of a step.

use super::device::Member;
use super::error::VulkanError;
use std::sync::Arc;
use vulkano::query::{QueryPool, QueryPoolCreateInfo, QueryResultFlags, QueryType};

/// The stages that one profile can hold.
const STAGES_MAX: u32 = 4096;

/// The time that one kind of stage took in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StageTime {
    /// What the stage computes.
    pub name: &'static str,
    /// How often it ran.
    pub count: usize,
    /// Its time in all, in seconds.
    pub seconds: f64,
}

/// Timestamps being taken.
pub(super) struct Profile {
    pub(super) pool: Arc<QueryPool>,
    /// The stage that each timestamp begins.
    pub(super) stages: Vec<&'static str>,
    nanoseconds_per_tick: f64,
}

impl Profile {
    /// A profile, or an error where the device takes no timestamps.
    pub(super) fn new(member: &Member) -> Result<Self, VulkanError> {
        let info = QueryPoolCreateInfo {
            query_count: STAGES_MAX,
            ..QueryPoolCreateInfo::query_type(QueryType::Timestamp)
        };
        let pool = QueryPool::new(member.device.clone(), info)
            .map_err(|error| VulkanError::driver("vkCreateQueryPool", error))?;
        let properties = member.device.physical_device().properties();
        Ok(Self { pool, stages: Vec::new(), nanoseconds_per_tick: f64::from(properties.timestamp_period) })
    }

    /// Where the next timestamp goes, if there is room.
    pub(super) fn next(&mut self, stage: &'static str) -> Option<u32> {
        let query = self.stages.len() as u32;
        (query < STAGES_MAX).then(|| self.stages.push(stage)).map(|()| query)
    }

    /// The times by stage, longest first, after the submission has ended.
    pub(super) fn times(&self) -> Result<Vec<StageTime>, VulkanError> {
        let mut ticks = vec![0u64; self.stages.len()];
        if ticks.is_empty() {
            return Ok(Vec::new());
        }
        self.pool
            .get_results(0..self.stages.len() as u32, &mut ticks, QueryResultFlags::WAIT)
            .map_err(|error| VulkanError::driver("vkGetQueryPoolResults", error))?;
        let mut times: Vec<StageTime> = Vec::new();
        for (stage, pair) in self.stages.iter().zip(ticks.windows(2)) {
            let seconds = pair[1].saturating_sub(pair[0]) as f64 * self.nanoseconds_per_tick * 1e-9;
            match times.iter_mut().find(|time| time.name == *stage) {
                Some(time) => {
                    time.count += 1;
                    time.seconds += seconds;
                }
                None => times.push(StageTime { name: stage, count: 1, seconds }),
            }
        }
        times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Ok(times)
    }
}
