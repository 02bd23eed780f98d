//! The crate's one memory map: model files are mapped, so that opening is instant and weights are read
//! from the disk once.

use std::fs::File;
use std::io;

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;

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

/// Takes a map's pages out of this process's memory; what is read again comes from the file again. Where the
/// operating system knows no such thing, nothing happens.
#[cfg_attr(unix, allow(unsafe_code, reason = "the same advice would lose what a writable map holds"))]
pub(super) fn release_pages(map: &Mmap) {
    // SAFETY: the map is read-only and of a file, so that its bytes stay what they are.
    #[cfg(unix)]
    let _ = unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) };
    #[cfg(not(unix))]
    let _ = map;
}
