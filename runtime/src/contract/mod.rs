//! The session contract: what can be done with sequences on one executor, and by which rules.

mod slice;

pub use slice::{Slice, final_slice_start, next_slice};
