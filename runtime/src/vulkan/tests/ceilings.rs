//! The kernels that measure a device.

use crate::vulkan::buffers::Home;
use crate::vulkan::ceilings::{Ceilings, Extent, HALF, LANES, RUN_BYTES, filling_word};
use crate::vulkan::device::{DeviceChoice, Member};
use crate::vulkan::group::{Group, GroupRecorder};
use crate::vulkan::pace::Team;
use crate::vulkan::region::Region;
use lavalane_shaders::twins::{multiply_add, read_all};
use std::time::Duration;

const RUNS: usize = 5;
const COMPUTING_GROUPS: usize = 3;

/// The kernels at a size that software devices are done with at once.
fn small() -> Ceilings {
    let extent = Extent {
        read_bytes: RUNS * RUN_BYTES,
        computing_groups: COMPUTING_GROUPS,
        time_min: Duration::from_millis(1),
    };
    let member = Member::open(&DeviceChoice::of_tests()).expect("there is a device");
    Ceilings::new(Group::single(member), extent).expect("the kernels are ready")
}

/// Runs what is recorded, and reads the words of a region.
fn words(
    ceilings: &Ceilings,
    region: &Region,
    count: usize,
    record: impl FnOnce(&mut GroupRecorder<'_>),
) -> Vec<u32> {
    let group = &ceilings.group;
    let back = group.region("a test's words", count * 4, Home::Readback).expect("there is memory");
    let mut recorder = group.record(Team::All).expect("it is recorded");
    record(&mut recorder);
    recorder.barrier();
    recorder.copy((region, 0), (&back, 0), count * 4);
    group.run(&recorder.finish().expect("it is recorded")).expect("the device computes");
    back.read(count).expect("the host reads it")
}

#[test]
fn every_word_of_the_memory_is_read() {
    let ceilings = small();
    let found = words(&ceilings, &ceilings.kept, RUNS * LANES, |recorder| ceilings.read(recorder));
    let source: Vec<u32> = (0..(RUNS * RUN_BYTES / 4) as u32).map(filling_word).collect();
    let expected = source.chunks(RUN_BYTES / 4).flat_map(|run| read_all::kept(run, LANES));
    assert_eq!(found, expected.collect::<Vec<_>>());
}

#[test]
fn every_chain_of_multiply_adds_has_the_twins_bits() {
    let ceilings = small();
    for turns in [0, 1, 2, 100] {
        let count = COMPUTING_GROUPS * LANES * 4;
        let found = words(&ceilings, &ceilings.result, count, |recorder| ceilings.compute(recorder, turns));
        let lanes = 0..COMPUTING_GROUPS * LANES;
        let expected = lanes.flat_map(|lane| multiply_add::sums(lane, HALF, HALF, turns).map(f32::to_bits));
        assert_eq!(found, expected.collect::<Vec<_>>(), "{turns} turns");
    }
}

#[test]
fn both_ceilings_are_measured() {
    let roofline = small().measure().expect("the device computes");
    for rate in [roofline.bytes_per_second, roofline.operations_per_second] {
        assert!(rate.is_finite() && rate > 1e3, "{roofline:?}");
    }
}
