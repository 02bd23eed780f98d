//! The same tests once more, with subgroups of 16 lanes: Mesa's software driver has those where it is told so when it
//! starts, and programs of their own tell it so where the processor has vectors of 512 bits.

use crate::vulkan::device::{DeviceChoice, Member, Pack};
use crate::vulkan::error::VulkanError;

/// The variable that the driver reads.
const VARIABLE: &str = "LP_NATIVE_VECTOR_WIDTH";

fn is_told() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

#[test]
fn the_driver_has_as_many_lanes_as_it_is_told() {
    if std::env::var(VARIABLE).as_deref() != Ok("512") {
        println!("skipped: {VARIABLE} is not 512");
        return;
    }
    match Member::open(&DeviceChoice { pack: Some(Pack::Cpu), ..DeviceChoice::of_tests() }) {
        Ok(member) if member.is_software() => assert_eq!(member.lanes(), 16),
        Ok(_) => println!("skipped: the device is no software device"),
        Err(error @ VulkanError::PackUnsupported { .. }) => println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn all_that_is_tested_here_holds_with_16_lanes() {
    if is_told() {
        println!("skipped: {VARIABLE} is set for all tests");
        return;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args(["vulkan::", "engine::"]).env(VARIABLE, "512").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("vulkan::tests::attention::"), "the kernels' tests were not found");
}
