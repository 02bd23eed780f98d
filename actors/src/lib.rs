//! Lanes, scheduler and executor of Lavalane as actors. They know no HTTP.

pub mod request;
