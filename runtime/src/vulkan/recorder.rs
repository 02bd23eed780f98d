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
    CommandBufferBeginInfo, CommandBufferLevel, CommandBufferUsage, CopyBufferInfo, RecordingCommandBuffer,
};
use vulkano::descriptor_set::DescriptorSet;
use vulkano::pipeline::{ComputePipeline, Pipeline, PipelineBindPoint};
use vulkano::sync::fence::{Fence, FenceCreateInfo};
use vulkano::sync::{AccessFlags, DependencyInfo, MemoryBarrier, PipelineStage, PipelineStages};

/// How long a submission may take before the device counts as lost.
const SUBMISSION_TIME_MAX: Duration = Duration::from_secs(600);

/// Commands being recorded.
pub(crate) struct Recorder {
    commands: RecordingCommandBuffer,
    sets: Vec<Arc<DescriptorSet>>,
    buffers: Vec<Subbuffer<[u8]>>,
    bound: Option<Arc<ComputePipeline>>,
    profile: Option<Profile>,
}

impl Recorder {
    /// Runs `pipeline` with `set` and `push` over `groups` workgroups.
    pub(crate) fn dispatch<T: BufferContents + Copy>(
        &mut self,
        pipeline: &Arc<ComputePipeline>,
        set: &Arc<DescriptorSet>,
        push: T,
        groups: [u32; 3],
    ) {
        if groups.contains(&0) {
            return;
        }
        let rebind = self.bound.as_ref().is_none_or(|bound| !Arc::ptr_eq(bound, pipeline));
        self.sets.push(set.clone());
        // SAFETY: the set was allocated for this pipeline's layout, the push constants are its struct,
        // and all objects live until the submission has ended, since the recorder keeps the set (which
        // keeps its buffers) and the pipeline's owner outlives the submission.
        unsafe {
            if rebind {
                self.commands.bind_pipeline_compute_unchecked(pipeline);
                self.bound = Some(pipeline.clone());
            }
            self.commands.bind_descriptor_sets_unchecked(
                PipelineBindPoint::Compute,
                pipeline.layout(),
                0,
                &[set.as_raw()],
                &[],
            );
            self.commands.push_constants_unchecked(pipeline.layout(), 0, &push);
            self.commands.dispatch_unchecked(groups);
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
    pub(crate) fn record(&self) -> Result<Recorder, VulkanError> {
        let commands = RecordingCommandBuffer::new(
            self.commands.clone(),
            self.queue.queue_family_index(),
            CommandBufferLevel::Primary,
            CommandBufferBeginInfo { usage: CommandBufferUsage::OneTimeSubmit, ..Default::default() },
        )
        .map_err(|error| VulkanError::driver("vkBeginCommandBuffer", error))?;
        Ok(Recorder { commands, sets: Vec::new(), buffers: Vec::new(), bound: None, profile: None })
    }

    /// Submits what was recorded and waits for its end; gives back the profile, if times were taken.
    ///
    /// # Errors
    /// [`VulkanError::DeviceLost`] where the driver says so or the submission does not end in time; the
    /// driver's refusal otherwise.
    pub(crate) fn submit(&self, recorder: Recorder) -> Result<Option<Profile>, VulkanError> {
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
        let handles = [commands.handle()];
        let info = ash::vk::SubmitInfo::default().command_buffers(&handles);
        // SAFETY: the command buffer, the fence and everything that was recorded live until the wait below
        // has ended, and this member is the only user of its queue.
        let result = self.queue.with(|_guard| unsafe {
            (self.device.fns().v1_0.queue_submit)(self.queue.handle(), 1, &info, fence.handle())
        });
        match result {
            ash::vk::Result::SUCCESS => {}
            ash::vk::Result::ERROR_DEVICE_LOST => {
                return Err(VulkanError::DeviceLost("at submission".to_owned()));
            }
            other => return Err(VulkanError::driver("vkQueueSubmit", format!("{other:?}"))),
        }
        let waited = fence.wait(Some(SUBMISSION_TIME_MAX));
        if waited.is_err() {
            // The device may still be using these: leak them rather than free what it reads.
            std::mem::forget((commands, sets, buffers, bound, fence, profile));
            return Err(VulkanError::DeviceLost("a submission did not end".to_owned()));
        }
        Ok(profile)
    }
}
