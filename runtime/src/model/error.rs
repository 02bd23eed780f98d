//! What can be wrong with a model, beyond the bytes of its file.

use std::path::PathBuf;

use crate::gguf::GgufError;
use crate::quant::TensorType;

/// Why a model could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file could not be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The architecture is not known.
    #[error("{}: architecture {architecture:?} is not supported; known are {known}", file.display())]
    UnknownArchitecture {
        /// The file.
        file: PathBuf,
        /// The architecture's name in it.
        architecture: String,
        /// The names that are known.
        known: String,
    },
    /// A metadata value makes no sense.
    #[error("{}: metadata {key}: {problem}", file.display())]
    Setting {
        /// The file.
        file: PathBuf,
        /// The metadata key.
        key: String,
        /// What is wrong with its value.
        problem: SettingProblem,
    },
    /// A tensor is missing.
    #[error("{}: tensor {tensor} is missing", file.display())]
    MissingTensor {
        /// The file.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
    },
    /// A tensor has other dimensions than the metadata tells.
    #[error("{}: tensor {tensor} has dimensions {found:?}, expected {expected:?}", file.display())]
    TensorShape {
        /// The file.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The dimensions that the metadata tells, innermost first.
        expected: Vec<usize>,
        /// The dimensions in the file, innermost first.
        found: Vec<usize>,
    },
    /// A norm, bias or factor is quantised.
    #[error("{}: tensor {tensor} is {found}, expected a float type", file.display())]
    TensorType {
        /// The file.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Its type.
        found: TensorType,
    },
    /// A factor of rotary frequencies is zero, negative or not finite.
    #[error("{}: tensor {tensor} holds {value} at element {element}, expected a positive number", file.display())]
    TensorValue {
        /// The file.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Which element.
        element: usize,
        /// The value there.
        value: f32,
    },
}

/// What is wrong with a metadata value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingProblem {
    /// A count is zero or too large.
    #[error("{value} is not between 1 and {limit}")]
    Count {
        /// The value.
        value: usize,
        /// The largest that is sensible.
        limit: usize,
    },
    /// One count does not divide another.
    #[error("{value} is no multiple of {divisor}")]
    NotMultiple {
        /// The value.
        value: usize,
        /// What should divide it.
        divisor: usize,
    },
    /// A number that must be positive and finite is not.
    #[error("{0} is no positive finite number")]
    NotPositive(f32),
    /// The value is valid, but not supported.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// The value must equal another.
    #[error("{value} must equal {other} of {other_key}")]
    Differs {
        /// The value.
        value: usize,
        /// The key it must agree with.
        other_key: String,
        /// That key's value.
        other: usize,
    },
}
