//! The crate's one memory map: model files are mapped, so that opening is instant and weights are read
//! from the disk once.

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// Maps a file for reading.
///
/// # Errors
/// What the operating system says, for example that memory maps are exhausted.
#[allow(unsafe_code, reason = "a memory map is unsafe because other programs may change the file")]
pub(super) fn map_for_reading(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is read-only and only ever read as bytes, for which every bit pattern is valid; a
    // model file that another program truncates while it is served is outside what we can guard, and the
    // documentation of `GgufFile::open` says so.
    unsafe { Mmap::map(file) }
}
