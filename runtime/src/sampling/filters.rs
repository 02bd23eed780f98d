//! From adjusted logits and a number in `[0, 1)` to one token: temperature, the truncating filters, and
//! the draw itself.
//!
//! A vocabulary may hold a quarter of a million tokens and this runs for each token drawn, so the whole
//! of it is never sorted: top-k keeps a short buffer, and top-p and typical search for the last token they
//! keep by halves. Each comparison is a total order (ties go to the lower id) and candidates are drawn
//! from in the order of their ids, so that the result is a function of the arguments.

use super::settings::SamplingOptions;
use super::softmax::{Best, exp_nonpositive, ordered_sum};
use crate::ids::TokenId;
use std::cmp::Ordering;

/// How many logits are summed at a time when nothing is truncated.
const BLOCK: usize = 1024;
/// How many candidates are sorted rather than halved in search of a mass.
const SORTED_AT_ONCE: usize = 64;

/// A token that may yet be drawn.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: u32,
    logit: f32,
    /// Its probability relative to the best token's, at this temperature.
    weight: f32,
    /// What the current filter sorts by, least first.
    rank: f32,
}

impl Candidate {
    fn order(&self, other: &Self) -> Ordering {
        self.rank.total_cmp(&other.rank).then(self.token.cmp(&other.token))
    }
}

/// Chooses a token from the distribution that temperature and filters make of `logits`, by the random
/// `number` in `[0, 1)`. `best` is the logits' best entry; the temperature is above 0.
pub(super) fn choose(logits: &[f32], best: Best, options: &SamplingOptions, number: f64) -> TokenId {
    let scaled = |logit: f32| (logit - best.logit) / options.temperature;
    let keeps_all_likely = options.min_p == 0.0 && options.top_p == 1.0 && options.typical_p == 1.0;
    let keeps_all_ranks = options.top_k == 0 || options.top_k as usize >= logits.len();
    if keeps_all_likely && keeps_all_ranks {
        return choose_from_all(logits, |logit| exp_nonpositive(scaled(logit)), number);
    }
    let candidate = |(token, logit): (TokenId, f32)| {
        let weight = exp_nonpositive(scaled(logit));
        let candidate = Candidate { token: token.0, logit, weight, rank: rank(logit) };
        (weight > 0.0 && weight >= options.min_p).then_some(candidate)
    };
    // Min-p keeps the best down to some weight and top-k the best down to some rank, so that their order
    // does not matter; top-k first spares the exponentials.
    let mut candidates: Vec<Candidate> = if keeps_all_ranks {
        let tokens = (0_u32..).map(TokenId);
        tokens.zip(logits.iter().copied()).filter_map(candidate).collect()
    } else {
        let mut kept = greatest(logits, options.top_k as usize);
        kept.sort_unstable_by_key(|&(token, _)| token);
        kept.into_iter().filter_map(candidate).collect()
    };
    if options.typical_p < 1.0 {
        keep_typical(&mut candidates, scaled, f64::from(options.typical_p));
    }
    if options.top_p < 1.0 {
        keep_nucleus(&mut candidates, f64::from(options.top_p));
    }
    choose_from(&candidates, number * total(&candidates))
}

/// The `count` greatest logits with their tokens, best first, the lower id first among equals; all where
/// there are fewer.
pub(super) fn greatest(logits: &[f32], count: usize) -> Vec<(TokenId, f32)> {
    let order = |one: &(TokenId, f32), other: &(TokenId, f32)| {
        rank(one.1).total_cmp(&rank(other.1)).then(one.0.cmp(&other.0))
    };
    let count = count.min(logits.len());
    let mut kept: Vec<(TokenId, f32)> = Vec::with_capacity(2 * count);
    // Once `count` are known, what is no greater than the least of them is out: it comes later, so its
    // id is the higher.
    let mut limit = None;
    for (token, &logit) in (0_u32..).map(TokenId).zip(logits) {
        if limit.is_some_and(|limit| logit <= limit) {
            continue;
        }
        kept.push((token, logit));
        if count > 0 && kept.len() == 2 * count {
            let (_, least, _) = kept.select_nth_unstable_by(count - 1, order);
            limit = Some(least.1);
            kept.truncate(count);
        }
    }
    kept.sort_unstable_by(order);
    kept.truncate(count);
    kept
}

/// The rank of the greatest logit is the least. Adding 0 turns -0 into 0, which a total order tells apart.
fn rank(logit: f32) -> f32 {
    -logit + 0.0
}

