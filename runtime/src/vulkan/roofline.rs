//! What a device does at the most, measured: the ceilings of its kernels. Software devices compute with this machine's
//! cores, and theirs are measured here; other devices run two kernels (`ceilings.rs`).
//!
//! It lies here because the widest instructions are asked for by `unsafe` calls.

use super::ceilings;
use super::device::{DeviceChoice, Member};
use super::error::VulkanError;
use crate::cores::cores;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Bytes that are read: more than the caches of a core.
const READ_BYTES: usize = 256 << 20;
/// Words that a thread reads between two looks at the clock.
const READ_CHUNK_WORDS: usize = 1 << 17;
/// How long each of the ceilings is measured.
const TIME: Duration = Duration::from_millis(300);
/// Multiply-adds in a row of each of the sums that are computed together.
const TURNS: usize = 10_000;
/// Sums that are computed together: enough to hide a multiply-add's latency.
const SUMS: usize = 12;

/// The ceilings of a device, or of all cores together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// Bytes read from memory per second.
    pub bytes_per_second: f64,
    /// f32 multiplications and additions per second, fused.
    pub operations_per_second: f64,
}

impl Roofline {
    /// Measures the ceilings of the chosen device, for a second or so.
    ///
    /// # Errors
    /// No such device, or its refusal.
    pub fn of(choice: &DeviceChoice) -> Result<Self, VulkanError> {
        let member = Member::open(choice)?;
        if member.is_software() { Ok(Self::of_cores()) } else { ceilings::measure(member) }
    }

    /// Measures the ceilings of all cores together, for about half a second.
    pub fn of_cores() -> Self {
        let threads = cores();
        let words = vec![1u64; READ_BYTES / 8];
        let mut shares = words.chunks(words.len().div_ceil(threads));
        let bytes_per_second = on_threads(threads, || {
            let share = shares.next().unwrap_or(&[]);
            let mut chunks = share.chunks(READ_CHUNK_WORDS).cycle();
            move || chunks.next().map_or(0.0, |chunk| read(chunk) as f64)
        });
        let operations_per_second = on_threads(threads, || || multiply_add() as f64);
        Self { bytes_per_second, operations_per_second }
    }

    /// The least seconds that reading so many bytes and computing so many operations takes.
    pub fn seconds(&self, bytes: f64, operations: f64) -> f64 {
        (bytes / self.bytes_per_second).max(operations / self.operations_per_second)
    }
}

/// What `threads` threads do per second together, each with work of its own that tells how much it did.
fn on_threads<W: FnMut() -> f64 + Send>(threads: usize, mut work: impl FnMut() -> W) -> f64 {
    let works: Vec<W> = (0..threads).map(|_| work()).collect();
    std::thread::scope(|scope| {
        let run = |mut work: W| {
            move || {
                let start = Instant::now();
                let mut done = 0.0;
                while start.elapsed() < TIME {
                    done += work();
                }
                done / start.elapsed().as_secs_f64()
            }
        };
        let threads: Vec<_> = works.into_iter().map(|work| scope.spawn(run(work))).collect();
        threads.into_iter().map(|thread| thread.join().expect("measuring does not panic")).sum()
    })
}

/// Reads all words and tells how many bytes they are.
fn read(words: &[u64]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: this processor has what the function asks for.
        black_box(unsafe { sum_avx2(words) });
        return size_of_val(words);
    }
    black_box(sum(words));
    size_of_val(words)
}

#[inline(always)]
fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum ^ word)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(words: &[u64]) -> u64 {
    sum(words)
}

/// Computes for a while and tells how many operations it did, with the widest instructions there are.
fn multiply_add() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_set1_ps, _mm512_fmadd_ps, _mm512_set1_ps};
        #[target_feature(enable = "avx512f")]
        fn avx512() -> usize {
            let factor = _mm512_set1_ps(black_box(0.5));
            turn([_mm512_set1_ps(black_box(1.0)); SUMS], |sum| _mm512_fmadd_ps(sum, factor, factor))
        }
        #[target_feature(enable = "avx,fma")]
        fn avx2() -> usize {
            let factor = _mm256_set1_ps(black_box(0.5));
            turn([_mm256_set1_ps(black_box(1.0)); SUMS], |sum| _mm256_fmadd_ps(sum, factor, factor))
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: this processor has what the function asks for.
            return unsafe { avx512() };
        }
        if is_x86_feature_detected!("avx") && is_x86_feature_detected!("fma") {
            // SAFETY: as above.
            return unsafe { avx2() };
        }
    }
    let factor = black_box(0.5f32);
    turn([[black_box(1.0f32); 4]; SUMS], |sum| sum.map(|value| value * factor + factor))
}

#[inline(always)]
fn turn<V: Copy>(mut sums: [V; SUMS], step: impl Fn(V) -> V) -> usize {
    for _ in 0..TURNS {
        for sum in &mut sums {
            *sum = step(*sum);
        }
    }
    black_box(sums);
    2 * TURNS * SUMS * (size_of::<V>() / size_of::<f32>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_of_both_ceilings_counts() {
        let roofline = Roofline { bytes_per_second: 10.0, operations_per_second: 100.0 };
        assert_eq!(roofline.seconds(20.0, 100.0), 2.0);
        assert_eq!(roofline.seconds(20.0, 400.0), 4.0);
    }

    #[test]
    fn what_is_read_and_computed_is_told() {
        assert_eq!(read(&[1; 10]), 80);
        assert!(multiply_add() >= 2 * TURNS * SUMS * 4);
    }
}
