//! Cooperative matrices: whether a device has those that the `coopmat` pack multiplies by, and what it must be opened
//! with for them.

use super::error::VulkanError;
use super::matrix::SLICES;
use ash::vk;
use lavalane_shaders::{BLOCK, COOPMAT_TILE, coopmat_shared_bytes};
use vulkano::device::DeviceFeatures;
use vulkano::device::physical::PhysicalDevice;
use vulkano::shader::ShaderStages;
use vulkano::{Version, VulkanObject};

/// The shape of a multiplication: a matrix of `m` by `k` times one of `k` by `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixShape {
    pub(crate) m: u32,
    pub(crate) n: u32,
    pub(crate) k: u32,
}

impl MatrixShape {
    /// Whether the kernel's tiles, and halves of blocks, are whole matrices of this shape. Rows of less than 8 are
    /// left out: a matrix is read in runs of 16 bytes.
    fn is_usable(self) -> bool {
        let divides = |size: u32, whole: usize| size >= 8 && (whole as u32).is_multiple_of(size);
        divides(self.m, COOPMAT_TILE) && divides(self.n, COOPMAT_TILE) && divides(self.k, BLOCK / 2)
    }

    /// How far the shape is from 16 by 16 by 16, which most devices have; lower is better.
    fn strangeness(self) -> u32 {
        [self.m, self.n, self.k].into_iter().map(|size| size.abs_diff(16)).sum()
    }
}

/// The shape that the `coopmat` pack multiplies by on a device, or why the pack does not run there.
pub(super) fn matrix_shape(device: &PhysicalDevice) -> Result<MatrixShape, String> {
    let (properties, supported) = (device.properties(), device.supported_features());
    if device.api_version() < Version::V1_3 {
        return Err(format!("it offers Vulkan {}, below 1.3", device.api_version()));
    }
    for (has, what) in [
        (device.supported_extensions().khr_cooperative_matrix, "VK_KHR_cooperative_matrix"),
        (supported.cooperative_matrix, "cooperative matrices"),
        (supported.shader_float16, "float16 arithmetic"),
        (supported.vulkan_memory_model, "the Vulkan memory model"),
        (supported.subgroup_size_control, "a choice of the subgroup size"),
    ] {
        if !has {
            return Err(format!("it lacks {what}"));
        }
    }
    for (stages, what) in [
        (properties.cooperative_matrix_supported_stages, "cooperative matrices are"),
        (properties.required_subgroup_size_stages, "choice of the subgroup size is"),
    ] {
        if !stages.is_some_and(|stages| stages.intersects(ShaderStages::COMPUTE)) {
            return Err(format!("its {what} not for compute shaders"));
        }
    }
    let threads = SLICES * properties.subgroup_size.unwrap_or(1);
    let threads_max =
        properties.max_compute_work_group_invocations.min(properties.max_compute_work_group_size[0]);
    if threads > threads_max {
        return Err(format!("workgroups have at most {threads_max} threads, fewer than {threads}"));
    }
    let (bytes, bytes_max) =
        (coopmat_shared_bytes(SLICES as usize), properties.max_compute_shared_memory_size as usize);
    if bytes > bytes_max {
        return Err(format!("workgroups share at most {bytes_max} bytes, fewer than {bytes}"));
    }
    let shapes = shapes(device).map_err(|error| error.to_string())?;
    best(&shapes).ok_or_else(|| {
        let known: Vec<_> =
            shapes.iter().map(|MatrixShape { m, n, k }| format!("{m} by {n} by {k}")).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        format!("of cooperative matrices of float16 that add in float32 it has {known}")
    })
}

/// The usable shape that most devices have, or the nearest to it.
fn best(shapes: &[MatrixShape]) -> Option<MatrixShape> {
    shapes.iter().copied().filter(|shape| shape.is_usable()).min_by_key(|shape| shape.strangeness())
}

/// The shapes in which a device's subgroups multiply float16 and add in float32.
fn shapes(device: &PhysicalDevice) -> Result<Vec<MatrixShape>, VulkanError> {
    let instance = device.instance();
    let functions = ash::khr::cooperative_matrix::InstanceFn::load(|name| {
        // SAFETY: the instance lives, and the name ends with a null byte.
        let found = unsafe { instance.library().get_instance_proc_addr(instance.handle(), name.as_ptr()) };
        found.map_or(std::ptr::null(), |function| function as *const std::ffi::c_void)
    });
    let query = functions.get_physical_device_cooperative_matrix_properties_khr;
    let mut count = 0;
    // SAFETY: the device has the extension, as the caller saw, and no array means that only the count is written.
    let counted = unsafe { query(device.handle(), &mut count, std::ptr::null_mut()) };
    let mut kinds = vec![vk::CooperativeMatrixPropertiesKHR::default(); count as usize];
    // SAFETY: as above, and the array has room for `count` properties.
    let listed = unsafe { query(device.handle(), &mut count, kinds.as_mut_ptr()) };
    for result in [counted, listed] {
        if result != vk::Result::SUCCESS {
            return Err(VulkanError::driver("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", result));
        }
    }
    let (float16, float32) = (vk::ComponentTypeKHR::FLOAT16, vk::ComponentTypeKHR::FLOAT32);
    kinds.truncate(count as usize);
    kinds.retain(|kind| {
        (kind.a_type, kind.b_type, kind.c_type, kind.result_type) == (float16, float16, float32, float32)
            && kind.scope == vk::ScopeKHR::SUBGROUP
            && kind.saturating_accumulation == vk::FALSE
    });
    Ok(kinds.into_iter().map(|kind| MatrixShape { m: kind.m_size, n: kind.n_size, k: kind.k_size }).collect())
}

/// What a device that has a [`matrix_shape`] is opened with.
pub(super) fn features() -> DeviceFeatures {
    DeviceFeatures {
        cooperative_matrix: true,
        // For a workgroup's size that is a constant in SPIR-V 1.6; all devices of Vulkan 1.3 have it.
        maintenance4: true,
        shader_float16: true,
        vulkan_memory_model: true,
        // Drivers may otherwise take another size than they report, and a workgroup then has other slices.
        subgroup_size_control: true,
        ..DeviceFeatures::empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(shapes: &[[u32; 3]], expected: Option<[u32; 3]>) {
        let shape = |&[m, n, k]: &[u32; 3]| MatrixShape { m, n, k };
        let shapes: Vec<MatrixShape> = shapes.iter().map(shape).collect();
        assert_eq!(best(&shapes), expected.as_ref().map(shape), "{shapes:?}");
    }

    #[test]
    fn the_usual_shape_is_taken_or_the_nearest_that_divides_the_tiles() {
        check(&[[16, 8, 8], [16, 8, 16], [16, 16, 16]], Some([16, 16, 16]));
        check(&[[8, 8, 8]], Some([8, 8, 8]));
        check(&[[64, 64, 16], [8, 16, 16], [12, 16, 16]], Some([8, 16, 16]));
        check(&[[16, 16, 32], [16, 16, 4], [64, 16, 16]], None);
        check(&[], None);
    }
}
