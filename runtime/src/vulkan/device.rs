//! Finding devices, choosing one and the kernel pack for it, and opening it.

use super::coopmat::{self, MatrixShape, matrix_shape};
use super::error::VulkanError;
use super::host_memory::IMPORT_ALIGNMENT;
use super::threads::with_patient_threads;
use lavalane_shaders::{COOPMAT_TILE, Reads};
use std::sync::Arc;
use vulkano::VulkanLibrary;
use vulkano::command_buffer::allocator::StandardCommandBufferAllocator;
use vulkano::descriptor_set::allocator::StandardDescriptorSetAllocator;
use vulkano::device::physical::{PhysicalDevice, PhysicalDeviceType};
use vulkano::device::{
    Device, DeviceCreateInfo, DeviceExtensions, DeviceFeatures, Queue, QueueCreateInfo, QueueFlags,
};
use vulkano::instance::{Instance, InstanceCreateInfo};
use vulkano::memory::MemoryPropertyFlags;
use vulkano::memory::allocator::StandardMemoryAllocator;

/// The revision of what the host does for all packs and no kernel's source shows: how weights are
/// repacked, how rotation angles are computed, which matrices are f32, how a page is exported. To be raised
/// with any change there that gives other bits or another layout; kernels' own changes are seen without it.
pub const HOST_SIDE_REVISION: u64 = 1;

/// A pack of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pack {
    /// For software devices: texel buffers, one lane per output row.
    Cpu,
    /// For any device: storage buffers and shared memory, no optional feature.
    Subgroup,
    /// For devices with cooperative matrices: those multiply the codes of many rows; all else, and few rows, are
    /// left to the kernels of `subgroup`, with the same bits.
    Coopmat,
}

impl Pack {
    /// Every pack.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Subgroup, Self::Coopmat];

    /// The pack's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Subgroup => "subgroup",
            Self::Coopmat => "coopmat",
        }
    }

    /// Which numbers the pack gives and how it lays them out: differs between two programs wherever a
    /// kernel's source or [`HOST_SIDE_REVISION`] does.
    pub fn version(self) -> u64 {
        lavalane_shaders::SOURCES_FINGERPRINT.rotate_left(self as u32) ^ HOST_SIDE_REVISION
    }

    /// By what the pack's kernels read values.
    pub(crate) fn reads(self) -> Reads {
        match self {
            Self::Cpu => Reads::Texels,
            Self::Subgroup | Self::Coopmat => Reads::Storage,
        }
    }

    /// The pack of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pack| pack.name() == name)
    }
}

/// Which device and pack to take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceChoice {
    /// An index of [`devices`], or a part of a device's name; `None` takes the best.
    pub device: Option<String>,
    /// The pack; `None` takes the device's own.
    pub pack: Option<Pack>,
    /// How many members a device group has: instances of a software device, one core each. `None` takes
    /// one per core where [`software_threads`](super::software_threads) says that devices run their work
    /// inline, and one otherwise.
    pub members: Option<usize>,
}

impl DeviceChoice {
    /// The device that tests and measurements of kernels take: what `LAVALANE_DEVICE` names, or the best.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn of_tests() -> Self {
        Self { device: std::env::var("LAVALANE_DEVICE").ok(), ..Self::default() }
    }

    /// Whether the choice leaves room for a group of more than one member; the device may not.
    pub fn may_be_grouped(&self) -> bool {
        self.members.is_none_or(|members| members > 1) && self.pack.is_none_or(|pack| pack == Pack::Cpu)
    }
}

/// What is known of one Vulkan device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    /// Its index among this machine's devices.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// The driver's name and version.
    pub driver: String,
    /// What kind of device it is, for example `Cpu` or `DiscreteGpu`.
    pub kind: String,
    /// The memory of its largest device-local heap, in bytes.
    pub memory_bytes: u64,
    /// Lanes of a subgroup.
    pub subgroup_size: u32,
    /// The largest storage buffer, in bytes.
    pub storage_buffer_bytes_max: u64,
    /// The pack that it gets.
    pub pack: Pack,
    /// Why.
    pub pack_reason: String,
}

/// An open device with its queue and allocators: one member of a device group.
pub(crate) struct Member {
    pub(crate) device: Arc<Device>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) memory: Arc<StandardMemoryAllocator>,
    pub(crate) commands: Arc<StandardCommandBufferAllocator>,
    pub(crate) sets: Arc<StandardDescriptorSetAllocator>,
    pub(crate) report: DeviceReport,
    pub(crate) pack: Pack,
    /// The matrices that the `coopmat` pack multiplies by; no other pack has any.
    pub(crate) matrix_shape: Option<MatrixShape>,
    /// The largest buffer that kernels are given, below the device's own limit; tests lower it.
    pub(crate) buffer_bytes_limit: u64,
}

