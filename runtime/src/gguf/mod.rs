//! Reading GGUF model files: versions 2 and 3, little-endian, memory-mapped, in one part or several.
//!
//! Nothing in a file is trusted: every count is held against the bytes that are left before anything is
//! allocated for it, sizes are computed with checked arithmetic, and all tensor data is known to lie in
//! its file once [`GgufFile::open`] has returned.
//!
//! Source of the format: the GGUF specification of the GGML project.

mod error;
mod mapping;
mod part;
mod reader;
mod split;
#[cfg(test)]
mod tests;
mod value;
pub mod writer;

use std::collections::HashMap;
use std::path::Path;

pub use error::{FieldProblem, GgufError, SplitProblem};
use part::{Entry, Part};
pub use value::{Array, FromValue, Value, ValueType};

use crate::quant::TensorType;

/// An open model file.
pub struct GgufFile {
    /// The first part holds the metadata; there is always one.
    parts: Vec<Part>,
    /// The tensors of all parts, in the order of the files.
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

/// One tensor of a model file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    name: String,
    dimensions: Vec<usize>,
    tensor_type: TensorType,
    part: usize,
    start: u64,
    bytes: u64,
}

impl TensorInfo {
    /// The tensor's name, for example `blk.0.attn_q.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One to four extents in elements, the innermost (the length of a row) first; none is zero.
    pub fn dimensions(&self) -> &[usize] {
        &self.dimensions
    }

    /// How the numbers are stored.
    pub fn tensor_type(&self) -> TensorType {
        self.tensor_type
    }

    /// The elements of one row.
    pub fn row_elements(&self) -> usize {
        self.dimensions[0]
    }

    /// How many rows there are: the product of all extents but the innermost.
    pub fn rows(&self) -> usize {
        self.dimensions[1..].iter().product()
    }

    /// How many elements there are.
    pub fn elements(&self) -> usize {
        self.dimensions.iter().product()
    }

    /// The bytes of the data.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Where the data starts, in bytes from the start of its part's file.
    pub fn start(&self) -> u64 {
        self.start
    }
}

impl GgufFile {
    /// Opens a model file, or the first part of a split one together with the others beside it.
    ///
    /// The files stay mapped for as long as this value lives. Another program that truncates them
    /// meanwhile ends this process; replace a model file by renaming a new one over it.
    ///
    /// # Errors
    /// When a file cannot be opened, or anything in it is wrong; see [`GgufError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let parts = split::open_parts(path.as_ref())?;
        let tensors: Vec<TensorInfo> = parts.iter().flat_map(|part| part.tensors.iter().cloned()).collect();
        let mut by_name = HashMap::new();
        for (index, tensor) in tensors.iter().enumerate() {
            if by_name.insert(tensor.name.clone(), index).is_some() {
                return Err(GgufError::Field {
                    file: parts[tensor.part].path.clone(),
                    field: format!("second data of tensor {}", tensor.name),
                    offset: tensor.start,
                    problem: FieldProblem::Duplicate(tensor.name.clone()),
                });
            }
        }
        Ok(Self { parts, tensors, by_name })
    }

    /// The file that was opened.
    pub fn path(&self) -> &Path {
        &self.parts[0].path
    }

    /// The version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.parts[0].version
    }

    /// The bytes of all parts together.
    pub fn file_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.map.len() as u64).sum()
    }

    /// The whole content of each part, in order.
    pub fn contents(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|part| &part.map[..])
    }

    /// All metadata, by key.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.parts[0].metadata.iter().map(|(key, entry)| (key.as_str(), &entry.value))
    }

    /// The metadata value of a key as the type that is needed, for example
    /// `file.metadata::<u32>("llama.block_count")`, `::<&str>`, `::<&[String]>`.
    ///
    /// # Errors
    /// When the key is missing, or its value is of another type or does not fit.
    pub fn metadata<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.metadata_optional(key)?
            .ok_or_else(|| GgufError::MissingKey { file: self.path().to_path_buf(), key: key.to_owned() })
    }

    /// As [`GgufFile::metadata`], with `None` where the key is missing.
    ///
    /// # Errors
    /// When the value is of another type or does not fit.
    pub fn metadata_optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, GgufError> {
        let Some(Entry { value, offset }) = self.parts[0].metadata.get(key) else {
            return Ok(None);
        };
        T::from_value(value).map(Some).ok_or_else(|| GgufError::WrongValue {
            file: self.path().to_path_buf(),
            key: key.to_owned(),
            offset: *offset,
            expected: T::EXPECTED,
            found: value.to_string(),
        })
    }

    /// The 32-bit whole number of a key.
    ///
    /// # Errors
    /// As [`GgufFile::metadata`].
    pub fn metadata_u32(&self, key: &str) -> Result<u32, GgufError> {
        self.metadata(key)
    }

    /// The float of a key.
    ///
    /// # Errors
    /// As [`GgufFile::metadata`].
    pub fn metadata_f32(&self, key: &str) -> Result<f32, GgufError> {
        self.metadata(key)
    }

    /// The text of a key.
    ///
    /// # Errors
    /// As [`GgufFile::metadata`].
    pub fn metadata_str(&self, key: &str) -> Result<&str, GgufError> {
        self.metadata(key)
    }

    /// All tensors, in the order of the files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// The stored bytes of one of this file's tensors.
    ///
    /// # Panics
    /// When the tensor is one of another file.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        assert_eq!(self.tensor(&tensor.name), Some(tensor), "the tensor belongs to this file");
        let start = tensor.start as usize;
        &self.parts[tensor.part].map[start..start + tensor.bytes()]
    }

    /// Takes what was read of the file out of this process's memory, which is worth it once the tensors were
    /// copied elsewhere. They can be read as before.
    pub fn release_pages(&self) {
        self.parts.iter().for_each(|part| mapping::release_pages(&part.map));
    }
}
