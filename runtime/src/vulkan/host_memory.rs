//! Host memory that several devices use as their own, by VK_EXT_external_memory_host: what the members of
//! a device group share.

use super::buffers::buffer_usage;
use super::device::Member;
use super::error::VulkanError;
use memmap2::{MmapMut, MmapRaw};
use std::sync::Arc;
use vulkano::VulkanObject;
use vulkano::buffer::sys::RawBuffer;
use vulkano::buffer::{BufferCreateInfo, Subbuffer};
use vulkano::device::DeviceOwned;
use vulkano::memory::{DeviceMemory, ExternalMemoryHandleTypes, MemoryAllocateInfo, ResourceMemory};

/// What every import is aligned to and a multiple of; devices that ask for more are not grouped.
pub(crate) const IMPORT_ALIGNMENT: usize = 4096;

/// Zeroed memory of whole pages that no device has yet, so that it can be written in place.
pub(crate) struct Draft {
    map: MmapMut,
}

/// Memory of whole pages that devices may have.
pub(crate) struct HostMemory {
    map: MmapRaw,
}

impl Draft {
    /// At least `bytes` bytes.
    ///
    /// # Errors
    /// The operating system has no such memory left for `what`.
    pub(crate) fn new(what: &str, bytes: usize) -> Result<Self, VulkanError> {
        let bytes = bytes.max(1).next_multiple_of(IMPORT_ALIGNMENT);
        let map = MmapMut::map_anon(bytes).map_err(|error| VulkanError::OutOfMemory {
            what: what.to_owned(),
            needed_bytes: bytes as u64,
            reason: error.to_string(),
        })?;
        Ok(Self { map })
    }

    /// As [`Draft::new`], for what is written whole at once: in large pages where the system has them, which spare walks
    /// through page tables. Of other memory they would take more than is used.
    ///
    /// # Errors
    /// As of [`Draft::new`].
    pub(crate) fn whole(what: &str, bytes: usize) -> Result<Self, VulkanError> {
        let draft = Self::new(what, bytes)?;
        #[cfg(target_os = "linux")]
        let _ = draft.map.advise(memmap2::Advice::HugePage);
        Ok(draft)
    }

    /// The memory.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

impl From<Draft> for HostMemory {
    fn from(draft: Draft) -> Self {
        Self { map: draft.map.into() }
    }
}

impl HostMemory {
    /// Writes `bytes` from `offset` on. No device may be using that part.
    ///
    /// # Panics
    /// When they go beyond the end.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len()).expect("an offset fits");
        assert!(end <= self.map.len(), "{end} bytes written to {}", self.map.len());
        // SAFETY: the target lies in the map, which no Rust reference points into; `bytes` is elsewhere.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr().add(offset), bytes.len());
        }
    }

    /// Reads into `bytes` from `offset` on. No device may be writing that part.
    ///
    /// # Panics
    /// When they go beyond the end.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        let end = offset.checked_add(bytes.len()).expect("an offset fits");
        assert!(end <= self.map.len(), "{end} bytes read of {}", self.map.len());
        // SAFETY: the source lies in the map, whose every bit pattern is a valid byte.
        unsafe {
            std::ptr::copy_nonoverlapping(self.map.as_ptr().add(offset), bytes.as_mut_ptr(), bytes.len());
        }
    }

    /// The memory as a buffer of `member`. Whoever keeps the buffer keeps this memory longer.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn import(&self, member: &Member) -> Result<Subbuffer<[u8]>, VulkanError> {
        let handle_type = ash::vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
        let device = &member.device;
        let pointer = self.map.as_mut_ptr().cast();
        let mut properties = ash::vk::MemoryHostPointerPropertiesEXT::default();
        // SAFETY: the extension is enabled on members of groups, and the pointer is that of a live map.
        let result = unsafe {
            (device.fns().ext_external_memory_host.get_memory_host_pointer_properties_ext)(
                device.handle(),
                handle_type,
                pointer,
                &mut properties,
            )
        };
        check("vkGetMemoryHostPointerPropertiesEXT", result)?;
        if properties.memory_type_bits == 0 {
            return Err(VulkanError::driver("vkGetMemoryHostPointerPropertiesEXT", "no memory type fits"));
        }
        let kind = properties.memory_type_bits.trailing_zeros();
        let bytes = self.map.len() as u64;
        let mut import =
            ash::vk::ImportMemoryHostPointerInfoEXT::default().handle_type(handle_type).host_pointer(pointer);
        let info = ash::vk::MemoryAllocateInfo::default()
            .allocation_size(bytes)
            .memory_type_index(kind)
            .push_next(&mut import);
        let mut handle = ash::vk::DeviceMemory::null();
        // SAFETY: pointer and size are whole pages of the map, of a memory type that the device named.
        let result = unsafe {
            (device.fns().v1_0.allocate_memory)(device.handle(), &info, std::ptr::null(), &mut handle)
        };
        check("vkAllocateMemory for imported memory", result)?;
        let described =
            MemoryAllocateInfo { allocation_size: bytes, memory_type_index: kind, ..Default::default() };
        // SAFETY: the handle was just made on this device with this size and type.
        let memory = unsafe { DeviceMemory::from_handle(device.clone(), handle, described) };
        let raw = RawBuffer::new(
            device.clone(),
            BufferCreateInfo {
                size: bytes,
                usage: buffer_usage(),
                external_memory_handle_types: ExternalMemoryHandleTypes::HOST_ALLOCATION,
                ..Default::default()
            },
        )
        .map_err(|error| VulkanError::driver("vkCreateBuffer for imported memory", error))?;
        // SAFETY: the memory is new, bound once and as large as the buffer.
        let buffer =
            unsafe { raw.bind_memory_unchecked(ResourceMemory::new_dedicated_unchecked(Arc::new(memory))) };
        let buffer = buffer.map_err(|(error, ..)| VulkanError::driver("vkBindBufferMemory", error))?;
        debug_assert!(Arc::ptr_eq(buffer.device(), device));
        Ok(Subbuffer::new(Arc::new(buffer)))
    }
}

/// Gives the memory that was freed back to the operating system, where the allocator would keep it for later.
pub(crate) fn return_freed_memory() {
    // SAFETY: the allocator may be called on any thread, and gives back only what nobody has.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

fn check(call: &'static str, result: ash::vk::Result) -> Result<(), VulkanError> {
    match result {
        ash::vk::Result::SUCCESS => Ok(()),
        other => Err(VulkanError::driver(call, format!("{other:?}"))),
    }
}
