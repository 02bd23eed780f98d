//! One file: header, metadata, tensor table. A model is one such part or several.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::TensorInfo;
use super::error::{FieldProblem, GgufError};
use super::mapping::map_for_reading;
use super::reader::{NAME_BYTES_MAX, Reader};
use super::value::Value;
use crate::quant::TensorType;

/// Fewest bytes of one metadata pair: key length, one byte of key, value type, one byte of value.
const PAIR_BYTES_LEAST: u64 = 8 + 1 + 4 + 1;
/// Fewest bytes of one tensor entry: name length, one byte of name, dimension count, one dimension,
/// type, offset.
const TENSOR_BYTES_LEAST: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// The longest tensor name that is read, in bytes. The format allows 64.
const TENSOR_NAME_BYTES_MAX: u64 = 1024;
/// The alignment where the file names none.
const DEFAULT_ALIGNMENT: u64 = 32;

pub(super) struct Entry {
    pub(super) value: Value,
    pub(super) offset: u64,
}

pub(super) struct Part {
    pub(super) path: PathBuf,
    pub(super) version: u32,
    pub(super) metadata: BTreeMap<String, Entry>,
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) map: Mmap,
}

impl Part {
    /// Opens, maps and reads one file whose tensors will belong to part `index`.
    pub(super) fn open(path: &Path, index: usize) -> Result<Self, GgufError> {
        let io = |source| GgufError::Io { file: path.to_path_buf(), source };
        let file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        if length == 0 {
            // An empty file cannot be mapped; it is merely a very short one.
            Reader::new(path, &[]).array::<4>("magic")?;
        }
        let map = map_for_reading(&file).map_err(io)?;
        let mut reader = Reader::new(path, &map);
        let version = read_version(&mut reader)?;
        let tensor_count = reader.count("tensor count", TENSOR_BYTES_LEAST)?;
        let pair_count = reader.count("metadata count", PAIR_BYTES_LEAST)?;
        let metadata = read_metadata(&mut reader, pair_count)?;
        let alignment = alignment(&reader, &metadata)?;
        let tensors = read_tensors(&mut reader, tensor_count, alignment, index)?;
        Ok(Self { path: path.to_path_buf(), version, metadata, tensors, map })
    }
}

fn read_version(reader: &mut Reader<'_>) -> Result<u32, GgufError> {
    let magic = reader.array("magic")?;
    if &magic != b"GGUF" {
        return Err(reader.error("magic", 0, FieldProblem::WrongMagic { found: magic }));
    }
    let offset = reader.offset();
    let version = reader.u32("version")?;
    match version {
        2 | 3 => Ok(version),
        _ if matches!(version.swap_bytes(), 1..=3) => {
            Err(reader.error("version", offset, FieldProblem::BigEndian))
        }
        _ => Err(reader.error("version", offset, FieldProblem::UnsupportedVersion(version))),
    }
}

fn read_metadata(reader: &mut Reader<'_>, pairs: usize) -> Result<BTreeMap<String, Entry>, GgufError> {
    let mut metadata = BTreeMap::new();
    for pair in 0..pairs {
        let field = format!("metadata key {pair}");
        let key_offset = reader.offset();
        let key = reader.string(&field, NAME_BYTES_MAX)?;
        if key.is_empty() {
            return Err(reader.error(&field, key_offset, FieldProblem::Empty));
        }
        let field = format!("metadata {key}");
        let value_type = reader.value_type(&field)?;
        let offset = reader.offset();
        let value = reader.value(value_type, &field)?;
        if metadata.insert(key.to_owned(), Entry { value, offset }).is_some() {
            return Err(reader.error(&field, key_offset, FieldProblem::Duplicate(key.to_owned())));
        }
    }
    Ok(metadata)
}

fn alignment(reader: &Reader<'_>, metadata: &BTreeMap<String, Entry>) -> Result<u64, GgufError> {
    let Some(entry) = metadata.get("general.alignment") else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let field = "metadata general.alignment";
    let value = match entry.value {
        Value::Integer(_, value) => u64::try_from(value).unwrap_or(0),
        _ => 0,
    };
    match value.is_power_of_two() {
        true => Ok(value),
        false => Err(reader.error(field, entry.offset, FieldProblem::Alignment(value))),
    }
}

