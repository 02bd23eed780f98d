//! The settings of the cache on the disk: where prefixes of prompts outlive the server.

use crate::settings::SettingsError;
use lavalane_actors::SnapshotSettings;
use lavalane_actors::settings::PrefixReuse;
use std::path::Path;

/// What the cache may take where nothing else is said.
pub(crate) const DEFAULT_CACHE_BYTES: u64 = 4 << 30;

/// The cache in `folder`, if one is given.
///
/// # Errors
/// A size without a folder, a size of nothing, or a folder though nothing is reused.
pub(crate) fn snapshots(
    folder: Option<&Path>,
    bytes: Option<u64>,
    reuse: PrefixReuse,
) -> Result<Option<SnapshotSettings>, SettingsError> {
    let invalid = |name, rule: &str| Err(SettingsError::Invalid { name, rule: rule.to_owned() });
    match (folder, bytes, reuse) {
        (None, None, _) => Ok(None),
        (None, Some(_), _) => invalid("cache-bytes", "is of use only with cache-dir"),
        (Some(_), Some(0), _) => invalid("cache-bytes", "must be at least 1"),
        (Some(_), _, PrefixReuse::Off) => invalid("cache-dir", "is of use only with prefix-reuse"),
        (Some(folder), bytes, PrefixReuse::On) => {
            Ok(Some(SnapshotSettings::new(folder, bytes.unwrap_or(DEFAULT_CACHE_BYTES))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_refused(folder: Option<&str>, bytes: Option<u64>, reuse: PrefixReuse, name: &str) {
        let error = snapshots(folder.map(Path::new), bytes, reuse).expect_err("it cannot be");
        assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
    }

    #[test]
    fn a_folder_has_a_default_size_and_a_size_needs_a_folder() {
        let found = snapshots(Some(Path::new("a")), None, PrefixReuse::On).expect("valid");
        assert_eq!(found.map(|cache| cache.bytes_max), Some(DEFAULT_CACHE_BYTES));
        let found = snapshots(Some(Path::new("a")), Some(7), PrefixReuse::On).expect("valid");
        assert_eq!(found.map(|cache| cache.bytes_max), Some(7));
        assert_eq!(snapshots(None, None, PrefixReuse::Off).expect("valid"), None);
        check_refused(None, Some(7), PrefixReuse::On, "cache-bytes");
        check_refused(Some("a"), Some(0), PrefixReuse::On, "cache-bytes");
        check_refused(Some("a"), None, PrefixReuse::Off, "cache-dir");
    }
}
