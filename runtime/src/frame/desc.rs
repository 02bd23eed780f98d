//! What a frame says of itself, and the check of it.

use super::FrameError;
use crate::ids::{LayerRange, Position};

/// The version of descriptions and payloads.
pub const FRAME_VERSION: u16 = 1;

/// The most bytes of one frame's part: far above a batch's hidden states, far below what hurts.
pub const FRAME_BYTES_MAX: u64 = 1 << 30;

/// The most dimensions of a part.
const DIMENSIONS_MAX: usize = 8;

/// How one number of a part is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// IEEE float32: exact between ranges of layers.
    F32,
    /// IEEE float16: half the bytes; values beyond 65,504 become infinite.
    F16,
    /// bfloat16: half the bytes; the range of float32 with 8 bits of precision.
    Bf16,
}

impl ElementType {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// What a part is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PartIdentity {
    /// The hidden states between two layers.
    HiddenStates,
    /// Something that an architecture carries beside them.
    Other(String),
}

/// A sequence, as whoever coordinates its stages names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId(pub u128);

/// Where a frame goes on: a stage takes it only if its own session of that sequence stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frontier {
    /// The sequence.
    pub sequence: SequenceId,
    /// The place of the frame's first token.
    pub position: Position,
}

/// How one part lies in the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartDesc {
    /// What it is.
    pub identity: PartIdentity,
    /// How its numbers are stored.
    pub element: ElementType,
    /// Its dimensions, outermost first; 1 to 8, none 0.
    pub dimensions: Vec<u64>,
    /// Which of the dimensions counts tokens.
    pub token_axis: usize,
    /// How many elements lie between neighbours of each dimension.
    pub strides: Vec<u64>,
    /// Where it begins in the payload, in bytes.
    pub offset: u64,
    /// How many bytes of the payload are its own.
    pub bytes: u64,
}

/// What a frame is.
#[derive(Clone, Debug, PartialEq)]
pub struct FrameDesc {
    /// [`FRAME_VERSION`].
    pub version: u16,
    /// Who made it, for people.
    pub producer: String,
    /// The layers that it came out of; `None` for embeddings.
    pub layers: Option<LayerRange>,
    /// Its tokens.
    pub tokens: usize,
    /// Its parts; at least 1.
    pub parts: Vec<PartDesc>,
    /// Where it goes on.
    pub frontier: Frontier,
}

impl FrameDesc {
    /// Checks every number against the others and against the payload's length.
    pub(super) fn check(&self, payload: usize) -> Result<(), FrameError> {
        if self.version != FRAME_VERSION {
            return Err(FrameError::Version { given: self.version });
        }
        if self.tokens == 0 {
            return Err(FrameError::Empty { what: "tokens" });
        }
        if self.parts.is_empty() {
            return Err(FrameError::Empty { what: "parts" });
        }
        let position = self.frontier.position.tokens();
        if position.checked_add(self.tokens).is_none_or(|end| u32::try_from(end).is_err()) {
            return Err(FrameError::OutsideOfFrame { start: position, end: usize::MAX, tokens: self.tokens });
        }
        for (part, desc) in self.parts.iter().enumerate() {
            if let Err(problem) = desc.check(self.tokens, payload) {
                return Err(FrameError::Part { part, problem });
            }
        }
        Ok(())
    }

    /// What keeps the other's tokens from following this one's in one frame.
    pub(super) fn difference(&self, other: &Self) -> Option<&'static str> {
        let kind = |part: &PartDesc| {
            let mut dimensions = part.dimensions.clone();
            dimensions[part.token_axis] = 0;
            (part.identity.clone(), part.element, part.token_axis, dimensions)
        };
        if self.producer != other.producer || self.layers != other.layers {
            return Some("it comes from other layers or another producer");
        }
        (!self.parts.iter().map(kind).eq(other.parts.iter().map(kind))).then_some("its parts are others")
    }
}

impl PartDesc {
    fn check(&self, tokens: usize, payload: usize) -> Result<(), &'static str> {
        let axes = self.dimensions.len();
        if axes == 0 || axes > DIMENSIONS_MAX || self.strides.len() != axes {
            return Err("it has no dimensions, more than 8, or not a stride for each");
        }
        if self.dimensions.contains(&0) {
            return Err("a dimension is 0");
        }
        if self.dimensions.get(self.token_axis).copied() != Some(tokens as u64) {
            return Err("its token axis does not count the frame's tokens");
        }
        if self.bytes > FRAME_BYTES_MAX {
            return Err("it is too large");
        }
        let end = self.offset.checked_add(self.bytes).ok_or("its end overflows")?;
        if end > payload as u64 {
            return Err("it reaches beyond the payload");
        }
        let size = self.element.bytes() as u64;
        let all = self.dimensions.iter().try_fold(size, |size, &count| size.checked_mul(count));
        // Copies are dense: no stride may make one larger than the part.
        if all.is_none_or(|all| all > self.bytes) {
            return Err("its dimensions are too large");
        }
        let furthest =
            self.dimensions.iter().zip(&self.strides).try_fold(0_u64, |furthest, (&count, &stride)| {
                stride.checked_mul(count - 1).and_then(|along| furthest.checked_add(along))
            });
        let last =
            furthest.and_then(|furthest| furthest.checked_add(1)).and_then(|count| count.checked_mul(size));
        match last {
            Some(last) if last <= self.bytes => Ok(()),
            _ => Err("its strides lead beyond its bytes"),
        }
    }
}

/// The strides of a dense part, in elements. The dimensions' product has been checked, or is checked next.
pub(super) fn dense_strides(dimensions: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; dimensions.len()];
    for axis in (1..dimensions.len()).rev() {
        strides[axis - 1] = dimensions[axis].saturating_mul(strides[axis]);
    }
    strides
}
