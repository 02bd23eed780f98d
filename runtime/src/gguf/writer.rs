//! Writing GGUF version 3: header, metadata, tensor table, then the tensors row by row, so that a file
//! may be larger than the memory.

use std::io::{self, Write};

use super::value::{Array, Value, ValueType};
use crate::cores::cores;
use crate::quant::{TensorType, quantize};

/// The alignment of tensor data, in bytes: the format's default.
const ALIGNMENT: u64 = 32;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// The tensor's name.
    pub name: String,
    /// The extents in elements, the length of a row first; none is zero, and a row is whole blocks.
    pub dimensions: Vec<usize>,
    /// How its numbers are stored.
    pub tensor_type: TensorType,
}

impl TensorEntry {
    fn rows(&self) -> usize {
        self.dimensions[1..].iter().product()
    }

    /// The bytes of its data, before alignment.
    ///
    /// # Panics
    /// When a row is no whole number of blocks.
    pub fn bytes(&self) -> u64 {
        let row = self.tensor_type.bytes(self.dimensions[0]).expect("a row is a whole number of blocks");
        row as u64 * self.rows() as u64
    }
}

/// The bytes of a tensor that a core makes at a time: enough to make nothing of starting a thread.
const SHARE_BYTES: usize = 1 << 20;

/// Writes a whole file. `fill` is called once for each row of each tensor, in no order and by all cores, with
/// the tensor's index and the row's, and gives the row's numbers. Returns how many bytes were written.
///
/// # Errors
/// What the writer says.
///
/// # Panics
/// When a tensor's row is no whole number of blocks.
pub fn write(
    writer: &mut impl Write,
    metadata: &[(String, Value)],
    tensors: &[TensorEntry],
    fill: impl Fn(usize, usize, &mut [f32]) + Sync,
) -> io::Result<u64> {
    let mut writer = Counted { writer, written: 0 };
    writer.write_all(b"GGUF")?;
    writer.write_all(&3_u32.to_le_bytes())?;
    writer.length(tensors.len())?;
    writer.length(metadata.len())?;
    for (key, value) in metadata {
        writer.string(key)?;
        writer.typed_value(value)?;
    }
    let mut offset = 0;
    for tensor in tensors {
        writer.string(&tensor.name)?;
        writer.write_all(&(tensor.dimensions.len() as u32).to_le_bytes())?;
        for extent in &tensor.dimensions {
            writer.length(*extent)?;
        }
        writer.write_all(&tensor.tensor_type.number().to_le_bytes())?;
        writer.write_all(&u64::to_le_bytes(offset))?;
        offset = (offset + tensor.bytes()).next_multiple_of(ALIGNMENT);
    }
    for (index, tensor) in tensors.iter().enumerate() {
        writer.align()?;
        write_rows(&mut writer, tensor, |row, weights| fill(index, row, weights))?;
    }
    writer.align()?;
    writer.flush()?;
    Ok(writer.written)
}

/// Writes a tensor's rows, as many at a time as give every core a share to make.
fn write_rows(
    writer: &mut impl Write,
    tensor: &TensorEntry,
    fill: impl Fn(usize, &mut [f32]) + Sync,
) -> io::Result<()> {
    let rows = tensor.rows();
    let row_bytes = (tensor.bytes() / rows as u64) as usize;
    let threads = cores();
    let share_rows = (SHARE_BYTES / row_bytes).clamp(1, rows.div_ceil(threads));
    let make = |first: usize, share: &mut [u8]| {
        let mut weights = vec![0.0; tensor.dimensions[0]];
        for (row, bytes) in share.chunks_exact_mut(row_bytes).enumerate() {
            fill(first + row, &mut weights);
            quantize(tensor.tensor_type, &weights, bytes);
        }
    };
    let batch_rows = share_rows * threads;
    let mut bytes = vec![0; batch_rows.min(rows) * row_bytes];
    for first in (0..rows).step_by(batch_rows) {
        let batch = &mut bytes[..batch_rows.min(rows - first) * row_bytes];
        std::thread::scope(|scope| {
            for (index, share) in batch.chunks_mut(share_rows * row_bytes).enumerate() {
                let make = &make;
                scope.spawn(move || make(first + index * share_rows, share));
            }
        });
        writer.write_all(batch)?;
    }
    Ok(())
}

struct Counted<'a, W> {
    writer: &'a mut W,
    written: u64,
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.writer.write(bytes)?;
        self.written += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl<W: Write> Counted<'_, W> {
    fn align(&mut self) -> io::Result<()> {
        let missing = self.written.next_multiple_of(ALIGNMENT) - self.written;
        self.write_all(&[0; ALIGNMENT as usize][..missing as usize])
    }

    fn length(&mut self, length: usize) -> io::Result<()> {
        self.write_all(&(length as u64).to_le_bytes())
    }

    fn string(&mut self, text: &str) -> io::Result<()> {
        self.length(text.len())?;
        self.write_all(text.as_bytes())
    }

    fn value_type(&mut self, value_type: ValueType) -> io::Result<()> {
        self.write_all(&value_type.number().to_le_bytes())
    }

    fn typed_value(&mut self, value: &Value) -> io::Result<()> {
        match value {
            Value::Integer(value_type, value) => {
                self.value_type(*value_type)?;
                self.integer(*value_type, *value)
            }
            Value::Float(ValueType::F64, value) => {
                self.value_type(ValueType::F64)?;
                self.write_all(&value.to_le_bytes())
            }
            Value::Float(_, value) => {
                self.value_type(ValueType::F32)?;
                self.write_all(&(*value as f32).to_le_bytes())
            }
            Value::Bool(value) => {
                self.value_type(ValueType::Bool)?;
                self.write_all(&[u8::from(*value)])
            }
            Value::String(value) => {
                self.value_type(ValueType::String)?;
                self.string(value)
            }
            Value::Array(array) => {
                self.value_type(ValueType::Array)?;
                self.array(array)
            }
        }
    }

    /// The lowest bytes of the number, as many as its type has.
    fn integer(&mut self, value_type: ValueType, value: i128) -> io::Result<()> {
        self.write_all(&value.to_le_bytes()[..value_type.least_bytes() as usize])
    }

    fn array(&mut self, array: &Array) -> io::Result<()> {
        self.value_type(array.element())?;
        self.length(array.len())?;
        match array {
            Array::Integers(value_type, values) => {
                values.iter().try_for_each(|value| self.integer(*value_type, i128::from(*value)))
            }
            Array::Floats(values) => values.iter().try_for_each(|value| self.write_all(&value.to_le_bytes())),
            Array::Doubles(values) => {
                values.iter().try_for_each(|value| self.write_all(&value.to_le_bytes()))
            }
            Array::Bools(values) => values.iter().try_for_each(|value| self.write_all(&[u8::from(*value)])),
            Array::Strings(values) => values.iter().try_for_each(|value| self.string(value)),
            Array::Arrays(values) => values.iter().try_for_each(|value| self.array(value)),
        }
    }
}
