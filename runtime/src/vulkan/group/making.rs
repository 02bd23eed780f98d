//! The kernels of a group's members, and when they are compiled.

use super::Stage;
use crate::vulkan::device::Member;
use crate::vulkan::error::VulkanError;
use crate::vulkan::pipelines::{Pipelines, Prepared, Specialised};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Every member's kernels.
#[derive(Default)]
pub(crate) struct GroupPipelines {
    members: Vec<Pipelines>,
}

impl GroupPipelines {
    /// A specialised kernel on each member.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(super) fn get(
        &mut self,
        members: &[Member],
        what: &Specialised,
    ) -> Result<Vec<Arc<Prepared>>, VulkanError> {
        self.members.resize_with(members.len(), Pipelines::default);
        let pairs = members.iter().zip(&mut self.members);
        pairs.map(|(member, pipelines)| pipelines.get(member, what.clone())).collect()
    }

    /// What a stage is bound to is not needed in the first steps, as far as this stage goes.
    pub(crate) fn put_off(&mut self, stage: &Stage) {
        for (pipelines, (kernel, _)) in self.members.iter_mut().zip(&stage.0) {
            pipelines.put_off(kernel);
        }
    }

    /// Compiles the kernels that are neither compiled nor put off, on all members at once: they are devices of
    /// different instances, which share no lock. Each kernel is compiled by one member before the others come to
    /// it: where the driver keeps what it compiled (Mesa's do, on the disk), they need not compile it again.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn make_urgent(&self, members: &[Member]) -> Result<(), VulkanError> {
        if self.members.iter().all(|pipelines| pipelines.urgent().is_empty()) {
            return Ok(());
        }
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let making: Vec<_> = members
                .iter()
                .zip(&self.members)
                .map(|(member, pipelines)| scope.spawn(|| make_urgent(member, pipelines, &next)))
                .collect();
            making
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    /// Compiles one kernel that was not compiled yet on one member. Whether there are more.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn make_next(&self, members: &[Member]) -> Result<bool, VulkanError> {
        let pairs = members.iter().zip(&self.members);
        let mut missing =
            pairs.flat_map(|(member, pipelines)| pipelines.not_made().map(move |at| (member, pipelines, at)));
        let Some((member, pipelines, index)) = missing.next() else { return Ok(false) };
        let more = missing.next().is_some();
        pipelines.make(member, index)?;
        Ok(more)
    }
}

/// Compiles a member's kernels: first those that `next` gives it and no other member, then the rest.
fn make_urgent(member: &Member, pipelines: &Pipelines, next: &AtomicUsize) -> Result<(), VulkanError> {
    let urgent = pipelines.urgent();
    let mut made = vec![false; urgent.len()];
    loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some(made) = made.get_mut(at) else { break };
        pipelines.make(member, urgent[at])?;
        *made = true;
    }
    let rest = urgent.iter().zip(made).filter(|(_, made)| !made);
    rest.map(|(&index, _)| index).try_for_each(|index| pipelines.make(member, index))
}
