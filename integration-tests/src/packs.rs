//! Kernel packs that not every device runs.

use lavalane_runtime::vulkan::{DeviceChoice, Pack, VulkanError, chosen, self_test};

/// Whether the best device runs the pack; where it does not, a line says why a test is skipped.
///
/// # Panics
/// There is no device, or the pack computes wrongly on it.
pub fn runs(pack: Pack) -> bool {
    let device = chosen(&DeviceChoice::default()).expect("there is a device");
    match self_test(&device, pack) {
        Ok(_) => true,
        Err(error @ VulkanError::PackUnsupported { .. }) => {
            println!("skipped: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}
