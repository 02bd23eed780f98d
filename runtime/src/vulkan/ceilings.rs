//! What a device of its own memory and units does at the most, measured by two kernels: one reads a large buffer, the
//! other computes chains of multiply-adds in f32. (The `subgroup` pack's matrices multiply whole numbers by ordinary
//! multiplications: there is no dot product of four bytes, and no ceiling of one. That of cooperative matrices, by which
//! the `coopmat` pack multiplies many rows, is not measured: its kernels may exceed this one.)

use super::buffers::Home;
use super::device::Member;
use super::error::VulkanError;
use super::group::{Along, Bound, Group, GroupPipelines, GroupRecorder, Meetings, Program, Stage};
use super::pace::Team;
use super::pipelines::Specialised;
use super::region::Region;
use super::roofline::Roofline;
use lavalane_shaders::Kernel;
use lavalane_shaders::twins::multiply_add::operations;
use std::time::{Duration, Instant};
use vulkano::buffer::BufferContents;

/// Lanes of a workgroup: as many as every device has.
pub(super) const LANES: usize = 128;
/// Texels that a lane reads.
const TEXELS: usize = 64;
/// Bytes that a workgroup reads.
pub(super) const RUN_BYTES: usize = LANES * TEXELS * 16;
/// Bytes that are read at the most: far more than the caches of a device.
const READ_BYTES_MAX: u64 = 1 << 30;
/// The bytes that the buffer is filled with, over and over: words without a pattern, since drivers may compress others.
const FILLING_BYTES: usize = 16 << 20;
/// Workgroups that compute: more than run at once on any device.
const COMPUTING_GROUPS: usize = 4096;
/// Times that the buffer is read in one program, at the most.
const READS_MAX: usize = 1 << 12;
/// Turns of the computing kernel, at the most; software drivers end a loop after 65,535.
const TURNS_MAX: usize = 1 << 15;
/// The least time of a program that counts: enough to make nothing of a submission's own cost.
const TIME_MIN: Duration = Duration::from_millis(60);
/// How often such a program runs; the best time counts.
const ROUNDS: usize = 4;

/// How much is read and computed at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Bytes of the buffer that is read; whole runs.
    pub(super) read_bytes: usize,
    /// Workgroups that compute.
    pub(super) computing_groups: usize,
    /// The least time of a program that counts.
    pub(super) time_min: Duration,
}

impl Extent {
    /// As much as shows what the device can do.
    fn of(member: &Member) -> Self {
        // Not more than an eighth of its memory: other programs may use the device.
        let read_bytes = READ_BYTES_MAX.min(member.buffer_bytes_max()).min(member.report.memory_bytes / 8);
        let runs = (read_bytes as usize / RUN_BYTES).max(1);
        Self { read_bytes: runs * RUN_BYTES, computing_groups: COMPUTING_GROUPS, time_min: TIME_MIN }
    }
}

/// Both ceilings of a device.
///
/// # Errors
/// The device's.
pub(super) fn measure(member: Member) -> Result<Roofline, VulkanError> {
    let extent = Extent::of(&member);
    Ceilings::new(Group::single(member), extent)?.measure()
}

/// The kernels, ready to run, with their buffers.
pub(super) struct Ceilings {
    pub(super) group: Group,
    extent: Extent,
    reading: Stage,
    computing: Stage,
    source: Region,
    /// A word of each lane that reads.
    #[cfg(test)]
    pub(super) kept: Region,
    /// Four f32 of each lane that computes.
    #[cfg(test)]
    pub(super) result: Region,
}

/// What the reading kernel is told.
#[derive(Clone, Copy, BufferContents)]
#[repr(C)]
struct ReadingPush {
    texels: u32,
}

/// What the computing kernel is told.
#[derive(Clone, Copy, BufferContents)]
#[repr(C)]
struct ComputingPush {
    factor: f32,
    addend: f32,
    turns: u32,
}

/// The factor and the addend of each multiply-add: a chain tends to 1, and neither overflows nor vanishes.
pub(super) const HALF: f32 = 0.5;

