//! Distinct types for ids, positions and counts, so that one is never passed for another.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// The id as an index into a slice.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "{}", self.0)
            }
        }
    };
}

id!(
    /// One token of a model's vocabulary.
    TokenId(u32)
);
id!(
    /// One execution lane. A lane is reused; see [`Generation`].
    LaneId(u32)
);
id!(
    /// One page of the KV pool.
    PageId(u32)
);
id!(
    /// One iteration batch, counted from 1 since the engine started.
    BatchId(u64)
);

/// Which owner of a reusable lane a message speaks of: it grows by one each time the lane is given
/// to a new request, so that a late message to the last owner is recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

impl Generation {
    /// The generation of the lane's next owner.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// How many tokens of a sequence are in the KV cache; also the place of the next token to run,
/// counted from 0. It changes only by [`Position::advance`], or goes back by [`Position::trim`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(u32);

impl Position {
    /// The start of a sequence.
    pub const START: Self = Self(0);

    /// The position after `count` more tokens.
    ///
    /// # Panics
    /// When the sum does not fit 32 bits; contexts are capped far below.
    #[must_use]
    pub fn advance(self, count: usize) -> Self {
        let count = u32::try_from(count).expect("a token count fits 32 bits");
        Self(self.0.checked_add(count).expect("a position fits 32 bits"))
    }

    /// The position cut back to `tokens`, or `None` where that would move it forward.
    #[must_use]
    pub fn trim(self, tokens: usize) -> Option<Self> {
        (tokens <= self.tokens()).then_some(Self(tokens as u32))
    }

    /// How many tokens lie before this position.
    pub fn tokens(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Position {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

/// A half-open range of transformer layers `[start, end)`, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerRange {
    start: u32,
    end: u32,
}

impl LayerRange {
    /// The layers from `start` up to, not including, `end`; `None` where that holds no layer.
    pub fn new(start: u32, end: u32) -> Option<Self> {
        (start < end).then_some(Self { start, end })
    }

    /// The first layer.
    pub fn start(self) -> u32 {
        self.start
    }

    /// The layer after the last.
    pub fn end(self) -> u32 {
        self.end
    }

    /// The layers, in order.
    pub fn layers(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_advances_and_trims_but_never_trims_forward() {
        let position = Position::START.advance(5);
        assert_eq!(position.tokens(), 5);
        assert_eq!(position.trim(3), Some(Position::START.advance(3)));
        assert_eq!(position.trim(6), None);
    }

    #[test]
    fn a_layer_range_holds_at_least_one_layer() {
        assert!(LayerRange::new(2, 2).is_none());
        assert_eq!(LayerRange::new(1, 3).map(LayerRange::layers), Some(1..3));
    }
}
