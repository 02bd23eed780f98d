//! The JSON that clients send and receive: parsed once, into types that need no second check.

pub mod chat;
pub mod common;
pub mod completion;
pub mod fields;
pub mod json;
pub mod logprobs;
pub mod reply;
pub mod sampling;
pub mod signals;
pub mod time_limits;
pub mod tokens;