/// Locally typical sampling: ranks by how far a token's surprise is from the expected one.
fn keep_typical(candidates: &mut Vec<Candidate>, scaled: impl Fn(f32) -> f32, mass: f64) {
    let sum = total(candidates);
    // A surprise is ln(sum) - scaled; the logarithm is in the expected one too, and falls away.
    let weighted: f64 = candidates.iter().map(|c| f64::from(c.weight) * f64::from(scaled(c.logit))).sum();
    let expected = weighted / sum;
    for candidate in candidates.iter_mut() {
        candidate.rank = (f64::from(scaled(candidate.logit)) - expected).abs() as f32;
    }
    keep_mass(candidates, mass * sum);
}

/// Top-p: the fewest best candidates that together have the fraction `mass` of the probability.
fn keep_nucleus(candidates: &mut Vec<Candidate>, mass: f64) {
    let sum = total(candidates);
    // Candidates below this weight hold less than the fraction that may go, all together, so that none
    // of them is needed: this spares most of the vocabulary the search.
    let needless = (1.0 - mass) * sum / candidates.len() as f64;
    candidates.retain(|candidate| f64::from(candidate.weight) >= needless);
    for candidate in candidates.iter_mut() {
        candidate.rank = rank(candidate.logit);
    }
    keep_mass(candidates, mass * sum);
}

/// Keeps the first by rank whose weights together reach `mass`, in the order in which they stood; at least
/// one, and all where they do not reach it.
///
/// A search by halves, each made by a partial selection, so that it takes time in the number of
/// candidates and not that of a sort.
fn keep_mass(candidates: &mut Vec<Candidate>, mass: f64) {
    let mut searched = candidates.clone();
    let (mut rest, mut reached) = (searched.as_mut_slice(), 0.0);
    while rest.len() > SORTED_AT_ONCE {
        let half = rest.len() / 2;
        rest.select_nth_unstable_by(half, Candidate::order);
        let (first, second) = rest.split_at_mut(half);
        let first_weight = total(first);
        if reached + first_weight >= mass {
            rest = first;
        } else {
            reached += first_weight;
            rest = second;
        }
    }
    rest.sort_unstable_by(Candidate::order);
    let last = rest.iter().find(|candidate| {
        reached += f64::from(candidate.weight);
        reached >= mass
    });
    if let Some(last) = last {
        candidates.retain(|candidate| candidate.order(last).is_le());
    }
}

fn total(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| f64::from(candidate.weight)).sum()
}

/// The candidate at which the running sum of weights passes `target`; the last where rounding lets none.
fn choose_from(candidates: &[Candidate], target: f64) -> TokenId {
    let mut reached = 0.0;
    let passes = candidates.iter().find(|candidate| {
        reached += f64::from(candidate.weight);
        reached > target
    });
    let last = candidates.last().expect("every filter leaves a candidate");
    TokenId(passes.unwrap_or(last).token)
}

/// A draw from the whole vocabulary: first the block, by the blocks' sums, then the token in it.
fn choose_from_all(logits: &[f32], weight: impl Fn(f32) -> f32, number: f64) -> TokenId {
    let sums: Vec<f64> =
        logits.chunks(BLOCK).map(|block| ordered_sum(block, |logit| f64::from(weight(logit)))).collect();
    let target = number * sums.iter().sum::<f64>();
    let mut before = 0.0;
    let mut chosen = (0, 0.0);
    for (block, &sum) in sums.iter().enumerate().filter(|&(_, &sum)| sum > 0.0) {
        chosen = (block, target - before);
        before += sum;
        if before > target {
            break;
        }
    }
    let start = chosen.0 * BLOCK;
    let mut reached = 0.0;
    let mut token = start;
    for (index, &logit) in logits[start..].iter().take(BLOCK).enumerate() {
        let weight = f64::from(weight(logit));
        if weight > 0.0 {
            token = start + index;
            reached += weight;
            if reached > chosen.1 {
                break;
            }
        }
    }
    TokenId(token as u32)
}

#[cfg(test)]
mod tests {
    use super::super::softmax::best;
    use super::*;
    use proptest::prelude::*;

