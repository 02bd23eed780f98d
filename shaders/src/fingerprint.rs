//! Fingerprints of sources and of the code that was compiled from them: FNV-1a over their bytes, each text followed
//! by a byte that no text has. The compiler of `compiler/` takes this file too.

/// The fingerprint of some files' text and then of SPIR-V.
pub(crate) const fn fingerprint(sources: &[&str], code: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut source = 0;
    while source < sources.len() {
        hash = mixed(over(hash, sources[source].as_bytes()), 0xff);
        source += 1;
    }
    over(hash, code)
}

const fn over(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        hash = mixed(hash, bytes[at]);
        at += 1;
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
        let of = fingerprint(&["ab", "c"], b"d");
        for other in [
            fingerprint(&["ab", "d"], b"d"),
            fingerprint(&["a", "bc"], b"d"),
            fingerprint(&["ab"], b"cd"),
            fingerprint(&["ab", "c"], b"e"),
        ] {
            assert_ne!(of, other);
        }
    }
}
