//! A model: its file, its description, and its tensors by their roles.

mod architecture;
mod description;
mod error;
mod settings;
mod tensors;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashSet;
use std::path::Path;

pub use architecture::architectures;
pub use description::{Activation, LayerDescription, ModelDescription, RopeScaling, RopeSettings, RopeStyle};
pub use error::{ModelError, SettingProblem};
pub use tensors::{HeadNorms, LayerTensors, ModelTensors, QkvBiases};

use crate::gguf::{GgufFile, TensorInfo};
use crate::ids::TokenId;
use crate::quant::dequantize;

/// An open model, checked: every tensor that the description calls for is there in its shape.
pub struct Model {
    file: GgufFile,
    description: ModelDescription,
    tensors: ModelTensors,
    layers: Vec<LayerTensors>,
}

impl Model {
    /// Opens a model file (the first part of a split one).
    ///
    /// # Errors
    /// When the file cannot be read, its architecture is unknown, a setting makes no sense, or a tensor
    /// is missing or has another shape or type.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let file = GgufFile::open(path)?;
        let description = architecture::describe(&file)?;
        let tensors = ModelTensors::find(&file, &description)?;
        let layers = description
            .layers
            .iter()
            .enumerate()
            .map(|(index, layer)| LayerTensors::find(&file, &description, index, layer))
            .collect::<Result<Vec<_>, _>>()?;
        let model = Self { file, description, tensors, layers };
        model.warn_of_unused_tensors();
        Ok(model)
    }

    /// The file with its metadata.
    pub fn file(&self) -> &GgufFile {
        &self.file
    }

    /// What the model is.
    pub fn description(&self) -> &ModelDescription {
        &self.description
    }

    /// The tensors outside the layers.
    pub fn tensors(&self) -> &ModelTensors {
        &self.tensors
    }

    /// The tensors of each layer, in order.
    pub fn layers(&self) -> &[LayerTensors] {
        &self.layers
    }

    /// The stored bytes of one of the model's tensors.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        self.file.data(tensor)
    }

    /// As [`GgufFile::release_pages`](crate::gguf::GgufFile::release_pages).
    pub(crate) fn release_pages(&self) {
        self.file.release_pages();
    }

    /// All elements of one of the model's tensors as f32, row after row.
    pub fn floats(&self, tensor: &TensorInfo) -> Vec<f32> {
        let mut floats = vec![0.0; tensor.elements()];
        dequantize(tensor.tensor_type(), self.data(tensor), &mut floats);
        floats
    }

    /// The embedding of a token, scaled as the model does: `hidden` elements.
    ///
    /// # Panics
    /// When the token is outside the vocabulary or `embedding` is not `hidden` long.
    pub fn embed(&self, token: TokenId, embedding: &mut [f32]) {
        let tensor = &self.tensors.embedding;
        assert!(token.index() < self.description.vocabulary, "token {token} is outside the vocabulary");
        assert_eq!(embedding.len(), self.description.hidden, "length of an embedding");
        let row_bytes = tensor.bytes() / tensor.rows();
        let row = &self.data(tensor)[token.index() * row_bytes..][..row_bytes];
        dequantize(tensor.tensor_type(), row, embedding);
        if let Some(scale) = self.description.embedding_scale {
            embedding.iter_mut().for_each(|element| *element *= scale);
        }
    }

    /// The embeddings of some tokens, row by row: the hidden states that go into the first layer,
    /// `tokens * hidden` elements.
    ///
    /// # Panics
    /// When a token is outside the vocabulary.
    pub fn embed_all(&self, tokens: &[TokenId]) -> Vec<f32> {
        let hidden = self.description.hidden;
        let mut states = vec![0.0; tokens.len() * hidden];
        for (&token, state) in tokens.iter().zip(states.chunks_exact_mut(hidden)) {
            self.embed(token, state);
        }
        states
    }

    /// A tensor that nothing computes with may mean that the file is another kind of model than it says.
    fn warn_of_unused_tensors(&self) {
        let tensors = [&self.tensors.embedding, &self.tensors.output_norm, &self.tensors.output];
        let used: HashSet<&str> = tensors
            .into_iter()
            .chain(self.layers.iter().flat_map(LayerTensors::all))
            .map(TensorInfo::name)
            .chain(["rope_freqs.weight"])
            .collect();
        for tensor in self.file.tensors().iter().filter(|tensor| !used.contains(tensor.name())) {
            tracing::warn!(tensor = tensor.name(), "the model file holds a tensor that is not used");
        }
    }
}
