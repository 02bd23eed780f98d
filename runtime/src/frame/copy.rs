//! Copying a part's tokens out of a payload, whatever its strides, and joining such copies.
//!
//! The descriptions have been checked: every place that they lead to lies in the payload.

use super::desc::PartDesc;
use std::ops::Range;

/// The elements of some of a part's tokens, dense and in the order of its dimensions.
pub(super) fn gather(part: &PartDesc, payload: &[u8], tokens: Range<usize>) -> Vec<u8> {
    let mut bytes = Vec::new();
    gather_axis(part, payload, &tokens, 0, 0, &mut bytes);
    bytes
}

fn gather_axis(
    part: &PartDesc,
    payload: &[u8],
    tokens: &Range<usize>,
    axis: usize,
    at: u64,
    bytes: &mut Vec<u8>,
) {
    let size = part.element.bytes();
    let range = match axis == part.token_axis {
        true => tokens.start as u64..tokens.end as u64,
        false => 0..part.dimensions[axis],
    };
    let stride = part.strides[axis];
    let place = |element: u64| part.offset as usize + element as usize * size;
    if axis + 1 < part.dimensions.len() {
        range.for_each(|index| gather_axis(part, payload, tokens, axis + 1, at + index * stride, bytes));
    } else if stride == 1 {
        bytes.extend_from_slice(&payload[place(at + range.start)..place(at + range.end)]);
    } else {
        for index in range {
            let place = place(at + index * stride);
            bytes.extend_from_slice(&payload[place..place + size]);
        }
    }
}

/// Joins dense pieces, each with its count of tokens, along the part's token axis.
pub(super) fn join(part: &PartDesc, pieces: Vec<(Vec<u8>, usize)>) -> Vec<u8> {
    let count = |dimensions: &[u64]| dimensions.iter().product::<u64>() as usize;
    let outer = count(&part.dimensions[..part.token_axis]);
    let token_bytes = count(&part.dimensions[part.token_axis + 1..]) * part.element.bytes();
    let mut joined = Vec::with_capacity(pieces.iter().map(|(bytes, _)| bytes.len()).sum());
    for index in 0..outer {
        for (bytes, tokens) in &pieces {
            let run = tokens * token_bytes;
            joined.extend_from_slice(&bytes[index * run..(index + 1) * run]);
        }
    }
    joined
}