/// A tensor entry whose offset still counts from the start of the data.
struct RawTensor {
    info: TensorInfo,
    offset_field: u64,
}

fn read_tensors(
    reader: &mut Reader<'_>,
    count: usize,
    alignment: u64,
    part: usize,
) -> Result<Vec<TensorInfo>, GgufError> {
    let mut raw = Vec::new();
    for index in 0..count {
        raw.push(read_tensor(reader, index, part)?);
    }
    let data = reader.offset().checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
    let file_bytes = reader.file_bytes();
    raw.into_iter()
        .map(|RawTensor { mut info, offset_field }| {
            let field = format!("offset of tensor {}", info.name);
            if !info.start.is_multiple_of(alignment) {
                let problem = FieldProblem::Unaligned { offset: info.start, alignment };
                return Err(reader.error(&field, offset_field, problem));
            }
            let start = data.saturating_add(info.start);
            if start.checked_add(info.bytes).is_none_or(|end| end > file_bytes) {
                let problem = FieldProblem::OutsideFile { start, bytes: info.bytes, file_bytes };
                return Err(reader.error(&field, offset_field, problem));
            }
            info.start = start;
            Ok(info)
        })
        .collect()
}

fn read_tensor(reader: &mut Reader<'_>, index: usize, part: usize) -> Result<RawTensor, GgufError> {
    let field = format!("name of tensor {index}");
    let name_offset = reader.offset();
    let name = reader.string(&field, TENSOR_NAME_BYTES_MAX)?.to_owned();
    if name.is_empty() {
        return Err(reader.error(&field, name_offset, FieldProblem::Empty));
    }
    let field = format!("dimension count of tensor {name}");
    let offset = reader.offset();
    let dimension_count = reader.u32(&field)?;
    if !(1..=4).contains(&dimension_count) {
        return Err(reader.error(&field, offset, FieldProblem::DimensionCount(dimension_count)));
    }
    let dimensions_offset = reader.offset();
    let mut dimensions = Vec::new();
    for dimension in 0..dimension_count {
        let field = format!("dimension {dimension} of tensor {name}");
        let offset = reader.offset();
        let extent = reader.u64(&field)?;
        if extent == 0 {
            return Err(reader.error(&field, offset, FieldProblem::ZeroDimension));
        }
        dimensions.push(extent);
    }
    let field = format!("type of tensor {name}");
    let offset = reader.offset();
    let tensor_type = TensorType::from_number(reader.u32(&field)?)
        .map_err(|unsupported| reader.error(&field, offset, unsupported.into()))?;
    let bytes = tensor_bytes(&dimensions, tensor_type).map_err(|problem| {
        reader.error(&format!("dimensions of tensor {name}"), dimensions_offset, problem)
    })?;
    let offset_field = reader.offset();
    let start = reader.u64(&format!("offset of tensor {name}"))?;
    // They fit an address: the size check above multiplied them within usize.
    let dimensions = dimensions.into_iter().map(|extent| extent as usize).collect();
    Ok(RawTensor { info: TensorInfo { name, dimensions, tensor_type, part, start, bytes }, offset_field })
}

/// The bytes of a tensor, whose rows are whole blocks.
fn tensor_bytes(dimensions: &[u64], tensor_type: TensorType) -> Result<u64, FieldProblem> {
    let row = dimensions[0];
    if !row.is_multiple_of(tensor_type.block_weights() as u64) {
        return Err(FieldProblem::PartialBlock { row, tensor_type });
    }
    dimensions
        .iter()
        .try_fold(1_usize, |product, &extent| product.checked_mul(usize::try_from(extent).ok()?))
        .and_then(|elements| tensor_type.bytes(elements))
        .map(|bytes| bytes as u64)
        .ok_or_else(|| FieldProblem::SizeOverflow { dimensions: dimensions.to_vec(), tensor_type })
}
