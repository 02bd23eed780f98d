//! Recording commands without vulkano's tracking, and submitting them.
//!
//! A recorder keeps every object that its commands name alive until the submission has ended; between
//! two dispatches that depend on each other the caller places a barrier.

use super::device::Member;
use super::error::VulkanError;
use super::profile::Profile;
use std::sync::Arc;
use std::time::Duration;
use vulkano::VulkanObject;
use vulkano::buffer::{BufferContents, Subbuffer};
use vulkano::command_buffer::{
    CommandBuffer, CommandBufferBeginInfo, CommandBufferLevel, CommandBufferUsage, CopyBufferInfo,
    RecordingCommandBuffer,
};
use vulkano::descriptor_set::DescriptorSet;
use vulkano::pipeline::{ComputePipeline, Pipeline, PipelineBindPoint};
use vulkano::sync::fence::{Fence, FenceCreateInfo};
use vulkano::sync::{AccessFlags, DependencyInfo, MemoryBarrier, PipelineStage, PipelineStages};

/// How long a submission may take before the device counts as lost.
const SUBMISSION_TIME_MAX: Duration = Duration::from_secs(600);

/// Commands that were recorded, ready to run as often as wanted, one run at a time.
pub(crate) struct Ready(Arc<Recorded>);

struct Recorded {
    commands: CommandBuffer,
    fence: Fence,
    profile: Option<Profile>,
    _sets: Vec<Arc<DescriptorSet>>,
    _buffers: Vec<Subbuffer<[u8]>>,
    _pipelines: Vec<Arc<ComputePipeline>>,
}

impl Ready {
    /// The times that were taken.
    pub(crate) fn profile(&self) -> Option<&Profile> {
        self.0.profile.as_ref()
    }
}

/// Commands being recorded.
pub(crate) struct Recorder {
    commands: RecordingCommandBuffer,
    sets: Vec<Arc<DescriptorSet>>,
    buffers: Vec<Subbuffer<[u8]>>,
    /// The pipelines that were bound; the last one is bound now.
    bound: Vec<Arc<ComputePipeline>>,
    profile: Option<Profile>,
}

impl Recorder {
    /// Runs `pipeline` with `set` and `push` over `groups` workgroups.
    #[cfg(test)]
    pub(crate) fn dispatch<T: BufferContents + Copy>(
        &mut self,
        pipeline: &Arc<ComputePipeline>,
        set: &Arc<DescriptorSet>,
        push: T,
        groups: [u32; 3],
    ) {
        self.dispatch_from(pipeline, set, push, [0, 0], groups);
    }

    /// Runs `pipeline` over the `groups` workgroups from `base` on. Kernels read the base behind their own
    /// push constants.
    pub(crate) fn dispatch_from<T: BufferContents + Copy>(
        &mut self,
        pipeline: &Arc<ComputePipeline>,
        set: &Arc<DescriptorSet>,
        push: T,
        base: [u32; 2],
        groups: [u32; 3],
    ) {
        if groups.contains(&0) {
            return;
        }
        self.bind(pipeline, set);
        // SAFETY: these are the push constants of the bound pipeline, its own struct and then the base.
        unsafe {
            self.commands.push_constants_unchecked(pipeline.layout(), 0, &push);
            self.commands.push_constants_unchecked(pipeline.layout(), size_of::<T>() as u32, &base);
            self.commands.dispatch_unchecked(groups);
        }
    }

    /// Runs one workgroup of a `pipeline` that knows no base.
    pub(crate) fn dispatch_once<T: BufferContents + Copy>(
        &mut self,
        pipeline: &Arc<ComputePipeline>,
        set: &Arc<DescriptorSet>,
        push: T,
    ) {
        self.bind(pipeline, set);
        // SAFETY: these are the push constants of the bound pipeline.
        unsafe {
            self.commands.push_constants_unchecked(pipeline.layout(), 0, &push);
            self.commands.dispatch_unchecked([1, 1, 1]);
        }
    }

    /// Runs `pipeline` over no workgroups: all that it does is to be ready.
    pub(crate) fn dispatch_nothing(&mut self, pipeline: &Arc<ComputePipeline>, set: &Arc<DescriptorSet>) {
        self.bind(pipeline, set);
        // SAFETY: nothing is read or written, push constants neither.
        unsafe { self.commands.dispatch_unchecked([0, 0, 0]) };
    }

    fn bind(&mut self, pipeline: &Arc<ComputePipeline>, set: &Arc<DescriptorSet>) {
        let rebind = self.bound.last().is_none_or(|bound| !Arc::ptr_eq(bound, pipeline));
        self.sets.push(set.clone());
        // SAFETY: the set was allocated for this pipeline's layout, and both live as long as what is
        // recorded, since the recorder keeps them (and the set its buffers).
        unsafe {
            if rebind {
                self.commands.bind_pipeline_compute_unchecked(pipeline);
                self.bound.push(pipeline.clone());
            }
            self.commands.bind_descriptor_sets_unchecked(
                PipelineBindPoint::Compute,
                pipeline.layout(),
                0,
                &[set.as_raw()],
                &[],
            );
        }
    }

    /// Takes timestamps from here on; see [`Recorder::stage`].
    pub(crate) fn take_times(&mut self, profile: Profile) {
        // SAFETY: the pool is new, and the recorder keeps it until the submission has ended.
        unsafe {
            self.commands.reset_query_pool_unchecked(&profile.pool, 0..profile.pool.query_count());
        }
        self.profile = Some(profile);
    }

