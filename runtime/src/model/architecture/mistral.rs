//! Mistral, where a file names it so rather than `llama`: Llama's shape, with a sliding window on every
//! layer where the metadata has one.

use super::common;
use crate::model::description::{LayerDescription, ModelDescription, RopeStyle};
use crate::model::error::{ModelError, SettingProblem};
use crate::model::settings::Settings;

pub(super) fn describe(settings: &Settings<'_>) -> Result<ModelDescription, ModelError> {
    // Ministral 3 scales queries by their position; computing it without would be silently wrong.
    const TEMPERATURE: &str = "attention.temperature_scale";
    if let Some(scale) = settings.positive_unless_zero(TEMPERATURE)? {
        return Err(settings.error(TEMPERATURE, SettingProblem::Unsupported(scale.to_string())));
    }
    let sizes = settings.sizes()?;
    let layer = LayerDescription {
        window: settings.optional::<usize>("attention.sliding_window")?.filter(|window| *window > 0),
        rope: settings.rope(RopeStyle::Interleaved, &sizes, 10_000.0)?,
        qk_norm: false,
        qkv_bias: false,
        post_norms: false,
    };
    common(settings, &sizes, layer)
}
