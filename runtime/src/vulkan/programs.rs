//! Recorded programs, kept by the shape of their step: positions, page tables and tokens lie in buffers,
//! so that a step of the same shape is the same commands.

use super::group::Program;
use super::pace::Team;

/// How many programs are kept.
const KEPT_MAX: usize = 48;

/// What a step's commands depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepShape {
    /// Who computes it.
    pub(super) team: Team,
    /// Rows that run through the layers.
    pub(super) rows: usize,
    /// Tiles of several rows that attention takes.
    pub(super) tiles: usize,
    /// Rows whose logits are computed with them.
    pub(super) logit_rows: usize,
}

/// Programs, the one that was used last at the end.
#[derive(Default)]
pub(super) struct Programs {
    kept: Vec<(StepShape, Program)>,
}

impl Programs {
    /// The program of `shape`, out of the collection; it comes back by [`Programs::put`].
    pub(super) fn take(&mut self, shape: StepShape) -> Option<Program> {
        let at = self.kept.iter().position(|(kept, _)| *kept == shape)?;
        Some(self.kept.remove(at).1)
    }

    /// Keeps a program; the one that was not used for longest gives way.
    pub(super) fn put(&mut self, shape: StepShape, program: Program) {
        if self.kept.len() == KEPT_MAX {
            self.kept.remove(0);
        }
        self.kept.push((shape, program));
    }
}
