//! The `lavalane` program.

use lavalane_api::software_threads::ThreadsChoice;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("LAVALANE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    lavalane_api::cli::main(ThreadsChoice::Program)
}
