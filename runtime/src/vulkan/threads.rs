//! How software devices run their work: on a pool of the driver's own threads, or inline.
//!
//! Mesa's software driver reads `LP_NUM_THREADS` when it starts. Its pool costs tens of microseconds per
//! dispatch; with 0 threads a dispatch runs at once on the queue's own thread, and a device group uses
//! all cores instead.

/// The variable that Mesa's software driver reads.
const VARIABLE: &str = "LP_NUM_THREADS";

/// How a software device runs its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftwareThreads {
    /// On the driver's own pool.
    Pool,
    /// Inline, one core per device.
    Inline,
}

/// How this process's software devices run their work.
pub fn software_threads() -> SoftwareThreads {
    match std::env::var(VARIABLE) {
        Ok(count) if count == "0" => SoftwareThreads::Inline,
        _ => SoftwareThreads::Pool,
    }
}

/// Makes software devices run their work inline, unless the environment already says how. A program calls
/// this first of all; where other threads already run (or that cannot be told), nothing is changed. An
/// embedded engine never calls it: the environment belongs to the program.
pub fn run_software_devices_inline() {
    if std::env::var_os(VARIABLE).is_some() || !is_only_thread() {
        return;
    }
    // SAFETY: no other thread runs that could read the environment meanwhile.
    unsafe { std::env::set_var(VARIABLE, "0") };
}

/// Whether this thread is the process's only one; false where that cannot be told.
fn is_only_thread() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}
