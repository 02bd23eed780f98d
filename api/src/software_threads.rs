//! Which threads software devices compute on, for the program: decided from the settings before any driver
//! starts, and by starting the program again where only the driver could tell.
//!
//! A driver reads its number of threads once, when it starts. Inline is best for a group of members; a
//! member alone is better off on the driver's own pool.

use crate::cli::source::Sources;
use lavalane_runtime::vulkan::{
    DeviceChoice, GroupReport, SOFTWARE_THREADS_VARIABLE, set_up_software_devices,
};

/// Set for the process that follows one whose group could not be made.
const POOL_VARIABLE: &str = "LAVALANE_DRIVER_POOL";

/// Whether the program may say how software devices run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadsChoice {
    /// It may, unless the environment does: no other thread has started.
    Program,
    /// Only the environment says.
    Environment,
}

/// The choice that the settings make; settings that cannot be used are told later.
pub(crate) fn of_settings(sources: &Sources) -> Option<DeviceChoice> {
    sources.clone().settings().ok().map(|settings| settings.engine_options.choice)
}

/// Lets software devices run inline where `choice` leaves room for a group of members.
pub(crate) fn prepare(choice: &DeviceChoice) {
    if choice.may_be_grouped() && std::env::var_os(POOL_VARIABLE).is_none() {
        set_up_software_devices();
    }
}

/// Starts this program again, with the driver's own threads, where the group turned out to have one member
/// that [`prepare`] has left with one core. Goes on with that where it cannot.
pub(crate) fn restart_if_alone(group: &GroupReport) {
    if !group.misses_the_pool() {
        return;
    }
    tracing::warn!("no device group can be made ({group}): starting again with the driver's own threads");
    let error = restart();
    tracing::warn!("the program could not start again, and computes on one core: {error}");
}

#[cfg(unix)]
fn restart() -> std::io::Error {
    use std::os::unix::process::CommandExt;
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let mut command = std::process::Command::new(program);
    command.arg0(name).args(arguments);
    command.env_remove(SOFTWARE_THREADS_VARIABLE).env(POOL_VARIABLE, "1").exec()
}

#[cfg(not(unix))]
fn restart() -> std::io::Error {
    std::io::ErrorKind::Unsupported.into()
}
