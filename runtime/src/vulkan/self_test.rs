//! The numeric self-test of a device's kernel pack, and which pack is taken where it fails.
//!
//! Drivers differ, and one that computes wrongly would give fluent nonsense. So a few small cases of the
//! pack's kernels are compared with their scalar twins when a device is opened. Software devices are left
//! out of that: compiling the kernels takes them longer than a start may, and `make test` runs all of them
//! there; [`self_test`] tests any device when it is asked to.

mod cases;

use super::device::{DeviceChoice, DeviceReport, Member, Pack};
use super::error::VulkanError;
use super::group::Group;
use cases::check;
use std::time::{Duration, Instant};

/// Where results are changed between the device and the comparison, by a test that wants a fault.
pub(super) type Alter<'a> = &'a dyn Fn(Pack, &'static str, &mut [f32]);

/// Why a pack is not used.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("kernel {kernel} gave {found:e} where its scalar twin gives {expected:e} (within {tolerance:e})")]
    Mismatch { kernel: &'static str, found: f32, expected: f32, tolerance: f32 },
    #[error("kernel {kernel} gave {found:e} where the row by itself has {alone:e}")]
    OtherBits { kernel: &'static str, found: f32, alone: f32 },
    #[error(transparent)]
    Driver(#[from] VulkanError),
}

/// Which devices are tested when they are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tested {
    AllButSoftware,
    #[cfg(test)]
    All,
}

/// Opens the chosen device with the first pack that passes: the one asked for, or the device's own and then
/// those that stand in for it.
///
/// # Errors
/// As of [`Member::open`]; [`VulkanError::SelfTest`] where no pack passes.
pub(super) fn open_tested(
    choice: &DeviceChoice,
    tested: Tested,
    alter: Alter<'_>,
) -> Result<Member, VulkanError> {
    let mut failures: Vec<String> = Vec::new();
    let mut failed: Vec<Pack> = Vec::new();
    let mut wanted = choice.pack;
    loop {
        let opened = Member::open(&DeviceChoice { pack: wanted, ..choice.clone() });
        let mut member = match opened {
            Err(VulkanError::PackUnsupported { device, reason, .. }) if !failures.is_empty() => {
                failures.push(reason);
                return Err(VulkanError::SelfTest { device, failures: failures.join("; ") });
            }
            opened => opened?,
        };
        if tested == Tested::AllButSoftware && member.is_software() {
            return Ok(member);
        }
        let (pack, device) = (member.pack, member.report.name.clone());
        let group = Group::single(member);
        let Err(failure) = check(&group, alter) else {
            member = group.into_first();
            if !failures.is_empty() {
                member.report.pack = pack;
                member.report.pack_reason = format!("another failed its self-test: {}", failures.join("; "));
            }
            return Ok(member);
        };
        tracing::warn!("the {} kernel pack failed its self-test on {device}: {failure}", pack.name());
        failures.push(format!("the {} pack: {failure}", pack.name()));
        failed.push(pack);
        let next = stand_in(pack);
        if choice.pack.is_some() || failed.contains(&next) {
            return Err(VulkanError::SelfTest { device, failures: failures.join("; ") });
        }
        wanted = Some(next);
    }
}

/// The pack that is tried where one fails.
fn stand_in(pack: Pack) -> Pack {
    match pack {
        Pack::Cpu | Pack::Coopmat => Pack::Subgroup,
        Pack::Subgroup => Pack::Cpu,
    }
}

/// Tests a pack of a device, software or not, and gives how long it took from the device's opening on.
///
/// # Errors
/// The device cannot be opened with that pack, or the pack fails.
pub fn self_test(report: &DeviceReport, pack: Pack) -> Result<Duration, VulkanError> {
    let device = Some(report.index.to_string());
    let member = Member::open(&DeviceChoice { device, pack: Some(pack), ..DeviceChoice::default() })?;
    let start = Instant::now();
    check(&Group::single(member), &|_, _, _| ()).map_err(|failure| VulkanError::SelfTest {
        device: report.name.clone(),
        failures: format!("the {} pack: {failure}", pack.name()),
    })?;
    Ok(start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(choice: &DeviceChoice, broken: &[(Pack, &'static str)]) -> Result<Member, VulkanError> {
        open_tested(choice, Tested::All, &|pack, kernel, found| {
            if broken.contains(&(pack, kernel)) {
                found[0] += 0.5;
            }
        })
    }

    #[test]
    fn every_pack_of_the_device_passes() {
        let own = open(&DeviceChoice::of_tests(), &[]).unwrap();
        assert_eq!(own.pack, own.report.pack);
        for pack in Pack::ALL {
            match self_test(&own.report, pack) {
                Ok(time) => println!("{}: {} ms", pack.name(), time.as_millis()),
                Err(error @ VulkanError::PackUnsupported { .. }) => println!("skipped: {error}"),
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn a_pack_whose_kernel_is_wrong_is_left_for_another() {
        let Ok(own) = Member::open(&DeviceChoice { pack: Some(Pack::Cpu), ..DeviceChoice::of_tests() })
        else {
            println!("skipped: the device runs one pack only");
            return;
        };
        let (own, other) = (own.report.pack, stand_in(own.report.pack));
        for kernel in [
            "norm",
            "matmul of codes by 16",
            "matmul of codes by 8",
            "matmul of codes",
            "matmul of floats",
            "matmul among rows",
            "attention",
        ] {
            let member = open(&DeviceChoice::of_tests(), &[(own, kernel)]).unwrap();
            assert_eq!((member.pack, member.report.pack), (other, other));
            let reason = &member.report.pack_reason;
            let expected = format!("the {} pack: kernel {kernel} gave ", own.name());
            assert!(reason.contains(&expected), "{reason}");
        }
    }

    #[test]
    fn without_a_pack_that_passes_there_is_an_error_with_all_failures() {
        let broken = [(Pack::Cpu, "norm"), (Pack::Subgroup, "attention"), (Pack::Coopmat, "norm")];
        let Err(VulkanError::SelfTest { failures, .. }) = open(&DeviceChoice::of_tests(), &broken) else {
            panic!("it opened");
        };
        assert!(failures.contains("the subgroup pack: kernel attention gave "), "{failures}");
        // A pack that was asked for is not left for another.
        let choice = DeviceChoice { pack: Some(Pack::Subgroup), ..DeviceChoice::of_tests() };
        let Err(VulkanError::SelfTest { failures, .. }) = open(&choice, &broken) else {
            panic!("it opened");
        };
        assert!(failures.starts_with("the subgroup pack: kernel attention gave "), "{failures}");
    }
}
