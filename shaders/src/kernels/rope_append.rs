//! Twin of `rope_append.comp` and `rope_append_cpu.comp`: what becomes of one head's values between the projection and attention.

use super::sum_by_halving;

/// Which values of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// `2i` and `2i + 1`.
    Interleaved,
    /// `i` and `i + rotated / 2`.
    Split,
}

/// What is done to a head; each step only where it is given, in this order.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Lanes of the workgroup, a power of two.
    pub lanes: usize,
    /// How many neighbours a lane takes at a time: lane `l` adds the squares of the runs `l`, `l + lanes`, ….
    pub run: usize,
    /// Added to the values, as many as they.
    pub bias: Option<&'a [f32]>,
    /// Weight and epsilon of the norm over the head.
    pub norm: Option<(&'a [f32], f32)>,
    /// Which values are pairs, and cosine and sine for each pair; twice as many values are rotated.
    pub rotation: Option<(Pairs, &'a [[f32; 2]])>,
}

/// `rotate(norm(values + bias))`, in f32; a query is then scaled, a key or value rounded to the cache's
/// element type.
pub fn head(values: &[f32], settings: &Head<'_>) -> Vec<f32> {
    let mut values = values.to_vec();
    if let Some(bias) = settings.bias {
        values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    }
    if let Some((weight, epsilon)) = settings.norm {
        let mut partials = vec![0.0; settings.lanes];
        for (at, value) in values.iter().enumerate() {
            partials[at / settings.run % settings.lanes] += value * value;
        }
        let scale = 1.0 / (sum_by_halving(partials) / values.len() as f32 + epsilon).sqrt();
        values.iter_mut().zip(weight).for_each(|(value, weight)| *value = *value * scale * weight);
    }
    if let Some((pairs, angles)) = settings.rotation {
        for (pair, &[cosine, sine]) in angles.iter().enumerate() {
            let (first, second) = match pairs {
                Pairs::Interleaved => (2 * pair, 2 * pair + 1),
                Pairs::Split => (pair, pair + angles.len()),
            };
            let (a, b) = (values[first], values[second]);
            values[first] = a * cosine - b * sine;
            values[second] = a * sine + b * cosine;
        }
    }
    values
}
