//! The commands of the `lavalane` program.

pub mod bench;
pub mod device_arguments;
pub mod devices;
pub mod error;
pub mod inspect;
pub mod peer;
pub mod perplexity;
