//! The number formats that model weights are stored in: block sizes, decoding and encoding.
//!
//! Every quantised format is described by one function, its *decomposition* into integer codes and the
//! scale and minimum of each half block. Decoding to f32 is that decomposition written out, so what the
//! scalar reference computes with and what the Vulkan repacker uploads cannot drift apart.
//!
//! Source of the layouts: the block structures of GGML, which defines these formats.

mod code_table;
mod float;
mod high_bit_super_block;
mod scale;
mod small_block;
mod super_block;
#[cfg(test)]
mod tests;

use std::fmt;

/// Weights in one decomposed block.
pub const DECOMPOSED_WEIGHTS: usize = 32;

/// How the numbers of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "these are the names under which the formats are known")]
#[allow(missing_docs, reason = "the names are the documentation; `FORMATS` says the rest")]
pub enum TensorType {
    F32,
    F16,
    BF16,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    Q2_K,
    Q3_K,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
}

/// 32 weights as integers: weight `i` is `scale[i / 16] * codes[i] + minimum[i / 16]`, computed in f32
/// with one rounding after the product and one after the sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decomposed {
    /// The integer codes, in the order of the weights.
    pub codes: [i8; DECOMPOSED_WEIGHTS],
    /// The factor of each half.
    pub scale: [f32; 2],
    /// What is added to each half; 0 in the formats that have no minimum.
    pub minimum: [f32; 2],
}

impl Decomposed {
    /// A block of zeros.
    pub const ZERO: Self = Self { codes: [0; DECOMPOSED_WEIGHTS], scale: [0.0; 2], minimum: [0.0; 2] };

    /// The weights as f32.
    pub fn weights(&self) -> [f32; DECOMPOSED_WEIGHTS] {
        std::array::from_fn(|weight| {
            self.scale[weight / 16] * f32::from(self.codes[weight]) + self.minimum[weight / 16]
        })
    }
}

/// A tensor type number of a file that this crate cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tensor type {number} ({}) is not supported", known_name(*.number))]
pub struct UnsupportedTensorType {
    /// The number in the file.
    pub number: u32,
}

/// Decodes one block of bytes into its decomposed blocks.
type Decompose = fn(&[u8], &mut [Decomposed]);
/// Encodes the weights of one block into its bytes.
type Encode = fn(&[f32], &mut [u8]);

enum Codec {
    Float { decode: fn(&[u8], &mut [f32]), encode: Encode },
    Integer { decompose: Decompose, encode: Encode },
}

struct Format {
    tensor_type: TensorType,
    number: u32,
    name: &'static str,
    block_weights: usize,
    block_bytes: usize,
    codec: Codec,
}

const fn integer(
    tensor_type: TensorType,
    number: u32,
    name: &'static str,
    block_weights: usize,
    block_bytes: usize,
    decompose: Decompose,
    encode: Encode,
) -> Format {
    Format {
        tensor_type,
        number,
        name,
        block_weights,
        block_bytes,
        codec: Codec::Integer { decompose, encode },
    }
}

const fn float(
    tensor_type: TensorType,
    number: u32,
    name: &'static str,
    block_bytes: usize,
    decode: fn(&[u8], &mut [f32]),
    encode: Encode,
) -> Format {
    Format {
        tensor_type,
        number,
        name,
        block_weights: 1,
        block_bytes,
        codec: Codec::Float { decode, encode },
    }
}

/// Every supported format, in the order of [`TensorType`].
static FORMATS: &[Format] = {
    use TensorType::*;
    use {code_table as table, high_bit_super_block as high, small_block as small, super_block as large};
    &[
        float(F32, 0, "F32", 4, float::decode_f32, float::encode_f32),
        float(F16, 1, "F16", 2, float::decode_f16, float::encode_f16),
        float(BF16, 30, "BF16", 2, float::decode_bf16, float::encode_bf16),
        integer(IQ4_NL, 20, "IQ4_NL", 32, 18, table::decompose_iq4_nl, table::encode_iq4_nl),
        integer(IQ4_XS, 23, "IQ4_XS", 256, 136, table::decompose_iq4_xs, table::encode_iq4_xs),
        integer(MXFP4, 39, "MXFP4", 32, 17, table::decompose_mxfp4, table::encode_mxfp4),
        integer(Q2_K, 10, "Q2_K", 256, 84, large::decompose_q2_k, large::encode_q2_k),
        integer(Q3_K, 11, "Q3_K", 256, 110, high::decompose_q3_k, high::encode_q3_k),
        integer(Q4_0, 2, "Q4_0", 32, 18, small::decompose_q4_0, small::encode_q4_0),
        integer(Q4_1, 3, "Q4_1", 32, 20, small::decompose_q4_1, small::encode_q4_1),
        integer(Q4_K, 12, "Q4_K", 256, 144, large::decompose_q4_k, large::encode_q4_k),
        integer(Q5_0, 6, "Q5_0", 32, 22, small::decompose_q5_0, small::encode_q5_0),
        integer(Q5_1, 7, "Q5_1", 32, 24, small::decompose_q5_1, small::encode_q5_1),
        integer(Q5_K, 13, "Q5_K", 256, 176, large::decompose_q5_k, large::encode_q5_k),
        integer(Q6_K, 14, "Q6_K", 256, 210, high::decompose_q6_k, high::encode_q6_k),
        integer(Q8_0, 8, "Q8_0", 32, 34, small::decompose_q8_0, small::encode_q8_0),
    ]
};

