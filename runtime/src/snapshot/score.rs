//! Which stored snapshot is worth least.

use std::time::Duration;

/// After how long without use a snapshot counts half.
const HALF_LIFE: Duration = Duration::from_secs(6 * 3600);

/// The size from which on a snapshot's bytes count against it in full.
const SIZE_SCALE_BYTES: f64 = 16.0 * 1024.0 * 1024.0;

/// What is known of a stored snapshot's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// How often it was restored from.
    pub hits: u32,
    /// How long it has not been used.
    pub idle: Duration,
    /// Its size on the disk.
    pub bytes: u64,
}

/// What a snapshot is worth keeping; the one with the least goes first.
///
/// Each use counts once, and so does having been made. That halves with every `HALF_LIFE` of idleness. A
/// large snapshot spares as much more work as it is larger, so that its size counts only by what could stand
/// in its place: by its root, and hardly at all where it is small anyway.
pub fn worth(usage: &Use) -> f64 {
    let uses = 1.0 + f64::from(usage.hits);
    let age = usage.idle.as_secs_f64() / HALF_LIFE.as_secs_f64();
    let size = (1.0 + usage.bytes as f64 / SIZE_SCALE_BYTES).sqrt();
    uses * (-age).exp2() / size
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;
    const MEGABYTE: u64 = 1 << 20;

    /// That the first is kept rather than the second; each as hits, hours idle and megabytes.
    fn check(kept: (u32, u64, u64), evicted: (u32, u64, u64)) {
        let of = |(hits, hours, megabytes)| {
            worth(&Use { hits, idle: Duration::from_secs(hours * HOUR), bytes: megabytes * MEGABYTE })
        };
        assert!(of(kept) > of(evicted), "{kept:?} is worth {}, {evicted:?} {}", of(kept), of(evicted));
    }

    #[test]
    fn hits_age_and_size_each_decide_where_the_others_are_equal() {
        check((1, 5, 10), (0, 5, 10));
        check((3, 5, 10), (3, 6, 10));
        check((3, 5, 10), (3, 5, 11));
    }

    #[test]
    fn an_old_favourite_gives_way_to_what_is_used_now() {
        check((0, 0, 10), (9, 24, 10));
        check((9, 6, 10), (0, 0, 10));
    }

    #[test]
    fn many_hits_outweigh_size() {
        check((9, 0, 100), (0, 0, 1));
    }

    #[test]
    fn no_numbers_give_anything_but_a_number() {
        for idle in [Duration::ZERO, Duration::MAX] {
            for bytes in [0, u64::MAX] {
                let value = worth(&Use { hits: u32::MAX, idle, bytes });
                assert!(value.is_finite() && value >= 0.0, "{value}");
            }
        }
    }
}
