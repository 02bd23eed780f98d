//! How many cores the process may use.

use std::sync::LazyLock;

/// The number of cores, as it was when it was first asked for; 1 where the system does not tell. The standard library
/// reads the system's files anew each time, which is too slow for a step.
pub(crate) fn cores() -> usize {
    static CORES: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    *CORES
}
