//! The HTTP and WebSocket server and the command line of Lavalane.

pub mod error;
pub mod wire;
