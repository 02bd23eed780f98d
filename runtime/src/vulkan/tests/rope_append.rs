//! The kernel that rotates heads and appends keys and values to the cache.

use super::bench::{Bench, assert_near, bits, storage};
use super::cache::{Cache, TokenPlace};
use super::same_bits::DIFFERENT_ROWS;
use super::sources::Random;
use crate::vulkan::buffers::read;
use crate::vulkan::forward::{ADD_BIAS, NORM_HEADS, ROTATE_PAIRS};
use crate::vulkan::pipelines::Binding;
use half::f16;
use lavalane_shaders::twins::rope_append::{Head, Pairs, head};
use lavalane_shaders::{CacheKind, Kernel, PAGE_TOKENS, Reads};
use vulkano::format::Format;

const EPSILON: f32 = 1e-6;
const QUERY_SCALE: f32 = 0.125;
/// What the buffer of lengths holds where nobody wrote.
const NO_LENGTH: u32 = u32::MAX;

/// A step's rows and what is done to their heads.
#[derive(Clone)]
struct Case {
    kind: CacheKind,
    heads: usize,
    kv_heads: usize,
    width: usize,
    rotated: usize,
    flags: u32,
    /// Of each row: position, first entry of its page table, length slot, 1 if its sequence's last.
    rows: Vec<[u32; 4]>,
    /// All sequences' tables.
    tables: Vec<u32>,
    /// Rows repeat after so many.
    different: usize,
}

/// What the kernel gave.
struct Given {
    /// `[row][head][width]`
    queries: Vec<f32>,
    cache: Cache,
    lengths: Vec<u32>,
}

impl Case {
    /// Two sequences: three rows that cross into a second page, and one row alone.
    fn new(kind: CacheKind, heads: usize, kv_heads: usize, width: usize) -> Self {
        let rows = vec![[30, 0, 2, 0], [31, 0, 2, 0], [32, 0, 2, 1], [5, 2, 0, 1]];
        Self {
            kind,
            heads,
            kv_heads,
            width,
            rotated: width,
            flags: 0,
            rows,
            tables: vec![4, 1, 3],
            different: 4,
        }
    }

    fn joint_heads(&self) -> usize {
        self.heads + 2 * self.kv_heads
    }

    fn source(&self) -> Vec<Vec<f32>> {
        let different = Random::new(11).rows(self.different, self.joint_heads() * self.width);
        different.into_iter().cycle().take(self.rows.len()).collect()
    }

    fn bias(&self) -> Vec<f32> {
        Random::new(12).values(self.joint_heads() * self.width, 1.0)
    }

    fn head_norm(&self) -> Vec<f32> {
        Random::new(13).values(2 * self.width, 2.0)
    }

    fn angles(&self) -> Vec<Vec<[f32; 2]>> {
        let mut random = Random::new(14);
        let mut angle = || 9.0 * random.value();
        let mut row =
            || (0..self.rotated / 2).map(|_| angle()).map(|angle| [angle.cos(), angle.sin()]).collect();
        let different: Vec<Vec<[f32; 2]>> = (0..self.different).map(|_| row()).collect();
        different.into_iter().cycle().take(self.rows.len()).collect()
    }

    fn place(&self, row: usize, kv_head: usize) -> TokenPlace {
        let [position, table, ..] = self.rows[row].map(|word| word as usize);
        let page = self.tables[table + position / PAGE_TOKENS] as usize;
        TokenPlace { page, kv_head, token: position % PAGE_TOKENS }
    }

