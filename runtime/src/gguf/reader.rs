//! A cursor over the bytes of one file that knows what it is reading, so that every error can name the
//! field and its offset.

use std::path::Path;

use super::error::{FieldProblem, GgufError};
use super::value::{Array, Value, ValueType};

/// The longest key or tensor name that is read, in bytes. The format allows keys of 65,535.
pub(super) const NAME_BYTES_MAX: u64 = 65_535;
/// How deep arrays may lie in one another; real files have no nested arrays at all.
const NESTING_MAX: usize = 4;

pub(super) struct Reader<'a> {
    file: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a Path, bytes: &'a [u8]) -> Self {
        Self { file, bytes, at: 0 }
    }

    pub(super) fn offset(&self) -> u64 {
        self.at as u64
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn available(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// An error about the field that starts at `offset`.
    pub(super) fn error(&self, field: &str, offset: u64, problem: FieldProblem) -> GgufError {
        GgufError::Field { file: self.file.to_path_buf(), field: field.to_owned(), offset, problem }
    }

    fn take(&mut self, count: u64, field: &str) -> Result<&'a [u8], GgufError> {
        let available = self.available();
        if count > available {
            let problem = FieldProblem::Truncated { needed: count, available };
            return Err(self.error(field, self.offset(), problem));
        }
        // It fits an address because it is at most what is left of the mapped bytes.
        let taken = &self.bytes[self.at..self.at + count as usize];
        self.at += taken.len();
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], GgufError> {
        let bytes = self.take(N as u64, field)?;
        Ok(bytes.try_into().expect("the slice has the length that was asked for"))
    }

    pub(super) fn u32(&mut self, field: &str) -> Result<u32, GgufError> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: &str) -> Result<u64, GgufError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A count of things that take at least `least_bytes` each, so that it cannot exceed what is left.
    pub(super) fn count(&mut self, field: &str, least_bytes: u64) -> Result<usize, GgufError> {
        let offset = self.offset();
        let count = self.u64(field)?;
        let limit = self.available() / least_bytes;
        if count > limit {
            let needed = count.saturating_mul(least_bytes);
            let problem = FieldProblem::Truncated { needed, available: self.available() };
            return Err(self.error(field, offset, problem));
        }
        Ok(count as usize)
    }

    pub(super) fn string(&mut self, field: &str, bytes_max: u64) -> Result<&'a str, GgufError> {
        let offset = self.offset();
        let length = self.u64(field)?;
        if length > bytes_max {
            return Err(self.error(
                field,
                offset,
                FieldProblem::AboveLimit { value: length, limit: bytes_max },
            ));
        }
        let bytes = self.take(length, field)?;
        std::str::from_utf8(bytes).map_err(|error| {
            self.error(field, offset, FieldProblem::NotUtf8 { valid_up_to: error.valid_up_to() })
        })
    }

    pub(super) fn value_type(&mut self, field: &str) -> Result<ValueType, GgufError> {
        let offset = self.offset();
        let number = self.u32(field)?;
        ValueType::from_number(number)
            .ok_or_else(|| self.error(field, offset, FieldProblem::UnknownValueType(number)))
    }

    pub(super) fn value(&mut self, value_type: ValueType, field: &str) -> Result<Value, GgufError> {
        Ok(match value_type {
            ValueType::F32 => Value::Float(value_type, f64::from(f32::from_le_bytes(self.array(field)?))),
            ValueType::F64 => Value::Float(value_type, f64::from_le_bytes(self.array(field)?)),
            ValueType::Bool => Value::Bool(self.bool(field)?),
            ValueType::String => Value::String(self.string(field, u64::MAX)?.to_owned()),
            ValueType::Array => Value::Array(self.value_array(field, 1)?),
            _ => Value::Integer(value_type, self.integer(value_type, field)?),
        })
    }

    fn bool(&mut self, field: &str) -> Result<bool, GgufError> {
        let offset = self.offset();
        match self.array::<1>(field)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.error(field, offset, FieldProblem::NotBoolean(other))),
        }
    }

    fn integer(&mut self, value_type: ValueType, field: &str) -> Result<i128, GgufError> {
        Ok(match value_type {
            ValueType::U8 => u8::from_le_bytes(self.array(field)?).into(),
            ValueType::I8 => i8::from_le_bytes(self.array(field)?).into(),
            ValueType::U16 => u16::from_le_bytes(self.array(field)?).into(),
            ValueType::I16 => i16::from_le_bytes(self.array(field)?).into(),
            ValueType::U32 => u32::from_le_bytes(self.array(field)?).into(),
            ValueType::I32 => i32::from_le_bytes(self.array(field)?).into(),
            ValueType::U64 => u64::from_le_bytes(self.array(field)?).into(),
            ValueType::I64 => i64::from_le_bytes(self.array(field)?).into(),
            _ => unreachable!("{value_type} is no integer type"),
        })
    }

    fn value_array(&mut self, field: &str, depth: usize) -> Result<Array, GgufError> {
        let offset = self.offset();
        if depth > NESTING_MAX {
            return Err(self.error(field, offset, FieldProblem::NestedTooDeep(NESTING_MAX)));
        }
        let element = self.value_type(field)?;
        let length = self.count(field, element.least_bytes())?;
        Ok(match element {
            ValueType::F32 => {
                Array::Floats(self.elements(length, |reader| reader.array(field).map(f32::from_le_bytes))?)
            }
            ValueType::F64 => {
                Array::Doubles(self.elements(length, |reader| reader.array(field).map(f64::from_le_bytes))?)
            }
            ValueType::Bool => Array::Bools(self.elements(length, |reader| reader.bool(field))?),
            ValueType::String => Array::Strings(
                self.elements(length, |reader| reader.string(field, u64::MAX).map(str::to_owned))?,
            ),
            ValueType::Array => {
                Array::Arrays(self.elements(length, |reader| reader.value_array(field, depth + 1))?)
            }
            _ => Array::Integers(
                element,
                self.elements(length, |reader| {
                    let offset = reader.offset();
                    let value = reader.integer(element, field)?;
                    i64::try_from(value)
                        .map_err(|_| reader.error(field, offset, FieldProblem::IntegerTooLarge(value as u64)))
                })?,
            ),
        })
    }

    /// Reads elements one by one; the vector grows with what was really there.
    fn elements<T>(
        &mut self,
        length: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, GgufError>,
    ) -> Result<Vec<T>, GgufError> {
        let mut elements = Vec::new();
        for _ in 0..length {
            elements.push(read(self)?);
        }
        Ok(elements)
    }
}
