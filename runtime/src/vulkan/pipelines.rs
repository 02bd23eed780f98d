//! Pipelines and descriptor sets: a kernel, specialised and made ready for one member.

use super::device::Member;
use super::error::VulkanError;
use lavalane_shaders::Kernel;
use std::collections::HashMap;
use std::sync::Arc;
use vulkano::buffer::Subbuffer;
use vulkano::buffer::view::BufferView;
use vulkano::descriptor_set::{DescriptorSet, WriteDescriptorSet};
use vulkano::pipeline::compute::ComputePipelineCreateInfo;
use vulkano::pipeline::layout::PipelineDescriptorSetLayoutCreateInfo;
use vulkano::pipeline::{ComputePipeline, Pipeline, PipelineLayout, PipelineShaderStageCreateInfo};
use vulkano::shader::SpecializationConstant;

/// A kernel with its specialisation constants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Specialised {
    pub(crate) kernel: Kernel,
    /// (id, value) of each constant.
    pub(crate) constants: Vec<(u32, u32)>,
}

/// What is bound to a kernel.
#[derive(Clone)]
pub(crate) enum Binding {
    Storage(Subbuffer<[u8]>),
    Texels(Arc<BufferView>),
}

/// A member's pipelines, made when first asked for.
#[derive(Default)]
pub(crate) struct Pipelines {
    made: HashMap<Specialised, Arc<ComputePipeline>>,
}

impl Pipelines {
    /// Whether the pipeline is made already.
    pub(crate) fn has(&self, what: &Specialised) -> bool {
        self.made.contains_key(what)
    }

    /// The pipeline of a specialised kernel.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn get(
        &mut self,
        member: &Member,
        what: Specialised,
    ) -> Result<Arc<ComputePipeline>, VulkanError> {
        if let Some(pipeline) = self.made.get(&what) {
            return Ok(pipeline.clone());
        }
        let pipeline = make(member, &what)?;
        self.made.insert(what, pipeline.clone());
        Ok(pipeline)
    }
}

fn make(member: &Member, what: &Specialised) -> Result<Arc<ComputePipeline>, VulkanError> {
    let device = member.device.clone();
    let module = lavalane_shaders::load(what.kernel, device.clone())
        .map_err(|error| VulkanError::driver("vkCreateShaderModule", error))?;
    let values = what.constants.iter();
    let known = module.specialization_constants();
    let constants = values
        .filter(|(id, _)| known.contains_key(id))
        .map(|&(id, value)| match known[&id] {
            SpecializationConstant::I32(_) => (id, SpecializationConstant::I32(value as i32)),
            _ => (id, SpecializationConstant::U32(value)),
        })
        .collect();
    let module =
        module.specialize(constants).map_err(|error| VulkanError::driver("specialising a kernel", error))?;
    let stage = PipelineShaderStageCreateInfo::new(module.entry_point("main").expect("kernels have a main"));
    let layout = PipelineDescriptorSetLayoutCreateInfo::from_stages([&stage])
        .into_pipeline_layout_create_info(device.clone())
        .map_err(|error| VulkanError::driver("the pipeline layout", error.error))?;
    let layout = PipelineLayout::new(device.clone(), layout)
        .map_err(|error| VulkanError::driver("vkCreatePipelineLayout", error))?;
    ComputePipeline::new(device, None, ComputePipelineCreateInfo::stage_layout(stage, layout))
        .map_err(|error| VulkanError::driver("vkCreateComputePipelines", error))
}

impl Member {
    /// A descriptor set of `pipeline` with `bindings`; those that the kernel does not use are left out.
    pub(crate) fn set(
        &self,
        pipeline: &ComputePipeline,
        bindings: &[(u32, Binding)],
    ) -> Result<Arc<DescriptorSet>, VulkanError> {
        let layout = pipeline.layout().set_layouts()[0].clone();
        let used = bindings.iter().filter(|(number, _)| layout.bindings().contains_key(number));
        let writes: Vec<WriteDescriptorSet> = used
            .map(|(number, binding)| match binding {
                Binding::Storage(buffer) => WriteDescriptorSet::buffer(*number, buffer.clone()),
                Binding::Texels(view) => WriteDescriptorSet::buffer_view(*number, view.clone()),
            })
            .collect();
        DescriptorSet::new(self.sets.clone(), layout, writes, [])
            .map_err(|error| VulkanError::driver("vkAllocateDescriptorSets", error))
    }
}
