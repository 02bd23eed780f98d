//! Compute kernels of Lavalane: GLSL sources, one kernel per file, compiled to SPIR-V at build time, each
//! beside a scalar twin that does the same arithmetic on the CPU.
//!
//! [`Kernel`] names them; [`load`] gives a kernel's module for a device. What a kernel reads
//! and writes is said at the head of its GLSL file.

#[cfg(test)]
mod compiled;
mod fingerprint;
mod kernel;
mod sources;
mod table;
#[path = "kernels/mod.rs"]
pub mod twins;

pub use kernel::{CacheKind, CodeKind, InputKind, Kernel, Reads, ScaleKind, Tile};
pub use sources::SOURCES_FINGERPRINT;
pub use table::load;

/// Tokens per page of the KV cache; PAGE_TOKENS in the kernels.
pub const PAGE_TOKENS: usize = 32;

/// Rows (tokens) per tile of activations; TILE in the kernels.
pub const TILE_ROWS: usize = 8;

/// Values per block along K.
pub const BLOCK: usize = 32;

/// Output rows and tokens that a workgroup of the `coopmat` pack's matmul takes; ROWS and TOKENS in the kernel.
pub const COOPMAT_TILE: usize = 32;

/// Shared memory of a workgroup of that kernel with `slices` slices, in bytes: of each slice a block of codes and of
/// scales, of weights and of activations, and the tile's sums.
pub const fn coopmat_shared_bytes(slices: usize) -> usize {
    let (code_row, scale_row) = ((BLOCK + 8) * 2, 4 * 4);
    slices * 2 * COOPMAT_TILE * (code_row + scale_row) + COOPMAT_TILE * COOPMAT_TILE * 4
}

/// Row groups whose weights lie in one run of memory in the `cpu` pack, 2^BUNDLE_BITS of the kernels; other
/// packs' workgroups take one group each, and keep each by itself.
pub const CPU_BUNDLE: usize = 4;

/// Row groups that one workgroup of a matmul kernel of the `cpu` pack takes; ROW_GROUPS in the kernels.
pub fn row_groups(input: InputKind, tile: Tile) -> usize {
    match (input, tile) {
        (InputKind::Float, _) => 2,
        (InputKind::Int8 | InputKind::Int16, Tile::One) => 4,
        (InputKind::Int8 | InputKind::Int16, Tile::Eight) => 3,
    }
}
