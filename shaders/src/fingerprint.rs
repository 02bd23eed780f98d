//! Fingerprints of sources: FNV-1a over their text, each followed by a byte that no text has. The compiler of
//! `compiler/` takes this file too.

/// The fingerprint of some files' text.
pub(crate) const fn fingerprint(sources: &[&str]) -> u64 {
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
    fn a_changed_byte_and_a_moved_border_change_the_fingerprint() {
        assert_ne!(fingerprint(&["ab", "c"]), fingerprint(&["ab", "d"]));
        assert_ne!(fingerprint(&["ab", "c"]), fingerprint(&["a", "bc"]));
    }
}
