//! The `lavalane` program again, as a binary of this crate: cargo builds it for this crate's tests, so that they
//! always run the code of the working tree. Software devices run on the driver's own threads here, so that tests
//! beside one another share the cores, unless `LAVALANE_TEST_THREADS` lets the program say.

use lavalane_api::software_threads::ThreadsChoice;
use std::process::ExitCode;

fn main() -> ExitCode {
    let threads = match std::env::var_os("LAVALANE_TEST_THREADS") {
        Some(_) => ThreadsChoice::Program,
        None => ThreadsChoice::Environment,
    };
    lavalane_api::cli::main(threads)
}
