//! Llama 1 to 3 and the many models of their shape (SmolLM2, TinyLlama, and Mistral as most of its files
//! are labelled). Some have biases on queries, keys and values; those of Llama 3.1 and later come with a
//! `rope_freqs` tensor of frequency factors.

use super::common;
use crate::model::description::{LayerDescription, ModelDescription, RopeStyle};
use crate::model::error::ModelError;
use crate::model::settings::Settings;

pub(super) fn describe(settings: &Settings<'_>) -> Result<ModelDescription, ModelError> {
    let sizes = settings.sizes()?;
    let layer = LayerDescription {
        window: None,
        rope: settings.rope(RopeStyle::Interleaved, &sizes, 10_000.0)?,
        qk_norm: false,
        qkv_bias: settings.file.tensor("blk.0.attn_q.bias").is_some(),
        post_norms: false,
    };
    common(settings, &sizes, layer)
}