    fn run(&self, bench: &mut Bench) -> Given {
        let pages = *self.tables.iter().max().unwrap() as usize + 2;
        let mut cache = Cache::new(self.kind, self.kv_heads, self.width, pages);
        let query_values = self.rows.len() * self.heads * self.width;
        // Another layer's angles come first.
        let angles = [vec![[f32::NAN; 2]; 4], self.angles().concat()].concat();
        let [source, bias, head_norm] =
            [self.source().concat(), self.bias(), self.head_norm()].map(|values| bench.filled(&values));
        let (rows, tables) = (bench.filled(&self.rows), bench.filled(&self.tables));
        let (keys, values) = (bench.filled(&cache.keys), bench.filled(&cache.values));
        let queries = bench.garbage(query_values * 4);
        let lengths = bench.filled(&[NO_LENGTH; 4]);
        let angles = bench.filled(&angles);
        let floats = [EPSILON.to_bits(), QUERY_SCALE.to_bits()];
        let sizes = [self.heads as u32, self.kv_heads as u32, self.rotated as u32];
        if bench.reads() == Reads::Texels {
            for (part, heads) in [self.heads, self.kv_heads, self.kv_heads].into_iter().enumerate() {
                let cached = if part == 2 { &values } else { &keys };
                let bindings = [
                    (0, bench.floats(&source)),
                    (1, bench.floats(&bias)),
                    (2, bench.floats(&head_norm)),
                    (3, bench.floats(&angles)),
                    (4, bench.texels(&rows, Format::R32G32B32A32_UINT)),
                    (5, bench.texels(&tables, Format::R32_UINT)),
                    (6, Binding::Storage(queries.clone())),
                    (7, Binding::Storage(cached.clone())),
                    (9, Binding::Storage(lengths.clone())),
                ];
                let push = [sizes[0], sizes[1], floats[0], floats[1], 4];
                let lanes = bench.member().lanes();
                let constants =
                    [lanes, self.width, part, self.flags as usize, self.rotated].map(|value| value as u32);
                let constants: Vec<(u32, u32)> = (0..).zip(constants).collect();
                let groups = [self.rows.len(), heads, 1];
                bench.dispatch(Kernel::RopeAppendCpu(self.kind), &constants, &bindings, push, groups);
            }
        } else {
            let bindings = storage(&[
                &source, &bias, &head_norm, &angles, &rows, &tables, &queries, &keys, &values, &lengths,
            ]);
            let push = [sizes[0], sizes[1], sizes[2], self.flags, floats[0], floats[1], 4];
            let constants = [(0, bench.member().lanes() as u32), (1, self.width as u32)];
            let groups = [self.rows.len(), self.joint_heads(), 1];
            bench.dispatch(Kernel::RopeAppend(self.kind), &constants, &bindings, push, groups);
        }
        cache.keys = read(&keys, cache.keys.len()).unwrap();
        cache.values = read(&values, cache.values.len()).unwrap();
        let queries = read(&queries, query_values).unwrap();
        Given { queries, cache, lengths: bits(&lengths, 4) }
    }

    /// What the twin makes of head `index` (queries, keys, then values) of a row.
    fn twin(&self, bench: &Bench, row: usize, index: usize) -> Vec<f32> {
        let own = index * self.width..(index + 1) * self.width;
        let is_value = index >= self.heads + self.kv_heads;
        let (bias, head_norm, angles) = (self.bias(), self.head_norm(), self.angles());
        let weight = if index < self.heads { &head_norm[..self.width] } else { &head_norm[self.width..] };
        let pairs = match self.flags & ROTATE_PAIRS {
            0 => Pairs::Split,
            _ => Pairs::Interleaved,
        };
        let settings = Head {
            lanes: bench.member().lanes(),
            run: if bench.reads() == Reads::Texels { 4 } else { 1 },
            bias: (self.flags & ADD_BIAS != 0).then_some(&bias[own.clone()]),
            norm: (self.flags & NORM_HEADS != 0 && !is_value).then_some((weight, EPSILON)),
            rotation: (!is_value).then_some((pairs, &angles[row])),
        };
        head(&self.source()[row][own], &settings)
    }
}

