//! Twin of `norm.comp`: the residual stream takes a delta in and is normalised.

use super::sum_by_halving;
use crate::BLOCK;

/// What a norm is given beside the residual stream.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// Lanes of the workgroup, a power of two; lane `l` adds the squares of blocks `l`, `l + lanes`, ….
    pub lanes: usize,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// The norm's weight, `width` values.
    pub weight: &'a [f32],
    /// What is added to the residual stream first, `width` values.
    pub delta: Option<&'a [f32]>,
    /// The weight of the delta's own norm, `width` values, where it has one.
    pub post_weight: Option<&'a [f32]>,
}

/// `residual += delta` or `residual += norm(delta) * post_weight`, in place; gives
/// `residual * 1 / sqrt(mean(residual^2) + epsilon) * weight`, all `width` values long.
pub fn norm(residual: &mut [f32], settings: &Norm<'_>) -> Vec<f32> {
    if let Some(delta) = settings.delta {
        let delta_scale = settings.post_weight.map(|_| scale(delta, settings));
        for (at, value) in residual.iter_mut().enumerate() {
            let mut added = delta[at];
            if let (Some(scale), Some(weight)) = (delta_scale, settings.post_weight) {
                added = added * scale * weight[at];
            }
            *value += added;
        }
    }
    let scale = scale(residual, settings);
    residual.iter().zip(settings.weight).map(|(value, weight)| value * scale * weight).collect()
}

/// `1 / sqrt(mean(values^2) + epsilon)`.
fn scale(values: &[f32], settings: &Norm<'_>) -> f32 {
    let mut partials = vec![0.0; settings.lanes];
    for (block, values) in values.chunks(BLOCK).enumerate() {
        let partial = &mut partials[block % settings.lanes];
        *partial = values.iter().fold(*partial, |sum, value| sum + value * value);
    }
    let mean = sum_by_halving(partials) / values.len() as f32;
    1.0 / (mean + settings.epsilon).sqrt()
}
