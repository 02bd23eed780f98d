//! The kernels of a group's members, and when they are compiled.

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

    /// Compiles all kernels, on all members at once: they are devices of different instances, which share no
    /// lock. Each kernel is compiled by one member before the others come to it: where the driver keeps what it
    /// compiled (Mesa's do, on the disk), they need not compile it again.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn make_all(&self, members: &[Member]) -> Result<(), VulkanError> {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let making: Vec<_> = members
                .iter()
                .zip(&self.members)
                .map(|(member, pipelines)| scope.spawn(|| make_all(member, pipelines, &next)))
                .collect();
            making
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }
}

/// Compiles a member's kernels: first those that `next` gives it and no other member, then the rest.
fn make_all(member: &Member, pipelines: &Pipelines, next: &AtomicUsize) -> Result<(), VulkanError> {
    let mut made = vec![false; pipelines.len()];
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(made) = made.get_mut(index) else { break };
        pipelines.make(member, index)?;
        *made = true;
    }
    (0..pipelines.len()).filter(|&index| !made[index]).try_for_each(|index| pipelines.make(member, index))
}
