//! The float formats F32, F16 and BF16, little-endian, one number a block.

use half::{bf16, f16};

pub(super) fn decode_f32(bytes: &[u8], weights: &mut [f32]) {
    for (bytes, weight) in bytes.as_chunks().0.iter().zip(weights) {
        *weight = f32::from_le_bytes(*bytes);
    }
}

pub(super) fn decode_f16(bytes: &[u8], weights: &mut [f32]) {
    for (bytes, weight) in bytes.as_chunks().0.iter().zip(weights) {
        *weight = f16::from_le_bytes(*bytes).to_f32();
    }
}

pub(super) fn decode_bf16(bytes: &[u8], weights: &mut [f32]) {
    for (bytes, weight) in bytes.as_chunks().0.iter().zip(weights) {
        *weight = bf16::from_le_bytes(*bytes).to_f32();
    }
}

pub(super) fn encode_f32(weights: &[f32], bytes: &mut [u8]) {
    bytes.copy_from_slice(&weights[0].to_le_bytes());
}

pub(super) fn encode_f16(weights: &[f32], bytes: &mut [u8]) {
    bytes.copy_from_slice(&f16::from_f32(weights[0]).to_le_bytes());
}

pub(super) fn encode_bf16(weights: &[f32], bytes: &mut [u8]) {
    bytes.copy_from_slice(&bf16::from_f32(weights[0]).to_le_bytes());
}
