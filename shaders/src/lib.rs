//! Compute kernels of Lavalane.