impl TensorType {
    /// Every supported type.
    pub fn all() -> impl Iterator<Item = Self> {
        FORMATS.iter().map(|format| format.tensor_type)
    }

    /// The type that a file names by this number.
    ///
    /// # Errors
    /// When the number is unknown, or known but not supported.
    pub fn from_number(number: u32) -> Result<Self, UnsupportedTensorType> {
        FORMATS
            .iter()
            .find(|format| format.number == number)
            .map(|format| format.tensor_type)
            .ok_or(UnsupportedTensorType { number })
    }

    /// The type of this name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        FORMATS.iter().find(|format| format.name.eq_ignore_ascii_case(name)).map(|format| format.tensor_type)
    }

    /// The number by which files name this type.
    pub fn number(self) -> u32 {
        self.format().number
    }

    /// The name under which the type is known.
    pub fn name(self) -> &'static str {
        self.format().name
    }

    /// How many weights one block holds; a row is a whole number of blocks.
    pub fn block_weights(self) -> usize {
        self.format().block_weights
    }

    /// How many bytes one block takes.
    pub fn block_bytes(self) -> usize {
        self.format().block_bytes
    }

    /// Whether the type has a decomposition into integer codes.
    pub fn is_quantised(self) -> bool {
        matches!(self.format().codec, Codec::Integer { .. })
    }

    /// The bytes of `weights` numbers, or `None` where they are no whole number of blocks or overflow.
    pub fn bytes(self, weights: usize) -> Option<usize> {
        let format = self.format();
        let whole = weights.is_multiple_of(format.block_weights);
        whole.then(|| (weights / format.block_weights).checked_mul(format.block_bytes)).flatten()
    }

    fn format(self) -> &'static Format {
        &FORMATS[self as usize]
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Decodes whole blocks to f32.
///
/// # Panics
/// When `bytes` is not exactly the size of `weights` numbers of this type.
pub fn dequantize(tensor_type: TensorType, bytes: &[u8], weights: &mut [f32]) {
    assert_eq!(tensor_type.bytes(weights.len()), Some(bytes.len()), "{tensor_type} block sizes");
    let format = tensor_type.format();
    match format.codec {
        Codec::Float { decode, .. } => decode(bytes, weights),
        Codec::Integer { decompose, .. } => {
            let mut parts = [Decomposed::ZERO; 8];
            let parts = &mut parts[..format.block_weights / DECOMPOSED_WEIGHTS];
            let blocks = bytes.chunks_exact(format.block_bytes);
            for (block, weights) in blocks.zip(weights.chunks_exact_mut(format.block_weights)) {
                decompose(block, parts);
                for (part, weights) in parts.iter().zip(weights.chunks_exact_mut(DECOMPOSED_WEIGHTS)) {
                    weights.copy_from_slice(&part.weights());
                }
            }
        }
    }
}

/// Decodes whole blocks to integer codes with their scales and minimums: one [`Decomposed`] for every 32
/// weights.
///
/// # Panics
/// When the type is a float type, or `bytes` is not exactly the size of `32 * parts.len()` weights.
pub fn decompose(tensor_type: TensorType, bytes: &[u8], parts: &mut [Decomposed]) {
    let weights = parts.len() * DECOMPOSED_WEIGHTS;
    assert_eq!(tensor_type.bytes(weights), Some(bytes.len()), "{tensor_type} block sizes");
    let format = tensor_type.format();
    let Codec::Integer { decompose, .. } = format.codec else {
        panic!("{tensor_type} has no integer codes");
    };
    let blocks = bytes.chunks_exact(format.block_bytes);
    for (block, parts) in blocks.zip(parts.chunks_exact_mut(format.block_weights / DECOMPOSED_WEIGHTS)) {
        decompose(block, parts);
    }
}

/// Encodes whole blocks of finite weights. Simple and fast rather than the best possible rounding: it
/// serves generated models and tests.
///
/// # Panics
/// When `bytes` is not exactly the size of `weights` numbers of this type.
pub fn quantize(tensor_type: TensorType, weights: &[f32], bytes: &mut [u8]) {
    assert_eq!(tensor_type.bytes(weights.len()), Some(bytes.len()), "{tensor_type} block sizes");
    let format = tensor_type.format();
    let (Codec::Float { encode, .. } | Codec::Integer { encode, .. }) = format.codec;
    let blocks = weights.chunks_exact(format.block_weights);
    for (weights, bytes) in blocks.zip(bytes.chunks_exact_mut(format.block_bytes)) {
        encode(weights, bytes);
    }
}

/// Names of the GGML types that are known but not supported, so that the error can say them.
fn known_name(number: u32) -> &'static str {
    match number {
        4 => "Q4_2, removed",
        5 => "Q4_3, removed",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31..=33 => "Q4_0 interleaved, removed",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36..=38 => "IQ4_NL interleaved, removed",
        40 => "NVFP4",
        _ => "unknown",
    }
}
