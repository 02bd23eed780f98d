//! Frames: hidden states on their way from one range of layers to the next.
//!
//! A [`FrameDesc`] says who made a frame, from which layers, for which tokens of which sequence, and how each
//! of its parts lies in the payload. A [`Frame`] is a description with its payload, checked as one: every
//! size in it is computed with checked arithmetic, so that a description from outside may be anything.
//! Frames are sliced and combined along their parts' token axes.

mod copy;
mod desc;

pub use desc::{
    ElementType, FRAME_BYTES_MAX, FRAME_VERSION, FrameDesc, Frontier, PartDesc, PartIdentity, SequenceId,
};

use crate::ids::{LayerRange, Position};
use copy::{gather, join};
use half::{bf16, f16};
use std::ops::Range;

/// Why a frame is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another version of the format.
    #[error("the frame has version {given}, and only version {FRAME_VERSION} is known")]
    Version {
        /// Its version.
        given: u16,
    },
    /// A frame without tokens or parts.
    #[error("the frame has no {what}")]
    Empty {
        /// What it lacks.
        what: &'static str,
    },
    /// A part's numbers do not agree with one another or with the frame.
    #[error("part {part} of the frame: {problem}")]
    Part {
        /// The part's place in the list.
        part: usize,
        /// What is wrong.
        problem: &'static str,
    },
    /// Tokens that the frame has not.
    #[error("tokens {start} to {end} of a frame of {tokens}")]
    OutsideOfFrame {
        /// The first token that was asked for.
        start: usize,
        /// The one after the last.
        end: usize,
        /// The frame's tokens.
        tokens: usize,
    },
    /// Frames that do not follow one another.
    #[error("frame {frame} does not go on where the one before it ends: {problem}")]
    NotConsecutive {
        /// The frame's place in the list.
        frame: usize,
        /// What differs.
        problem: &'static str,
    },
}

/// A description and the payload that fits it. All numbers are little-endian.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    desc: FrameDesc,
    payload: Vec<u8>,
}

impl Frame {
    /// Checks a description against its payload.
    ///
    /// # Errors
    /// An unknown version, no tokens or parts, numbers that overflow or disagree, a part that reaches beyond
    /// the payload, or one of more than [`FRAME_BYTES_MAX`] bytes.
    pub fn new(desc: FrameDesc, payload: Vec<u8>) -> Result<Self, FrameError> {
        desc.check(payload.len())?;
        Ok(Self { desc, payload })
    }

    /// A frame with one part: the hidden states of some tokens, `tokens * width` values in order.
    ///
    /// # Errors
    /// No token, or values that are not so many.
    pub fn of_hidden(
        states: &[f32],
        width: usize,
        element: ElementType,
        made: Made,
    ) -> Result<Self, FrameError> {
        let tokens = states.len().checked_div(width).unwrap_or(0);
        let bytes = states.len() * element.bytes();
        let payload: Vec<u8> = match element {
            ElementType::F32 => states.iter().flat_map(|value| value.to_le_bytes()).collect(),
            ElementType::F16 => states.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
            ElementType::Bf16 => {
                states.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect()
            }
        };
        let part = PartDesc {
            identity: PartIdentity::HiddenStates,
            element,
            dimensions: vec![tokens as u64, width as u64],
            token_axis: 0,
            strides: vec![width as u64, 1],
            offset: 0,
            bytes: bytes as u64,
        };
        let Made { producer, layers, frontier } = made;
        let desc =
            FrameDesc { version: FRAME_VERSION, producer, layers, tokens, parts: vec![part], frontier };
        Self::new(desc, payload)
    }

