//! Computing on Vulkan: devices, kernels, weights in device memory, and the forward pass.
//!
//! Only this module and the shaders crate know vulkano. A device's queue has one owner; nothing here is
//! shared between threads.

// This is the one place (beside the memory map) where `unsafe` is allowed: vulkano's unchecked commands.
#![allow(unsafe_code, reason = "recording and submitting commands without vulkano's tracking")]

mod buffers;
mod build;
mod ceilings;
mod coopmat;
mod device;
mod error;
mod forward;
mod group;
mod host_memory;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod kernel_bench;
mod matrix;
mod open;
mod pace;
mod pages;
mod pipelines;
mod profile;
mod programs;
mod record;
mod recorder;
mod region;
mod repack;
pub mod roofline;
mod scratch;
mod self_test;
mod step;
#[cfg(test)]
mod tests;
mod threads;
mod tiles;

pub use device::{DeviceChoice, DeviceReport, HOST_SIDE_REVISION, Pack, chosen, devices};
pub use error::VulkanError;
pub use forward::{Forward, ForwardOptions, KvType, Precision};
pub use open::{OpenDevice, group_report};
pub use profile::StageTime;
pub use self_test::self_test;
pub use step::{RowLogits, StepLane, StepResult};
pub use threads::{
    GroupReport, SOFTWARE_THREADS_VARIABLE, SoftwareThreads, set_up_software_devices, software_threads,
};
