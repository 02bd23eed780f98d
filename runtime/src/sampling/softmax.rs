//! Softmax with one fixed order of operations, so that the same logits always give the same bits.
//!
//! Exponentials are taken in f32 by a polynomial of our own (the standard library's differs between
//! platforms, and is not vectorised); they are summed in f64, item `i` into partial sum `i mod 8`, and
//! the eight are combined by one fixed tree. Only the one logarithm of the sum is the platform's. Wider instructions, where
//! a processor has them, do the same operations.

#![allow(unsafe_code, reason = "instructions that not every processor has")]

/// The lowest log-probability that is ever reported. Tokens that the model rules out have it; a logit
/// that is merely low keeps its true value.
pub const LOGPROB_FLOOR: f32 = -9999.0;

const LANES: usize = 8;
/// e to this, about 1.6e-38, is the last value above the smallest normal f32 that is kept.
const EXPONENT_MIN: f32 = -87.0;

/// What one look at a row of logits tells: that it is usable, and its best entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Best {
    /// The lowest index that holds the greatest logit.
    pub(super) index: usize,
    /// The greatest logit; finite.
    pub(super) logit: f32,
}

/// A function that does what `$plain` does, with vectors of 256 bits where the processor has them. All that `$plain` calls
/// must be inlined into it.
macro_rules! by_widest_vectors {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty = $plain:ident) => {
        $(#[$attribute])*
        $visibility fn $name($($argument: $kind),*) -> $result {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn with_avx2($($argument: $kind),*) -> $result {
                    $plain($($argument),*)
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: this processor has what the function asks for.
                    return unsafe { with_avx2($($argument),*) };
                }
            }
            $plain($($argument),*)
        }
    };
}

by_widest_vectors! {
    /// The best entry of `logits`; `None` where one is NaN or positive infinity, or none is finite.
    /// Negative infinity is a token that the model rules out.
    pub(super) fn best(logits: &[f32]) -> Option<Best> = best_plain
}

#[inline(always)]
fn best_plain(logits: &[f32]) -> Option<Best> {
    let mut greatest = [f32::NEG_INFINITY; LANES];
    let mut usable = [true; LANES];
    for chunk in logits.chunks(LANES) {
        for ((greatest, usable), &logit) in greatest.iter_mut().zip(&mut usable).zip(chunk) {
            *greatest = if logit > *greatest { logit } else { *greatest };
            *usable &= logit < f32::INFINITY;
        }
    }
    let logit = greatest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if usable.contains(&false) || logit == f32::NEG_INFINITY {
        return None;
    }
    let index = logits.iter().position(|&other| other == logit)?;
    Some(Best { index, logit })
}

/// The model's distribution over one row of logits, ready to be asked for log-probabilities.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogSoftmax {
    best: Best,
    /// Natural log of the sum of `exp(logit - best)`; at least 0.
    log_sum: f64,
}

impl LogSoftmax {
    /// Reads the row; `None` as for [`best`].
    pub(super) fn new(logits: &[f32]) -> Option<Self> {
        let best = best(logits)?;
        Some(Self { best, log_sum: sum_of_powers(logits, best.logit).ln() })
    }

    /// The row's best entry.
    pub(super) fn best(&self) -> Best {
        self.best
    }

    /// Natural log of the sum of `exp(logit - best)`.
    pub(super) fn log_sum(&self) -> f64 {
        self.log_sum
    }

    /// The natural-log probability of an entry with this logit: finite, at most 0, and at least
    /// [`LOGPROB_FLOOR`].
    pub(super) fn logprob(&self, logit: f32) -> f32 {
        let exact = f64::from(logit) - f64::from(self.best.logit) - self.log_sum;
        (exact as f32).clamp(LOGPROB_FLOOR, 0.0)
    }
}

/// The probabilities of one row of logits, in order; `None` where a logit is NaN or positive infinity,
/// or none is finite. The same logits give the same bits; probabilities below about 1e-38 of the best
/// one are 0.
pub fn softmax(logits: &[f32]) -> Option<Vec<f32>> {
    let best = best(logits)?;
    let sum = sum_of_powers(logits, best.logit);
    let probability = |&logit: &f32| (f64::from(exp_nonpositive(logit - best.logit)) / sum) as f32;
    Some(logits.iter().map(probability).collect())
}

by_widest_vectors! {
    /// The sum of `exp(logit - greatest)`.
    fn sum_of_powers(logits: &[f32], greatest: f32) -> f64 = sum_of_powers_plain
}

#[inline(always)]
fn sum_of_powers_plain(logits: &[f32], greatest: f32) -> f64 {
    ordered_sum(logits, |logit| f64::from(exp_nonpositive(logit - greatest)))
}

by_widest_vectors! {
    /// The sum of `exp(-d) d`, where `d` is a logit's distance below the greatest.
    pub(super) fn weighted_distances(logits: &[f32], greatest: f32) -> f64 = weighted_distances_plain
}

#[inline(always)]
fn weighted_distances_plain(logits: &[f32], greatest: f32) -> f64 {
    ordered_sum(logits, |logit| {
        let distance = logit - greatest;
        let weight = exp_nonpositive(distance);
        if weight > 0.0 { -f64::from(weight) * f64::from(distance) } else { 0.0 }
    })
}

