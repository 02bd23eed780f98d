//! Gemma 3 (text): five layers with a sliding window and a rotary base of their own, then one that sees
//! everything, and so on; norms on both sides of attention and feed-forward; scaled embeddings.
//!
//! The files' norm weights already hold the 1 that the published formula adds to them.

use super::common;
use crate::model::description::{
    Activation, LayerDescription, ModelDescription, RopeScaling, RopeSettings, RopeStyle,
};
use crate::model::error::ModelError;
use crate::model::settings::Settings;

/// Every sixth layer sees all positions.
const LAYERS_PER_GLOBAL: usize = 6;
/// The rotary base of layers with a window.
const LOCAL_BASE: f32 = 10_000.0;
/// Only the model of 27 billion parameters has this many layers, and it alone scales its queries by the
/// hidden size over the number of heads rather than by the size of a head.
const LAYERS_OF_27B: usize = 62;

pub(super) fn describe(settings: &Settings<'_>) -> Result<ModelDescription, ModelError> {
    let sizes = settings.sizes()?;
    let global = LayerDescription {
        window: None,
        rope: settings.rope(RopeStyle::Split, &sizes, 1_000_000.0)?,
        qk_norm: true,
        qkv_bias: false,
        post_norms: true,
    };
    let mut description = common(settings, &sizes, global)?;
    description.activation = Activation::GeluTanh;
    description.embedding_scale = Some((sizes.hidden as f32).sqrt());
    description.logit_softcap = settings.positive_unless_zero("final_logit_softcapping")?;
    if sizes.layers == LAYERS_OF_27B {
        description.attention_scale = (sizes.hidden as f32 / sizes.heads as f32).sqrt().recip();
    }
    let window = settings.optional::<usize>("attention.sliding_window")?.filter(|window| *window > 0);
    if let Some(window) = window {
        let base = settings.positive_or("rope.freq_base_swa", LOCAL_BASE)?;
        let dims = settings.rope_dims(&sizes)?;
        let rope = RopeSettings::resolve(RopeStyle::Split, dims, base, RopeScaling::None, None);
        for (index, layer) in description.layers.iter_mut().enumerate() {
            if (index + 1) % LAYERS_PER_GLOBAL != 0 {
                layer.window = Some(window);
                layer.rope = rope.clone();
            }
        }
    }
    Ok(description)
}
