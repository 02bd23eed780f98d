//! Logits of whole windows of text on the device, for perplexity and for tests: one sequence, no lanes.

use super::EngineError;
use crate::ids::{PageId, TokenId};
use crate::model::Model;
use crate::session::LengthSlot;
use crate::vulkan::{
    DeviceChoice, Forward, ForwardOptions, KvType, Precision, RowLogits, StageTime, StepLane, VulkanError,
};
use lavalane_shaders::PAGE_TOKENS;
use std::sync::Arc;

/// Runs one sequence after another through a model on the device.
pub struct WindowRunner {
    model: Arc<Model>,
    forward: Forward,
    pages: Vec<PageId>,
    slice: usize,
}

impl WindowRunner {
    /// A runner for sequences of at most `context_tokens` tokens, fed in slices of `slice` tokens.
    ///
    /// # Errors
    /// As of the engine.
    pub fn new(
        model: Arc<Model>,
        choice: DeviceChoice,
        precision: Precision,
        kv_type: KvType,
        context_tokens: usize,
        slice: usize,
    ) -> Result<Self, EngineError> {
        let pages = context_tokens.div_ceil(PAGE_TOKENS);
        let options = ForwardOptions {
            choice,
            precision,
            kv_type,
            rows_max: slice,
            lanes_max: 1,
            context_tokens,
            pages,
            layers: None,
        };
        let mut forward = Forward::new(&model, &options)?;
        while forward.prepare()? {}
        Ok(Self { model, forward, pages: (0..pages as u32).map(PageId).collect(), slice })
    }

    /// Runs `tokens` from position `from` on without reading logits back.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// When the tokens go beyond the runner's context.
    pub fn feed(&mut self, tokens: &[TokenId], from: usize) -> Result<(), VulkanError> {
        self.run(tokens, from, RowLogits::None).map(drop)
    }

    /// The logits after each token of `tokens`, from position `from` on (what lies before must have run).
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// When the tokens go beyond the runner's context.
    pub fn logits(&mut self, tokens: &[TokenId], from: usize) -> Result<Vec<Vec<f32>>, VulkanError> {
        self.run(tokens, from, RowLogits::All)
    }

    fn run(
        &mut self,
        tokens: &[TokenId],
        from: usize,
        rows: RowLogits,
    ) -> Result<Vec<Vec<f32>>, VulkanError> {
        let mut logits = Vec::new();
        for (index, slice) in tokens.chunks(self.slice).enumerate() {
            let lane = StepLane {
                slot: LengthSlot(0),
                position: from + index * self.slice,
                pages: &self.pages,
                hidden: self.model.embed_all(slice),
                logits: rows,
            };
            let mut result = self.forward.step(&[], &[lane])?;
            logits.append(&mut result.logits[0]);
        }
        Ok(logits)
    }

    /// The time of each kind of stage of a step that feeds `tokens` from position `from` on (what lies before
    /// must have run) and reads the last row's logits.
    ///
    /// # Errors
    /// The device's; also where it takes no timestamps.
    ///
    /// # Panics
    /// When the tokens are more than a slice.
    pub fn profile(&mut self, tokens: &[TokenId], from: usize) -> Result<Vec<StageTime>, VulkanError> {
        let hidden = self.model.embed_all(tokens);
        let lane = StepLane {
            slot: LengthSlot(0),
            position: from,
            pages: &self.pages,
            hidden,
            logits: RowLogits::Last,
        };
        self.forward.profile_step(&[lane]).map(|(_, times)| times)
    }

    /// The vocabulary's size.
    pub fn vocabulary(&self) -> usize {
        self.model.description().vocabulary
    }

    /// The forward pass, for what it says of its device.
    pub fn forward(&self) -> &Forward {
        &self.forward
    }
}
