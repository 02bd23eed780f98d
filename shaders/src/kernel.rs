//! What kernels are called by.

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
    /// int16 codes with a scale per block of 32.
    Int16,
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

/// By what a kernel reads values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reads {
    /// Storage buffers.
    Storage,
    /// Texel buffers, which software drivers load without branches.
    Texels,
}

/// One compute kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// `meet.comp`
    Meet,
    /// `multiply_add.comp`, which measures a device
    MultiplyAdd,
    /// `read_all.comp`, which measures a device
    ReadAll,
    /// `norm.comp`
    Norm(Reads),
    /// `activate.comp`
    Activate(Reads),
    /// `rope_append.comp`
    RopeAppend(CacheKind),
    /// `rope_append_cpu.comp`
    RopeAppendCpu(CacheKind),
    /// `attention_cpu.comp`
    AttentionCpu(CacheKind),
    /// `attention_subgroup.comp`
    AttentionSubgroup(CacheKind),
    /// `matmul_int16_one_cpu.comp`, `matmul_int16_eight_cpu.comp` and `matmul_float_cpu.comp`
    MatmulCpu {
        /// The activations: int16 or float.
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
        /// The activations: int8 or float.
        input: InputKind,
        /// The weights; float kinds take float activations only.
        codes: CodeKind,
        /// The weights' scales; of no meaning for float kinds.
        scales: ScaleKind,
        /// Tokens per workgroup.
        tile: Tile,
    },
    /// `matmul_coopmat.comp`, for int8 activations and any codes and scales, which constants tell
    MatmulCoopmat,
}
