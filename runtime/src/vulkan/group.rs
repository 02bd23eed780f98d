//! Device groups: several members that compute one forward pass together.
//!
//! Each step's workgroups are split over the members, which share all memory and wait for one another
//! between steps that depend on each other ([`Meeting`]). Members are software devices that run their
//! work on one core each, every one with an instance of its own, because devices of one instance share a
//! lock. A group of one is any single device, with the driver's own threads.

mod making;
mod recording;

use super::buffers::Home;
use super::device::{DeviceChoice, DeviceReport, Member, Pack};
use super::error::VulkanError;
use super::host_memory::{Draft, HostMemory};
use super::pace::Team;
use super::pipelines::{Binding, Prepared, Specialised};
use super::recorder::{Ready, Recorder};
use super::region::Region;
use super::self_test::{Tested, open_tested};
use super::threads::{Alone, GroupReport, SoftwareThreads, software_threads};
use crate::cores::cores;
use lavalane_shaders::{Kernel, Reads};
pub(crate) use making::GroupPipelines;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vulkano::descriptor_set::DescriptorSet;
use vulkano::format::Format;

/// The most members of a group: beyond, waiting for one another costs more than another core gives.
const MEMBERS_MAX: usize = 16;

/// How long a member waits at a meeting, in turns of `meet.comp`: about as many as software drivers allow a
/// loop. That is some 70 milliseconds, so that an interruption does not cost a whole step.
const TURNS_MAX: u32 = 60_000;

/// How many turns are measured at start.
const MEASURED_TURNS: u32 = 2_000;

/// How long the test at start is tried: kernels are compiled meanwhile, and the machine may be busy.
const TEST_TIME_MAX: Duration = Duration::from_secs(10);

/// The meetings of the test at start.
const TEST_MEETINGS: usize = 16;

/// Devices that compute together.
pub(crate) struct Group {
    members: Vec<Member>,
    meeting: Option<Meeting>,
    /// Why there is one member, where that was decided.
    alone: Option<Alone>,
    /// All shared memory, which lives as long as the members do.
    shared: Mutex<Vec<Arc<HostMemory>>>,
}

/// What is bound to a kernel on every member.
#[derive(Clone)]
pub(crate) enum Bound {
    Storage(Region),
    Texels(Region, Format),
}

impl Bound {
    /// A region as a pack's kernels read it.
    pub(crate) fn read_by(reads: Reads, region: &Region, format: Format) -> Self {
        match reads {
            Reads::Texels => Self::Texels(region.clone(), format),
            Reads::Storage => Self::Storage(region.clone()),
        }
    }
}

/// A pipeline with its bindings, on every member.
#[derive(Clone)]
pub(crate) struct Stage(Vec<(Arc<Prepared>, Arc<DescriptorSet>)>);

impl Stage {
    /// Whether its kernel is compiled.
    pub(crate) fn is_made(&self) -> bool {
        self.0.iter().all(|(kernel, _)| kernel.is_made())
    }
}

/// Along which side of a dispatch's grid the members split it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Along {
    X,
    Y,
}

impl Along {
    /// The longer side.
    pub(crate) fn longer(groups: [usize; 2]) -> Self {
        if groups[1] > groups[0] { Self::Y } else { Self::X }
    }
}

/// The kernel and the words by which members wait for one another.
struct Meeting {
    words: Region,
    stage: Stage,
    /// What a turn of waiting takes, measured at start.
    turn_seconds: f64,
}

/// The words of a meeting: see `meet.comp`.
const MEETING_WORDS: usize = 3;

/// How a program that all members share went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Meetings {
    /// They met each time; this share of their time they waited, 0 to 1.
    Held { waited_share: f64 },
    /// They missed each other: what they computed is garbage.
    Missed,
}

/// Every member's commands for one step, recorded.
pub(crate) struct GroupRecorder<'a> {
    group: &'a Group,
    team: Team,
    recorders: Vec<Recorder>,
    /// How many meetings were recorded.
    meetings: u32,
    /// Why a kernel could not be compiled, which [`GroupRecorder::finish`] tells.
    failure: Option<VulkanError>,
}

/// Every member's commands, ready to run as often as wanted, one run at a time.
pub(crate) struct Program {
    members: Vec<Ready>,
}

