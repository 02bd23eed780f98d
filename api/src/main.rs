//! The `lavalane` program.

fn main() {}
