//! The text of every kernel, as one fingerprint: what was kept of a kernel's results (a snapshot of a KV
//! cache) is good only for the same kernels, and nobody has to remember to raise a version.

/// Every file of `src/kernels/` that a kernel is compiled from, in the order of their names; a test
/// compares the list with the folder.
const SOURCES: &[&str] = &[
    include_str!("kernels/activate.comp"),
    include_str!("kernels/activations.glsl"),
    include_str!("kernels/attention_cpu.comp"),
    include_str!("kernels/attention_subgroup.comp"),
    include_str!("kernels/cache.glsl"),
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

/// A fingerprint of all kernels' sources: FNV-1a over their text, each followed by a byte that no text has.
pub const SOURCES_FINGERPRINT: u64 = fingerprint(SOURCES);

const fn fingerprint(sources: &[&str]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut source = 0;
    while source < sources.len() {
        let bytes = sources[source].as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            hash = mixed(hash, bytes[at]);
            at += 1;
        }
        hash = mixed(hash, 0xff);
        source += 1;
    }
    hash
}

const fn mixed(hash: u64, byte: u8) -> u64 {
    (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3)
}

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

    #[test]
    fn a_changed_byte_and_a_moved_border_change_the_fingerprint() {
        assert_ne!(fingerprint(&["ab", "c"]), fingerprint(&["ab", "d"]));
        assert_ne!(fingerprint(&["ab", "c"]), fingerprint(&["a", "bc"]));
    }
}
