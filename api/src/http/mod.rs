//! The HTTP server: routes, and what stands before them.

pub mod access;
pub mod body;
pub mod generate;
pub mod metrics;
pub mod observe;
pub mod openapi;
pub mod response;
pub mod server;
pub mod sse;
pub mod state;
pub mod text;
