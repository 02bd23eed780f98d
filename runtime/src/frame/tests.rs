//! Tests of frames: slices and combinations give back what went in, and nothing from outside panics.

use super::*;
use proptest::prelude::*;

fn made(position: usize) -> Made {
    Made::embeddings(SequenceId(7), Position::START.advance(position))
}

fn frame(tokens: usize, position: usize, element: ElementType) -> Frame {
    let states: Vec<f32> = (0..tokens * 3).map(|index| (index + 3 * position) as f32).collect();
    Frame::of_hidden(&states, 3, element, made(position)).expect("a frame")
}

#[test]
fn all_element_types_carry_what_they_can_hold() {
    for element in [ElementType::F32, ElementType::F16, ElementType::Bf16] {
        let frame = frame(4, 0, element);
        let (states, width) = frame.hidden().expect("hidden states");
        assert_eq!((states, width), ((0..12).map(|index| index as f32).collect(), 3), "{element:?}");
        assert_eq!(frame.payload().len(), 12 * element.bytes());
    }
    let exact = [1.0_f32 + f32::EPSILON, -0.1, 3.0e38];
    let frame = Frame::of_hidden(&exact, 3, ElementType::F32, made(0)).expect("a frame");
    assert_eq!(frame.hidden().expect("hidden states").0, exact);
}

#[test]
fn only_frames_that_follow_one_another_combine() {
    let check = |frames: &[Frame], expected: &str| {
        let error = Frame::combine(frames).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    };
    let first = frame(2, 0, ElementType::F32);
    check(&[], "no frames");
    check(&[first.clone(), frame(2, 3, ElementType::F32)], "another sequence or place");
    check(&[first.clone(), frame(2, 2, ElementType::F16)], "parts are others");
    let layers = LayerRange::new(0, 2);
    let later = Made { layers, ..made(2) };
    check(
        &[first, Frame::of_hidden(&[0.0; 6], 3, ElementType::F32, later).expect("a frame")],
        "other layers",
    );
}

#[test]
fn descriptions_that_disagree_with_their_payload_are_refused_by_name() {
    let good = frame(4, 0, ElementType::F32);
    let check = |change: &dyn Fn(&mut FrameDesc), expected: &str| {
        let mut desc = good.desc().clone();
        change(&mut desc);
        let error = Frame::new(desc, good.payload().to_vec()).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(&|desc| desc.version = 2, "version 2");
    check(&|desc| desc.tokens = 0, "no tokens");
    check(&|desc| desc.parts.clear(), "no parts");
    check(&|desc| desc.tokens = 5, "token axis");
    check(&|desc| desc.parts[0].token_axis = 9, "token axis");
    check(&|desc| desc.parts[0].dimensions[1] = 0, "a dimension is 0");
    check(&|desc| desc.parts[0].dimensions[1] = u64::MAX, "dimensions are too large");
    check(&|desc| desc.parts[0].strides[0] = u64::MAX, "strides lead beyond");
    check(&|desc| desc.parts[0].strides[0] = 4, "strides lead beyond");
    check(&|desc| desc.parts[0].strides.truncate(1), "a stride for each");
    check(&|desc| desc.parts[0].offset = 1, "beyond the payload");
    check(&|desc| desc.parts[0].offset = u64::MAX, "end overflows");
    check(&|desc| desc.parts[0].bytes = u64::MAX, "too large");
    check(&|desc| desc.frontier.position = Position::START.advance(u32::MAX as usize), "of a frame of 4");
}

/// A frame whose part has three dimensions in any order, padded strides, and a gap before it.
fn strided(tokens: usize, axis: usize, padding: u64, position: usize) -> Frame {
    let mut dimensions = vec![2_u64, 3, 2];
    dimensions[axis] = tokens as u64;
    let strides = vec![dimensions[1] * (dimensions[2] + padding), dimensions[2] + padding, 1];
    let bytes = dimensions[0] * strides[0] * 2;
    let part = PartDesc {
        identity: PartIdentity::Other("test".to_owned()),
        element: ElementType::F16,
        dimensions: dimensions.clone(),
        token_axis: axis,
        strides: strides.clone(),
        offset: 5,
        bytes,
    };
    let mut payload = vec![0xAA; 5 + bytes as usize];
    for one in 0..dimensions[0] {
        for two in 0..dimensions[1] {
            for three in 0..dimensions[2] {
                let mut index = [one, two, three];
                index[axis] += position as u64;
                let value = (index[0] * 10_000 + index[1] * 100 + index[2]) as u16;
                let at = 5 + 2 * (one * strides[0] + two * strides[1] + three) as usize;
                payload[at..at + 2].copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    let Made { producer, layers, frontier } = made(position);
    let desc = FrameDesc { version: FRAME_VERSION, producer, layers, tokens, parts: vec![part], frontier };
    Frame::new(desc, payload).expect("a frame")
}

proptest! {
    #[test]
    fn slices_combine_to_the_whole_along_any_axis_and_whatever_the_strides(
        tokens in 1_usize..9,
        axis in 0_usize..3,
        padding in 0_u64..3,
        cut in 0_usize..9,
    ) {
        let whole = strided(tokens, axis, padding, 0);
        let dense = whole.slice(0..tokens).expect("all of it");
        let cut = cut % tokens;
        let mut pieces = vec![whole.slice(cut..tokens).expect("the rest")];
        if cut > 0 {
            pieces.insert(0, whole.slice(0..cut).expect("the start"));
        }
        prop_assert_eq!(&Frame::combine(&pieces).expect("they follow one another"), &dense);
        // Strided frames combine as dense ones do.
        let apart = [strided(tokens, axis, padding, 0), strided(2, axis, 0, tokens)];
        let together = strided(tokens + 2, axis, 0, 0).slice(0..tokens + 2).expect("all of it");
        prop_assert_eq!(Frame::combine(&apart).expect("they follow one another"), together);
    }

    #[test]
    fn no_description_panics(
        numbers in prop::collection::vec(prop_oneof![0_u64..6, any::<u64>()], 12),
        tokens in 0_usize..5,
        axis in 0_usize..4,
        payload in 0_usize..64,
    ) {
        let part = PartDesc {
            identity: PartIdentity::HiddenStates,
            element: ElementType::Bf16,
            dimensions: numbers[..3].to_vec(),
            token_axis: axis,
            strides: numbers[3..6].to_vec(),
            offset: numbers[6],
            bytes: numbers[7],
        };
        let Made { producer, layers, frontier } = made(0);
        let desc = FrameDesc { version: FRAME_VERSION, producer, layers, tokens, parts: vec![part], frontier };
        if let Ok(frame) = Frame::new(desc, vec![0; payload]) {
            frame.slice(0..tokens).expect("all of it");
            frame.hidden();
        }
    }
}