    /// The description.
    pub fn desc(&self) -> &FrameDesc {
        &self.desc
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The hidden states as f32, `tokens * width` values in order, and their width; `None` where the frame
    /// has no such part, or one of other than two dimensions.
    pub fn hidden(&self) -> Option<(Vec<f32>, usize)> {
        let part = self.desc.parts.iter().find(|part| part.identity == PartIdentity::HiddenStates)?;
        let &[one, other] = &part.dimensions[..] else { return None };
        if part.token_axis != 0 {
            return None;
        }
        debug_assert_eq!(one as usize, self.desc.tokens, "the frame was checked");
        let bytes = gather(part, &self.payload, 0..self.desc.tokens);
        let states = match part.element {
            ElementType::F32 => decode(&bytes, f32::from_le_bytes),
            ElementType::F16 => decode(&bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
            ElementType::Bf16 => decode(&bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        };
        Some((states, other as usize))
    }

    /// The frame of some of its tokens, counted from its first.
    ///
    /// # Errors
    /// [`FrameError::OutsideOfFrame`], also for no tokens.
    pub fn slice(&self, tokens: Range<usize>) -> Result<Self, FrameError> {
        let Range { start, end } = tokens;
        if start >= end || end > self.desc.tokens {
            return Err(FrameError::OutsideOfFrame { start, end, tokens: self.desc.tokens });
        }
        let parts = self.desc.parts.iter().map(|part| gather(part, &self.payload, start..end));
        let position = self.desc.frontier.position.advance(start);
        let frontier = Frontier { position, ..self.desc.frontier };
        self.laid_out(end - start, frontier, parts)
    }

    /// One frame of the tokens of several, in order.
    ///
    /// # Errors
    /// No frame, frames that are not of one kind, or tokens that do not follow one another.
    pub fn combine(frames: &[Self]) -> Result<Self, FrameError> {
        let Some(first) = frames.first() else { return Err(FrameError::Empty { what: "frames" }) };
        let mut tokens = 0_usize;
        for (index, frame) in frames.iter().enumerate() {
            let (start, at) = (first.desc.frontier, frame.desc.frontier);
            let follows = at.sequence == start.sequence
                && at.position.tokens().checked_sub(start.position.tokens()) == Some(tokens);
            let problem = first.desc.difference(&frame.desc);
            let problem = problem.or((!follows).then_some("it is of another sequence or place"));
            if let Some(problem) = problem {
                return Err(FrameError::NotConsecutive { frame: index, problem });
            }
            let sum = tokens.checked_add(frame.desc.tokens);
            tokens = sum
                .filter(|&tokens| u32::try_from(tokens).is_ok())
                .ok_or(FrameError::NotConsecutive { frame: index, problem: "there are too many tokens" })?;
        }
        let parts = (0..first.desc.parts.len()).map(|part| {
            let pieces = frames.iter().map(|frame| {
                let desc = &frame.desc.parts[part];
                (gather(desc, &frame.payload, 0..frame.desc.tokens), frame.desc.tokens)
            });
            join(&first.desc.parts[part], pieces.collect())
        });
        first.laid_out(tokens, first.desc.frontier, parts)
    }

    /// A frame of this one's kind, with parts that lie densely one after another.
    fn laid_out(
        &self,
        tokens: usize,
        frontier: Frontier,
        parts: impl Iterator<Item = Vec<u8>>,
    ) -> Result<Self, FrameError> {
        let mut payload = Vec::new();
        let mut descs = Vec::new();
        for (part, bytes) in self.desc.parts.iter().zip(parts) {
            let mut dimensions = part.dimensions.clone();
            dimensions[part.token_axis] = tokens as u64;
            descs.push(PartDesc {
                strides: desc::dense_strides(&dimensions),
                dimensions,
                offset: payload.len() as u64,
                bytes: bytes.len() as u64,
                ..part.clone()
            });
            payload.extend(bytes);
        }
        let desc = FrameDesc { tokens, parts: descs, frontier, ..self.desc.clone() };
        Self::new(desc, payload)
    }
}

/// Who made a frame, and where in its sequence it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    /// The producer's name, for people.
    pub producer: String,
    /// The layers that the states came out of; `None` for embeddings.
    pub layers: Option<LayerRange>,
    /// The sequence, and the place of the frame's first token.
    pub frontier: Frontier,
}

impl Made {
    /// The embeddings of a sequence's tokens from `position` on.
    pub fn embeddings(sequence: SequenceId, position: Position) -> Self {
        let frontier = Frontier { sequence, position };
        Self { producer: "embeddings".to_owned(), layers: None, frontier }
    }
}

fn decode<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    let (chunks, rest) = bytes.as_chunks::<N>();
    debug_assert!(rest.is_empty(), "whole elements");
    chunks.iter().map(|chunk| value(*chunk)).collect()
}

#[cfg(test)]
mod tests;