/// The subgroup sizes that the `cpu` pack's kernels are written for.
const CPU_PACK_LANES: [u32; 2] = [8, 16];

/// Rows of a group of weights in the packs `subgroup` and `coopmat`.
const STORAGE_PACK_LANES: usize = 32;
const _: () = assert!(STORAGE_PACK_LANES == COOPMAT_TILE);

/// The texels that the `cpu` pack needs of a texel buffer, at the least.
const CPU_PACK_TEXELS: u32 = 1 << 22;

fn physical_devices() -> Result<Vec<Arc<PhysicalDevice>>, VulkanError> {
    let library = VulkanLibrary::new().map_err(|error| VulkanError::NoLoader(error.to_string()))?;
    let instance = Instance::new(library, InstanceCreateInfo::application_from_cargo_toml())
        .map_err(|error| VulkanError::NoDevice(error.to_string()))?;
    let found = instance
        .enumerate_physical_devices()
        .map_err(|error| VulkanError::driver("vkEnumeratePhysicalDevices", error))?;
    Ok(found.filter(|device| compute_family(device).is_some()).collect())
}

fn ext_host_memory() -> DeviceExtensions {
    DeviceExtensions { ext_external_memory_host: true, ..DeviceExtensions::empty() }
}

fn compute_family(device: &PhysicalDevice) -> Option<u32> {
    let families = device.queue_family_properties();
    families.iter().position(|family| family.queue_flags.intersects(QueueFlags::COMPUTE)).map(|at| at as u32)
}

/// Every Vulkan device of this machine that can compute, in the loader's order.
///
/// # Errors
/// No loader, or no driver.
pub fn devices() -> Result<Vec<DeviceReport>, VulkanError> {
    Ok(physical_devices()?.iter().enumerate().map(|(index, device)| report(index, device)).collect())
}

fn report(index: usize, device: &PhysicalDevice) -> DeviceReport {
    let properties = device.properties();
    let heaps = &device.memory_properties().memory_heaps;
    let local = device.memory_properties().memory_types.iter();
    let local = local.filter(|kind| kind.property_flags.intersects(MemoryPropertyFlags::DEVICE_LOCAL));
    let memory_bytes = local.map(|kind| heaps[kind.heap_index as usize].size).max().unwrap_or(0);
    let (pack, pack_reason) = own_pack(device);
    DeviceReport {
        index,
        name: properties.device_name.clone(),
        driver: [properties.driver_name.clone(), properties.driver_info.clone()]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(" "),
        kind: format!("{:?}", properties.device_type),
        memory_bytes,
        subgroup_size: properties.subgroup_size.unwrap_or(1),
        storage_buffer_bytes_max: u64::from(properties.max_storage_buffer_range),
        pack,
        pack_reason,
    }
}

/// The pack that a device gets, and why.
fn own_pack(device: &PhysicalDevice) -> (Pack, String) {
    if device.properties().device_type == PhysicalDeviceType::Cpu {
        return match cpu_pack_obstacle(device) {
            None => {
                let lanes = device.properties().subgroup_size.unwrap_or(1);
                (Pack::Cpu, format!("it is a software device with subgroups of {lanes}"))
            }
            Some(obstacle) => (Pack::Subgroup, format!("the cpu pack does not fit: {obstacle}")),
        };
    }
    match matrix_shape(device) {
        Ok(MatrixShape { m, n, k }) => {
            (Pack::Coopmat, format!("it multiplies cooperative matrices of {m} by {n} by {k}"))
        }
        Err(obstacle) => (
            Pack::Subgroup,
            format!("it is no software device, and the coopmat pack does not fit: {obstacle}"),
        ),
    }
}

/// Why the `cpu` pack does not run on the device, if it does not.
fn cpu_pack_obstacle(device: &PhysicalDevice) -> Option<String> {
    let properties = device.properties();
    let lanes = properties.subgroup_size.unwrap_or(1);
    if !CPU_PACK_LANES.contains(&lanes) {
        return Some(format!("subgroups have {lanes} lanes, not 8 or 16"));
    }
    let texels = properties.max_texel_buffer_elements;
    (texels < CPU_PACK_TEXELS)
        .then(|| format!("texel buffers hold {texels} texels, fewer than {CPU_PACK_TEXELS}"))
}

/// How much a kind of device is preferred; lower is better.
fn rank(kind: PhysicalDeviceType) -> u32 {
    match kind {
        PhysicalDeviceType::DiscreteGpu => 0,
        PhysicalDeviceType::IntegratedGpu => 1,
        PhysicalDeviceType::VirtualGpu => 2,
        PhysicalDeviceType::Cpu => 3,
        _ => 4,
    }
}

