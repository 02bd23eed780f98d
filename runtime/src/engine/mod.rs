//! The engine of one device group: a model on Vulkan as a [`BatchExecutor`](crate::batch::BatchExecutor),
//! with the plan of its memory.

mod account;
pub mod bench;
mod executor;
mod layers;
mod memory;
mod windows;
pub mod work;

pub use executor::VulkanExecutor;
pub use layers::{DuplicateLane, FrameBatch, FrameBatchDone, FrameWork, LayerRunner};
pub use memory::{EngineOptions, MemoryPlan};
pub use windows::WindowRunner;

use crate::kv::KvSizeError;
use crate::vulkan::VulkanError;

/// Why an engine could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The device said no.
    #[error(transparent)]
    Vulkan(#[from] VulkanError),
    /// The KV cache's size cannot be told.
    #[error(transparent)]
    KvSize(#[from] KvSizeError),
    /// The context asked for is longer than the model's.
    #[error("a context of {asked} tokens is longer than the {model} that this model was made for")]
    ContextTooLong {
        /// What was asked for, in tokens.
        asked: usize,
        /// The model's context, in tokens.
        model: usize,
    },
    /// A range of layers that the model has not.
    #[error("the range of layers ends at {end}, and the model has {layers}")]
    NoSuchLayers {
        /// The layer after the range's last.
        end: usize,
        /// The model's layers.
        layers: usize,
    },
    /// A setting outside its range.
    #[error("{setting} must be at least {least}, and is {given}")]
    SettingTooSmall {
        /// The setting's name.
        setting: &'static str,
        /// Its least value.
        least: usize,
        /// What was given.
        given: usize,
    },
    /// The memory budget does not hold one sequence's worth of KV pages.
    #[error(
        "not enough memory: weights take {weight_bytes} bytes and scratch {scratch_bytes}, which leaves {left_bytes} for \
         the KV cache; a context of {context_tokens} tokens needs {needed_bytes}; what is left holds {tokens_fitting} tokens"
    )]
    MemoryTooSmall {
        /// Bytes of the weights.
        weight_bytes: u64,
        /// Bytes of scratch buffers.
        scratch_bytes: u64,
        /// Bytes left for KV.
        left_bytes: u64,
        /// The context, in tokens.
        context_tokens: usize,
        /// Bytes that one sequence of that context needs.
        needed_bytes: u64,
        /// Tokens that would fit.
        tokens_fitting: usize,
    },
}
