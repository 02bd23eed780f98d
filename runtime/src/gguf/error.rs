//! What can be wrong with a model file. Every error names the file; those of its bytes also name the
//! field and its offset.

use std::io;
use std::path::PathBuf;

use super::value::ValueType;
use crate::quant::{TensorType, UnsupportedTensorType};

/// Why a model file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file could not be opened or mapped.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A field of the file is wrong.
    #[error("{}: {field} at byte {offset}: {problem}", file.display())]
    Field {
        /// The file.
        file: PathBuf,
        /// Which field.
        field: String,
        /// Where the field starts, in bytes from the start of the file.
        offset: u64,
        /// What is wrong with it.
        problem: FieldProblem,
    },
    /// The parts of a split file do not fit together.
    #[error("{}: {problem}", file.display())]
    Split {
        /// The part.
        file: PathBuf,
        /// What is wrong with it.
        problem: SplitProblem,
    },
    /// The metadata lacks a key that is needed.
    #[error("{}: the metadata has no key {key}", file.display())]
    MissingKey {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
    },
    /// A metadata value has another type than is needed, or does not fit it.
    #[error("{}: metadata {key} at byte {offset} is {found}, expected {expected}", file.display())]
    WrongValue {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// Where the value starts, in bytes from the start of the file.
        offset: u64,
        /// What was needed.
        expected: &'static str,
        /// What the file has.
        found: String,
    },
}

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldProblem {
    /// The file ends within the field.
    #[error("needs {needed} bytes, but the file ends after {available} more")]
    Truncated {
        /// Bytes that the field needs.
        needed: u64,
        /// Bytes that are left in the file.
        available: u64,
    },
    /// A count is larger than anything sensible.
    #[error("{value} is above the limit of {limit}")]
    AboveLimit {
        /// The count in the file.
        value: u64,
        /// The largest that is read.
        limit: u64,
    },
    /// The file does not start with `GGUF`.
    #[error("found {found:02x?}, expected \"GGUF\": this is not a GGUF file")]
    WrongMagic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The version is not 2 or 3.
    #[error("version {0} is not supported, only 2 and 3 are")]
    UnsupportedVersion(u32),
    /// The file was written for a big-endian machine.
    #[error("the file is big-endian; only little-endian files are supported")]
    BigEndian,
    /// A string is not UTF-8.
    #[error("is not UTF-8 from its byte {valid_up_to} on")]
    NotUtf8 {
        /// How many bytes are valid.
        valid_up_to: usize,
    },
    /// A key or name is empty.
    #[error("is empty")]
    Empty,
    /// A key or name occurs twice.
    #[error("{0} occurs twice")]
    Duplicate(String),
    /// The number of a value type is unknown.
    #[error("value type {0} is unknown")]
    UnknownValueType(u32),
    /// A truth value is neither 0 nor 1.
    #[error("{0} is no truth value")]
    NotBoolean(u8),
    /// Arrays lie deeper in one another than is read.
    #[error("arrays nested more than {0} deep are not supported")]
    NestedTooDeep(usize),
    /// An integer of an array does not fit 64 signed bits.
    #[error("{0} does not fit a signed 64-bit integer")]
    IntegerTooLarge(u64),
    /// The tensor type is not supported.
    #[error(transparent)]
    UnsupportedTensorType(#[from] UnsupportedTensorType),
    /// A tensor has no dimension, or too many.
    #[error("{0} dimensions, expected 1 to 4")]
    DimensionCount(u32),
    /// A dimension is zero.
    #[error("is zero")]
    ZeroDimension,
    /// The tensor's size overflows.
    #[error("{dimensions:?} elements of {tensor_type} overflow")]
    SizeOverflow {
        /// The dimensions in the file.
        dimensions: Vec<u64>,
        /// The type in the file.
        tensor_type: TensorType,
    },
    /// A row is no whole number of blocks.
    #[error("a row of {row} weights is no whole number of {tensor_type} blocks")]
    PartialBlock {
        /// The innermost dimension.
        row: u64,
        /// The type in the file.
        tensor_type: TensorType,
    },
    /// The alignment is zero or no power of two.
    #[error("{0} is no power of two")]
    Alignment(u64),
    /// An offset is no multiple of the alignment.
    #[error("{offset} is no multiple of the alignment {alignment}")]
    Unaligned {
        /// The offset in the file.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor's data lies outside the file.
    #[error("data of {bytes} bytes at {start} lies outside the file of {file_bytes} bytes")]
    OutsideFile {
        /// Where the data would start, in bytes from the start of the file.
        start: u64,
        /// How long it would be.
        bytes: u64,
        /// How long the file is.
        file_bytes: u64,
    },
}

/// What is wrong between the parts of a split file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitProblem {
    /// Another part than the first was opened.
    #[error("this is part {number} of a split model; open its first part")]
    NotFirst {
        /// Which part it is, counted from 1.
        number: u64,
    },
    /// The name does not follow the pattern of split files.
    #[error("a split model of {count} parts must be named …-00001-of-{count:05}.gguf")]
    Name {
        /// How many parts the metadata tells.
        count: u64,
    },
    /// The parts disagree about their number or order.
    #[error(
        "split.no and split.count say part {number} of {count}, expected part {expected_number} of {expected_count}"
    )]
    Mismatch {
        /// Which part the file says it is, counted from 1.
        number: u64,
        /// How many parts the file says there are.
        count: u64,
        /// Which part it should be.
        expected_number: u64,
        /// How many parts the first part told.
        expected_count: u64,
    },
    /// The parts together hold another number of tensors than the first part says.
    #[error("the parts hold {found} tensors, split.tensors.count says {expected}")]
    TensorCount {
        /// Tensors in all parts.
        found: u64,
        /// What the first part says.
        expected: u64,
    },
    /// More parts than are read.
    #[error("{count} parts are above the limit of {limit}")]
    TooManyParts {
        /// How many parts the metadata tells.
        count: u64,
        /// The largest number that is read.
        limit: u64,
    },
}

/// How a metadata value is described in an error: its type and, where short, the value.
pub(super) fn describe_array(element: ValueType, length: usize) -> String {
    format!("an array of {length} {element}")
}