    /// What [`choose`] draws from, made plainly: every filter by a full sort in f64.
    fn plain_distribution(logits: &[f32], options: &SamplingOptions) -> Vec<f64> {
        let temperature = f64::from(options.temperature);
        let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut p: Vec<f64> =
            logits.iter().map(|&l| ((f64::from(l) - f64::from(greatest)) / temperature).exp()).collect();
        let keep = |p: &mut Vec<f64>, kept: &dyn Fn(usize) -> bool| {
            for (token, p) in p.iter_mut().enumerate() {
                *p = if kept(token) { *p } else { 0.0 };
            }
            let sum: f64 = p.iter().sum();
            p.iter_mut().for_each(|p| *p /= sum);
        };
        let relative = p.clone();
        keep(&mut p, &|token| relative[token] >= f64::from(options.min_p));
        let by_logit = |p: &[f64]| {
            let mut tokens: Vec<usize> = (0..p.len()).filter(|&token| p[token] > 0.0).collect();
            tokens.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).expect("no NaN").then(a.cmp(&b)));
            tokens
        };
        let first_with_mass = |p: &[f64], tokens: &[usize], mass: f32| {
            let mut reached = 0.0;
            let count = tokens.iter().take_while(|&&token| {
                let more = reached < f64::from(mass);
                reached += p[token];
                more
            });
            count.copied().collect::<Vec<usize>>()
        };
        if options.top_k > 0 {
            let tokens: Vec<usize> = by_logit(&p).into_iter().take(options.top_k as usize).collect();
            keep(&mut p, &|token| tokens.contains(&token));
        }
        if options.typical_p < 1.0 {
            let entropy: f64 = p.iter().filter(|&&p| p > 0.0).map(|p| -p * p.ln()).sum();
            let mut tokens = by_logit(&p);
            let distance = |token: usize| (-p[token].ln() - entropy).abs() as f32;
            tokens.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)).then(a.cmp(&b)));
            let tokens = first_with_mass(&p, &tokens, options.typical_p);
            keep(&mut p, &|token| tokens.contains(&token));
        }
        if options.top_p < 1.0 {
            let tokens = first_with_mass(&p, &by_logit(&p), options.top_p);
            keep(&mut p, &|token| tokens.contains(&token));
        }
        p
    }

    /// Draws at evenly spaced numbers, and compares how often each token came with its probability.
    fn check(logits: &[f32], options: &SamplingOptions) {
        let draws = 2000;
        let mut counts = vec![0.0_f64; logits.len()];
        let best = best(logits).expect("usable logits");
        for draw in 0..draws {
            let number = (f64::from(draw) + 0.5) / f64::from(draws);
            counts[choose(logits, best, options, number).index()] += 1.0;
        }
        for (token, (count, p)) in counts.iter().zip(plain_distribution(logits, options)).enumerate() {
            let expected = p * f64::from(draws);
            // Even spacing puts at most one draw too many or too few into any interval.
            assert!(
                (count - expected).abs() <= 1.01,
                "token {token} came {count} times, not {expected}: {options:?} {logits:?}"
            );
        }
    }

    fn with(change: impl FnOnce(&mut SamplingOptions)) -> SamplingOptions {
        let mut options = SamplingOptions::default();
        change(&mut options);
        options
    }

    fn drawn(logits: &[f32], options: &SamplingOptions) -> Vec<u32> {
        let best = best(logits).expect("usable logits");
        let mut tokens: Vec<u32> =
            (0..1000).map(|draw| choose(logits, best, options, f64::from(draw) / 1000.0).0).collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    #[test]
    fn each_filter_keeps_exactly_what_its_definition_says() {
        let logits = [0.5_f32, 0.2, 0.15, 0.1, 0.05].map(f32::ln);
        assert_eq!(drawn(&logits, &with(|o| o.top_k = 2)), [0, 1]);
        assert_eq!(drawn(&logits, &with(|o| o.top_k = 9)), [0, 1, 2, 3, 4]);
        assert_eq!(drawn(&logits, &with(|o| o.top_p = 0.49)), [0]);
        assert_eq!(drawn(&logits, &with(|o| o.top_p = 0.51)), [0, 1]);
        assert_eq!(drawn(&logits, &with(|o| o.top_p = 1e-30)), [0]);
        assert_eq!(drawn(&logits, &with(|o| o.min_p = 0.25)), [0, 1, 2]);
        assert_eq!(drawn(&logits, &with(|o| o.min_p = 1.0)), [0]);
        // The entropy is 1.333 nats; the surprises are 0.693, 1.609, 1.897, 2.303, 2.996.
        assert_eq!(drawn(&logits, &with(|o| o.typical_p = 0.1)), [1]);
        assert_eq!(drawn(&logits, &with(|o| o.typical_p = 0.3)), [1, 2]);
        assert_eq!(drawn(&logits, &with(|o| o.typical_p = 0.5)), [0, 1, 2]);
    }

    #[test]
    fn a_later_filter_sees_what_an_earlier_one_left_renormalised() {
        let logits = [0.5_f32, 0.2, 0.15, 0.1, 0.05].map(f32::ln);
        // Of the two that top-k leaves, the first has 0.71 of the mass.
        assert_eq!(drawn(&logits, &with(|o| (o.top_k, o.top_p) = (2, 0.7))), [0]);
        assert_eq!(drawn(&logits, &with(|o| o.top_p = 0.69)), [0, 1]);
    }

    #[test]
    fn equals_are_kept_by_the_lower_id() {
        let logits = [1.0, 2.0, 2.0, 2.0];
        assert_eq!(drawn(&logits, &with(|o| o.top_k = 2)), [1, 2]);
        assert_eq!(drawn(&logits, &with(|o| o.top_p = 0.2)), [1]);
        assert_eq!(drawn(&[0.0, -0.0], &with(|o| o.top_k = 1)), [0]);
        assert_eq!(drawn(&[-0.0, 0.0], &with(|o| o.top_k = 1)), [0]);
    }

    #[test]
    fn a_single_survivor_is_drawn_by_every_number() {
        let logits = [f32::NEG_INFINITY, 3.0, f32::NEG_INFINITY];
        let filtered = with(|o| {
            (o.top_k, o.top_p, o.min_p, o.typical_p) = (1, 0.5, 0.5, 0.5);
        });
        for options in [SamplingOptions::default(), filtered] {
            for number in [0.0, 0.5, 1.0 - f64::EPSILON / 2.0] {
                let best = best(&logits).expect("usable logits");
                assert_eq!(choose(&logits, best, &options, number), TokenId(1));
            }
        }
    }

    #[test]
    fn extreme_temperatures_and_logits_draw_what_their_limit_says() {
        let logits = [1.0, 1.5, 1.25];
        for temperature in [f32::MIN_POSITIVE, 1e-40, 1e-10, 1e-3] {
            assert_eq!(drawn(&logits, &with(|o| o.temperature = temperature)), [1]);
            assert_eq!(drawn(&logits, &with(|o| (o.temperature, o.top_p) = (temperature, 0.9))), [1]);
        }
        check(&logits, &with(|o| o.temperature = 100.0));
        check(&[f32::MAX, f32::MIN, f32::NEG_INFINITY], &with(|o| o.temperature = 100.0));
        check(&[f32::MAX; 5], &with(|o| o.typical_p = 0.5));
    }

    #[test]
    fn a_large_vocabulary_is_drawn_like_a_small_one() {
        let logits: Vec<f32> = (0..5000).map(|token: u32| (token % 7) as f32 * 3.0).collect();
        check(&logits, &SamplingOptions::default());
        check(&logits, &with(|o| o.top_k = 300));
        check(&logits, &with(|o| o.top_p = 0.5));
        check(&logits, &with(|o| o.min_p = 0.01));
    }

    #[test]
    fn the_greatest_are_in_order_and_no_more_than_there_are() {
        let logits = [1.0, 5.0, f32::NEG_INFINITY, 5.0, 3.0];
        let tokens = |count| greatest(&logits, count).into_iter().map(|(t, _)| t.0).collect::<Vec<_>>();
        assert_eq!(tokens(0), [0; 0]);
        assert_eq!(tokens(1), [1]);
        assert_eq!(tokens(3), [1, 3, 4]);
        assert_eq!(tokens(20), [1, 3, 4, 0, 2]);
    }

    fn logits() -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec(prop_oneof![8 => -8.0_f32..8.0, 1 => Just(f32::NEG_INFINITY)], 1..200)
            .prop_filter("a token must be possible", |logits| best(logits).is_some())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_draw_follows_the_plainly_made_distribution(
            logits in logits(),
            temperature in 0.3_f32..3.0,
            top_k in prop_oneof![Just(0_u32), 1_u32..250],
            top_p in prop_oneof![Just(1.0_f32), 0.05_f32..1.0],
            min_p in prop_oneof![Just(0.0_f32), 0.0_f32..0.5],
            typical_p in prop_oneof![Just(1.0_f32), 0.05_f32..1.0],
        ) {
            check(&logits, &with(|o| {
                (o.temperature, o.top_k, o.top_p, o.min_p, o.typical_p) =
                    (temperature, top_k, top_p, min_p, typical_p);
            }));
        }

        #[test]
        fn the_greatest_agree_with_a_full_sort(logits in logits(), count in 0_usize..60) {
            let mut tokens: Vec<usize> = (0..logits.len()).collect();
            tokens.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            tokens.truncate(count);
            let ours: Vec<usize> = greatest(&logits, count).iter().map(|(token, _)| token.index()).collect();
            prop_assert_eq!(ours, tokens);
        }
    }
}
