//! The attention kernels, over caches that hold NaN wherever a row must not look.

use super::bench::{Bench, assert_near, bits, check_codes, storage};
use super::cache::{Cache, TokenPlace};
use super::norm::activation_bits;
use super::same_bits::DIFFERENT_ROWS;
use super::sources::Random;
use crate::vulkan::build::queries_per_workgroup;
use crate::vulkan::device::Pack;
use crate::vulkan::forward::STORE_FLOAT;
use crate::vulkan::matrix::Activations;
use crate::vulkan::pipelines::Binding;
use lavalane_shaders::twins::attention_subgroup::Sequence;
use lavalane_shaders::twins::{attention_cpu, attention_subgroup};
use lavalane_shaders::{CacheKind, Kernel, PAGE_TOKENS};
use vulkano::format::Format;

/// Pages of one sequence's table.
const TABLE: usize = 4;

/// How far the result may be off, in proportion to the largest value: each weight is two calls of `exp`,
/// for which Vulkan allows 3 + 2 |x| units in the last place, with |x| up to about 30 here.
const TOLERANCE: f32 = 1e-5;

/// Rows that attend, each over its own sequence.
#[derive(Clone)]
struct Case {
    kind: CacheKind,
    width: usize,
    kv_heads: usize,
    queries_per_kv: usize,
    window: Option<usize>,
    /// Of each row: its sequence, its position.
    rows: Vec<(usize, usize)>,
    /// How many tokens each sequence has; all else in the cache is NaN.
    lengths: Vec<usize>,
    /// Rows of a tile, where the kernel takes tiles: rows that follow each other are then of one sequence.
    tile_rows: usize,
}

impl Case {
    /// A sequence for each of these positions, which ends with the row.
    fn new(kind: CacheKind, width: usize, kv_heads: usize, queries_per_kv: usize) -> Self {
        let positions = [0, 1, 31, 32, 100];
        Self {
            kind,
            width,
            kv_heads,
            queries_per_kv,
            window: None,
            rows: positions.into_iter().enumerate().collect(),
            lengths: positions.map(|position| position + 1).to_vec(),
            tile_rows: 1,
        }
    }

    /// Two sequences, each with 4 rows at positions that follow each other from these on.
    fn tiled(kind: CacheKind, width: usize, queries_per_kv: usize, from: [usize; 2]) -> Self {
        let rows = (0..8).map(|row| (row / 4, from[row / 4] + row % 4)).collect();
        let lengths = from.map(|from| from + 4).to_vec();
        Self { rows, lengths, ..Self::new(kind, width, 2, queries_per_kv) }
    }

    fn heads(&self) -> usize {
        self.kv_heads * self.queries_per_kv
    }

    /// A row's query for each head.
    fn query(&self, (sequence, position): (usize, usize)) -> Vec<f32> {
        Random::new((100 + sequence * 1000 + position) as u64).values(self.heads() * self.width, 1.5)
    }

    /// Keys or values of a sequence for one KV head, as the cache keeps them.
    fn tokens(&self, cache: &Cache, sequence: usize, kv_head: usize, seed: u64) -> Vec<Vec<f32>> {
        let mut random = Random::new(seed + (sequence * 16 + kv_head) as u64);
        let mut token =
            || random.values(self.width, 2.0).into_iter().map(|value| cache.rounded(value)).collect();
        (0..TABLE * PAGE_TOKENS).map(|_| token()).collect()
    }

    /// Pages lie backwards, so that no sequence's are in order, and page 0 belongs to nobody.
    fn page(&self, sequence: usize, entry: usize) -> usize {
        self.lengths.len() * TABLE - (sequence * TABLE + entry)
    }

    fn cache(&self) -> Cache {
        let pages = self.lengths.len() * TABLE + 1;
        let mut cache = Cache::new(self.kind, self.kv_heads, self.width, pages);
        for (sequence, &length) in self.lengths.iter().enumerate() {
            for kv_head in 0..self.kv_heads {
                let keys = self.tokens(&cache, sequence, kv_head, 1000);
                let values = self.tokens(&cache, sequence, kv_head, 2000);
                for token in 0..length {
                    let page = self.page(sequence, token / PAGE_TOKENS);
                    let place = TokenPlace { page, kv_head, token: token % PAGE_TOKENS };
                    cache.put(place, &keys[token], &values[token]);
                }
            }
        }
        cache
    }

    fn on_texels(&self, pack: Pack) -> bool {
        pack == Pack::Cpu && self.width.is_multiple_of(64)
    }

