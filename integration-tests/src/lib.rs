//! Helpers shared by the tests that cross crates.

pub mod models;
pub mod server;
pub mod text;