fn choose(choice: &DeviceChoice, all: &[Arc<PhysicalDevice>]) -> Result<usize, VulkanError> {
    let best = (0..all.len()).min_by_key(|&at| rank(all[at].properties().device_type));
    let Some(best) = best else {
        return Err(VulkanError::NoDevice("the loader reports none".to_owned()));
    };
    let Some(asked) = &choice.device else { return Ok(best) };
    let by_index = asked.parse::<usize>().ok().filter(|&index| index < all.len());
    let wanted = asked.to_lowercase();
    let by_name =
        || all.iter().position(|device| device.properties().device_name.to_lowercase().contains(&wanted));
    by_index.or_else(by_name).ok_or_else(|| {
        let known = all.iter().enumerate();
        let known = known.map(|(at, device)| format!("{at}: {}", device.properties().device_name));
        VulkanError::UnknownDevice { asked: asked.clone(), known: known.collect::<Vec<_>>().join(", ") }
    })
}

impl Member {
    /// Opens the chosen device.
    ///
    /// # Errors
    /// No loader, driver or such device; a pack that the device cannot run; a driver's refusal.
    pub(crate) fn open(choice: &DeviceChoice) -> Result<Self, VulkanError> {
        let all = physical_devices()?;
        let index = choose(choice, &all)?;
        let physical = all[index].clone();
        let report = report(index, &physical);
        let pack = choice.pack.unwrap_or(report.pack);
        let unsupported =
            |reason| VulkanError::PackUnsupported { pack: pack.name(), device: report.name.clone(), reason };
        if pack == Pack::Cpu
            && let Some(reason) = cpu_pack_obstacle(&physical)
        {
            return Err(unsupported(reason));
        }
        let matrix_shape = match pack {
            Pack::Coopmat => Some(matrix_shape(&physical).map_err(unsupported)?),
            Pack::Cpu | Pack::Subgroup => None,
        };
        let family = compute_family(&physical).expect("devices without a compute queue were left out");
        let mut extensions = ext_host_memory().intersection(physical.supported_extensions());
        let mut features = DeviceFeatures::empty();
        if matrix_shape.is_some() {
            extensions.khr_cooperative_matrix = true;
            features = coopmat::features();
        }
        let info = DeviceCreateInfo {
            enabled_extensions: extensions,
            enabled_features: features,
            queue_create_infos: vec![QueueCreateInfo { queue_family_index: family, ..Default::default() }],
            ..Default::default()
        };
        let (device, mut queues) = with_patient_threads(|| Device::new(physical, info))
            .map_err(|error| VulkanError::driver("vkCreateDevice", error))?;
        let queue = queues.next().expect("one queue was asked for");
        Ok(Self {
            memory: Arc::new(StandardMemoryAllocator::new_default(device.clone())),
            commands: Arc::new(StandardCommandBufferAllocator::new(device.clone(), Default::default())),
            sets: Arc::new(StandardDescriptorSetAllocator::new(device.clone(), Default::default())),
            device,
            queue,
            report,
            pack,
            matrix_shape,
            buffer_bytes_limit: u64::MAX,
        })
    }

    /// Whether the device computes on the host's cores.
    pub(crate) fn is_software(&self) -> bool {
        self.device.physical_device().properties().device_type == PhysicalDeviceType::Cpu
    }

    /// Why this device cannot take host memory as its own, if it cannot.
    pub(crate) fn import_obstacle(&self) -> Option<String> {
        if !self.device.enabled_extensions().ext_external_memory_host {
            return Some("the driver lacks VK_EXT_external_memory_host".to_owned());
        }
        let properties = self.device.physical_device().properties();
        let alignment = properties.min_imported_host_pointer_alignment.unwrap_or(1);
        (alignment > IMPORT_ALIGNMENT as u64)
            .then(|| format!("imported memory is aligned to {alignment} bytes"))
    }

    /// Rows of a group of repacked weights.
    pub(crate) fn lanes(&self) -> usize {
        match self.pack {
            Pack::Cpu => self.report.subgroup_size as usize,
            Pack::Subgroup | Pack::Coopmat => STORAGE_PACK_LANES,
        }
    }
}

/// What is known of the device that `choice` takes.
///
/// # Errors
/// No loader, driver or such device.
pub fn chosen(choice: &DeviceChoice) -> Result<DeviceReport, VulkanError> {
    let all = physical_devices()?;
    let index = choose(choice, &all)?;
    Ok(report(index, &all[index]))
}