impl Group {
    /// Opens the chosen device, with as many members as the choice says or as serve it best.
    ///
    /// # Errors
    /// No loader, driver or such device; a pack that the device cannot run; a driver's refusal. More
    /// members than one where the device cannot be grouped.
    pub(crate) fn open(choice: &DeviceChoice) -> Result<Self, VulkanError> {
        let first = open_tested(choice, Tested::AllButSoftware, &|_, _, _| ())?;
        let choice = &DeviceChoice { pack: Some(first.pack), ..choice.clone() };
        let obstacle = grouping_obstacle(&first);
        let count = match (choice.members, &obstacle) {
            (Some(count), None) => count.clamp(1, MEMBERS_MAX),
            (Some(0 | 1), Some(_)) | (None, Some(_)) => 1,
            (Some(count), Some(reason)) => {
                return Err(VulkanError::Ungroupable { members: count, reason: reason.clone() });
            }
            (None, None) => cores().min(MEMBERS_MAX),
        };
        if count == 1 {
            let alone = match (choice.members, obstacle) {
                (Some(_), _) => Alone::Asked,
                (None, Some(obstacle)) => Alone::Obstacle(obstacle),
                (None, None) => Alone::OneCore,
            };
            return Ok(Self::alone(first, alone));
        }
        let others = (1..count).map(|_| Member::open(choice));
        let members: Vec<Member> = std::iter::once(Ok(first)).chain(others).collect::<Result<_, _>>()?;
        match Self::of(members) {
            Ok(group) => Ok(group),
            Err(error) if choice.members.is_none() => {
                tracing::warn!("the device group's test failed, so one member computes alone: {error}");
                let alone = Alone::TestFailed(error.to_string());
                Member::open(choice).map(|member| Self::alone(member, alone))
            }
            Err(error) => Err(error),
        }
    }

    /// A group of one.
    pub(crate) fn single(member: Member) -> Self {
        Self { members: vec![member], meeting: None, alone: None, shared: Mutex::default() }
    }

    fn alone(member: Member, alone: Alone) -> Self {
        Self { alone: Some(alone), ..Self::single(member) }
    }

    /// How the group computes.
    pub(super) fn how(&self) -> GroupReport {
        let software = self.first().is_software();
        GroupReport { members: self.members.len(), alone: self.alone.clone(), software }
    }

    /// The first member, out of the group.
    pub(super) fn into_first(mut self) -> Member {
        self.members.swap_remove(0)
    }

    fn of(members: Vec<Member>) -> Result<Self, VulkanError> {
        let mut group = Self { members, meeting: None, alone: None, shared: Mutex::default() };
        let words = group.region("a device group's meeting", MEETING_WORDS * 4, Home::Upload)?;
        let mut pipelines = GroupPipelines::default();
        let constants = vec![(0, group.first().lanes() as u32)];
        let what = Specialised { kernel: Kernel::Meet, constants };
        let stage = group.stage(&mut pipelines, what, &[(0, Bound::Storage(words.clone()))])?;
        group.meeting = Some(Meeting { words, stage, turn_seconds: 0.0 });
        group.test_meetings()?;
        let turn_seconds = group.measure_turn()?;
        if let Some(meeting) = &mut group.meeting {
            meeting.turn_seconds = turn_seconds;
        }
        Ok(group)
    }

    /// Members meet a few times, so that it is known that they can.
    fn test_meetings(&self) -> Result<(), VulkanError> {
        let mut recorder = self.record(Team::All)?;
        for _ in 0..TEST_MEETINGS {
            recorder.barrier();
        }
        let program = recorder.finish()?;
        let start = Instant::now();
        while self.run(&program)? == Meetings::Missed {
            if start.elapsed() > TEST_TIME_MAX {
                let reason = "the members of the device group keep missing each other".to_owned();
                return Err(VulkanError::DeviceLost(reason));
            }
        }
        Ok(())
    }

    /// The seconds that a turn of waiting takes: the first member waits for nobody.
    fn measure_turn(&self) -> Result<f64, VulkanError> {
        let mut recorder = self.record(Team::All)?;
        recorder.recorders.truncate(1);
        recorder.meet(MEASURED_TURNS);
        // The others have nothing to do.
        recorder
            .recorders
            .extend(self.members[1..].iter().map(Member::record).collect::<Result<Vec<_>, _>>()?);
        let program = recorder.finish()?;
        let start = Instant::now();
        self.run(&program)?;
        Ok(start.elapsed().as_secs_f64() / f64::from(MEASURED_TURNS))
    }

    /// The members.
    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// The first member, which speaks for all: they are equal.
    pub(crate) fn first(&self) -> &Member {
        &self.members[0]
    }

    /// The first member, for tests that lower its limits.
    #[cfg(test)]
    pub(crate) fn first_mut(&mut self) -> &mut Member {
        &mut self.members[0]
    }

    /// The device that all members are.
    pub(crate) fn report(&self) -> &DeviceReport {
        &self.members[0].report
    }

    /// A buffer that all members see.
    ///
    /// # Errors
    /// `what` does not fit the memory or the devices' limits.
    pub(crate) fn region(&self, what: &str, bytes: usize, home: Home) -> Result<Region, VulkanError> {
        if let [member] = self.members.as_slice() {
            return member.buffer(what, bytes, home).map(Region::single);
        }
        self.adopt(Draft::new(what, bytes)?)
    }

