//! The operations that random sequences are made of.

use crate::batch::LaneFaultCause;
use crate::testing::{Fault, When};
use proptest::prelude::*;

/// One operation. Numbers are taken modulo what there is to choose from.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Admit(u8),
    Drop(u8),
    Prefill(u8, Vec<u32>),
    PrefillSampled(u8, Vec<u32>),
    Resume { session: u8, like: u8, keep: usize, tail: Vec<u32> },
    Batch(Vec<(u8, Part)>),
    VerifySerial(u8, Vec<u32>),
    Retire { session: u8, wrong: bool },
    Trim(u8, usize),
    Align(u8, usize),
    Configure(u8, u8),
    Copy { session: u8, from: u8 },
    Fault(Fault),
    Recover,
}

/// What one session brings to a batch.
#[derive(Clone, Debug)]
pub(super) enum Part {
    New(u8, Vec<u32>),
    Prefill(Vec<u32>),
    PrefillSampled(Vec<u32>),
    Decode(u32),
    Verify(Vec<u32>),
    Recompute(Vec<u32>),
    ElsewherePosition(u32),
}

fn tokens() -> impl Strategy<Value = Vec<u32>> {
    // Few different tokens, so that prefixes are shared; sometimes one that the model has not.
    prop::collection::vec(prop_oneof![40 => 1_u32..4, 1 => Just(64)], 0..14)
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        2 => (any::<u8>(), tokens()).prop_map(|(kind, tokens)| Part::New(kind, tokens)),
        2 => tokens().prop_map(Part::Prefill),
        2 => tokens().prop_map(Part::PrefillSampled),
        6 => (1_u32..4).prop_map(Part::Decode),
        3 => tokens().prop_map(Part::Verify),
        1 => tokens().prop_map(Part::Recompute),
        1 => (1_u32..4).prop_map(Part::ElsewherePosition),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    let when = prop_oneof![Just(When::Before), (0_usize..3).prop_map(When::During), Just(When::After)];
    let cause = prop_oneof![Just(LaneFaultCause::OutOfMemory), Just(LaneFaultCause::LogitsNotFinite)];
    prop_oneof![
        (0_usize..4, cause).prop_map(|(lane, cause)| Fault::Lane(lane, cause)),
        (0_usize..4).prop_map(Fault::Submission),
        when.clone().prop_map(Fault::DeviceLost),
        when.prop_map(Fault::Panic),
        (0_usize..4).prop_map(Fault::WrongLength),
        (0_usize..4).prop_map(Fault::SessionKept),
        (0_usize..4).prop_map(Fault::LeftOut),
    ]
}

pub(super) fn operation() -> impl Strategy<Value = Operation> {
    let any8 = any::<u8>;
    prop_oneof![
        4 => any8().prop_map(Operation::Admit),
        1 => any8().prop_map(Operation::Drop),
        3 => (any8(), tokens()).prop_map(|(session, tokens)| Operation::Prefill(session, tokens)),
        4 => (any8(), tokens()).prop_map(|(session, tokens)| Operation::PrefillSampled(session, tokens)),
        3 => (any8(), any8(), 0_usize..40, tokens())
            .prop_map(|(session, like, keep, tail)| Operation::Resume { session, like, keep, tail }),
        8 => prop::collection::vec((any8(), part()), 0..5).prop_map(Operation::Batch),
        2 => (any8(), tokens()).prop_map(|(session, tokens)| Operation::VerifySerial(session, tokens)),
        3 => (any8(), prop::bool::weighted(0.2))
            .prop_map(|(session, wrong)| Operation::Retire { session, wrong }),
        3 => (any8(), 0_usize..40).prop_map(|(session, tokens)| Operation::Trim(session, tokens)),
        2 => (any8(), 0_usize..40).prop_map(|(session, tokens)| Operation::Align(session, tokens)),
        1 => (any8(), any8()).prop_map(|(session, kind)| Operation::Configure(session, kind)),
        2 => (any8(), any8()).prop_map(|(session, from)| Operation::Copy { session, from }),
        6 => fault().prop_map(Operation::Fault),
        2 => Just(Operation::Recover),
    ]
}
