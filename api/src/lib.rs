//! The HTTP and WebSocket server and the command line of Lavalane.

mod cache_settings;
pub mod cli;
pub mod engine;
pub mod error;
pub mod faults;
pub mod generation;
pub mod http;
pub mod random;
pub mod settings;
pub mod software_threads;
pub mod templates;
pub mod text_model;
pub mod websocket;
pub mod wire;

pub use http::server;
