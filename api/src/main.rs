//! The `lavalane` program.

use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    // Before any thread starts, because it sets a variable that drivers read.
    lavalane_runtime::vulkan::run_software_devices_inline();
    let filter = EnvFilter::try_from_env("LAVALANE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    lavalane_api::cli::main()
}
