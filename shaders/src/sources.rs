//! The text of every kernel, and the code of those compiled before the build, as one fingerprint: what was kept of a
//! kernel's results (a snapshot of a KV cache) is good only for the same kernels, and nobody has to remember to raise
//! a version.

use crate::fingerprint::fingerprint;

/// Every file of `src/kernels/` that a kernel is compiled from, in the order of their names; a test
/// compares the list with the folder.
const SOURCES: &[&str] = &[
    include_str!("kernels/activate.comp"),
    include_str!("kernels/activations.glsl"),
    include_str!("kernels/attention_cpu.comp"),
    include_str!("kernels/attention_subgroup.comp"),
    include_str!("kernels/cache.glsl"),
    include_str!("kernels/matmul_coopmat.comp"),
    include_str!("kernels/matmul_float_cpu.comp"),
    include_str!("kernels/matmul_int16_cpu.glsl"),
    include_str!("kernels/matmul_int16_eight_cpu.comp"),
    include_str!("kernels/matmul_int16_one_cpu.comp"),
    include_str!("kernels/matmul_subgroup.comp"),
    include_str!("kernels/meet.comp"),
    include_str!("kernels/multiply_add.comp"),
    include_str!("kernels/norm.comp"),
    include_str!("kernels/read_all.comp"),
    include_str!("kernels/rope_append.comp"),
    include_str!("kernels/rope_append_cpu.comp"),
    include_str!("kernels/store_activations.glsl"),
    include_str!("kernels/weights.glsl"),
];

/// A fingerprint of all kernels.
pub const SOURCES_FINGERPRINT: u64 = fingerprint(SOURCES, include_bytes!("compiled/matmul_coopmat.spv"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_file_is_in_the_fingerprint() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/kernels");
        let files = std::fs::read_dir(folder).expect("the folder of kernels is there");
        let mut paths: Vec<_> = files.map(|file| file.expect("the folder can be read").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|ending| ending != "rs"));
        paths.sort();
        let texts = paths.iter().map(|path| std::fs::read_to_string(path).expect("a source is text"));
        assert_eq!(texts.collect::<Vec<_>>(), SOURCES, "{paths:?}");
    }
}
