//! How often each stored image was used, as one small file beside them, so that after a restart eviction goes on
//! where it was. It is written anew with each use, whole or not at all; where it is missing or damaged, counting
//! begins at nothing, and no image depends on it.

use super::identity::Digest;
use std::collections::HashMap;
use std::fmt::Write;

/// The file's name.
pub(super) const HITS_FILE: &str = "hits";

/// The most bytes of it that are read: more than any folder of snapshots needs.
pub(super) const HITS_BYTES_MAX: u64 = 16 << 20;

/// What the file begins with; a digest of what follows that line ends it.
const BEGINNING: &str = "lavalane hits 1 ";

/// The file of these images' names and uses.
pub(super) fn encode<'a>(hits: impl IntoIterator<Item = (&'a str, u32)>) -> Vec<u8> {
    let mut lines = String::new();
    // A name with a line's end in it is none that the store gives.
    for (name, hits) in hits.into_iter().filter(|(name, hits)| *hits > 0 && !name.contains('\n')) {
        let _ = writeln!(lines, "{hits} {name}");
    }
    format!("{BEGINNING}{}\n{lines}", Digest::of([lines.as_bytes()])).into_bytes()
}

/// The uses by name; `None` where the bytes are not such a file, or not as it was written.
pub(super) fn decode(bytes: &[u8]) -> Option<HashMap<String, u32>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (digest, lines) = text.strip_prefix(BEGINNING)?.split_once('\n')?;
    if digest != Digest::of([lines.as_bytes()]).to_string() {
        return None;
    }
    let entry = |line: &str| {
        let (hits, name) = line.split_once(' ')?;
        Some((name.to_owned(), hits.parse().ok()?))
    };
    lines.lines().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_read_as_they_were_written() {
        let hits = [("a.lavakv", 3), ("b c.lavakv", u32::MAX), ("unused.lavakv", 0), ("odd\n.lavakv", 5)];
        let read = decode(&encode(hits)).expect("it is whole");
        assert_eq!(read, [("a.lavakv", 3), ("b c.lavakv", u32::MAX)].map(|(n, h)| (n.to_owned(), h)).into());
        assert_eq!(decode(&encode([])), Some(HashMap::new()));
    }

    #[test]
    fn a_file_that_is_cut_or_changed_anywhere_is_not_read() {
        let whole = encode([("a.lavakv", 3), ("b.lavakv", 12)]);
        for at in 0..whole.len() {
            assert_eq!(decode(&whole[..at]), None, "cut at {at}");
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert_eq!(decode(&changed), None, "changed at {at}");
        }
    }
}
