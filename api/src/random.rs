//! Random words for ids and for the seeds of requests that name none. Nothing secret depends on them.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// A random word: a hash under keys that the standard library takes from the system.
pub fn word() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// An id: `prefix` and 24 hexadecimal digits.
pub fn id(prefix: &str) -> String {
    format!("{prefix}{:016x}{:08x}", word(), word() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_have_their_form_and_do_not_repeat() {
        let ids: HashSet<String> = (0..1000).map(|_| id("chatcmpl-")).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == "chatcmpl-".len() + 24 && id.starts_with("chatcmpl-")));
    }
}
