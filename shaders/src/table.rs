//! The table of kernels: what each is called by, and its module.

use crate::modules;
use std::sync::Arc;
use vulkano::device::Device;
use vulkano::shader::ShaderModule;
use vulkano::{Validated, VulkanError};

/// How repacked weights are stored; see `kernels/weights.glsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeKind {
    /// Unsigned 4-bit codes with scales.
    Nibbles,
    /// Signed 8-bit codes with scales.
    Bytes,
    /// IEEE float16 values, without scales.
    Float16,
    /// bfloat16 values, without scales.
    BFloat16,
    /// float32 values, without scales.
    Float32,
}

/// How the scales of a block of 32 weights are stored; see `kernels/weights.glsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleKind {
    /// One float16 scale and minimum.
    Half,
    /// One float32 scale and minimum.
    Float,
    /// A float32 scale and minimum for each half of the block.
    FloatPer16,
}

/// What a matmul kernel takes as activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InputKind {
    /// int8 codes with a scale per block of 32.
    Int8,
    /// f32 values.
    Float,
}

/// How many tokens one workgroup of a matmul takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tile {
    /// One.
    One,
    /// Eight.
    Eight,
}

/// The element type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheKind {
    /// IEEE float16.
    Float16,
    /// float32.
    Float32,
}

/// One compute kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// `norm.comp`
    Norm,
    /// `activate.comp`
    Activate,
    /// `rope_append.comp`
    RopeAppend(CacheKind),
    /// `attention_cpu.comp`
    AttentionCpu(CacheKind),
    /// `attention_subgroup.comp`
    AttentionSubgroup(CacheKind),
    /// `matmul_int8_cpu.comp` and `matmul_float_cpu.comp`
    MatmulCpu {
        /// The activations.
        input: InputKind,
        /// The weights; float kinds take float activations only.
        codes: CodeKind,
        /// The weights' scales; of no meaning for float kinds.
        scales: ScaleKind,
        /// Tokens per workgroup.
        tile: Tile,
    },
    /// `matmul_subgroup.comp`
    MatmulSubgroup {
        /// The activations.
        input: InputKind,
        /// The weights; float kinds take float activations only.
        codes: CodeKind,
        /// The weights' scales; of no meaning for float kinds.
        scales: ScaleKind,
        /// Tokens per workgroup.
        tile: Tile,
    },
}

