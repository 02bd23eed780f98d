//! How much memory a model takes on a device, and how many KV pages the rest holds.

use super::EngineError;
use crate::kv::KvShape;
use crate::model::Model;
use crate::vulkan::{DeviceChoice, DeviceReport, KvType, Precision};
use lavalane_shaders::PAGE_TOKENS;

/// What an engine is made for.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The device and kernel pack.
    pub choice: DeviceChoice,
    /// How exact activations are.
    pub precision: Precision,
    /// The KV cache's element type.
    pub kv_type: KvType,
    /// How many lanes (sequences at once).
    pub lanes: usize,
    /// Tokens of one sequence at the most; `None` takes the model's context, at most 8,192.
    pub context_tokens: Option<usize>,
    /// Bytes for the KV pool; `None` takes what all lanes' contexts need, at most a quarter of the
    /// device's memory.
    pub kv_bytes: Option<u64>,
    /// The most rows of one batch.
    pub batch_rows_max: usize,
    /// The most rows of one submission to the device; a batch of more is cut between lanes.
    pub submission_rows_max: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            choice: DeviceChoice::default(),
            precision: Precision::default(),
            kv_type: KvType::default(),
            lanes: 8,
            context_tokens: None,
            kv_bytes: None,
            batch_rows_max: 512,
            submission_rows_max: 512,
        }
    }
}

/// The context that an engine gives a sequence where nothing else was asked for, in tokens.
const DEFAULT_CONTEXT_TOKENS: usize = 8192;

/// What a model takes on a device. All sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The weights, as the file holds them (repacked, some formats take more).
    pub weight_bytes: u64,
    /// Scratch buffers, roughly.
    pub scratch_bytes: u64,
    /// One KV page, over all layers.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub pages: usize,
    /// Tokens of one sequence at the most.
    pub context_tokens: usize,
}

impl MemoryPlan {
    /// Plans the memory of `model` on a device with these options.
    ///
    /// # Errors
    /// A setting out of its range, or too little memory for one sequence.
    pub fn new(model: &Model, options: &EngineOptions, device: &DeviceReport) -> Result<Self, EngineError> {
        let description = model.description();
        for (setting, given) in [
            ("lanes", options.lanes),
            ("batch rows", options.batch_rows_max),
            ("submission rows", options.submission_rows_max),
            ("context", options.context_tokens.unwrap_or(1)),
        ] {
            if given == 0 {
                return Err(EngineError::SettingTooSmall { setting, least: 1, given });
            }
        }
        let context_tokens =
            options.context_tokens.unwrap_or(description.context.min(DEFAULT_CONTEXT_TOKENS));
        if context_tokens > description.context {
            return Err(EngineError::ContextTooLong { asked: context_tokens, model: description.context });
        }
        let shape = KvShape {
            layers: description.layers.len(),
            kv_heads: description.kv_heads,
            head_dim: description.head_dim,
            element_bytes: options.kv_type.bytes(),
            page_tokens: PAGE_TOKENS,
        };
        let page_bytes = shape.page_bytes()?;
        let row_values = 8 * description.hidden + 4 * description.feed_forward;
        let plan = Self {
            weight_bytes: weight_bytes(model),
            scratch_bytes: (options.submission_rows_max * row_values * 4 + description.vocabulary * 4 * 64)
                as u64,
            page_bytes,
            pages: 0,
            context_tokens,
        };
        let sequence_pages = shape.pages_for(context_tokens);
        let wanted = sequence_pages * options.lanes;
        let left = device.memory_bytes.saturating_sub(plan.weight_bytes + plan.scratch_bytes);
        let budget = options.kv_bytes.unwrap_or(left.min(device.memory_bytes / 4));
        let per_buffer = device.storage_buffer_bytes_max * 2 * description.layers.len() as u64 / page_bytes;
        let pages = wanted.min((budget.min(left) / page_bytes) as usize).min(per_buffer as usize);
        // An explicit budget may hold less than one whole context: prompts that fit still run. Without
        // one, a device that cannot hold a single sequence is an error that says what would fit.
        let least = if options.kv_bytes.is_some() { 1 } else { sequence_pages };
        if pages < least {
            return Err(EngineError::MemoryTooSmall {
                weight_bytes: plan.weight_bytes,
                scratch_bytes: plan.scratch_bytes,
                left_bytes: budget.min(left),
                context_tokens,
                needed_bytes: sequence_pages as u64 * page_bytes,
                tokens_fitting: pages * PAGE_TOKENS,
            });
        }
        Ok(Self { pages, ..plan })
    }

    /// Bytes of the whole KV pool.
    pub fn kv_bytes(&self) -> u64 {
        self.page_bytes * self.pages as u64
    }
}

/// Bytes of all tensors that the device holds.
fn weight_bytes(model: &Model) -> u64 {
    model.file().tensors().iter().map(|tensor| tensor.bytes() as u64).sum()
}
