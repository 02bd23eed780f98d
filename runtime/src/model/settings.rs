//! The metadata of one architecture: keys under its prefix, read with the bounds of what is sensible.
//!
//! Source of the keys: the metadata keys that the GGUF specification and llama.cpp document.

use super::description::{RopeScaling, RopeSettings, RopeStyle};
use super::error::{ModelError, SettingProblem};
use crate::gguf::{FromValue, GgufFile};
use crate::quant::dequantize;

/// More layers than any model has.
const LAYERS_MAX: usize = 1024;
/// More elements than any head has.
const HEAD_DIM_MAX: usize = 4096;
/// More than any hidden size, feed-forward, head count or context is.
const SIZE_MAX: usize = 1 << 28;

/// Reads the keys of one architecture.
pub(super) struct Settings<'a> {
    pub(super) file: &'a GgufFile,
    prefix: &'a str,
}

/// The sizes that all architectures name in the same way.
pub(super) struct Sizes {
    pub(super) layers: usize,
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) feed_forward: usize,
    pub(super) context: usize,
    pub(super) norm_epsilon: f32,
}

impl<'a> Settings<'a> {
    pub(super) fn new(file: &'a GgufFile, prefix: &'a str) -> Self {
        Self { file, prefix }
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    /// An error about one of the keys.
    pub(super) fn error(&self, name: &str, problem: SettingProblem) -> ModelError {
        ModelError::Setting { file: self.file.path().to_path_buf(), key: self.key(name), problem }
    }

    pub(super) fn optional<T: FromValue<'a>>(&self, name: &str) -> Result<Option<T>, ModelError> {
        Ok(self.file.metadata_optional(&self.key(name))?)
    }

    /// A count between 1 and `limit`.
    pub(super) fn count(&self, name: &str, limit: usize) -> Result<usize, ModelError> {
        let value = self.file.metadata(&self.key(name))?;
        self.within(name, value, limit)
    }

    fn count_or(&self, name: &str, default: usize, limit: usize) -> Result<usize, ModelError> {
        let value = self.optional(name)?.unwrap_or(default);
        self.within(name, value, limit)
    }

    fn within(&self, name: &str, value: usize, limit: usize) -> Result<usize, ModelError> {
        match (1..=limit).contains(&value) {
            true => Ok(value),
            false => Err(self.error(name, SettingProblem::Count { value, limit })),
        }
    }

    /// A positive finite number.
    pub(super) fn positive_or(&self, name: &str, default: f32) -> Result<f32, ModelError> {
        let value = self.optional(name)?.unwrap_or(default);
        self.positive(name, value)
    }

    fn positive(&self, name: &str, value: f32) -> Result<f32, ModelError> {
        match value.is_finite() && value > 0.0 {
            true => Ok(value),
            false => Err(self.error(name, SettingProblem::NotPositive(value))),
        }
    }

    /// A number where 0, as well as a missing key, means that there is none.
    pub(super) fn positive_unless_zero(&self, name: &str) -> Result<Option<f32>, ModelError> {
        let value = self.optional::<f32>(name)?.filter(|value| *value != 0.0);
        value.map(|value| self.positive(name, value)).transpose()
    }

    pub(super) fn sizes(&self) -> Result<Sizes, ModelError> {
        let hidden = self.count("embedding_length", SIZE_MAX)?;
        let heads = self.count("attention.head_count", SIZE_MAX)?;
        let kv_heads = self.count_or("attention.head_count_kv", heads, SIZE_MAX)?;
        if !heads.is_multiple_of(kv_heads) {
            let problem = SettingProblem::NotMultiple { value: heads, divisor: kv_heads };
            return Err(self.error("attention.head_count", problem));
        }
        let key_length = self.optional::<usize>("attention.key_length")?;
        if key_length.is_none() && !hidden.is_multiple_of(heads) {
            let problem = SettingProblem::NotMultiple { value: hidden, divisor: heads };
            return Err(self.error("embedding_length", problem));
        }
        let head_dim = key_length.unwrap_or(hidden / heads);
        let head_dim = self.within("attention.key_length", head_dim, HEAD_DIM_MAX)?;
        let value_length = self.optional("attention.value_length")?.unwrap_or(head_dim);
        if value_length != head_dim {
            let other_key = self.key("attention.key_length");
            let problem = SettingProblem::Differs { value: value_length, other_key, other: head_dim };
            return Err(self.error("attention.value_length", problem));
        }
        let norm_epsilon = self.file.metadata(&self.key("attention.layer_norm_rms_epsilon"))?;
        Ok(Sizes {
            layers: self.count("block_count", LAYERS_MAX)?,
            hidden,
            heads,
            kv_heads,
            head_dim,
            feed_forward: self.count("feed_forward_length", SIZE_MAX)?,
            context: self.count("context_length", SIZE_MAX)?,
            norm_epsilon: self.positive("attention.layer_norm_rms_epsilon", norm_epsilon)?,
        })
    }

