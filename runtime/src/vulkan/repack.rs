//! Weights as a pack's kernels read them: taken apart into codes and scales and laid lane by lane.
//!
//! The layouts are those of `kernels/weights.glsl`. Taking a tensor apart loses nothing: weight = scale *
//! code + minimum, with the scale and the minimum that its type's dequantisation uses.

use crate::quant::{Decomposed, TensorType, decompose};
use half::f16;
use lavalane_shaders::{BLOCK, CodeKind, ScaleKind};
use std::ops::Range;

/// How a tensor type is stored on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Storage {
    pub(crate) codes: CodeKind,
    pub(crate) scales: ScaleKind,
}

/// How rows are put together in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Rows of a group.
    pub(crate) lanes: usize,
    /// Groups of a bundle, whose entries alternate.
    pub(crate) bundle: usize,
}

impl Layout {
    /// Rows of a bundle.
    pub(crate) fn bundle_rows(self) -> usize {
        self.lanes * self.bundle
    }

    /// The texel of entry `index` of the `count` that each row has.
    pub(crate) fn texel(self, row: usize, index: usize, count: usize) -> usize {
        let (group, lane) = (row / self.lanes, row % self.lanes);
        let entry = (group / self.bundle * count + index) * self.bundle + group % self.bundle;
        entry * self.lanes + lane
    }
}

/// Some rows of a matrix in GGUF's layout.
#[derive(Clone, Copy)]
pub(crate) struct SourceRows<'a> {
    pub(crate) tensor_type: TensorType,
    pub(crate) bytes: &'a [u8],
    pub(crate) rows: usize,
}

/// Repacked weights, ready for upload: whole bundles, which lie one after another.
pub(crate) struct Repacked {
    /// 4 words to a texel.
    pub(crate) codes: Vec<u32>,
    /// Empty for float kinds.
    pub(crate) scales: Vec<u32>,
}

impl Storage {
    /// The storage of a tensor type.
    pub(crate) fn of(tensor_type: TensorType) -> Self {
        use TensorType::*;
        let (codes, scales) = match tensor_type {
            F32 => (CodeKind::Float32, ScaleKind::Half),
            F16 => (CodeKind::Float16, ScaleKind::Half),
            BF16 => (CodeKind::BFloat16, ScaleKind::Half),
            Q4_0 | Q4_1 => (CodeKind::Nibbles, ScaleKind::Half),
            Q4_K => (CodeKind::Nibbles, ScaleKind::Float),
            Q2_K | Q3_K => (CodeKind::Nibbles, ScaleKind::FloatPer16),
            Q5_0 | Q5_1 | Q8_0 | IQ4_NL => (CodeKind::Bytes, ScaleKind::Half),
            Q5_K | IQ4_XS | MXFP4 => (CodeKind::Bytes, ScaleKind::Float),
            Q6_K => (CodeKind::Bytes, ScaleKind::FloatPer16),
        };
        Self { codes, scales }
    }

    /// Whether the kernels take the weights as floats, and so need float activations.
    pub(crate) fn is_float(self) -> bool {
        matches!(self.codes, CodeKind::Float16 | CodeKind::BFloat16 | CodeKind::Float32)
    }

    /// Texels of codes that each block of a row has.
    pub(crate) fn code_texels_per_block(self) -> usize {
        match self.codes {
            CodeKind::Nibbles => 1,
            CodeKind::Bytes => 2,
            CodeKind::Float16 | CodeKind::BFloat16 => 4,
            CodeKind::Float32 => 8,
        }
    }

    /// Texels of scales that each row has.
    pub(crate) fn scale_texels(self, blocks: usize) -> usize {
        if self.is_float() {
            return 0;
        }
        match self.scales {
            ScaleKind::Half => blocks.div_ceil(4),
            ScaleKind::Float => blocks.div_ceil(2),
            ScaleKind::FloatPer16 => blocks,
        }
    }

    /// Bytes of codes of one bundle.
    pub(crate) fn bundle_bytes(self, blocks: usize, layout: Layout) -> usize {
        blocks * self.code_texels_per_block() * layout.bundle_rows() * 16
    }

