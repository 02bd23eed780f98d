//! Weights as a pack's kernels read them: taken apart into codes and scales and laid lane by lane.
//!
//! The layouts are those of `kernels/weights.glsl`. Taking a tensor apart loses nothing: weight = scale *
//! code + minimum, with the scale and the minimum that its type's dequantisation uses.

mod direct;

use crate::cores::cores;
use crate::quant::{Decomposed, TensorType, decompose};
use direct::Laid;
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

    /// The texel of entry `index` of the `count` that each row has. A row's next entry lies as many texels
    /// further as a bundle has rows.
    pub(crate) fn texel(self, row: usize, index: usize, count: usize) -> usize {
        let rows = self.bundle_rows();
        (row / rows * count + index) * rows + row % rows
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

    /// The same as [`Storage::repack_to`], in memory of its own.
    pub(crate) fn repack(
        self,
        sources: &[SourceRows<'_>],
        columns: usize,
        layout: Layout,
        bundles: Range<usize>,
    ) -> Repacked {
        let blocks = columns.div_ceil(BLOCK);
        let mut repacked = Repacked {
            codes: vec![0; bundles.len() * self.bundle_bytes(blocks, layout) / 4],
            scales: vec![0; bundles.len() * self.bundle_scale_bytes(blocks, layout) / 4],
        };
        self.repack_to(sources, columns, layout, bundles, &mut repacked.codes, &mut repacked.scales);
        repacked
    }

    /// Lays some bundles of the rows of `sources`, which follow one another and are `columns` wide each, to
    /// `codes` and `scales`: zeros, as many as those bundles take. What the last bundle lacks stays zeros. All
    /// cores take part.
    pub(crate) fn repack_to(
        self,
        sources: &[SourceRows<'_>],
        columns: usize,
        layout: Layout,
        bundles: Range<usize>,
        mut codes: &mut [u32],
        mut scales: &mut [u32],
    ) {
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
        let threads = cores();
        let share = bundles.len().div_ceil(threads).max(1);
        let shares = rows.chunks(share * bundle_rows);
        std::thread::scope(move |scope| {
            for rows in shares {
                let bundles = rows.len().div_ceil(bundle_rows);
                let (own_codes, other_codes) = codes.split_at_mut(bundles * code_words);
                let (own_scales, other_scales) = scales.split_at_mut(bundles * scale_words);
                (codes, scales) = (other_codes, other_scales);
                scope.spawn(move || {
                    Target { storage: self, blocks, layout, codes: own_codes, scales: own_scales }.put(rows);
                });
            }
        });
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
            match tensor_type {
                _ if self.storage.is_float() => self.put_floats(row, bytes),
                TensorType::Q4_0 => self.put_laid(row, bytes, direct::q4_0),
                TensorType::Q4_1 => self.put_laid(row, bytes, direct::q4_1),
                TensorType::Q8_0 => self.put_laid(row, bytes, direct::q8_0),
                _ => self.put_row(row, tensor_type, bytes),
            }
        }
    }

    /// Puts a row of a type whose scales are kept as [`ScaleKind::Half`], block by block.
    fn put_laid<const BYTES: usize, const TEXELS: usize>(
        &mut self,
        row: usize,
        bytes: &[u8],
        lay: impl Fn(&[u8; BYTES]) -> Laid<TEXELS>,
    ) {
        let step = self.layout.bundle_rows();
        let first_texel = self.layout.texel(row, 0, self.blocks * TEXELS);
        let first_scale = self.layout.texel(row, 0, self.storage.scale_texels(self.blocks));
        for (block, source) in bytes.as_chunks().0.iter().enumerate() {
            let laid = lay(source);
            for (index, words) in laid.texels.iter().enumerate() {
                let at = (first_texel + (block * TEXELS + index) * step) * 4;
                self.codes[at..at + 4].copy_from_slice(words);
            }
            let at = (first_scale + block / 4 * step) * 4 + block % 4;
            self.scales[at] = half_pair(without_denormal(laid.scale), without_denormal(laid.minimum));
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
        let mut minimums = part.minimum;
        if self.storage.codes == CodeKind::Nibbles {
            let lowest = lowest_code(tensor_type);
            let at = self.layout.texel(row, block, self.blocks) * 4;
            for (word, codes) in self.codes[at..at + 4].iter_mut().zip(part.codes.chunks_exact(8)) {
                *word = codes.iter().rev().fold(0, |word, &code| {
                    let nibble = (code - lowest) as u8;
                    debug_assert!(nibble < 16, "a 4-bit code");
                    word << 4 | u32::from(nibble)
                });
            }
            for (minimum, scale) in minimums.iter_mut().zip(part.scale) {
                *minimum += f32::from(lowest) * scale;
            }
        } else {
            for (half, codes) in part.codes.chunks_exact(16).enumerate() {
                let at = self.layout.texel(row, block * 2 + half, self.blocks * 2) * 4;
                for (word, codes) in self.codes[at..at + 4].iter_mut().zip(codes.chunks_exact(4)) {
                    let stored = |at: usize| codes[at] as u8 ^ 0x80;
                    *word = u32::from_le_bytes([stored(0), stored(1), stored(2), stored(3)]);
                }
            }
        }
        self.put_scales(row, block, part.scale.map(without_denormal), minimums.map(without_denormal));
    }

    fn put_scales(&mut self, row: usize, block: usize, scales: [f32; 2], minimums: [f32; 2]) {
        let count = self.storage.scale_texels(self.blocks);
        let texel = |index| self.layout.texel(row, index, count);
        let words = &mut *self.scales;
        match self.storage.scales {
            ScaleKind::Half => {
                words[texel(block / 4) * 4 + block % 4] = half_pair(scales[0], minimums[0]);
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

/// Denormals slow CPUs down a lot, and are nothing beside the other weights.
fn without_denormal(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0.0 } else { value }
}

fn half_pair(scale: f32, minimum: f32) -> u32 {
    let half = |value| u32::from(f16::from_f32(value).to_bits());
    half(scale) | half(minimum) << 16
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

    /// Blocks of any bytes, with each kind of finite half-precision number in front.
    fn any_blocks(tensor_type: TensorType, blocks: usize) -> Vec<u8> {
        let halves: [u16; 8] = [0, 0x8000, 1, 0x83ff, 0x3c00, 0xb555, 0x7bff, 0xfbff];
        let mut bytes: Vec<u8> =
            (0..blocks * tensor_type.block_bytes()).map(|at| (at * at * 31 + at * 7) as u8).collect();
        for (at, block) in bytes.chunks_exact_mut(tensor_type.block_bytes()).enumerate() {
            block[..2].copy_from_slice(&halves[at % 8].to_le_bytes());
            block[2..4].copy_from_slice(&halves[at / 8 % 8].to_le_bytes());
        }
        bytes
    }

    #[test]
    fn blocks_laid_as_they_come_are_those_laid_code_by_code() {
        for tensor_type in [TensorType::Q4_0, TensorType::Q4_1, TensorType::Q8_0] {
            for layout in [Layout { lanes: 8, bundle: 4 }, Layout { lanes: 32, bundle: 1 }] {
                for (rows, blocks) in [(1, 1), (33, 3), (70, 18)] {
                    let bytes = any_blocks(tensor_type, rows * blocks);
                    let storage = Storage::of(tensor_type);
                    let bundles = rows.div_ceil(layout.bundle_rows());
                    let source = SourceRows { tensor_type, bytes: &bytes, rows };
                    let laid = storage.repack(&[source], blocks * BLOCK, layout, 0..bundles);
                    let mut codes = vec![0; laid.codes.len()];
                    let mut scales = vec![0; laid.scales.len()];
                    let (words, halves) = (&mut codes, &mut scales);
                    let mut target = Target { storage, blocks, layout, codes: words, scales: halves };
                    for (row, bytes) in bytes.chunks_exact(bytes.len() / rows).enumerate() {
                        target.put_row(row, tensor_type, bytes);
                    }
                    assert_eq!(laid.codes, codes, "{tensor_type}, {rows} rows of {blocks} blocks");
                    assert_eq!(laid.scales, scales, "{tensor_type}, {rows} rows of {blocks} blocks");
                }
            }
        }
    }
}
