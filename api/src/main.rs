//! The `lavalane` program.

use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    // Nothing before this line may start a thread: a driver's environment is set here where it helps.
    let filter = EnvFilter::try_from_env("LAVALANE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    lavalane_api::cli::main()
}
