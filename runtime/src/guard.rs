//! The one place where a panic becomes a fault.
//!
//! A panic on the executor's thread would take the device with it, and actix's supervisor neither catches
//! a panic nor makes the actor anew; so every entry point of sessions, lanes, scheduler and executor goes
//! through here.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A panic that was caught, with its message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Panicked(pub String);

/// Runs `work` and turns a panic into an error. The caller gives up whatever state `work` may have
/// left half changed; that is why unwind safety may be asserted here.
///
/// # Errors
/// The panic's message.
pub fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| Panicked(message(payload.as_ref())))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_its_message() {
        assert_eq!(guarded(|| 7), Ok(7));
        assert_eq!(guarded(|| -> u8 { panic!("plain") }), Err(Panicked("plain".to_owned())));
        let number = 3;
        assert_eq!(guarded(|| -> u8 { panic!("number {number}") }), Err(Panicked("number 3".to_owned())));
    }
}
