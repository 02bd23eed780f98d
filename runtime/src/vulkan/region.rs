//! Memory that every member of a device group sees as a buffer of its own.

use super::buffers::{read, read_rows, write};
use super::error::VulkanError;
use super::host_memory::HostMemory;
use std::ops::Range;
use std::sync::Arc;
use vulkano::buffer::Subbuffer;

/// One buffer per member, all over the same memory.
#[derive(Clone)]
pub(crate) struct Region {
    buffers: Vec<Subbuffer<[u8]>>,
    /// The memory itself, where members share it; their group keeps it longer than any buffer.
    host: Option<Arc<HostMemory>>,
}

impl Region {
    /// A region of a group of one.
    pub(crate) fn single(buffer: Subbuffer<[u8]>) -> Self {
        Self { buffers: vec![buffer], host: None }
    }

    /// A region over shared memory, with one import per member.
    pub(crate) fn shared(buffers: Vec<Subbuffer<[u8]>>, host: Arc<HostMemory>) -> Self {
        Self { buffers, host: Some(host) }
    }

    /// The buffer of member `member`, counted from 0.
    pub(crate) fn on(&self, member: usize) -> &Subbuffer<[u8]> {
        &self.buffers[member]
    }

    /// The first member's buffer.
    pub(crate) fn first(&self) -> &Subbuffer<[u8]> {
        &self.buffers[0]
    }

    /// A part of the first member's buffer, in bytes.
    pub(crate) fn slice(&self, bytes: Range<usize>) -> Subbuffer<[u8]> {
        self.buffers[0].clone().slice(bytes.start as u64..bytes.end as u64)
    }

    /// The shared memory, of a group of several.
    pub(crate) fn host(&self) -> Option<&HostMemory> {
        self.host.as_deref()
    }

    /// Writes `values` to the start, between submissions. A group of one needs a region that the host
    /// can write.
    ///
    /// # Errors
    /// The memory cannot be mapped.
    pub(crate) fn write<T: bytemuck::NoUninit>(&self, values: &[T]) -> Result<(), VulkanError> {
        match &self.host {
            Some(host) => {
                host.write(0, bytemuck::cast_slice(values));
                Ok(())
            }
            None => write(self.first(), values),
        }
    }

    /// Reads `count` values from the start, between submissions. A group of one needs a region that the
    /// host can read.
    ///
    /// # Errors
    /// The memory cannot be mapped.
    pub(crate) fn read<T: bytemuck::Pod>(&self, count: usize) -> Result<Vec<T>, VulkanError> {
        match &self.host {
            Some(host) => {
                let mut values = vec![T::zeroed(); count];
                host.read(0, bytemuck::cast_slice_mut(&mut values));
                Ok(values)
            }
            None => read(self.first(), count),
        }
    }

    /// Reads `rows` rows of `width` values each from the start, into `spare` ones where it can; see [`Region::read`].
    ///
    /// # Errors
    /// The memory cannot be mapped.
    pub(crate) fn read_rows<T: bytemuck::Pod>(
        &self,
        rows: usize,
        width: usize,
        spare: &mut Vec<Vec<T>>,
    ) -> Result<Vec<Vec<T>>, VulkanError> {
        match &self.host {
            Some(host) => Ok((0..rows)
                .map(|row| {
                    let mut values = spare.pop().unwrap_or_default();
                    values.resize(width, T::zeroed());
                    host.read(row * width * size_of::<T>(), bytemuck::cast_slice_mut(&mut values));
                    values
                })
                .collect()),
            None => read_rows(self.first(), rows, width, spare),
        }
    }
}