/// Runs a case, and compares every query, key and value with the twin's; all else must be untouched.
fn check(case: &Case) {
    Bench::for_each_pack(|bench| {
        let mut given = case.run(bench);
        let mut lengths = vec![NO_LENGTH; 4];
        for (row, &[position, _, slot, last]) in case.rows.iter().enumerate() {
            if last == 1 {
                lengths[slot as usize] = position + 1;
            }
            let what = format!("{:?}, {:?}, row {row}, flags {}", bench.member().pack, case.kind, case.flags);
            // Square roots and quotients may round; sums and products may not.
            let normed = case.flags & NORM_HEADS != 0;
            let near = |found: &[f32], twin: &[f32], what: &str, half: bool| {
                let largest = twin.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
                for (found, twin) in found.iter().zip(twin) {
                    let mut tolerance = if normed { 10.0 * f32::EPSILON * largest } else { 0.0 };
                    if half {
                        // Vulkan leaves open in which direction float16 is rounded.
                        tolerance += half_step(*twin);
                    }
                    assert_near(*found, *twin, tolerance, what);
                }
            };
            for head in 0..case.heads {
                let at = (row * case.heads + head) * case.width;
                let twin: Vec<f32> =
                    case.twin(bench, row, head).iter().map(|value| value * QUERY_SCALE).collect();
                near(&given.queries[at..at + case.width], &twin, &format!("{what}, query {head}"), false);
            }
            for kv_head in 0..case.kv_heads {
                let (key, value) = given.cache.take(case.place(row, kv_head));
                let half = case.kind == CacheKind::Float16;
                let twin = case.twin(bench, row, case.heads + kv_head);
                near(&key, &twin, &format!("{what}, key {kv_head}"), half);
                let twin = case.twin(bench, row, case.heads + case.kv_heads + kv_head);
                near(&value, &twin, &format!("{what}, value {kv_head}"), half);
            }
        }
        assert!(given.cache.is_garbage(), "nothing but the rows' own places is written");
        assert_eq!(given.lengths, lengths, "the lengths of sequences that had their last row, and no others");
    });
}

/// From a number's float16 neighbour below to the one above, at most.
fn half_step(value: f32) -> f32 {
    let below = f16::from_f32(value.abs());
    f16::from_bits(below.to_bits() + 1).to_f32() - below.to_f32()
}

/// The bits of each row's query, key and value, rows repeating after 7.
pub(super) fn appended_bits(bench: &mut Bench, rows: usize) -> Vec<Vec<u32>> {
    let last = rows - 1;
    let case = Case {
        rows: (0..rows).map(|row| [row as u32, 0, 1, u32::from(row == last)]).collect(),
        tables: (0..16).map(|entry| 17 - entry).collect(),
        flags: ADD_BIAS | NORM_HEADS,
        different: DIFFERENT_ROWS,
        ..Case::new(CacheKind::Float16, 2, 1, 64)
    };
    let mut given = case.run(bench);
    assert_eq!(given.lengths, [NO_LENGTH, rows as u32, NO_LENGTH, NO_LENGTH]);
    let queries = given.queries.chunks_exact(2 * 64).map(<[f32]>::to_vec).collect::<Vec<_>>();
    let row_bits = |(row, query): (usize, Vec<f32>)| {
        let (key, value) = given.cache.take(case.place(row, 0));
        [query, key, value].concat().into_iter().map(f32::to_bits).collect()
    };
    queries.into_iter().enumerate().map(row_bits).collect()
}

#[test]
fn heads_are_rotated_in_halves_or_in_pairs_whole_or_in_part() {
    for kind in [CacheKind::Float16, CacheKind::Float32] {
        for flags in [0, ROTATE_PAIRS] {
            for (width, rotated) in [(64, 64), (64, 32), (80, 80), (96, 0), (256, 256)] {
                check(&Case { flags, rotated, ..Case::new(kind, 3, 1, width) });
            }
        }
    }
}

#[test]
fn a_bias_is_added_to_queries_keys_and_values() {
    for kind in [CacheKind::Float16, CacheKind::Float32] {
        check(&Case { flags: ADD_BIAS, ..Case::new(kind, 14, 2, 64) });
    }
}

#[test]
fn queries_and_keys_are_normalised_by_their_own_weights_and_values_are_not() {
    for kind in [CacheKind::Float16, CacheKind::Float32] {
        for flags in [NORM_HEADS, NORM_HEADS | ADD_BIAS | ROTATE_PAIRS] {
            check(&Case { flags, rotated: 32, ..Case::new(kind, 4, 2, 64) });
            check(&Case { flags, ..Case::new(kind, 4, 1, 256) });
        }
    }
}