    /// Bytes of scales of one bundle.
    pub(crate) fn bundle_scale_bytes(self, blocks: usize, layout: Layout) -> usize {
        self.scale_texels(blocks) * layout.bundle_rows() * 16
    }

    /// Lays some bundles of the rows of `sources`, which follow one another and are `columns` wide each. The
    /// last bundle is padded with zeros. All cores take part.
    pub(crate) fn repack(
        self,
        sources: &[SourceRows<'_>],
        columns: usize,
        layout: Layout,
        bundles: Range<usize>,
    ) -> Repacked {
        let blocks = columns.div_ceil(BLOCK);
        let all_rows = sources.iter().flat_map(|source| {
            let row_bytes = source.bytes.len() / source.rows.max(1);
            source.bytes.chunks_exact(row_bytes.max(1)).map(|bytes| (source.tensor_type, bytes))
        });
        let bundle_rows = layout.bundle_rows();
        let rows: Vec<_> =
            all_rows.skip(bundles.start * bundle_rows).take(bundles.len() * bundle_rows).collect();
        let code_words = self.bundle_bytes(blocks, layout) / 4;
        let scale_words = self.bundle_scale_bytes(blocks, layout) / 4;
        let mut repacked = Repacked {
            codes: vec![0; bundles.len() * code_words],
            scales: vec![0; bundles.len() * scale_words],
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = bundles.len().div_ceil(threads).max(1);
        let (mut codes, mut scales) = (repacked.codes.as_mut_slice(), repacked.scales.as_mut_slice());
        std::thread::scope(|scope| {
            for rows in rows.chunks(share * bundle_rows) {
                let bundles = rows.len().div_ceil(bundle_rows);
                let (own_codes, other_codes) = codes.split_at_mut(bundles * code_words);
                let (own_scales, other_scales) = scales.split_at_mut(bundles * scale_words);
                (codes, scales) = (other_codes, other_scales);
                scope.spawn(move || {
                    Target { storage: self, blocks, layout, codes: own_codes, scales: own_scales }.put(rows);
                });
            }
        });
        repacked
    }
}

/// Where some bundles are laid.
struct Target<'a> {
    storage: Storage,
    blocks: usize,
    layout: Layout,
    codes: &'a mut [u32],
    scales: &'a mut [u32],
}

/// The lowest code of types whose codes are stored as unsigned nibbles.
fn lowest_code(tensor_type: TensorType) -> i8 {
    match tensor_type {
        TensorType::Q4_0 => -8,
        TensorType::Q3_K => -4,
        _ => 0,
    }
}

impl Target<'_> {
    fn put(&mut self, rows: &[(TensorType, &[u8])]) {
        for (row, &(tensor_type, bytes)) in rows.iter().enumerate() {
            if self.storage.is_float() {
                self.put_floats(row, bytes);
            } else {
                self.put_row(row, tensor_type, bytes);
            }
        }
    }

    fn put_row(&mut self, row: usize, tensor_type: TensorType, bytes: &[u8]) {
        let per_source = tensor_type.block_weights() / BLOCK;
        let mut parts = [Decomposed::ZERO; 8];
        for (index, source) in bytes.chunks_exact(tensor_type.block_bytes()).enumerate() {
            decompose(tensor_type, source, &mut parts[..per_source]);
            for (within, part) in parts[..per_source].iter().enumerate() {
                self.put_block(row, index * per_source + within, tensor_type, part);
            }
        }
    }

