//! What a lane could run next, as data for the planner.

use lavalane_runtime::ids::{LaneId, Position};

/// What a lane could run next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneStep {
    /// One token, drawn by the step before.
    Decode {
        /// Its position.
        position: Position,
    },
    /// Tokens that are known: a prompt, or a transcript that is run again.
    Prefill {
        /// The position of the first that has not run.
        position: Position,
        /// How many tokens the sequence has, those before the position included.
        tokens: usize,
    },
}

impl LaneStep {
    /// Whether it is a decode row.
    pub(crate) fn is_decode(self) -> bool {
        matches!(self, Self::Decode { .. })
    }

    /// The position of the step's first row.
    pub(crate) fn position(self) -> Position {
        match self {
            Self::Decode { position } | Self::Prefill { position, .. } => position,
        }
    }
}

/// A lane with its next step, as the planner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The lane.
    pub(crate) lane: LaneId,
    /// What it could run.
    pub(crate) step: LaneStep,
    /// In how many iterations it was passed over since it last ran.
    pub(crate) bypassed: u32,
    /// Its request's place in the order of arrival.
    pub(crate) arrival: u64,
}
