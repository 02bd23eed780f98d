//! Buffers in device memory: what they are for, how big they may be, and how bytes get in and out.

use super::device::{Member, Pack};
use super::error::VulkanError;
use std::sync::Arc;
use vulkano::buffer::view::{BufferView, BufferViewCreateInfo};
use vulkano::buffer::{Buffer, BufferCreateInfo, BufferUsage, Subbuffer};
use vulkano::format::Format;
use vulkano::memory::allocator::{AllocationCreateInfo, MemoryTypeFilter};

/// What every buffer may be used for.
pub(crate) fn buffer_usage() -> BufferUsage {
    BufferUsage::STORAGE_BUFFER
        | BufferUsage::UNIFORM_TEXEL_BUFFER
        | BufferUsage::TRANSFER_SRC
        | BufferUsage::TRANSFER_DST
}

/// Where a buffer lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// Device memory; the host writes it at load only, by way of a staging buffer where it must.
    Device,
    /// Memory that the host writes every step and the device reads.
    Upload,
    /// Memory that the device writes and the host reads back.
    Readback,
}

/// The bytes of one staging copy.
const STAGING_BYTES: usize = 16 << 20;

impl Member {
    /// A buffer of `bytes` bytes (rounded up to whole texels), not initialised.
    ///
    /// # Errors
    /// `what` does not fit the device's memory or limits.
    pub(crate) fn buffer(
        &self,
        what: &str,
        bytes: usize,
        home: Home,
    ) -> Result<Subbuffer<[u8]>, VulkanError> {
        let bytes = (bytes.max(16) as u64).next_multiple_of(16);
        let filter = match home {
            Home::Device => MemoryTypeFilter::PREFER_DEVICE,
            Home::Upload => MemoryTypeFilter::PREFER_HOST | MemoryTypeFilter::HOST_SEQUENTIAL_WRITE,
            Home::Readback => MemoryTypeFilter::PREFER_HOST | MemoryTypeFilter::HOST_RANDOM_ACCESS,
        };
        let usage = buffer_usage();
        Buffer::new_slice::<u8>(
            self.memory.clone(),
            BufferCreateInfo { usage, ..Default::default() },
            AllocationCreateInfo { memory_type_filter: filter, ..Default::default() },
            bytes,
        )
        .map_err(|error| VulkanError::OutOfMemory {
            what: what.to_owned(),
            needed_bytes: bytes,
            reason: error.to_string(),
        })
    }

    /// The largest buffer that this member's kernels can take, in bytes.
    pub(crate) fn buffer_bytes_max(&self) -> u64 {
        let properties = self.device.physical_device().properties();
        let allocation = properties.max_memory_allocation_size.unwrap_or(1 << 30);
        let of_kernels = match self.pack {
            Pack::Cpu => allocation.min(u64::from(properties.max_texel_buffer_elements) * 4),
            Pack::Subgroup | Pack::Coopmat => allocation.min(u64::from(properties.max_storage_buffer_range)),
        };
        of_kernels.min(self.buffer_bytes_limit)
    }

    /// Writes `bytes` to a device buffer from byte `at` on.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn upload(
        &self,
        buffer: &Subbuffer<[u8]>,
        at: usize,
        bytes: &[u8],
    ) -> Result<(), VulkanError> {
        if let Ok(mut mapped) = buffer.write() {
            mapped[at..at + bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        let staging = self.buffer("a staging buffer", STAGING_BYTES.min(bytes.len()), Home::Upload)?;
        for (index, part) in bytes.chunks(STAGING_BYTES).enumerate() {
            let write = staging.write();
            let mut write = write.map_err(|error| VulkanError::driver("mapping a staging buffer", error))?;
            write[..part.len()].copy_from_slice(part);
            drop(write);
            let at = (at + index * STAGING_BYTES) as u64;
            let mut recorder = self.record()?;
            let from = staging.clone().slice(0..part.len() as u64);
            recorder.copy(from, buffer.clone().slice(at..at + part.len() as u64));
            self.submit(recorder)?;
        }
        Ok(())
    }

    /// A view of a buffer as texels.
    pub(crate) fn view(
        &self,
        buffer: &Subbuffer<[u8]>,
        format: Format,
    ) -> Result<Arc<BufferView>, VulkanError> {
        BufferView::new(buffer.clone(), BufferViewCreateInfo { format, ..Default::default() })
            .map_err(|error| VulkanError::driver("vkCreateBufferView", error))
    }
}

/// Writes `values` to the start of a buffer that the host can write.
pub(crate) fn write<T: bytemuck::NoUninit>(
    buffer: &Subbuffer<[u8]>,
    values: &[T],
) -> Result<(), VulkanError> {
    let mut mapped = buffer.write().map_err(|error| VulkanError::driver("mapping a buffer", error))?;
    let bytes: &[u8] = bytemuck::cast_slice(values);
    mapped[..bytes.len()].copy_from_slice(bytes);
    Ok(())
}

/// Reads `count` values from the start of a buffer that the host can read.
pub(crate) fn read<T: bytemuck::AnyBitPattern>(
    buffer: &Subbuffer<[u8]>,
    count: usize,
) -> Result<Vec<T>, VulkanError> {
    Ok(read_rows(buffer, 1, count, &mut Vec::new())?.swap_remove(0))
}

/// Reads `rows` rows of `width` values each from the start of a buffer that the host can read, into `spare` ones where
/// it can.
pub(crate) fn read_rows<T: bytemuck::AnyBitPattern>(
    buffer: &Subbuffer<[u8]>,
    rows: usize,
    width: usize,
    spare: &mut Vec<Vec<T>>,
) -> Result<Vec<Vec<T>>, VulkanError> {
    let mapped = buffer.read().map_err(|error| VulkanError::driver("mapping a buffer", error))?;
    let row_bytes = width * size_of::<T>();
    let row = |row: usize| {
        let bytes = &mapped[row * row_bytes..(row + 1) * row_bytes];
        let mut values = spare.pop().unwrap_or_default();
        values.clear();
        values.extend(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned::<T>));
        values
    };
    Ok((0..rows).map(row).collect())
}