/// The sum of `term` over `values`, in the one order that the module's head describes.
#[inline(always)]
pub(super) fn ordered_sum(values: &[f32], term: impl Fn(f32) -> f64) -> f64 {
    let mut sums = [0.0_f64; LANES];
    let mut chunks = values.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (sum, &value) in sums.iter_mut().zip(chunk) {
            *sum += term(value);
        }
    }
    for (sum, &value) in sums.iter_mut().zip(chunks.remainder()) {
        *sum += term(value);
    }
    ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]))
}

/// e to the power `x`, for `x` at most 0, to about one part in 10^7; 0 below [`EXPONENT_MIN`].
///
/// `x` is split into `n ln 2 + r` with `n` whole and `|r|` at most half of `ln 2`; e to the `r` is its
/// Taylor series, whose first term left out is below 6e-9, and 2 to the `n` is put in as an exponent.
#[inline(always)]
pub(super) fn exp_nonpositive(x: f32) -> f32 {
    /// `1.5 * 2^23`: adding it rounds to a whole number, which stands in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    /// `ln 2` in two parts; the upper has few enough bits that a product with `n` is exact.
    const LN_2_UPPER: f32 = 355.0 / 512.0;
    const LN_2_LOWER: f32 = (std::f64::consts::LN_2 - 355.0 / 512.0) as f32;
    let clamped = if x > EXPONENT_MIN { x } else { EXPONENT_MIN };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let rest = (clamped - whole * LN_2_UPPER) - whole * LN_2_LOWER;
    let mut series = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * rest + coefficient;
    }
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    let power = series * f32::from_bits(exponent << 23);
    if x < EXPONENT_MIN { 0.0 } else { power }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Compares with a plain softmax in f64.
    fn check(logits: &[f32]) {
        let ours = softmax(logits).expect("finite logits");
        let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f64> = logits.iter().map(|&l| (f64::from(l) - f64::from(greatest)).exp()).collect();
        let sum: f64 = powers.iter().sum();
        let model = LogSoftmax::new(logits).expect("finite logits");
        for ((&ours, power), &logit) in ours.iter().zip(&powers).zip(logits) {
            let exact = power / sum;
            // The distance to the best logit is rounded to f32, and its error becomes a relative one.
            let distance = f64::from(greatest) - f64::from(logit);
            let close = (1e-7 * distance + 5e-7) * exact + 1e-37;
            assert!((f64::from(ours) - exact).abs() <= close, "{ours} against {exact}");
            let logprob = (f64::from(logit) - f64::from(greatest) - sum.ln()).max(-9999.0);
            let close = 1e-6 * logprob.abs() + 1e-6;
            assert!((f64::from(model.logprob(logit)) - logprob).abs() <= close);
        }
        let total: f64 = ours.iter().map(|&p| f64::from(p)).sum();
        assert!((total - 1.0).abs() < 1e-5, "the probabilities sum to {total}");
    }

    #[test]
    fn the_exponential_is_within_one_part_in_five_million_of_the_exact_one() {
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_nonpositive(-87.5), 0.0);
        for step in 0..=870_000 {
            let x = step as f32 * -1e-4;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp_nonpositive(x)) - exact).abs() / exact;
            assert!(x < EXPONENT_MIN || error < 2e-7, "exp({x}) is off by {error}");
        }
    }

    #[test]
    fn rows_without_a_usable_distribution_are_refused_wherever_the_fault_is() {
        for fault in [f32::NAN, f32::INFINITY] {
            for place in 0..20 {
                let mut logits = vec![1.0; 20];
                logits[place] = fault;
                assert!(best(&logits).is_none() && softmax(&logits).is_none());
            }
        }
        assert!(best(&[]).is_none());
        assert!(best(&[f32::NEG_INFINITY; 9]).is_none());
    }

    #[test]
    fn the_best_entry_is_the_lowest_id_among_equals() {
        assert_eq!(best(&[1.0, 3.0, 3.0]), Some(Best { index: 1, logit: 3.0 }));
        assert_eq!(best(&[-0.0, 0.0]).map(|best| best.index), Some(0));
    }

    #[test]
    fn ruled_out_and_hopeless_tokens_have_finite_logprobs() {
        let model = LogSoftmax::new(&[0.0, f32::NEG_INFINITY, -500.0, f32::MIN]).expect("usable");
        assert_eq!(model.logprob(f32::NEG_INFINITY), LOGPROB_FLOOR);
        assert_eq!(model.logprob(f32::MIN), LOGPROB_FLOOR);
        assert_eq!(model.logprob(-500.0), -500.0);
    }

    proptest! {
        #[test]
        fn softmax_is_the_plain_one_and_sums_to_one(logits in prop::collection::vec(-60.0_f32..60.0, 1..300)) {
            check(&logits);
        }

        #[test]
        fn the_same_logits_give_the_same_bits(logits in prop::collection::vec(-1e30_f32..1e30, 1..100)) {
            let bits = |logits: &[f32]| -> Vec<u32> {
                softmax(logits).expect("finite").iter().map(|p| p.to_bits()).collect()
            };
            // A copy at another alignment must not take another order.
            let mut shifted = vec![0.0];
            shifted.extend_from_slice(&logits);
            prop_assert_eq!(bits(&logits), bits(&shifted[1..]));
        }
    }
}
