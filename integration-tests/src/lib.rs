//! Helpers shared by the tests that cross crates.

pub mod http;
pub mod models;
pub mod packs;
pub mod sampling;
pub mod server;
pub mod text;
