//! Qwen 3 (dense): each query and key head is normed before it is rotated; no biases.

use super::common;
use crate::model::description::{LayerDescription, ModelDescription, RopeStyle};
use crate::model::error::ModelError;
use crate::model::settings::Settings;

pub(super) fn describe(settings: &Settings<'_>) -> Result<ModelDescription, ModelError> {
    let sizes = settings.sizes()?;
    let layer = LayerDescription {
        window: None,
        rope: settings.rope(RopeStyle::Split, &sizes, 1_000_000.0)?,
        qk_norm: true,
        qkv_bias: false,
        post_norms: false,
    };
    common(settings, &sizes, layer)
}
