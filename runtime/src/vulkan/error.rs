//! What can go wrong with a device.

/// An error of the Vulkan layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VulkanError {
    /// No Vulkan loader on this machine.
    #[error(
        "no Vulkan loader was found (libvulkan.so.1): install a Vulkan driver, for example Mesa's software driver: {0}"
    )]
    NoLoader(String),
    /// The loader found no driver, or none that can compute.
    #[error("no Vulkan device was found: install a driver, for example Mesa's software driver ({0})")]
    NoDevice(String),
    /// `--device` names no device.
    #[error("no device {asked:?}; there are: {known}")]
    UnknownDevice {
        /// What was asked for.
        asked: String,
        /// The devices by index and name.
        known: String,
    },
    /// The device lacks what the pack needs.
    #[error("kernel pack {pack} does not run on {device}: {reason}")]
    PackUnsupported {
        /// The pack.
        pack: &'static str,
        /// The device.
        device: String,
        /// What is missing.
        reason: String,
    },
    /// No kernel pack computes rightly on the device.
    #[error("{device} does not compute rightly, by its self-test: {failures}")]
    SelfTest {
        /// The device.
        device: String,
        /// Of each pack that was tried, what was wrong.
        failures: String,
    },
    /// More members were asked for than the device can be grouped into.
    #[error("this device cannot be a group of {members} members: {reason}")]
    Ungroupable {
        /// How many members were asked for.
        members: usize,
        /// What stands against it.
        reason: String,
    },
    /// Not enough device memory.
    #[error("{what} needs {needed_bytes} bytes of device memory: {reason}")]
    OutOfMemory {
        /// What was to be allocated.
        what: String,
        /// Its size in bytes.
        needed_bytes: u64,
        /// What the driver said.
        reason: String,
    },
    /// A model that this runtime's kernels do not cover.
    #[error("this model is not supported: {0}")]
    Unsupported(String),
    /// Other programs want the cores, so that the members of a device group miss each other all the time.
    #[error("the machine is too busy to take the times of a device group's kernels")]
    Busy,
    /// The device is lost, with everything in its memory.
    #[error("the device is lost: {0}")]
    DeviceLost(String),
    /// Any other failure that the driver reports.
    #[error("{call} failed: {reason}")]
    Driver {
        /// What was tried.
        call: &'static str,
        /// What the driver said.
        reason: String,
    },
}

impl VulkanError {
    /// An error of `call`, with the driver's words.
    pub(crate) fn driver(call: &'static str, reason: impl std::fmt::Display) -> Self {
        Self::Driver { call, reason: reason.to_string() }
    }
}