    /// The bits of each row's result, and behind them those of its codes where the kernel stores some.
    fn run(&self, bench: &mut Bench) -> Vec<Vec<u32>> {
        let cache = self.cache();
        let queries: Vec<f32> = self.rows.iter().flat_map(|&row| self.query(row)).collect();
        let infos: Vec<[u32; 4]> = self
            .rows
            .iter()
            .map(|&(sequence, position)| [position as u32, (sequence * TABLE) as u32, 0, 0])
            .collect();
        // Entries that no row may look at lead to the page of nobody.
        let entry = |sequence: usize, entry: usize| {
            let used = entry * PAGE_TOKENS < self.lengths[sequence];
            if used { self.page(sequence, entry) as u32 } else { 0 }
        };
        let tables: Vec<u32> = (0..self.lengths.len())
            .flat_map(|sequence| (0..TABLE).map(move |index| (sequence, index)))
            .map(|(sequence, index)| entry(sequence, index))
            .collect();
        let result_values = self.heads() * self.width;
        let read_only = [bench.filled(&queries), bench.filled(&cache.keys), bench.filled(&cache.values)];
        let on_texels = self.on_texels(bench.member().pack);
        let formats = [Format::R32G32B32A32_SFLOAT, Format::R32G32B32A32_UINT, Format::R32G32B32A32_UINT];
        let mut bindings: Vec<(u32, Binding)> = (0..)
            .zip(read_only.iter().zip(formats))
            .map(|(number, (buffer, format))| match on_texels {
                true => (number, Binding::Texels(bench.member().view(buffer, format).unwrap())),
                false => (number, Binding::Storage(buffer.clone())),
            })
            .collect();
        bindings.push((3, Binding::Storage(bench.filled(&infos))));
        let tables = bench.filled(&tables);
        bindings.push((
            4,
            match on_texels {
                true => bench.texels(&tables, Format::R32_UINT),
                false => Binding::Storage(tables),
            },
        ));
        let window = self.window.unwrap_or(0);
        let (heads, width) = (self.heads(), self.width as u32);
        if on_texels {
            let activations = bench.activations(self.rows.len(), result_values);
            let Activations { codes, scales, values } = &activations;
            let stored = storage(&[codes.first(), scales.first(), values.first()]);
            bindings.extend(stored.into_iter().map(|(number, binding)| (number + 6, binding)));
            let first_rows: Vec<u32> = (0..self.rows.len() as u32).step_by(self.tile_rows).collect();
            bindings.push((5, Binding::Storage(bench.filled(&first_rows))));
            let queries = queries_per_workgroup(self.queries_per_kv, self.width);
            let lanes = bench.member().lanes() as u32;
            let flags = bench.codes().flag | STORE_FLOAT;
            let constants = [lanes, width, queries as u32, self.tile_rows as u32, flags];
            let constants: Vec<(u32, u32)> = (0..).zip(constants).collect();
            let push = [heads, self.kv_heads, window, 0].map(|word| word as u32);
            let groups = [first_rows.len(), heads / queries, 1];
            bench.dispatch(Kernel::AttentionCpu(self.kind), &constants, &bindings, push, groups);
            let row_bits = |row| {
                check_codes(&activations, bench.codes(), row, result_values, "attention");
                activation_bits(&activations, bench.codes(), row, result_values)
            };
            (0..self.rows.len()).map(row_bits).collect()
        } else {
            let result = bench.garbage(self.rows.len() * result_values * 4);
            bindings.push((5, Binding::Storage(result.clone())));
            let push = [heads, self.kv_heads, window].map(|word| word as u32);
            let groups = [self.rows.len(), heads, 1];
            bench.dispatch(Kernel::AttentionSubgroup(self.kind), &[(1, width)], &bindings, push, groups);
            let all = bits(&result, self.rows.len() * result_values);
            all.chunks_exact(result_values).map(<[u32]>::to_vec).collect()
        }
    }
}

