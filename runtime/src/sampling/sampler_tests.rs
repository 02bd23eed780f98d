//! What a sampler's draws promise: repeatability, the signs of the penalties, bias, and finite numbers.

use super::super::settings::SamplingOptions;
use super::super::signals::token_signals;
use super::super::softmax::{LOGPROB_FLOOR, softmax};
use super::*;
use proptest::prelude::*;

fn sampler(choice_index: u32, change: impl FnOnce(&mut SamplingOptions)) -> Sampler {
    let mut options = SamplingOptions { seed: Some(1), ..SamplingOptions::default() };
    change(&mut options);
    Sampler::new(SamplingSettings::new(options, 0).expect("valid options"), choice_index)
}

fn draw_at(sampler: &Sampler, logits: &[f32], place: usize) -> Sampled {
    sampler.draw(logits, Position::START.advance(place)).expect("usable logits")
}

fn tokens(sampler: &Sampler, logits: &[f32], draws: usize) -> Vec<u32> {
    (0..draws).map(|place| draw_at(sampler, logits, place).token.0).collect()
}

/// Asserts that the greedy token is `expected` after the prompt `[0]` and the reply `generated`.
fn check(logits: &[f32], generated: &[u32], change: impl FnOnce(&mut SamplingOptions), expected: u32) {
    let mut sampler = sampler(0, |options| {
        options.temperature = 0.0;
        change(options);
    })
    .with_prompt_tokens(1);
    sampler.accept(&[TokenId(0)]);
    sampler.accept(&generated.iter().copied().map(TokenId).collect::<Vec<_>>());
    assert_eq!(draw_at(&sampler, logits, 1 + generated.len()).token, TokenId(expected));
}

#[test]
fn greedy_takes_the_best_and_the_lowest_id_among_equals() {
    check(&[1.0, 2.0, 2.0], &[], |_| {}, 1);
    check(&[f32::NEG_INFINITY, -5.0], &[], |_| {}, 1);
    let default = Sampler::new(SamplingSettings::greedy(), 3);
    assert_eq!(draw_at(&default, &[0.0, 7.0], 0).token, TokenId(1));
}

#[test]
fn a_repetition_penalty_lowers_positive_and_negative_logits_of_prompt_and_reply() {
    check(&[2.0, 1.5], &[], |o| o.repetition_penalty = 2.0, 1);
    check(&[-1.0, -1.5], &[], |o| o.repetition_penalty = 2.0, 1);
    check(&[1.0, 1.5], &[1], |o| o.repetition_penalty = 0.5, 1);
    check(&[1.5, 2.0, 1.0], &[1], |o| o.repetition_penalty = 3.0, 2);
}

#[test]
fn the_repetition_window_forgets_older_tokens() {
    check(&[2.0, 1.5, 0.0], &[2, 2], |o| (o.repetition_penalty, o.repetition_window) = (2.0, Some(2)), 0);
    check(&[2.0, 1.5, 0.0], &[2, 2], |o| (o.repetition_penalty, o.repetition_window) = (2.0, Some(3)), 1);
}

#[test]
fn frequency_and_presence_penalties_count_the_reply_and_not_the_prompt() {
    check(&[2.0, 1.5], &[], |o| (o.frequency_penalty, o.presence_penalty) = (2.0, 2.0), 0);
    check(&[2.0, 1.5], &[0], |o| o.presence_penalty = 1.0, 1);
    check(&[2.0, 1.5], &[0, 0, 0], |o| o.presence_penalty = 0.4, 0);
    check(&[2.0, 1.5], &[0], |o| o.frequency_penalty = 0.4, 0);
    check(&[2.0, 1.5], &[0, 0], |o| o.frequency_penalty = 0.4, 1);
    check(&[2.0, 1.5], &[1], |o| o.presence_penalty = -1.0, 1);
    check(&[2.0, 1.5], &[1, 1], |o| o.frequency_penalty = -0.3, 1);
}

#[test]
fn trimming_takes_penalties_back() {
    let mut sampler = sampler(0, |o| (o.temperature, o.presence_penalty) = (0.0, 2.0));
    sampler.accept(&[TokenId(1), TokenId(0)]);
    assert_eq!(draw_at(&sampler, &[2.0, 1.0, 0.5], 2).token, TokenId(2));
    sampler.trim(1);
    assert_eq!(draw_at(&sampler, &[2.0, 1.0, 0.5], 1).token, TokenId(0));
}