    /// The rotation that the metadata and a `rope_freqs` tensor describe.
    pub(super) fn rope(
        &self,
        style: RopeStyle,
        sizes: &Sizes,
        base_default: f32,
    ) -> Result<RopeSettings, ModelError> {
        let base = self.positive_or("rope.freq_base", base_default)?;
        let scaling = self.rope_scaling(sizes)?;
        let dims = self.rope_dims(sizes)?;
        let factors = self.frequency_factors(dims)?;
        Ok(RopeSettings::resolve(style, dims, base, scaling, factors.as_deref()))
    }

    /// How many elements of each head are rotated.
    pub(super) fn rope_dims(&self, sizes: &Sizes) -> Result<usize, ModelError> {
        let dims = self.count_or("rope.dimension_count", sizes.head_dim, sizes.head_dim)?;
        match dims.is_multiple_of(2) {
            true => Ok(dims),
            false => {
                let problem = SettingProblem::NotMultiple { value: dims, divisor: 2 };
                Err(self.error("rope.dimension_count", problem))
            }
        }
    }

    fn rope_scaling(&self, sizes: &Sizes) -> Result<RopeScaling, ModelError> {
        // Old files have only a linear scale.
        let linear = self.positive_unless_zero("rope.scale_linear")?;
        let factor = self.positive_unless_zero("rope.scaling.factor")?.or(linear);
        let kind = self.optional::<&str>("rope.scaling.type")?;
        match (kind.unwrap_or("linear"), factor) {
            ("none", _) | (_, None) => Ok(RopeScaling::None),
            ("linear", Some(factor)) => Ok(RopeScaling::Linear { factor }),
            ("yarn", Some(factor)) => Ok(RopeScaling::Yarn {
                factor,
                original_context: self.count_or(
                    "rope.scaling.original_context_length",
                    sizes.context,
                    SIZE_MAX,
                )?,
                attention_factor: self.positive_or("rope.scaling.attn_factor", 1.0)?,
                beta_fast: self.positive_or("rope.scaling.yarn_beta_fast", 32.0)?,
                beta_slow: self.positive_or("rope.scaling.yarn_beta_slow", 1.0)?,
            }),
            (other, Some(_)) => {
                Err(self.error("rope.scaling.type", SettingProblem::Unsupported(other.to_owned())))
            }
        }
    }

    /// The factors of a `rope_freqs` tensor, where the file has one (Llama 3.1 and later).
    fn frequency_factors(&self, dims: usize) -> Result<Option<Vec<f32>>, ModelError> {
        const NAME: &str = "rope_freqs.weight";
        let Some(tensor) = self.file.tensor(NAME) else {
            return Ok(None);
        };
        let file = || self.file.path().to_path_buf();
        if tensor.dimensions() != [dims / 2] {
            let found = tensor.dimensions().to_vec();
            return Err(ModelError::TensorShape {
                file: file(),
                tensor: NAME.to_owned(),
                expected: vec![dims / 2],
                found,
            });
        }
        if tensor.tensor_type().is_quantised() {
            let found = tensor.tensor_type();
            return Err(ModelError::TensorType { file: file(), tensor: NAME.to_owned(), found });
        }
        let mut factors = vec![0.0; dims / 2];
        dequantize(tensor.tensor_type(), self.file.data(tensor), &mut factors);
        match factors.iter().position(|factor| !(factor.is_finite() && *factor > 0.0)) {
            None => Ok(Some(factors)),
            Some(element) => {
                let value = factors[element];
                Err(ModelError::TensorValue { file: file(), tensor: NAME.to_owned(), element, value })
            }
        }
    }
}