/// Compares every row with the twin, and the twin with a softmax in f64.
fn check(case: &Case) {
    Bench::for_each_pack(|bench| {
        let found = case.run(bench);
        let cache = case.cache();
        let on_texels = case.on_texels(bench.member().pack);
        for (row, &(sequence, position)) in case.rows.iter().enumerate() {
            for head in 0..case.heads() {
                let what = format!(
                    "{:?}, {:?}, width {}, {} heads of {}, window {:?}, position {position}",
                    bench.member().pack,
                    case.kind,
                    case.width,
                    head,
                    case.queries_per_kv,
                    case.window
                );
                let kv_head = head / case.queries_per_kv;
                let keys = case.tokens(&cache, sequence, kv_head, 1000);
                let values = case.tokens(&cache, sequence, kv_head, 2000);
                let (key, value) =
                    (|token: usize| keys[token].as_slice(), |token: usize| values[token].as_slice());
                let seen = Sequence { position, window: case.window, key: &key, value: &value };
                let at = head * case.width..(head + 1) * case.width;
                let query = &case.query((sequence, position))[at.clone()];
                let twin = match on_texels {
                    true => attention_cpu::attention(query, &seen, bench.member().lanes()),
                    false => attention_subgroup::attention(query, &seen),
                };
                for ((found, twin), exact) in found[row][at].iter().zip(&twin).zip(exact(query, &seen)) {
                    assert_near(f32::from_bits(*found), *twin, TOLERANCE * 2.0, &what);
                    assert_near(*twin, exact as f32, TOLERANCE * 2.0, &what);
                }
            }
        }
    });
}

/// Softmax attention, written plainly.
fn exact(query: &[f32], seen: &Sequence<'_>) -> Vec<f64> {
    let visible = seen.start()..=seen.position;
    let dot = |key: &[f32]| key.iter().zip(query).map(|(&k, &q)| f64::from(k) * f64::from(q)).sum::<f64>();
    let scores: Vec<f64> = visible.clone().map(|token| dot((seen.key)(token))).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let place = |place: usize| {
        let values = visible.clone().zip(&weights);
        values.map(|(token, weight)| weight * f64::from((seen.value)(token)[place])).sum::<f64>() / total
    };
    (0..query.len()).map(place).collect()
}

/// The bits of each row's result, rows repeating after 7.
pub(super) fn attended_bits(bench: &mut Bench, rows: usize) -> Vec<Vec<u32>> {
    let positions = [70, 3, 31, 32, 64, 99, 0];
    assert_eq!(positions.len(), DIFFERENT_ROWS);
    let case = Case {
        lengths: positions.map(|position| position + 1).to_vec(),
        rows: positions.into_iter().enumerate().cycle().take(rows).collect(),
        window: Some(50),
        ..Case::new(CacheKind::Float16, 64, 1, 3)
    };
    case.run(bench)
}

#[test]
fn rows_attend_as_by_the_twin_and_by_softmax_and_no_garbage_leaks() {
    for kind in [CacheKind::Float16, CacheKind::Float32] {
        for (width, kv_heads, queries_per_kv) in
            [(64, 3, 3), (64, 2, 7), (128, 2, 1), (128, 1, 4), (256, 1, 4)]
        {
            check(&Case::new(kind, width, kv_heads, queries_per_kv));
        }
    }
}

#[test]
fn heads_that_are_no_multiple_of_64_wide_attend_too() {
    for kind in [CacheKind::Float16, CacheKind::Float32] {
        for width in [80, 96] {
            check(&Case::new(kind, width, 2, 2));
        }
    }
}

#[test]
fn a_window_hides_the_tokens_before_it() {
    for kind in [CacheKind::Float16, CacheKind::Float32] {
        for window in [1, 8, 32, 33, 90] {
            check(&Case { window: Some(window), ..Case::new(kind, 64, 1, 3) });
        }
    }
}

#[test]
fn the_rows_of_a_tile_have_the_bits_that_they_have_alone() {
    Bench::for_each_pack(|bench| {
        for (kind, width, queries_per_kv) in
            [(CacheKind::Float16, 64, 3), (CacheKind::Float32, 64, 1), (CacheKind::Float16, 128, 2)]
        {
            // From groups of tokens that a tile's rows share, and from the last place of one.
            for (from, window) in [([0, 64], None), ([5, 31], None), ([7, 39], Some(9)), ([5, 70], Some(1))] {
                let alone = Case { window, ..Case::tiled(kind, width, queries_per_kv, from) };
                for tile_rows in [2, 4] {
                    let tiled = Case { tile_rows, ..alone.clone() };
                    check(&tiled);
                    assert_eq!(
                        tiled.run(bench),
                        alone.run(bench),
                        "{tile_rows} rows from {from:?}, {window:?}"
                    );
                }
            }
        }
    });
}

#[test]
fn what_lies_beyond_a_rows_position_does_not_change_its_bits() {
    Bench::for_each_pack(|bench| {
        let ends_here = Case::new(CacheKind::Float16, 64, 1, 3);
        let goes_on = Case { lengths: vec![128; ends_here.lengths.len()], ..ends_here.clone() };
        assert_eq!(ends_here.run(bench), goes_on.run(bench));
    });
}
