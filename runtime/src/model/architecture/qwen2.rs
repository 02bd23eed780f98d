//! Qwen 2 and 2.5: Llama's shape with biases on queries, keys and values.

use super::common;
use crate::model::description::{LayerDescription, ModelDescription, RopeStyle};
use crate::model::error::ModelError;
use crate::model::settings::Settings;

pub(super) fn describe(settings: &Settings<'_>) -> Result<ModelDescription, ModelError> {
    let sizes = settings.sizes()?;
    let layer = LayerDescription {
        window: None,
        rope: settings.rope(RopeStyle::Split, &sizes, 10_000.0)?,
        qk_norm: false,
        qkv_bias: true,
        post_norms: false,
    };
    common(settings, &sizes, layer)
}