impl Ceilings {
    /// Makes both kernels ready, and fills what is read.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn new(group: Group, extent: Extent) -> Result<Self, VulkanError> {
        let runs = extent.read_bytes / RUN_BYTES;
        let source = group.region("the memory that is read", extent.read_bytes, Home::Device)?;
        let kept = group.region("what is kept of the memory", runs * LANES * 4, Home::Device)?;
        let result_bytes = extent.computing_groups * LANES * 16;
        let result = group.region("the chains' results", result_bytes, Home::Device)?;
        let mut pipelines = GroupPipelines::default();
        let mut stage = |kernel, bindings: &[(u32, Bound)]| {
            let constants = vec![(0, LANES as u32)];
            group.stage(&mut pipelines, Specialised { kernel, constants }, bindings)
        };
        let storage = |region: &Region| Bound::Storage(region.clone());
        let reading = stage(Kernel::ReadAll, &[(0, storage(&source)), (1, storage(&kept))])?;
        let computing = stage(Kernel::MultiplyAdd, &[(0, storage(&result))])?;
        let ceilings = Self {
            group,
            extent,
            reading,
            computing,
            source,
            #[cfg(test)]
            kept,
            #[cfg(test)]
            result,
        };
        ceilings.fill()?;
        Ok(ceilings)
    }

    /// Fills what is read with words that follow no pattern.
    fn fill(&self) -> Result<(), VulkanError> {
        let bytes = self.extent.read_bytes.min(FILLING_BYTES);
        let filling = self.group.region("the filling of the memory that is read", bytes, Home::Device)?;
        let words: Vec<u32> = (0..bytes as u32 / 4).map(filling_word).collect();
        self.group.upload(&filling, 0, bytemuck::cast_slice(&words))?;
        let mut recorder = self.group.record(Team::All)?;
        for at in (0..self.extent.read_bytes).step_by(bytes) {
            recorder.copy((&filling, 0), (&self.source, at), bytes.min(self.extent.read_bytes - at));
        }
        self.time(&recorder.finish()?).map(drop)
    }

    /// Records reading the whole buffer.
    pub(super) fn read(&self, recorder: &mut GroupRecorder<'_>) {
        let push = ReadingPush { texels: TEXELS as u32 };
        recorder.dispatch(&self.reading, push, [self.extent.read_bytes / RUN_BYTES, 1], Along::X);
    }

    /// Records so many turns of multiply-adds.
    pub(super) fn compute(&self, recorder: &mut GroupRecorder<'_>, turns: usize) {
        let push = ComputingPush { factor: HALF, addend: HALF, turns: turns as u32 };
        recorder.dispatch(&self.computing, push, [self.extent.computing_groups, 1], Along::X);
    }

    /// Measures both ceilings.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn measure(&self) -> Result<Roofline, VulkanError> {
        let reads_per_second = self.rate(READS_MAX, |recorder, times| {
            for _ in 0..times {
                self.read(recorder);
                recorder.barrier();
            }
        })?;
        let turns_per_second = self.rate(TURNS_MAX, |recorder, turns| self.compute(recorder, turns))?;
        let lanes = self.extent.computing_groups * LANES;
        Ok(Roofline {
            bytes_per_second: reads_per_second * self.extent.read_bytes as f64,
            operations_per_second: turns_per_second * (lanes * operations(1)) as f64,
        })
    }

    /// How many times per second something is done, from a program that does it often enough, but not more than
    /// `times_max` times.
    fn rate(
        &self,
        times_max: usize,
        record: impl Fn(&mut GroupRecorder<'_>, usize),
    ) -> Result<f64, VulkanError> {
        let mut times = 1;
        loop {
            let mut recorder = self.group.record(Team::All)?;
            record(&mut recorder, times);
            let program = recorder.finish()?;
            let mut best = self.time(&program)?;
            if best < self.extent.time_min && times < times_max {
                times *= 2;
                continue;
            }
            for _ in 1..ROUNDS {
                best = best.min(self.time(&program)?);
            }
            return Ok(times as f64 / best.as_secs_f64());
        }
    }

    /// Runs a program and tells how long it took.
    fn time(&self, program: &Program) -> Result<Duration, VulkanError> {
        let start = Instant::now();
        match self.group.run(program)? {
            Meetings::Held { .. } => Ok(start.elapsed()),
            Meetings::Missed => Err(VulkanError::Busy),
        }
    }
}

/// A word of what is read, by its place: no two neighbours are alike.
pub(super) fn filling_word(at: u32) -> u32 {
    at.wrapping_mul(0x9e37_79b9).rotate_left(at % 31) ^ at
}
