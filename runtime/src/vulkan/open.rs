//! Devices that are open and hold no model yet: opening them takes a while and little of the machine, so that a
//! program can do other things meanwhile.

use super::device::{DeviceChoice, DeviceReport};
use super::error::VulkanError;
use super::group::Group;
use super::threads::GroupReport;

/// An open device, or the members of an open device group.
pub struct OpenDevice(pub(super) Group);

impl OpenDevice {
    /// Opens the device, or the group, that `choice` takes.
    ///
    /// # Errors
    /// No loader, driver or such device; a pack that the device cannot run; a driver's refusal. More members
    /// than one where the device cannot be grouped.
    pub fn open(choice: &DeviceChoice) -> Result<Self, VulkanError> {
        Group::open(choice).map(Self)
    }

    /// The device.
    pub fn report(&self) -> &DeviceReport {
        self.0.report()
    }
}

/// How the device group that `choice` takes computes.
///
/// # Errors
/// As for an engine that opens it.
pub fn group_report(choice: &DeviceChoice) -> Result<GroupReport, VulkanError> {
    Group::open(choice).map(|group| group.how())
}
