//! `lavalane devices`: every Vulkan device, the kernel pack it gets, and why; how the pack's self-test went,
//! and which threads the device that is taken computes on.

use super::error::CommandError;
use crate::software_threads::restart_if_alone;
use clap::Args;
use lavalane_runtime::vulkan::{DeviceChoice, DeviceReport, chosen, devices, group_report, self_test};

/// List the Vulkan devices of this machine
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  lavalane devices")]
pub struct DevicesArguments {
    /// The device that is to be taken, by index or a part of its name, instead of the best
    #[arg(long, env = "LAVALANE_DEVICE")]
    pub device: Option<String>,
}

impl DevicesArguments {
    /// The device to take.
    pub fn choice(&self) -> DeviceChoice {
        DeviceChoice { device: self.device.clone(), ..DeviceChoice::default() }
    }
}

/// Prints the devices; the one that is taken is marked with a star.
///
/// # Errors
/// No loader or driver, or no such device.
pub fn run(arguments: &DevicesArguments) -> Result<(), CommandError> {
    let choice = arguments.choice();
    let taken = chosen(&choice)?;
    // It fails where no pack passes: the list tells why.
    let group = group_report(&choice);
    if let Ok(group) = &group {
        restart_if_alone(group);
    }
    for device in devices()? {
        print!(
            "{}",
            describe(&device, if device.index == taken.index { Standing::Taken } else { Standing::Other })
        );
        match self_test(&device, device.pack) {
            Ok(time) => println!("    self-test: passed in {} ms", time.as_millis()),
            Err(error) => println!("    self-test: {error}; another pack is taken where one passes"),
        }
        if device.index == taken.index {
            match &group {
                Ok(group) => println!("    threads: {group}"),
                Err(error) => println!("    cannot be used: {error}"),
            }
        }
    }
    Ok(())
}

/// Whether a device is the one that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Taken,
    Other,
}

fn describe(device: &DeviceReport, standing: Standing) -> String {
    format!(
        "{}{} {} ({})\n    driver: {}\n    memory: {:.1} GiB, buffers up to {:.1} GiB, subgroups of {}\n    \
         kernel pack: {}, because {}\n",
        device.index,
        if standing == Standing::Taken { " *" } else { "  " },
        device.name,
        device.kind,
        device.driver,
        gibibytes(device.memory_bytes),
        gibibytes(device.storage_buffer_bytes_max),
        device.subgroup_size,
        device.pack.name(),
        device.pack_reason,
    )
}

/// Bytes in GiB.
pub(super) fn gibibytes(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}