    /// Whether members share host memory, as several do.
    pub(crate) fn shares_memory(&self) -> bool {
        self.members.len() > 1
    }

    /// Memory that was written in place as a buffer that all members see; for groups that share memory.
    ///
    /// # Errors
    /// It does not fit the devices' limits.
    pub(crate) fn adopt(&self, draft: Draft) -> Result<Region, VulkanError> {
        let host = Arc::new(HostMemory::from(draft));
        self.shared.lock().push(host.clone());
        let imports = self.members.iter().map(|member| host.import(member)).collect::<Result<_, _>>()?;
        Ok(Region::shared(imports, host))
    }

    /// Writes `bytes` to a region from byte `at` on, at load.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn upload(&self, region: &Region, at: usize, bytes: &[u8]) -> Result<(), VulkanError> {
        match region.host() {
            Some(host) => {
                host.write(at, bytes);
                Ok(())
            }
            None => self.first().upload(region.first(), at, bytes),
        }
    }

    /// A specialised kernel with its bindings, on every member.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn stage(
        &self,
        pipelines: &mut GroupPipelines,
        what: Specialised,
        bindings: &[(u32, Bound)],
    ) -> Result<Stage, VulkanError> {
        let prepared = pipelines.get(&self.members, &what)?;
        let ready = self.members.iter().zip(prepared).enumerate();
        let ready = ready.map(|(index, (member, kernel))| {
            let bind = |(number, bound): &(u32, Bound)| {
                Ok((
                    *number,
                    match bound {
                        Bound::Storage(region) => Binding::Storage(region.on(index).clone()),
                        Bound::Texels(region, format) => {
                            Binding::Texels(member.view(region.on(index), *format)?)
                        }
                    },
                ))
            };
            let bindings = bindings.iter().map(bind).collect::<Result<Vec<_>, VulkanError>>()?;
            let set = member.set(&kernel, &bindings)?;
            Ok((kernel, set))
        });
        ready.collect::<Result<_, VulkanError>>().map(Stage)
    }

    /// Begins to record for a team.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn record(&self, team: Team) -> Result<GroupRecorder<'_>, VulkanError> {
        let count = match team {
            Team::All => self.members.len(),
            Team::One => 1,
        };
        let recorders = self.members[..count].iter().map(Member::record).collect::<Result<_, _>>()?;
        Ok(GroupRecorder { group: self, team, recorders, meetings: 0, failure: None })
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// [`VulkanError::DeviceLost`] where a member is lost or does not end in time; the driver's refusal
    /// otherwise.
    pub(crate) fn run(&self, program: &Program) -> Result<Meetings, VulkanError> {
        let start = Instant::now();
        let meeting = self.meeting.as_ref().filter(|_| program.members.len() > 1);
        if let Some(meeting) = meeting {
            meeting.words.write(&[0u32; MEETING_WORDS])?;
        }
        self.launch_and_wait(program)?;
        let Some(meeting) = meeting else { return Ok(Meetings::Held { waited_share: 0.0 }) };
        let words = meeting.words.read::<u32>(MEETING_WORDS)?;
        if words[1] != 0 {
            return Ok(Meetings::Missed);
        }
        let waited = f64::from(words[2]) * meeting.turn_seconds;
        let all = start.elapsed().as_secs_f64() * program.members.len() as f64;
        Ok(Meetings::Held { waited_share: (waited / all).min(1.0) })
    }

    fn launch_and_wait(&self, program: &Program) -> Result<(), VulkanError> {
        let mut result = Ok(());
        let mut submitted = Vec::with_capacity(program.members.len());
        for (member, ready) in self.members.iter().zip(&program.members) {
            match member.launch(ready) {
                Ok(()) => submitted.push((member, ready)),
                Err(error) => {
                    // The others wait a while for a member that does not come, and then go on.
                    result = Err(error);
                    break;
                }
            }
        }
        for (member, ready) in submitted {
            if let Err(error) = member.wait(ready) {
                // What did not end may still write to shared memory: leak it rather than unmap it.
                std::mem::forget(self.shared.lock().clone());
                result = Err(error);
            }
        }
        result
    }
}

/// Why members of this kind cannot share memory, if they cannot.
pub(super) fn grouping_obstacle(member: &Member) -> Option<String> {
    if member.pack != Pack::Cpu {
        return Some(format!("only the cpu kernel pack is split over members, not {}", member.pack.name()));
    }
    if software_threads() != SoftwareThreads::Inline {
        // Members that share cores by way of the driver's pools miss each other most of the time.
        return Some(
            "the driver runs devices on its own pool of threads (LP_NUM_THREADS is not 0)".to_owned(),
        );
    }
    member.import_obstacle()
}