    fn put_block(&mut self, row: usize, block: usize, tensor_type: TensorType, part: &Decomposed) {
        let mut scales = part.scale;
        let mut minimums = part.minimum;
        if self.storage.codes == CodeKind::Nibbles {
            let lowest = lowest_code(tensor_type);
            let texel = self.layout.texel(row, block, self.blocks);
            for (k, &code) in part.codes.iter().enumerate() {
                let nibble = (code - lowest) as u8;
                debug_assert!(nibble < 16, "a 4-bit code");
                self.codes[texel * 4 + k / 8] |= u32::from(nibble) << (4 * (k % 8));
            }
            for half in 0..2 {
                minimums[half] += f32::from(lowest) * scales[half];
            }
        } else {
            for (k, &code) in part.codes.iter().enumerate() {
                let texel = self.layout.texel(row, block * 2 + k / 16, self.blocks * 2);
                self.codes[texel * 4 + (k % 16) / 4] |= u32::from(code as u8 ^ 0x80) << (8 * (k % 4));
            }
        }
        for value in scales.iter_mut().chain(minimums.iter_mut()) {
            // Denormals slow CPUs down a lot, and are nothing beside the other weights.
            if value.abs() < f32::MIN_POSITIVE {
                *value = 0.0;
            }
        }
        self.put_scales(row, block, scales, minimums);
    }

    fn put_scales(&mut self, row: usize, block: usize, scales: [f32; 2], minimums: [f32; 2]) {
        let count = self.storage.scale_texels(self.blocks);
        let texel = |index| self.layout.texel(row, index, count);
        let words = &mut *self.scales;
        match self.storage.scales {
            ScaleKind::Half => {
                let scale = u32::from(f16::from_f32(scales[0]).to_bits());
                let minimum = u32::from(f16::from_f32(minimums[0]).to_bits());
                words[texel(block / 4) * 4 + block % 4] = scale | minimum << 16;
            }
            ScaleKind::Float => {
                let at = texel(block / 2) * 4 + block % 2 * 2;
                words[at] = scales[0].to_bits();
                words[at + 1] = minimums[0].to_bits();
            }
            ScaleKind::FloatPer16 => {
                let at = texel(block) * 4;
                let four = [scales[0], minimums[0], scales[1], minimums[1]];
                for (word, value) in words[at..at + 4].iter_mut().zip(four) {
                    *word = value.to_bits();
                }
            }
        }
    }

    fn put_floats(&mut self, row: usize, bytes: &[u8]) {
        let count = self.blocks * self.storage.code_texels_per_block();
        let mut words = [0u32; 4];
        for (index, texel_bytes) in bytes.chunks(16).enumerate() {
            let mut padded = [0u8; 16];
            padded[..texel_bytes.len()].copy_from_slice(texel_bytes);
            for (word, four) in words.iter_mut().zip(padded.chunks_exact(4)) {
                *word = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
            }
            let texel = self.layout.texel(row, index, count);
            self.codes[texel * 4..texel * 4 + 4].copy_from_slice(&words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::quantize;

    #[test]
    fn bundles_repacked_one_by_one_are_those_repacked_together() {
        let (columns, rows, layout) = (96, [37, 5], Layout { lanes: 8, bundle: 2 });
        for tensor_type in [TensorType::Q4_1, TensorType::Q8_0, TensorType::F16] {
            let values: Vec<f32> =
                (0..columns * 42).map(|at| ((at * 31 % 97) as f32 - 48.0) / 50.0).collect();
            let mut bytes = vec![0; tensor_type.bytes(values.len()).expect("rows are of whole blocks")];
            quantize(tensor_type, &values, &mut bytes);
            let (first, last) = bytes.split_at(bytes.len() / 42 * rows[0]);
            let sources = [(first, rows[0]), (last, rows[1])];
            let sources = sources.map(|(bytes, rows)| SourceRows { tensor_type, bytes, rows });
            let storage = Storage::of(tensor_type);
            let together = storage.repack(&sources, columns, layout, 0..3);
            let (mut codes, mut scales) = (Vec::new(), Vec::new());
            for bundle in 0..3 {
                let one = storage.repack(&sources, columns, layout, bundle..bundle + 1);
                codes.extend(one.codes);
                scales.extend(one.scales);
            }
            assert_eq!(codes, together.codes, "{tensor_type:?}");
            assert_eq!(scales, together.scales, "{tensor_type:?}");
            assert!(codes.iter().any(|&word| word != 0));
        }
    }
}
