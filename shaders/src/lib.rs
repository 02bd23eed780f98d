//! Compute kernels of Lavalane: GLSL sources, one kernel per file, compiled to SPIR-V at build time, each
//! beside a scalar twin that does the same arithmetic on the CPU.
//!
//! [`Kernel`] names them; [`load`] gives a kernel's module for a device. What a kernel reads
//! and writes is said at the head of its GLSL file.

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

/// Row groups whose weights lie in one run of memory in the `cpu` pack, 2^BUNDLE_BITS of the kernels; the
/// `subgroup` pack's workgroups take one group each, and keep each by itself.
pub const CPU_BUNDLE: usize = 4;

/// Row groups that one workgroup of a matmul kernel of the `cpu` pack takes; ROW_GROUPS in the kernels.
pub fn row_groups(input: InputKind, tile: Tile) -> usize {
    match (input, tile) {
        (InputKind::Float, _) => 2,
        (InputKind::Int8 | InputKind::Int16, Tile::One) => 4,
        (InputKind::Int8 | InputKind::Int16, Tile::Eight) => 3,
    }
}
