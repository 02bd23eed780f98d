//! How software devices run their work: on a pool of the driver's own threads, or inline; and by how wide vectors.
//!
//! Mesa's software driver reads `LP_NUM_THREADS` when it starts. Its pool costs tens of microseconds per
//! dispatch; with 0 threads a dispatch runs at once on the queue's own thread, and a device group uses
//! all cores instead. `LP_NATIVE_VECTOR_WIDTH` is the bits of its vectors, 256 where nobody says otherwise: with 512,
//! which processors with AVX-512 have, an instruction takes 16 rows of a matrix instead of 8.

use std::sync::atomic::{AtomicBool, Ordering};

/// The variable that Mesa's software driver reads.
pub const SOFTWARE_THREADS_VARIABLE: &str = "LP_NUM_THREADS";

/// The variable by which it is told how wide its vectors are, in bits.
const VECTOR_VARIABLE: &str = "LP_NATIVE_VECTOR_WIDTH";

/// How a software device runs its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftwareThreads {
    /// On the driver's own pool.
    Pool,
    /// Inline, one core per device.
    Inline,
}

/// Whether [`set_up_software_devices`] said so, and nobody before it.
static SAID_HERE: AtomicBool = AtomicBool::new(false);

/// How one device group computes, for people to read, and whether its driver should be started otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupReport {
    /// How many members compute together.
    pub members: usize,
    /// Why one computes alone.
    pub(super) alone: Option<Alone>,
    /// Whether the device computes on the host's cores.
    pub(super) software: bool,
}

/// Why one member computes alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Alone {
    #[error("one member was asked for")]
    Asked,
    #[error("this process has one core")]
    OneCore,
    #[error("{0}")]
    Obstacle(String),
    #[error("the device group's test failed: {0}")]
    TestFailed(String),
}

impl GroupReport {
    /// Whether [`set_up_software_devices`] has left a software device with one core where the driver's
    /// own threads would use all of them. It takes a new process to change that.
    pub fn misses_the_pool(&self) -> bool {
        let alone = self.alone.as_ref().is_some_and(|alone| *alone != Alone::OneCore);
        self.software && alone && SAID_HERE.load(Ordering::Relaxed)
    }
}

impl std::fmt::Display for GroupReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.alone, self.software, software_threads()) {
            (_, false, _) => write!(formatter, "the device's own"),
            (None, true, _) => write!(formatter, "one for each of {} members", self.members),
            (Some(alone), true, SoftwareThreads::Pool) => {
                write!(formatter, "the driver's pool of threads, because {alone}")
            }
            (Some(alone), true, SoftwareThreads::Inline) => write!(formatter, "one, because {alone}"),
        }
    }
}

/// How this process's software devices run their work.
pub fn software_threads() -> SoftwareThreads {
    match std::env::var(SOFTWARE_THREADS_VARIABLE) {
        Ok(count) if count == "0" => SoftwareThreads::Inline,
        _ => SoftwareThreads::Pool,
    }
}

/// Makes software devices run their work inline and by the processor's widest vectors, unless the environment already
/// says how. A program calls this first of all; where other threads already run (or that cannot be told), nothing is
/// changed. An embedded engine never calls it: the environment belongs to the program.
pub fn set_up_software_devices() {
    if std::env::var_os(SOFTWARE_THREADS_VARIABLE).is_some() || !is_only_thread() {
        return;
    }
    // SAFETY: no other thread runs that could read the environment meanwhile.
    unsafe { std::env::set_var(SOFTWARE_THREADS_VARIABLE, "0") };
    SAID_HERE.store(true, Ordering::Relaxed);
    if has_512_bits() && std::env::var_os(VECTOR_VARIABLE).is_none() {
        // SAFETY: as before.
        unsafe { std::env::set_var(VECTOR_VARIABLE, "512") };
    }
}

/// Whether the processor has what the driver's compiler needs to make good code of vectors of 512 bits.
#[cfg(target_arch = "x86_64")]
fn has_512_bits() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_512_bits() -> bool {
    false
}

/// Does `work`, whose new threads do not interrupt who wakes them: a software device's thread that took the core of the
/// thread that submits would keep it from submitting to the next member, until the system moves one of them. Where the
/// system has no such rule or refuses, `work` is done as usual.
pub(super) fn with_patient_threads<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_os = "linux")]
    {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: the calls change the calling thread alone (0), whose policy threads that it starts take over.
        let set = |policy| unsafe { libc::sched_setscheduler(0, policy, &parameters) } == 0;
        // SAFETY: as above.
        let ordinary = unsafe { libc::sched_getscheduler(0) } == libc::SCHED_OTHER;
        if ordinary && set(libc::SCHED_BATCH) {
            let result = work();
            set(libc::SCHED_OTHER);
            return result;
        }
    }
    work()
}

/// Whether this thread is the process's only one; false where that cannot be told.
fn is_only_thread() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_threads_that_are_started_meanwhile_are_patient() {
        // SAFETY: it asks for the calling thread's own policy.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        if before != libc::SCHED_OTHER {
            println!("skipped: this process has a scheduling policy of its own");
            return;
        }
        let started =
            with_patient_threads(|| std::thread::spawn(policy).join().expect("it tells its policy"));
        assert_eq!(started, libc::SCHED_BATCH);
        assert_eq!(policy(), before);
    }
}
