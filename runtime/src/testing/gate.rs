//! A gate that a test holds shut, so that it can look at the engine between two chosen steps.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

#[derive(Debug)]
enum Passes {
    /// So many may still pass.
    Left(u64),
    /// Everybody may.
    Open,
}

#[derive(Debug)]
struct Inner {
    passes: Mutex<Passes>,
    waiting: Mutex<u64>,
    changed: Condvar,
    arrived: Condvar,
}

/// Lets an executor run only as many steps as a test allows.
#[derive(Clone, Debug)]
pub struct Gate {
    inner: Arc<Inner>,
}

impl Gate {
    /// A gate that lets nobody pass.
    pub fn shut() -> Self {
        Self {
            inner: Arc::new(Inner {
                passes: Mutex::new(Passes::Left(0)),
                waiting: Mutex::new(0),
                changed: Condvar::new(),
                arrived: Condvar::new(),
            }),
        }
    }

    /// Lets `count` more steps pass.
    pub fn allow(&self, count: u64) {
        let mut passes = self.inner.passes.lock();
        if let Passes::Left(left) = &mut *passes {
            *left += count;
        }
        self.inner.changed.notify_all();
    }

    /// Lets every step pass from now on.
    pub fn open(&self) {
        *self.inner.passes.lock() = Passes::Open;
        self.inner.changed.notify_all();
    }

    /// Blocks until a step stands before the gate for the `count`-th time since it was made.
    pub fn wait_for_arrival(&self, count: u64) {
        let mut arrived = self.inner.waiting.lock();
        while *arrived < count {
            self.inner.arrived.wait(&mut arrived);
        }
    }

    /// Waits for leave to pass.
    pub fn pass(&self) {
        *self.inner.waiting.lock() += 1;
        self.inner.arrived.notify_all();
        let mut passes = self.inner.passes.lock();
        loop {
            match &mut *passes {
                Passes::Open => return,
                Passes::Left(0) => self.inner.changed.wait(&mut passes),
                Passes::Left(left) => {
                    *left -= 1;
                    return;
                }
            }
        }
    }
}
