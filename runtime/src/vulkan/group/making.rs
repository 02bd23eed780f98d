//! The kernels of a group's members, and when they are compiled.

use super::Stage;
use crate::vulkan::device::Member;
use crate::vulkan::error::VulkanError;
use crate::vulkan::pipelines::{Pipelines, Prepared, Specialised};
use lavalane_shaders::{Kernel, Tile};
use std::cmp::Reverse;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

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
    /// it: where the driver keeps what it compiled (Mesa's do, on the disk), they need not compile it again. Those that
    /// take longest are begun first, so that the members end together.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn make_urgent(&self, members: &[Member]) -> Result<(), VulkanError> {
        if self.members.iter().all(|pipelines| pipelines.urgent().is_empty()) {
            return Ok(());
        }
        let (next, shared_out) = (AtomicUsize::new(0), Barrier::new(members.len()));
        std::thread::scope(|scope| {
            let making: Vec<_> = members
                .iter()
                .zip(&self.members)
                .map(|(member, pipelines)| scope.spawn(|| make_urgent(member, pipelines, &next, &shared_out)))
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
fn make_urgent(
    member: &Member,
    pipelines: &Pipelines,
    next: &AtomicUsize,
    shared_out: &Barrier,
) -> Result<(), VulkanError> {
    let mut urgent = pipelines.urgent();
    urgent.sort_by_key(|&index| Reverse(effort(pipelines.kernel(index))));
    let mut made = vec![false; urgent.len()];
    let own = loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some(made) = made.get_mut(at) else { break Ok(()) };
        if let Err(error) = pipelines.make(member, urgent[at]) {
            break Err(error);
        }
        *made = true;
    };
    // Also where something failed: the others wait here.
    shared_out.wait();
    own?;
    let rest = urgent.iter().zip(made).filter(|(_, made)| !made);
    rest.map(|(&index, _)| index).try_for_each(|index| pipelines.make(member, index))
}

/// How long a kernel takes to compile beside others, by rank.
fn effort(kernel: Kernel) -> u32 {
    match kernel {
        Kernel::MatmulCpu { tile: Tile::Eight, .. } | Kernel::MatmulCoopmat => 3,
        Kernel::MatmulCpu { .. } | Kernel::MatmulSubgroup { .. } | Kernel::AttentionCpu(_) => 2,
        Kernel::Norm(_) | Kernel::Activate(_) | Kernel::AttentionSubgroup(_) => 1,
        _ => 0,
    }
}
