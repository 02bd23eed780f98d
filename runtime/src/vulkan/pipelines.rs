//! Pipelines and descriptor sets: a kernel, specialised and made ready for one member.

use super::device::Member;
use super::error::VulkanError;
use lavalane_shaders::Kernel;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use vulkano::buffer::Subbuffer;
use vulkano::buffer::view::BufferView;
use vulkano::descriptor_set::{DescriptorSet, WriteDescriptorSet};
use vulkano::device::DeviceOwned;
use vulkano::pipeline::compute::ComputePipelineCreateInfo;
use vulkano::pipeline::layout::PipelineDescriptorSetLayoutCreateInfo;
use vulkano::pipeline::{ComputePipeline, PipelineLayout, PipelineShaderStageCreateInfo};
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

/// A specialised kernel on one member: what is bound to it is known at once, its code is compiled later.
pub(crate) struct Prepared {
    /// The parsed code, which is several times as large as the code and goes once the pipeline is made.
    stage: Mutex<Option<PipelineShaderStageCreateInfo>>,
    layout: Arc<PipelineLayout>,
    made: OnceLock<Arc<ComputePipeline>>,
    /// The first descriptor set that was made for it.
    set: OnceLock<Arc<DescriptorSet>>,
}

impl Prepared {
    fn new(member: &Member, what: &Specialised) -> Result<Self, VulkanError> {
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
        let module = module
            .specialize(constants)
            .map_err(|error| VulkanError::driver("specialising a kernel", error))?;
        let main = module.entry_point("main").expect("kernels have a main");
        let mut stage = PipelineShaderStageCreateInfo::new(main);
        if what.kernel == Kernel::MatmulCoopmat {
            // Its workgroups are made of subgroups of the size that the device reports.
            stage.required_subgroup_size = Some(member.report.subgroup_size);
        }
        let layout = PipelineDescriptorSetLayoutCreateInfo::from_stages([&stage])
            .into_pipeline_layout_create_info(device.clone())
            .map_err(|error| VulkanError::driver("the pipeline layout", error.error))?;
        let layout = PipelineLayout::new(device, layout)
            .map_err(|error| VulkanError::driver("vkCreatePipelineLayout", error))?;
        Ok(Self { stage: Mutex::new(Some(stage)), layout, made: OnceLock::new(), set: OnceLock::new() })
    }

    /// What is bound to the kernel, and how.
    pub(crate) fn layout(&self) -> &Arc<PipelineLayout> {
        &self.layout
    }

    /// Whether the pipeline was made.
    pub(crate) fn is_made(&self) -> bool {
        self.made.get().is_some()
    }

    /// The pipeline, which is compiled now if it was not.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn pipeline(&self) -> Result<&Arc<ComputePipeline>, VulkanError> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let mut kept = self.stage.lock();
        if let Some(stage) = kept.as_ref() {
            let info = ComputePipelineCreateInfo::stage_layout(stage.clone(), self.layout.clone());
            let made = ComputePipeline::new(self.layout.device().clone(), None, info)
                .map_err(|error| VulkanError::driver("vkCreateComputePipelines", error))?;
            self.made.get_or_init(|| made);
            *kept = None;
        }
        Ok(self.made.get().expect("the code goes only where the pipeline is made"))
    }
}

/// A member's kernels, prepared when first asked for.
#[derive(Default)]
pub(crate) struct Pipelines {
    /// In the order in which they were first asked for.
    kernels: Vec<Known>,
}

struct Known {
    what: Specialised,
    prepared: Arc<Prepared>,
    /// How many of those that asked for it need it from the first step on.
    urgent: usize,
}

impl Pipelines {
    /// A specialised kernel.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn get(&mut self, member: &Member, what: Specialised) -> Result<Arc<Prepared>, VulkanError> {
        if let Some(known) = self.kernels.iter_mut().find(|known| known.what == what) {
            known.urgent += 1;
            return Ok(known.prepared.clone());
        }
        let prepared = Arc::new(Prepared::new(member, &what)?);
        self.kernels.push(Known { what, prepared: prepared.clone(), urgent: 1 });
        Ok(prepared)
    }

    /// One of those that asked for a kernel does without it in the first steps.
    pub(crate) fn put_off(&mut self, kernel: &Arc<Prepared>) {
        let known = self.kernels.iter_mut().find(|known| Arc::ptr_eq(&known.prepared, kernel));
        if let Some(known) = known {
            known.urgent -= 1;
        }
    }

    /// The kernels that are not made yet and that somebody needs from the first step on.
    pub(crate) fn urgent(&self) -> Vec<usize> {
        self.not_made().filter(|&index| self.kernels[index].urgent > 0).collect()
    }

    /// One of the kernels, counted in the order in which they were asked for.
    pub(crate) fn kernel(&self, index: usize) -> Kernel {
        self.kernels[index].what.kernel
    }

    /// The kernels that are not made yet, counted in the order in which they were asked for.
    pub(crate) fn not_made(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.kernels.len()).filter(|&index| !self.kernels[index].prepared.is_made())
    }

    /// Compiles one of the kernels, counted in the order in which they were asked for. Software drivers compile
    /// a kernel only when it is dispatched: so it is, over no workgroups.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn make(&self, member: &Member, index: usize) -> Result<(), VulkanError> {
        let prepared = &self.kernels[index].prepared;
        let pipeline = prepared.pipeline()?;
        let Some(set) = prepared.set.get() else { return Ok(()) };
        let mut recorder = member.record()?;
        recorder.dispatch_nothing(pipeline, set);
        member.submit(recorder)
    }
}

impl Member {
    /// A descriptor set for a kernel with `bindings`; those that it does not use are left out.
    pub(crate) fn set(
        &self,
        kernel: &Prepared,
        bindings: &[(u32, Binding)],
    ) -> Result<Arc<DescriptorSet>, VulkanError> {
        let layout = kernel.layout().set_layouts()[0].clone();
        let used = bindings.iter().filter(|(number, _)| layout.bindings().contains_key(number));
        let writes: Vec<WriteDescriptorSet> = used
            .map(|(number, binding)| match binding {
                Binding::Storage(buffer) => WriteDescriptorSet::buffer(*number, buffer.clone()),
                Binding::Texels(view) => WriteDescriptorSet::buffer_view(*number, view.clone()),
            })
            .collect();
        let set = DescriptorSet::new(self.sets.clone(), layout, writes, [])
            .map_err(|error| VulkanError::driver("vkAllocateDescriptorSets", error))?;
        kernel.set.get_or_init(|| set.clone());
        Ok(set)
    }
}