#[test]
fn a_bias_is_added_and_a_hundred_forces_or_bans() {
    check(&[2.0, 1.5], &[], |o| o.logit_bias = vec![(TokenId(1), 0.6)], 1);
    check(&[2.0, 1.5], &[], |o| o.logit_bias = vec![(TokenId(1), 0.4)], 0);
    check(&[1e6, 1.5, 1.0], &[], |o| o.logit_bias = vec![(TokenId(0), -100.0)], 1);
    check(&[1e6, 0.0, f32::NEG_INFINITY], &[], |o| o.logit_bias = vec![(TokenId(2), 100.0)], 2);
    // A forced token is not talked out of it by a penalty, and out-of-vocabulary biases do nothing.
    let forced = |o: &mut SamplingOptions| {
        o.logit_bias = vec![(TokenId(0), 100.0), (TokenId(99), 100.0)];
        o.repetition_penalty = 100.0;
    };
    check(&[1.0, 1e6], &[0, 0], forced, 0);
    // Where everything is banned the model's choice stands.
    check(&[1.0, 2.0], &[], |o| o.logit_bias = vec![(TokenId(0), -100.0), (TokenId(1), -100.0)], 1);
}

#[test]
fn forced_and_banned_tokens_hold_at_any_temperature() {
    let logits = [30.0, 0.0, -30.0, 1.0];
    for temperature in [0.01, 1.0, 100.0] {
        let forced = sampler(0, |o| {
            (o.temperature, o.logit_bias) = (temperature, vec![(TokenId(2), 100.0)]);
        });
        assert!(tokens(&forced, &logits, 200).iter().all(|&token| token == 2));
        let banned = sampler(0, |o| {
            (o.temperature, o.logit_bias) = (temperature, vec![(TokenId(0), -100.0)]);
        });
        assert!(tokens(&banned, &logits, 200).iter().all(|&token| token != 0));
    }
}

#[test]
fn logprobs_are_the_models_whatever_the_settings() {
    let logits = [0.5_f32, 0.3, 0.2].map(f32::ln);
    let mut altered = sampler(0, |o| {
        (o.temperature, o.top_p, o.top_logprobs) = (0.2, 0.3, 20);
        (o.presence_penalty, o.repetition_penalty) = (1.0, 1.5);
        o.logit_bias = vec![(TokenId(2), 100.0)];
    });
    altered.accept(&[TokenId(0)]);
    let sampled = draw_at(&altered, &logits, 1);
    assert_eq!(sampled.token, TokenId(2));
    assert!((sampled.logprob - 0.2_f32.ln()).abs() < 1e-6);
    let top: Vec<u32> = sampled.top.iter().map(|(token, _)| token.0).collect();
    assert_eq!(top, [0, 1, 2]);
    assert!((sampled.top[0].1 - 0.5_f32.ln()).abs() < 1e-6);
}

#[test]
fn twenty_top_logprobs_under_a_narrow_top_p_are_finite() {
    let mut logits = vec![f32::NEG_INFINITY; 50];
    (logits[3], logits[4], logits[5]) = (80.0, -80.0, f32::MIN);
    let narrow = sampler(0, |o| (o.top_p, o.top_logprobs) = (0.3, 20));
    let sampled = draw_at(&narrow, &logits, 0);
    assert_eq!((sampled.token, sampled.top.len()), (TokenId(3), 20));
    assert_eq!(sampled.top[1], (TokenId(4), -160.0));
    assert!(sampled.top[2..].iter().all(|&(_, logprob)| logprob == LOGPROB_FLOOR));
    assert!(draw_at(&sampler(0, |_| {}), &logits, 0).top.is_empty());
}

#[test]
fn four_choices_differ_and_repeat_themselves() {
    let logits = vec![0.0; 1000];
    let all: Vec<Vec<u32>> = (0..4).map(|choice| tokens(&sampler(choice, |_| {}), &logits, 12)).collect();
    for (index, one) in all.iter().enumerate() {
        assert_eq!(*one, tokens(&sampler(index as u32, |_| {}), &logits, 12));
        assert!(all[index + 1..].iter().all(|other| other != one));
    }
    assert_ne!(all[0], tokens(&sampler(0, |o| o.seed = Some(2)), &logits, 12));
}

#[test]
fn a_repeated_step_repeats_its_draw_whatever_was_drawn_between() {
    let logits: Vec<f32> = (0..100).map(|token| (token % 10) as f32 * 0.1).collect();
    let sampler = sampler(0, |o| (o.top_p, o.min_p) = (0.9, 0.05));
    let forward = tokens(&sampler, &logits, 20);
    let backward: Vec<u32> = (0..20).rev().map(|place| draw_at(&sampler, &logits, place).token.0).collect();
    assert!(forward.iter().eq(backward.iter().rev()));
}

#[test]
fn unusable_logits_draw_nothing() {
    let random = sampler(0, |_| {});
    let greedy = Sampler::new(SamplingSettings::greedy(), 0);
    let rows: [&[f32]; 4] = [&[], &[0.0, f32::NAN], &[f32::INFINITY, 0.0], &[f32::NEG_INFINITY; 3]];
    for logits in rows {
        assert_eq!(random.draw(logits, Position::START), None);
        assert_eq!(greedy.draw(logits, Position::START), None);
        assert_eq!(greedy.draw_each(Position::START, &[TokenId(0)], &[logits.to_vec()]), None);
    }
}

