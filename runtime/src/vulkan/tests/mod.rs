//! Tests of every kernel, in all packs: against its scalar twin, against plain arithmetic in f64, and of
//! the rule that a row's bits do not depend on the other rows.
//!
//! They run on the device that `LAVALANE_DEVICE` names or else the best one, on any machine that has a Vulkan driver; a
//! pack that the device cannot run is skipped. Kernels that only multiply and add are held to equal bits; where a driver
//! is free to round (`exp`, `sqrt`, division, packing float16), a tolerance is stated.

mod activate;
mod attention;
mod bench;
mod cache;
mod ceilings;
mod group;
mod lanes;
mod matmul;
mod norm;
mod rope_append;
mod same_bits;
mod sources;
