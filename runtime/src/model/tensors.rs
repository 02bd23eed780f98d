//! A model's tensors by their roles, checked against its description.

use super::description::{LayerDescription, ModelDescription};
use super::error::ModelError;
use crate::gguf::{GgufFile, TensorInfo};

/// The tensors outside the layers. Shapes are `[row length, rows]`.
#[derive(Clone, Debug)]
pub struct ModelTensors {
    /// `token_embd`: `[hidden, vocabulary]`.
    pub embedding: TensorInfo,
    /// `output_norm`: `[hidden]`.
    pub output_norm: TensorInfo,
    /// `output`, or the embedding where the head is tied: `[hidden, vocabulary]`.
    pub output: TensorInfo,
}

/// The tensors of one layer. Shapes are `[row length, rows]`; norms, biases and factors are floats.
#[derive(Clone, Debug)]
pub struct LayerTensors {
    /// `attn_norm`: `[hidden]`.
    pub attention_norm: TensorInfo,
    /// `attn_q`: `[hidden, heads * head_dim]`.
    pub query: TensorInfo,
    /// `attn_k`: `[hidden, kv_heads * head_dim]`.
    pub key: TensorInfo,
    /// `attn_v`: `[hidden, kv_heads * head_dim]`.
    pub value: TensorInfo,
    /// Biases of query, key and value, each as long as its matrix has rows.
    pub biases: Option<QkvBiases>,
    /// Norms of each query and key head.
    pub head_norms: Option<HeadNorms>,
    /// `attn_output`: `[heads * head_dim, hidden]`.
    pub attention_output: TensorInfo,
    /// `post_attention_norm`: `[hidden]`.
    pub post_attention_norm: Option<TensorInfo>,
    /// `ffn_norm`: `[hidden]`.
    pub feed_forward_norm: TensorInfo,
    /// `ffn_gate`: `[hidden, feed_forward]`.
    pub gate: TensorInfo,
    /// `ffn_up`: `[hidden, feed_forward]`.
    pub up: TensorInfo,
    /// `ffn_down`: `[feed_forward, hidden]`.
    pub down: TensorInfo,
    /// `post_ffw_norm`: `[hidden]`.
    pub post_feed_forward_norm: Option<TensorInfo>,
}

/// `attn_q.bias`, `attn_k.bias`, `attn_v.bias`.
#[derive(Clone, Debug)]
pub struct QkvBiases {
    /// `[heads * head_dim]`.
    pub query: TensorInfo,
    /// `[kv_heads * head_dim]`.
    pub key: TensorInfo,
    /// `[kv_heads * head_dim]`.
    pub value: TensorInfo,
}

/// `attn_q_norm`, `attn_k_norm`.
#[derive(Clone, Debug)]
pub struct HeadNorms {
    /// `[head_dim]`.
    pub query: TensorInfo,
    /// `[head_dim]`.
    pub key: TensorInfo,
}

const EMBEDDING: &str = "token_embd.weight";

/// The rows of the embedding.
pub(super) fn vocabulary(file: &GgufFile) -> Result<usize, ModelError> {
    Ok(find(file, EMBEDDING)?.rows())
}

impl ModelTensors {
    pub(super) fn find(file: &GgufFile, model: &ModelDescription) -> Result<Self, ModelError> {
        let matrix = [model.hidden, model.vocabulary];
        let embedding = checked(file, EMBEDDING, &matrix)?;
        let output = match model.tied_head {
            true => embedding.clone(),
            false => checked(file, "output.weight", &matrix)?,
        };
        Ok(Self { embedding, output_norm: float(file, "output_norm.weight", model.hidden)?, output })
    }
}

impl LayerTensors {
    pub(super) fn find(
        file: &GgufFile,
        model: &ModelDescription,
        index: usize,
        layer: &LayerDescription,
    ) -> Result<Self, ModelError> {
        let queries = model.heads * model.head_dim;
        let keys = model.kv_heads * model.head_dim;
        let matrix =
            |name: &str, row, rows| checked(file, &format!("blk.{index}.{name}.weight"), &[row, rows]);
        let norm = |name: &str, elements| float(file, &format!("blk.{index}.{name}.weight"), elements);
        let bias = |name: &str, elements| float(file, &format!("blk.{index}.{name}.bias"), elements);
        let post_norm = |name| layer.post_norms.then(|| norm(name, model.hidden)).transpose();
        let biases = || -> Result<QkvBiases, ModelError> {
            Ok(QkvBiases {
                query: bias("attn_q", queries)?,
                key: bias("attn_k", keys)?,
                value: bias("attn_v", keys)?,
            })
        };
        let head_norms = || -> Result<HeadNorms, ModelError> {
            Ok(HeadNorms {
                query: norm("attn_q_norm", model.head_dim)?,
                key: norm("attn_k_norm", model.head_dim)?,
            })
        };
        Ok(Self {
            attention_norm: norm("attn_norm", model.hidden)?,
            query: matrix("attn_q", model.hidden, queries)?,
            key: matrix("attn_k", model.hidden, keys)?,
            value: matrix("attn_v", model.hidden, keys)?,
            biases: layer.qkv_bias.then(biases).transpose()?,
            head_norms: layer.qk_norm.then(head_norms).transpose()?,
            attention_output: matrix("attn_output", queries, model.hidden)?,
            post_attention_norm: post_norm("post_attention_norm")?,
            feed_forward_norm: norm("ffn_norm", model.hidden)?,
            gate: matrix("ffn_gate", model.hidden, model.feed_forward)?,
            up: matrix("ffn_up", model.hidden, model.feed_forward)?,
            down: matrix("ffn_down", model.feed_forward, model.hidden)?,
            post_feed_forward_norm: post_norm("post_ffw_norm")?,
        })
    }

    /// Every tensor of the layer.
    pub fn all(&self) -> impl Iterator<Item = &TensorInfo> {
        let always = [
            &self.attention_norm,
            &self.query,
            &self.key,
            &self.value,
            &self.attention_output,
            &self.feed_forward_norm,
            &self.gate,
            &self.up,
            &self.down,
        ];
        let biases = self.biases.iter().flat_map(|biases| [&biases.query, &biases.key, &biases.value]);
        let head_norms = self.head_norms.iter().flat_map(|norms| [&norms.query, &norms.key]);
        always
            .into_iter()
            .chain(biases)
            .chain(head_norms)
            .chain(&self.post_attention_norm)
            .chain(&self.post_feed_forward_norm)
    }
}

fn find<'a>(file: &'a GgufFile, name: &str) -> Result<&'a TensorInfo, ModelError> {
    file.tensor(name)
        .ok_or_else(|| ModelError::MissingTensor { file: file.path().to_path_buf(), tensor: name.to_owned() })
}

fn checked(file: &GgufFile, name: &str, dimensions: &[usize]) -> Result<TensorInfo, ModelError> {
    let tensor = find(file, name)?;
    if tensor.dimensions() == dimensions {
        return Ok(tensor.clone());
    }
    Err(ModelError::TensorShape {
        file: file.path().to_path_buf(),
        tensor: name.to_owned(),
        expected: dimensions.to_vec(),
        found: tensor.dimensions().to_vec(),
    })
}

fn float(file: &GgufFile, name: &str, elements: usize) -> Result<TensorInfo, ModelError> {
    let tensor = checked(file, name, &[elements])?;
    match tensor.tensor_type().is_quantised() {
        false => Ok(tensor),
        true => Err(ModelError::TensorType {
            file: file.path().to_path_buf(),
            tensor: name.to_owned(),
            found: tensor.tensor_type(),
        }),
    }
}