#[test]
fn seeded_draws_have_the_frequencies_of_the_softmax() {
    let logits = [1.0_f32, 0.0, 2.0, -1.0, 0.5];
    let draws = 20_000;
    let mut counts = [0.0_f64; 5];
    for token in tokens(&sampler(0, |o| o.seed = Some(7)), &logits, draws) {
        counts[token as usize] += 1.0;
    }
    let probabilities = softmax(&logits).expect("usable logits");
    let distance: f64 = counts
        .iter()
        .zip(probabilities)
        .map(|(count, p)| (count - f64::from(p) * draws as f64).powi(2) / (f64::from(p) * draws as f64))
        .sum();
    // Chi-squared with 4 degrees of freedom is below this with probability 0.999.
    assert!(distance < 18.47, "chi-squared is {distance}");
}

fn options() -> impl Strategy<Value = SamplingOptions> {
    let shape = (0.0_f32..100.0, 0_u32..30, 0.001_f32..=1.0, 0.0_f32..=1.0, 0.001_f32..=1.0);
    let penalties =
        (0.001_f32..100.0, prop::option::of(1_u32..9), -2.0_f32..=2.0, -2.0_f32..=2.0, any::<u64>());
    let biases = prop::collection::btree_map(0_u32..30, -100.0_f32..=100.0, 0..4);
    (shape, penalties, biases).prop_map(|(shape, penalties, biases)| SamplingOptions {
        temperature: shape.0,
        top_k: shape.1,
        top_p: shape.2,
        min_p: shape.3,
        typical_p: shape.4,
        repetition_penalty: penalties.0,
        repetition_window: penalties.1,
        frequency_penalty: penalties.2,
        presence_penalty: penalties.3,
        seed: Some(penalties.4),
        logit_bias: biases.into_iter().map(|(token, bias)| (TokenId(token), bias)).collect(),
        top_logprobs: 20,
        signals: SignalReport::On,
    })
}

/// A few rows of logits with the tokens that they come after.
fn span() -> impl Strategy<Value = Vec<(u32, Vec<f32>)>> {
    prop::collection::vec((0_u32..8, prop::collection::vec(-9.0_f32..9.0, 8)), 1..9)
}

proptest! {
    #[test]
    fn a_span_draws_what_its_tokens_draw_one_by_one(
        options in options(),
        history in prop::collection::vec(0_u32..8, 0..9),
        span in span(),
        known in any::<bool>(),
    ) {
        let history: Vec<TokenId> = history.into_iter().map(TokenId).collect();
        let (span, rows): (Vec<TokenId>, Vec<Vec<f32>>) =
            span.into_iter().map(|(token, row)| (TokenId(token), row)).unzip();
        let settings = SamplingSettings::new(options, 0).expect("valid");
        let mut single = Sampler::new(settings, 0).with_prompt_tokens(2);
        single.accept(&history);
        let mut whole = single.clone();
        // It does not matter whether the sampler was told of the span before.
        if known {
            whole.accept(&span);
        }
        let from = Position::START.advance(history.len());
        let drawn = whole.draw_each(from, &span, &rows).expect("usable logits");
        for (index, (token, row)) in span.iter().zip(&rows).enumerate() {
            single.accept(&[*token]);
            let one = single.draw(row, from.advance(index + 1)).expect("usable logits");
            prop_assert!(one.signals == token_signals(row) && one.signals.is_some());
            prop_assert_eq!(&one, &drawn[index]);
        }
    }

    #[test]
    fn any_valid_settings_draw_a_possible_token_with_finite_numbers(
        options in options(),
        logits in prop::collection::vec(
            prop_oneof![4 => -30.0_f32..30.0, 1 => any::<f32>(), 1 => Just(f32::NEG_INFINITY)],
            1..40,
        ),
        history in prop::collection::vec(0_u32..40, 0..20),
    ) {
        let mut sampler = Sampler::new(SamplingSettings::new(options, 0).expect("valid"), 0);
        sampler.accept(&history.into_iter().map(TokenId).collect::<Vec<_>>());
        let usable = best(&logits).is_some();
        match sampler.draw(&logits, Position::START.advance(5)) {
            None => prop_assert!(!usable),
            Some(sampled) => {
                prop_assert!(usable && sampled.token.index() < logits.len());
                let forced = sampler.settings.options().logit_bias.iter().any(|bias| bias.1 >= 100.0);
                prop_assert!(forced || logits[sampled.token.index()] > f32::NEG_INFINITY);
                prop_assert_eq!(sampled.top.len(), logits.len().min(20));
                let all = sampled.top.iter().map(|&(_, value)| value).chain([sampled.logprob]);
                all.for_each(|value| assert!((LOGPROB_FLOOR..=0.0).contains(&value)));
                prop_assert!(sampled.top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
                prop_assert_eq!(sampler.draw(&logits, Position::START.advance(5)), Some(sampled));
            }
        }
    }
}
