//! Twin of `activate.comp`: the gate of a feed-forward. (Copying needs no twin.)

/// `x * sigmoid(x)`.
pub fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// The tanh approximation of GELU, `0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`, with
/// `tanh(u) = 1 - 2 / (exp(2u) + 1)` and `u` held within 15 of 0, where tanh is 1 to the last bit.
pub fn gelu(x: f32) -> f32 {
    const SQRT_2_BY_PI: f32 = 0.797_884_6;
    let u = SQRT_2_BY_PI * (x + 0.044715 * x * x * x);
    let hyperbolic = 1.0 - 2.0 / ((2.0 * u.clamp(-15.0, 15.0)).exp() + 1.0);
    0.5 * x * (1.0 + hyperbolic)
}
