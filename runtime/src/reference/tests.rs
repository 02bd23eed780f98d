//! The reference against values of another implementation, which ran the same weights in f32.

use std::convert::Infallible;

use super::operations::log_probabilities;
use super::*;
use crate::model::tests::open;
use crate::tokenizer::{AddSpecial, SpecialText, Tokenizer, TokenizerSource, UnknownPreTokenizer};

/// How far a log-probability may lie from the recorded one, which is rounded to five decimals. Both
/// sides compute in f32 and differ only in the order of their sums.
const TOLERANCE: f32 = 2e-3;
/// The recorder took GELU from a table of half-precision numbers: rounding the same way brings the largest
/// difference from 0.017 to 0.010.
const TOLERANCE_WITH_GELU_TABLE: f32 = 2e-2;
/// Recorded best two that lie closer than this may be told in either order.
const TIE: f32 = 0.02;
/// Prompts above this length run only with the long tests.
const SHORT_PROMPT_TOKENS: usize = 64;
/// How many steps of each prompt run without the long tests.
const SHORT_STEPS: usize = 8;

#[derive(serde::Deserialize)]
struct Vectors {
    greedy: Vec<Greedy>,
}

#[derive(serde::Deserialize)]
struct Greedy {
    prompt: String,
    prompt_ids: Vec<u32>,
    steps: Vec<Step>,
}

#[derive(serde::Deserialize)]
struct Step {
    id: u32,
    top: Vec<(u32, f32)>,
}

/// Whether the complete, slow tests were asked for.
fn long_tests() -> bool {
    std::env::var_os("LAVALANE_LONG_TESTS").is_some_and(|value| value == "1")
}

/// Runs each greedy continuation teacher-forced and compares every step.
#[track_caller]
fn check(file: &str, vectors: &str, tolerance: f32) {
    let Some(model) = open(file) else { return };
    let vectors: Vectors = serde_json::from_str(vectors).unwrap();
    assert_eq!(vectors.greedy.len(), 12);
    let mut largest = 0.0_f32;
    for mut greedy in vectors.greedy {
        if greedy.prompt_ids.len() > SHORT_PROMPT_TOKENS && !long_tests() {
            let tokens = greedy.prompt_ids.len();
            eprintln!("skipped: {file}, a prompt of {tokens} tokens, without LAVALANE_LONG_TESTS=1");
            continue;
        }
        if !long_tests() {
            greedy.steps.truncate(SHORT_STEPS);
        }
        largest = largest.max(check_greedy(&model, &greedy, tolerance));
    }
    eprintln!("{file}: largest difference of a log-probability {largest:.5}");
}

fn check_greedy(model: &Model, greedy: &Greedy, tolerance: f32) -> f32 {
    let answers = greedy.steps[..greedy.steps.len() - 1].iter().map(|step| step.id);
    let tokens: Vec<TokenId> = greedy.prompt_ids.iter().copied().chain(answers).map(TokenId).collect();
    let logits = ReferenceModel::new(model).logits(&tokens, greedy.prompt_ids.len() - 1..tokens.len());
    let mut largest = 0.0_f32;
    for (index, (step, row)) in
        greedy.steps.iter().zip(logits.chunks_exact(model.description().vocabulary)).enumerate()
    {
        let found = log_probabilities(row);
        let best = (0..found.len()).max_by(|left, right| found[*left].total_cmp(&found[*right])).unwrap();
        let tied = step.top[0].1 - step.top[1].1 < TIE;
        let place = format!("{:?} step {index}", greedy.prompt.chars().take(40).collect::<String>());
        // The recorder was told to go on after end tokens: where one was best it took the second.
        assert!(step.top[..2].iter().any(|(token, _)| *token == step.id), "{place}: {} was taken", step.id);
        let expected = step.top[0].0;
        assert!(best == expected as usize || tied, "{place}: token {best}, expected {expected}");
        for (token, expected) in &step.top {
            let difference = (found[*token as usize] - expected).abs();
            assert!(difference <= tolerance, "{place}: token {token} differs by {difference}");
            largest = largest.max(difference);
        }
    }
    largest
}

#[test]
fn smollm2_continues_as_recorded() {
    let vectors = include_str!("../../../integration-tests/data/vectors/smollm2-135m.json");
    check("SmolLM2-135M-Instruct.Q4_1.gguf", vectors, TOLERANCE);
}

#[test]
fn gemma3_continues_as_recorded() {
    let vectors = include_str!("../../../integration-tests/data/vectors/gemma3-270m.json");
    check("gemma-3-270m-q4_k_m.gguf", vectors, TOLERANCE_WITH_GELU_TABLE);
}

