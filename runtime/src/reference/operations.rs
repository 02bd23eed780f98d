//! The small operations of a forward pass, written as their formulas read.

use std::f32::consts::FRAC_2_PI;

use crate::model::{Activation, RopeSettings, RopeStyle};

/// Root-mean-square norm of each `weight.len()` elements, in place:
/// `x * weight / sqrt(mean(x^2) + epsilon)`. The squares are summed in f64.
pub fn rms_norm(values: &mut [f32], weight: &[f32], epsilon: f32) {
    for row in values.chunks_exact_mut(weight.len()) {
        let squares: f64 = row.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
        let mean = (squares / row.len() as f64) as f32;
        let factor = (mean + epsilon).sqrt().recip();
        for (value, weight) in row.iter_mut().zip(weight) {
            *value = *value * factor * weight;
        }
    }
}

/// Adds `addend` to each `addend.len()` elements.
pub fn add_to_rows(values: &mut [f32], addend: &[f32]) {
    for row in values.chunks_exact_mut(addend.len()) {
        add(row, addend);
    }
}

/// `values += addend`.
pub fn add(values: &mut [f32], addend: &[f32]) {
    for (value, addend) in values.iter_mut().zip(addend) {
        *value += addend;
    }
}

/// Rotates the first `dims` elements of one head in place.
pub fn rotate(head: &mut [f32], position: usize, rope: &RopeSettings) {
    for (pair, frequency) in rope.inverse_frequencies.iter().enumerate() {
        let (first, second) = match rope.style {
            RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
            RopeStyle::Split => (pair, pair + rope.dims / 2),
        };
        let (sine, cosine) = (position as f32 * frequency).sin_cos();
        let (sine, cosine) = (sine * rope.magnitude, cosine * rope.magnitude);
        let (x, y) = (head[first], head[second]);
        head[first] = x * cosine - y * sine;
        head[second] = x * sine + y * cosine;
    }
}

/// `gate = activation(gate) * up`.
pub fn activate(activation: Activation, gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        let x = *gate;
        let activated = match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => 0.5 * x * (1.0 + (FRAC_2_PI.sqrt() * (x + 0.044_715 * x * x * x)).tanh()),
        };
        *gate = activated * up;
    }
}

/// Turns scores into weights that sum to 1, in place.
pub fn softmax(scores: &mut [f32]) {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - highest).exp();
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
}

/// `cap * tanh(value / cap)`, in place.
pub fn soft_cap(values: &mut [f32], cap: f32) {
    values.iter_mut().for_each(|value| *value = cap * (*value / cap).tanh());
}

/// The natural logarithms of the probabilities that logits stand for. The sum is taken in f64.
pub fn log_probabilities(logits: &[f32]) -> Vec<f32> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - highest).exp()).sum();
    let logarithm = sum.ln() as f32;
    logits.iter().map(|logit| logit - highest - logarithm).collect()
}
