//! The registry of architectures: one file each, and one line in [`ARCHITECTURES`].

mod gemma3;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;

use super::description::{Activation, LayerDescription, ModelDescription};
use super::error::ModelError;
use super::settings::{Settings, Sizes};
use crate::gguf::GgufFile;

/// Describes a model from its file's metadata.
type Describe = fn(&Settings<'_>) -> Result<ModelDescription, ModelError>;

/// Every architecture by the name that files give it, in alphabetical order.
const ARCHITECTURES: &[(&str, Describe)] = &[
    ("gemma3", gemma3::describe),
    ("llama", llama::describe),
    ("mistral", mistral::describe),
    ("mistral3", mistral::describe),
    ("qwen2", qwen2::describe),
    ("qwen3", qwen3::describe),
];

/// The names of all supported architectures.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|(name, _)| *name)
}

/// Describes the model of a file.
pub(super) fn describe(file: &GgufFile) -> Result<ModelDescription, ModelError> {
    let architecture = file.metadata_str("general.architecture")?;
    let Some((_, describe)) = ARCHITECTURES.iter().find(|(name, _)| *name == architecture) else {
        return Err(ModelError::UnknownArchitecture {
            file: file.path().to_path_buf(),
            architecture: architecture.to_owned(),
            known: architectures().collect::<Vec<_>>().join(", "),
        });
    };
    describe(&Settings::new(file, architecture))
}

/// What most architectures have in common: SwiGLU, unscaled embeddings, `1 / sqrt(head_dim)`. The
/// architectures change what differs.
fn common(
    settings: &Settings<'_>,
    sizes: &Sizes,
    layer: LayerDescription,
) -> Result<ModelDescription, ModelError> {
    let file = settings.file;
    let file_name = || file.path().file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(ModelDescription {
        architecture: file.metadata_str("general.architecture")?.to_owned(),
        name: file.metadata_optional::<&str>("general.name")?.map_or_else(file_name, str::to_owned),
        hidden: sizes.hidden,
        heads: sizes.heads,
        kv_heads: sizes.kv_heads,
        head_dim: sizes.head_dim,
        feed_forward: sizes.feed_forward,
        vocabulary: super::tensors::vocabulary(file)?,
        context: sizes.context,
        norm_epsilon: sizes.norm_epsilon,
        activation: Activation::Silu,
        embedding_scale: None,
        attention_scale: (sizes.head_dim as f32).sqrt().recip(),
        logit_softcap: None,
        tied_head: file.tensor("output.weight").is_none(),
        layers: vec![layer; sizes.layers],
    })
}
