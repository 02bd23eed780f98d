//! Models split over several files, `…-00001-of-0000N.gguf` and so on: the first holds the metadata,
//! each holds some of the tensors, and `split.no`, `split.count` and `split.tensors.count` say which.

use std::path::{Path, PathBuf};

use super::error::{GgufError, SplitProblem};
use super::part::Part;
use super::value::Value;

/// More parts than any real model has.
const PARTS_MAX: u64 = 1024;

/// Opens a file and, where it is the first of several, the others beside it.
pub(super) fn open_parts(path: &Path) -> Result<Vec<Part>, GgufError> {
    let first = Part::open(path, 0)?;
    let error = |problem| GgufError::Split { file: path.to_path_buf(), problem };
    let count = whole(&first, "split.count").unwrap_or(1);
    let number = whole(&first, "split.no").unwrap_or(0);
    if count <= 1 {
        return Ok(vec![first]);
    }
    if number != 0 {
        return Err(error(SplitProblem::NotFirst { number: number.saturating_add(1) }));
    }
    if count > PARTS_MAX {
        return Err(error(SplitProblem::TooManyParts { count, limit: PARTS_MAX }));
    }
    let expected_tensors = whole(&first, "split.tensors.count");
    let mut parts = vec![first];
    for number in 1..count {
        let path = part_path(path, number, count).ok_or_else(|| error(SplitProblem::Name { count }))?;
        let part = Part::open(&path, number as usize)?;
        let found_number = whole(&part, "split.no").unwrap_or(0);
        let found_count = whole(&part, "split.count").unwrap_or(1);
        if (found_number, found_count) != (number, count) {
            let problem = SplitProblem::Mismatch {
                number: found_number.saturating_add(1),
                count: found_count,
                expected_number: number + 1,
                expected_count: count,
            };
            return Err(GgufError::Split { file: path, problem });
        }
        parts.push(part);
    }
    let found = parts.iter().map(|part| part.tensors.len() as u64).sum();
    match expected_tensors {
        Some(expected) if expected != found => Err(error(SplitProblem::TensorCount { found, expected })),
        _ => Ok(parts),
    }
}

/// A whole number of the part's metadata.
fn whole(part: &Part, key: &str) -> Option<u64> {
    match part.metadata.get(key)?.value {
        Value::Integer(_, value) => u64::try_from(value).ok(),
        _ => None,
    }
}

/// The path of part `number` (counted from 0) beside the first.
fn part_path(first: &Path, number: u64, count: u64) -> Option<PathBuf> {
    let name = first.file_name()?.to_str()?;
    let stem = name.strip_suffix(&format!("-00001-of-{count:05}.gguf"))?;
    Some(first.with_file_name(format!("{stem}-{:05}-of-{count:05}.gguf", number + 1)))
}