    /// Says what the commands from here on compute; takes a timestamp where times are taken.
    pub(crate) fn stage(&mut self, name: &'static str) {
        let Some(profile) = &mut self.profile else { return };
        if let Some(query) = profile.next(name) {
            // SAFETY: the query lies in the pool, was reset, and is written once.
            unsafe {
                self.commands.write_timestamp_unchecked(&profile.pool, query, PipelineStage::BottomOfPipe);
            }
        }
    }

    /// Copies one buffer to another of the same size.
    pub(crate) fn copy(&mut self, from: Subbuffer<[u8]>, to: Subbuffer<[u8]>) {
        self.buffers.extend([from.clone(), to.clone()]);
        // SAFETY: both slices lie in live buffers with transfer usage, and do not overlap.
        unsafe {
            self.commands.copy_buffer_unchecked(&CopyBufferInfo::buffers(from, to));
        }
    }

    /// What comes after sees all that was written before.
    pub(crate) fn barrier(&mut self) {
        let stages = PipelineStages::COMPUTE_SHADER | PipelineStages::ALL_TRANSFER;
        let access = AccessFlags::SHADER_READ
            | AccessFlags::SHADER_WRITE
            | AccessFlags::TRANSFER_READ
            | AccessFlags::TRANSFER_WRITE;
        let barrier = MemoryBarrier {
            src_stages: stages,
            src_access: access,
            dst_stages: stages,
            dst_access: access,
            ..Default::default()
        };
        let dependency =
            DependencyInfo { memory_barriers: [barrier].into_iter().collect(), ..Default::default() };
        // SAFETY: a memory barrier outside of a render pass names no object.
        unsafe {
            self.commands.pipeline_barrier_unchecked(&dependency);
        }
    }
}

impl Member {
    /// Begins to record.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn record(&self) -> Result<Recorder, VulkanError> {
        let commands = RecordingCommandBuffer::new(
            self.commands.clone(),
            self.queue.queue_family_index(),
            CommandBufferLevel::Primary,
            CommandBufferBeginInfo { usage: CommandBufferUsage::MultipleSubmit, ..Default::default() },
        )
        .map_err(|error| VulkanError::driver("vkBeginCommandBuffer", error))?;
        Ok(Recorder { commands, sets: Vec::new(), buffers: Vec::new(), bound: Vec::new(), profile: None })
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn finish(&self, recorder: Recorder) -> Result<Ready, VulkanError> {
        let Recorder { mut commands, sets, buffers, bound, profile } = recorder;
        let to_host = MemoryBarrier {
            src_stages: PipelineStages::COMPUTE_SHADER | PipelineStages::ALL_TRANSFER,
            src_access: AccessFlags::SHADER_WRITE | AccessFlags::TRANSFER_WRITE,
            dst_stages: PipelineStages::HOST,
            dst_access: AccessFlags::HOST_READ,
            ..Default::default()
        };
        let dependency =
            DependencyInfo { memory_barriers: [to_host].into_iter().collect(), ..Default::default() };
        // SAFETY: a memory barrier names no object; recording ends once.
        let commands = unsafe {
            commands.pipeline_barrier_unchecked(&dependency);
            commands.end()
        }
        .map_err(|error| VulkanError::driver("vkEndCommandBuffer", error))?;
        let fence = Fence::new(self.device.clone(), FenceCreateInfo::default())
            .map_err(|error| VulkanError::driver("vkCreateFence", error))?;
        let kept = Recorded { commands, fence, profile, _sets: sets, _buffers: buffers, _pipelines: bound };
        Ok(Ready(Arc::new(kept)))
    }

    /// Submits; [`Member::wait`] follows, whatever else happens, unless this is an error.
    ///
    /// # Errors
    /// [`VulkanError::DeviceLost`] where the driver says so; the driver's refusal otherwise.
    pub(crate) fn launch(&self, ready: &Ready) -> Result<(), VulkanError> {
        let handles = [ready.0.commands.handle()];
        let info = ash::vk::SubmitInfo::default().command_buffers(&handles);
        // SAFETY: the command buffer, the fence and everything that was recorded live until the wait has
        // ended or are never freed, the last run has ended, and this member is the only user of its queue.
        let result = self.queue.with(|_guard| unsafe {
            (self.device.fns().v1_0.queue_submit)(self.queue.handle(), 1, &info, ready.0.fence.handle())
        });
        match result {
            ash::vk::Result::SUCCESS => Ok(()),
            ash::vk::Result::ERROR_DEVICE_LOST => Err(VulkanError::DeviceLost("at submission".to_owned())),
            other => Err(VulkanError::driver("vkQueueSubmit", format!("{other:?}"))),
        }
    }

    /// Waits for the end of what was launched.
    ///
    /// # Errors
    /// [`VulkanError::DeviceLost`] where it does not end in time.
    pub(crate) fn wait(&self, ready: &Ready) -> Result<(), VulkanError> {
        if ready.0.fence.wait(Some(SUBMISSION_TIME_MAX)).is_err() {
            // The device may still be using what was recorded: leak it rather than free what it reads.
            std::mem::forget(ready.0.clone());
            return Err(VulkanError::DeviceLost("a submission did not end".to_owned()));
        }
        // SAFETY: nothing waits for the fence, and the submission that signals it has ended.
        let reset = unsafe { ready.0.fence.reset() };
        reset.map_err(|error| VulkanError::driver("vkResetFences", error))
    }

    /// Runs what was recorded, once, to its end.
    ///
    /// # Errors
    /// As of [`Member::launch`] and [`Member::wait`].
    pub(crate) fn submit(&self, recorder: Recorder) -> Result<(), VulkanError> {
        let ready = self.finish(recorder)?;
        self.launch(&ready)?;
        self.wait(&ready)
    }
}