#[test]
fn qwen2_continues_as_recorded() {
    let vectors = include_str!("../../../integration-tests/data/vectors/qwen2.5-coder-0.5b.json");
    check("qwen2.5-coder-0.5b-instruct.gguf", vectors, TOLERANCE);
}

#[test]
fn a_sequence_run_in_slices_or_run_again_has_the_same_bits() {
    let Some(model) = open("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let tokens = [504, 3575, 282, 4649, 314, 7042, 30].map(TokenId);
    let whole = ReferenceModel::new(&model).last_logits(&tokens);
    let mut sliced = ReferenceModel::new(&model);
    sliced.last_logits(&tokens[..1]);
    sliced.last_logits(&tokens[1..6]);
    assert_eq!(sliced.last_logits(&tokens[6..]), whole);
    sliced.trim(3);
    assert_eq!(sliced.last_logits(&tokens[3..]), whole);
}

#[test]
fn perplexity_scores_the_second_half_of_each_window() {
    let tokens: Vec<TokenId> = (0..11).map(|token| TokenId(token % 2)).collect();
    let mut seen = Vec::new();
    let result = perplexity(&tokens, 4, 9, |window, wanted| {
        seen.push((window.to_vec(), wanted.clone()));
        // Both tokens are equally likely.
        Ok::<_, Infallible>(vec![0.0; 2 * wanted.len()])
    });
    let Ok(result) = result;
    assert_eq!(seen, [(tokens[..4].to_vec(), 2..3), (tokens[4..8].to_vec(), 2..3)]);
    assert_eq!((result.scored, result.windows), (2, 2));
    assert!((result.value - 2.0).abs() < 1e-6);
}

/// The log-probability of `token` as the recorder's file kept it: each row in 16 bits over its uppermost 16
/// nats, so that a token further below the best counts as if it were just there.
fn kept_log_probability(logits: &[f32], token: TokenId) -> f64 {
    const RANGE: f32 = 16.0;
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let smallest = logits.iter().copied().fold(f32::INFINITY, f32::min).max(largest - RANGE);
    let log_sum = logits.iter().map(|&logit| f64::from((logit - largest).exp())).sum::<f64>().ln() as f32;
    let step = (largest - smallest) / 65_535.0;
    let code = ((logits[token.index()] - smallest).max(0.0) / step).round_ties_even();
    f64::from(step * code + (smallest - largest - log_sum))
}

#[test]
fn a_kept_log_probability_is_cut_off_below_16_nats() {
    let logits = [0.0, -10.0, -16.5, -40.0];
    let exact = log_probabilities(&logits);
    for (token, lost) in [(0, 0.0), (1, 0.0), (2, 0.5), (3, 24.0)] {
        let kept = kept_log_probability(&logits, TokenId(token));
        let found = kept - f64::from(exact[token as usize]);
        assert!((found - lost).abs() < 2e-4, "token {token}: {found}");
    }
}

#[test]
fn the_perplexity_of_a_novel_is_the_recorded_one() {
    const TEXT: &str = include_str!("../../../integration-tests/data/text/persuasion.txt");
    if !long_tests() {
        eprintln!("skipped: perplexity of 12 windows, without LAVALANE_LONG_TESTS=1");
        return;
    }
    let Some(model) = open("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let source = TokenizerSource::from_gguf(model.file()).unwrap();
    let tokenizer = Tokenizer::new(&source, UnknownPreTokenizer::Refuse).unwrap();
    let tokens = tokenizer.encode(TEXT, SpecialText::AsText, AddSpecial::Yes);
    let (mut kept_sum, mut cut_off) = (0.0, 0);
    let result = perplexity(&tokens, 512, 12, |window, wanted| {
        let logits = ReferenceModel::new(&model).logits(window, wanted.clone());
        let rows = logits.chunks_exact(model.description().vocabulary);
        for (row, &next) in rows.zip(&window[wanted.start + 1..]) {
            let kept = kept_log_probability(row, next);
            let exact = f64::from(log_probabilities(row)[next.index()]);
            cut_off += usize::from(kept - exact > 0.01);
            kept_sum += kept;
        }
        Ok::<_, Infallible>(logits)
    });
    let Ok(result) = result;
    let kept = (-kept_sum / result.scored as f64).exp();
    eprintln!(
        "perplexity {:.4}, as kept {kept:.4}, {cut_off} of {} tokens cut off",
        result.value, result.scored
    );
    assert_eq!((result.windows, result.scored), (12, 12 * 255));
    // What was recorded, to its last digit; and what it is without the file's cut, which one token met: its
    // log-probability is -19.41 and was kept as -16.67.
    assert!((kept - 28.884).abs() < 0.001, "{kept}");
    assert!((result.value - 28.910).abs() < 0.001, "{}", result.value);
    assert_eq!(cut_off, 1);
}
