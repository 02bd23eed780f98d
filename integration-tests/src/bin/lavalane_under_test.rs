//! The `lavalane` program again, as a binary of this crate: cargo builds it for this crate's tests, so that they
//! always run the code of the working tree.

use std::process::ExitCode;

fn main() -> ExitCode {
    lavalane_api::cli::main()
}
