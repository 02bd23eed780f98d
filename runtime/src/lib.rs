//! The runtime of Lavalane: model files, tokenizers, sampling, the KV cache, and the forward pass on
//! Vulkan. It knows no actor and no socket.

pub mod batch;
pub mod chat;
pub mod contract;
mod cores;
pub mod engine;
pub mod frame;
pub mod gguf;
pub mod guard;
pub mod ids;
pub mod kv;
pub mod model;
pub mod quant;
pub mod reference;
pub mod sampling;
pub mod session;
pub mod snapshot;
pub mod synth;
#[cfg(any(test, feature = "testing", debug_assertions))]
pub mod testing;
pub mod tokenizer;
pub mod vulkan;

/// The examples of the guide to embedding, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/embedding.md")]
struct EmbeddingGuide;
