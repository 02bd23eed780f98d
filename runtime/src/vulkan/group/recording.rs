//! Recording a step for a group: dispatches are split over the members, which meet between steps that depend
//! on each other.

use super::{Along, GroupRecorder, Program, Stage, TURNS_MAX};
use crate::vulkan::error::VulkanError;
use crate::vulkan::pace::Team;
use crate::vulkan::profile::Profile;
use crate::vulkan::recorder::Recorder;
use crate::vulkan::region::Region;
use vulkano::buffer::BufferContents;

/// The contiguous share of member `member` of `members` in `count` workgroups: where it begins, and how
/// many it has.
fn share(count: u32, member: usize, members: usize) -> (u32, u32) {
    let at = |member: usize| (u64::from(count) * member as u64 / members as u64) as u32;
    (at(member), at(member + 1) - at(member))
}

impl GroupRecorder<'_> {
    /// Runs `stage` with `push` over `groups` workgroups, split over the members.
    pub(crate) fn dispatch<T: BufferContents + Copy>(
        &mut self,
        stage: &Stage,
        push: T,
        groups: [usize; 2],
        along: Along,
    ) {
        if groups.contains(&0) {
            // The kernel may not be compiled yet, and need not be.
            return;
        }
        let members = self.recorders.len();
        let [x, y] = groups.map(|count| count as u32);
        for (member, (recorder, (kernel, set))) in self.recorders.iter_mut().zip(&stage.0).enumerate() {
            let pipeline = match kernel.pipeline() {
                Ok(pipeline) => pipeline,
                Err(error) => return self.failure = Some(error),
            };
            let (base, groups) = match along {
                Along::X => {
                    let (from, count) = share(x, member, members);
                    ([from, 0], [count, y, 1])
                }
                Along::Y => {
                    let (from, count) = share(y, member, members);
                    ([0, from], [x, count, 1])
                }
            };
            recorder.dispatch_from(pipeline, set, push, base, groups);
        }
    }

    /// Copies a part of one region to another, `bytes` long; the first member does it.
    pub(crate) fn copy(&mut self, from: (&Region, usize), to: (&Region, usize), bytes: usize) {
        let slice = |(region, at): (&Region, usize)| region.slice(at..at + bytes);
        self.recorders[0].copy(slice(from), slice(to));
    }

    /// What comes after, on any member, sees all that was written before, on any member.
    pub(crate) fn barrier(&mut self) {
        self.meet(TURNS_MAX);
    }

    /// A barrier at which members wait for one another for `turns_max` turns.
    pub(super) fn meet(&mut self, turns_max: u32) {
        let meeting = match &self.group.meeting {
            Some(meeting) if self.team == Team::All => meeting,
            _ => return self.recorders.iter_mut().for_each(Recorder::barrier),
        };
        self.meetings += 1;
        let expected = self.meetings * self.group.members.len() as u32;
        let push = [expected, turns_max];
        for (recorder, (kernel, set)) in self.recorders.iter_mut().zip(&meeting.stage.0) {
            let pipeline = match kernel.pipeline() {
                Ok(pipeline) => pipeline,
                Err(error) => return self.failure = Some(error),
            };
            recorder.barrier();
            recorder.dispatch_once(pipeline, set, push);
            recorder.barrier();
        }
    }

    /// Takes timestamps on the first member from here on.
    pub(crate) fn take_times(&mut self, profile: Profile) {
        self.recorders[0].take_times(profile);
    }

    /// Says what the commands from here on compute; takes a timestamp where times are taken.
    pub(crate) fn stage(&mut self, name: &'static str) {
        self.recorders[0].stage(name);
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// The driver's refusal, also of a kernel.
    pub(crate) fn finish(self) -> Result<Program, VulkanError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let members = self.group.members.iter().zip(self.recorders);
        let members = members.map(|(member, recorder)| member.finish(recorder)).collect::<Result<_, _>>()?;
        Ok(Program { members })
    }
}

impl Program {
    /// The times that were taken on the first member.
    pub(crate) fn profile(&self) -> Option<&Profile> {
        self.members[0].profile()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_contiguous_and_together_are_all() {
        for count in [0, 1, 2, 3, 7, 96] {
            for members in 1..=5 {
                let mut next = 0;
                for member in 0..members {
                    let (from, groups) = share(count, member, members);
                    assert_eq!(from, next, "member {member} of {members} of {count}");
                    next = from + groups;
                }
                assert_eq!(next, count);
            }
        }
    }
}