/// The kernel's module on `device`.
///
/// # Errors
/// What the driver says of the module.
///
/// # Panics
/// When a float kind of weights is asked for with int8 activations: there is no such kernel.
pub fn load(kernel: Kernel, device: Arc<Device>) -> Result<Arc<ShaderModule>, Validated<VulkanError>> {
    match kernel {
        Kernel::Norm => modules::norm::load(device),
        Kernel::Activate => modules::activate::load(device),
        Kernel::RopeAppend(CacheKind::Float16) => modules::rope_append_float16::load(device),
        Kernel::RopeAppend(CacheKind::Float32) => modules::rope_append_float32::load(device),
        Kernel::AttentionCpu(CacheKind::Float16) => modules::attention_cpu_float16::load(device),
        Kernel::AttentionCpu(CacheKind::Float32) => modules::attention_cpu_float32::load(device),
        Kernel::AttentionSubgroup(CacheKind::Float16) => modules::attention_subgroup_float16::load(device),
        Kernel::AttentionSubgroup(CacheKind::Float32) => modules::attention_subgroup_float32::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Int8,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::Half,
            tile: Tile::One,
        } => modules::matmul_int8_cpu_nibbles_half_1::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Int8,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::Float,
            tile: Tile::One,
        } => modules::matmul_int8_cpu_nibbles_float_1::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Int8,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::FloatPer16,
            tile: Tile::One,
        } => modules::matmul_int8_cpu_nibbles_per16_1::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Int8,
            codes: CodeKind::Bytes,
            scales: ScaleKind::Half,
            tile: Tile::One,
        } => modules::matmul_int8_cpu_bytes_half_1::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Int8,
            codes: CodeKind::Bytes,
            scales: ScaleKind::Float,
            tile: Tile::One,
        } => modules::matmul_int8_cpu_bytes_float_1::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Int8,
            codes: CodeKind::Bytes,
            scales: ScaleKind::FloatPer16,
            tile: Tile::One,
        } => modules::matmul_int8_cpu_bytes_per16_1::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::Half,
            tile: Tile::One,
        } => modules::matmul_float_cpu_nibbles_half_1::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::Float,
            tile: Tile::One,
        } => modules::matmul_float_cpu_nibbles_float_1::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::FloatPer16,
            tile: Tile::One,
        } => modules::matmul_float_cpu_nibbles_per16_1::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::Bytes,
            scales: ScaleKind::Half,
            tile: Tile::One,
        } => modules::matmul_float_cpu_bytes_half_1::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::Bytes,
            scales: ScaleKind::Float,
            tile: Tile::One,
        } => modules::matmul_float_cpu_bytes_float_1::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::Bytes,
            scales: ScaleKind::FloatPer16,
            tile: Tile::One,
        } => modules::matmul_float_cpu_bytes_per16_1::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::Float16,
            scales: _,
            tile: Tile::One,
        } => modules::matmul_float_cpu_float16_1::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::BFloat16,
            scales: _,
            tile: Tile::One,
        } => modules::matmul_float_cpu_bfloat16_1::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::Float32,
            scales: _,
            tile: Tile::One,
        } => modules::matmul_float_cpu_float32_1::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Int8,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::Half,
            tile: Tile::Eight,
        } => modules::matmul_int8_cpu_nibbles_half_8::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Int8,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::Float,
            tile: Tile::Eight,
        } => modules::matmul_int8_cpu_nibbles_float_8::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Int8,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::FloatPer16,
            tile: Tile::Eight,
        } => modules::matmul_int8_cpu_nibbles_per16_8::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Int8,
            codes: CodeKind::Bytes,
            scales: ScaleKind::Half,
            tile: Tile::Eight,
        } => modules::matmul_int8_cpu_bytes_half_8::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Int8,
            codes: CodeKind::Bytes,
            scales: ScaleKind::Float,
            tile: Tile::Eight,
        } => modules::matmul_int8_cpu_bytes_float_8::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Int8,
            codes: CodeKind::Bytes,
            scales: ScaleKind::FloatPer16,
            tile: Tile::Eight,
        } => modules::matmul_int8_cpu_bytes_per16_8::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::Half,
            tile: Tile::Eight,
        } => modules::matmul_float_cpu_nibbles_half_8::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::Float,
            tile: Tile::Eight,
        } => modules::matmul_float_cpu_nibbles_float_8::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::FloatPer16,
            tile: Tile::Eight,
        } => modules::matmul_float_cpu_nibbles_per16_8::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::Bytes,
            scales: ScaleKind::Half,
            tile: Tile::Eight,
        } => modules::matmul_float_cpu_bytes_half_8::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::Bytes,
            scales: ScaleKind::Float,
            tile: Tile::Eight,
        } => modules::matmul_float_cpu_bytes_float_8::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::Bytes,
            scales: ScaleKind::FloatPer16,
            tile: Tile::Eight,
        } => modules::matmul_float_cpu_bytes_per16_8::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::Float16,
            scales: _,
            tile: Tile::Eight,
        } => modules::matmul_float_cpu_float16_8::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::BFloat16,
            scales: _,
            tile: Tile::Eight,
        } => modules::matmul_float_cpu_bfloat16_8::load(device),
        Kernel::MatmulCpu {
            input: InputKind::Float,
            codes: CodeKind::Float32,
            scales: _,
            tile: Tile::Eight,
        } => modules::matmul_float_cpu_float32_8::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Int8,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::Half,
            tile: Tile::One,
        } => modules::matmul_int8_subgroup_nibbles_half_1::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Int8,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::Float,
            tile: Tile::One,
        } => modules::matmul_int8_subgroup_nibbles_float_1::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Int8,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::FloatPer16,
            tile: Tile::One,
        } => modules::matmul_int8_subgroup_nibbles_per16_1::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Int8,
            codes: CodeKind::Bytes,
            scales: ScaleKind::Half,
            tile: Tile::One,
        } => modules::matmul_int8_subgroup_bytes_half_1::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Int8,
            codes: CodeKind::Bytes,
            scales: ScaleKind::Float,
            tile: Tile::One,
        } => modules::matmul_int8_subgroup_bytes_float_1::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Int8,
            codes: CodeKind::Bytes,
            scales: ScaleKind::FloatPer16,
            tile: Tile::One,
        } => modules::matmul_int8_subgroup_bytes_per16_1::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::Half,
            tile: Tile::One,
        } => modules::matmul_float_subgroup_nibbles_half_1::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::Float,
            tile: Tile::One,
        } => modules::matmul_float_subgroup_nibbles_float_1::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::FloatPer16,
            tile: Tile::One,
        } => modules::matmul_float_subgroup_nibbles_per16_1::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::Bytes,
            scales: ScaleKind::Half,
            tile: Tile::One,
        } => modules::matmul_float_subgroup_bytes_half_1::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::Bytes,
            scales: ScaleKind::Float,
            tile: Tile::One,
        } => modules::matmul_float_subgroup_bytes_float_1::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::Bytes,
            scales: ScaleKind::FloatPer16,
            tile: Tile::One,
        } => modules::matmul_float_subgroup_bytes_per16_1::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::Float16,
            scales: _,
            tile: Tile::One,
        } => modules::matmul_float_subgroup_float16_1::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::BFloat16,
            scales: _,
            tile: Tile::One,
        } => modules::matmul_float_subgroup_bfloat16_1::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::Float32,
            scales: _,
            tile: Tile::One,
        } => modules::matmul_float_subgroup_float32_1::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Int8,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::Half,
            tile: Tile::Eight,
        } => modules::matmul_int8_subgroup_nibbles_half_8::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Int8,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::Float,
            tile: Tile::Eight,
        } => modules::matmul_int8_subgroup_nibbles_float_8::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Int8,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::FloatPer16,
            tile: Tile::Eight,
        } => modules::matmul_int8_subgroup_nibbles_per16_8::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Int8,
            codes: CodeKind::Bytes,
            scales: ScaleKind::Half,
            tile: Tile::Eight,
        } => modules::matmul_int8_subgroup_bytes_half_8::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Int8,
            codes: CodeKind::Bytes,
            scales: ScaleKind::Float,
            tile: Tile::Eight,
        } => modules::matmul_int8_subgroup_bytes_float_8::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Int8,
            codes: CodeKind::Bytes,
            scales: ScaleKind::FloatPer16,
            tile: Tile::Eight,
        } => modules::matmul_int8_subgroup_bytes_per16_8::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::Half,
            tile: Tile::Eight,
        } => modules::matmul_float_subgroup_nibbles_half_8::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::Float,
            tile: Tile::Eight,
        } => modules::matmul_float_subgroup_nibbles_float_8::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::Nibbles,
            scales: ScaleKind::FloatPer16,
            tile: Tile::Eight,
        } => modules::matmul_float_subgroup_nibbles_per16_8::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::Bytes,
            scales: ScaleKind::Half,
            tile: Tile::Eight,
        } => modules::matmul_float_subgroup_bytes_half_8::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::Bytes,
            scales: ScaleKind::Float,
            tile: Tile::Eight,
        } => modules::matmul_float_subgroup_bytes_float_8::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::Bytes,
            scales: ScaleKind::FloatPer16,
            tile: Tile::Eight,
        } => modules::matmul_float_subgroup_bytes_per16_8::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::Float16,
            scales: _,
            tile: Tile::Eight,
        } => modules::matmul_float_subgroup_float16_8::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::BFloat16,
            scales: _,
            tile: Tile::Eight,
        } => modules::matmul_float_subgroup_bfloat16_8::load(device),
        Kernel::MatmulSubgroup {
            input: InputKind::Float,
            codes: CodeKind::Float32,
            scales: _,
            tile: Tile::Eight,
        } => modules::matmul_float_subgroup_float32_8::load(device),
        Kernel::MatmulCpu { .. } | Kernel::MatmulSubgroup { .. } => {
            panic!("float weights take float activations: {kernel:?}")
        }
    }
}
