//! The part of `lavalane bench` that shows how costs grow: decoding over lanes and over positions, prefill over
//! the prompt's length. One run of each side.

use super::figures::{Medians, Rates};
use super::peer::Peer;
use super::rates::print_table;
use super::{BenchArguments, executor};
use crate::cli::error::CommandError;
use lavalane_runtime::batch::BatchExecutor;
use lavalane_runtime::engine::bench::{LongSequence, decode_rate, prefill_rate};
use lavalane_runtime::engine::work::RateCeilings;
use lavalane_runtime::model::Model;
use std::sync::Arc;

/// Lanes that decode together.
const LANES: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Positions at which one lane decodes.
const POSITIONS: [usize; 4] = [128, 1000, 2000, 4000];
/// Lengths of prompts.
const PROMPTS: [usize; 4] = [32, 128, 512, 2048];

/// Prints the figures.
///
/// # Errors
/// The device cannot be used, a step fails, or the peer does.
pub(super) fn print(
    arguments: &BenchArguments,
    model: &Arc<Model>,
    peer: &Peer,
    ceilings: &RateCeilings<'_>,
) -> Result<(), CommandError> {
    let context = model.description().context;
    let steps = arguments.steps;
    let (mut ours, mut theirs, mut most) = (Rates::default(), Rates::default(), Medians::new());
    let mut together = executor(arguments, model, LANES[5], arguments.prompt + steps)?;
    for lanes in LANES {
        let rate = decode_rate(&mut together, lanes, arguments.prompt, steps, 1)?;
        ours.add(format!("decode_{lanes}"), rate);
        most.insert(format!("decode_{lanes}"), ceilings.decode(lanes, arguments.prompt, steps));
    }
    drop(together);
    peer.batched(&LANES, arguments.prompt, steps, &mut theirs)?;
    println!("growth with lanes, {} tokens each:", arguments.prompt + steps);
    print_table(&ours.medians(), &theirs.medians(), &most);

    let fits = |tokens: &usize| *tokens <= context;
    let positions: Vec<usize> = POSITIONS.into_iter().filter(|position| fits(&(position + steps))).collect();
    let prompts: Vec<usize> = PROMPTS.into_iter().filter(fits).collect();
    let longest = positions.iter().map(|position| position + steps).chain(prompts.iter().copied()).max();
    let mut alone = executor(arguments, model, 1, longest.unwrap_or(context))?;
    let (mut ours, mut theirs, mut most) = (Rates::default(), Rates::default(), Medians::new());
    let slice = alone.limits().batch_rows_max;
    for &tokens in &prompts {
        ours.add(format!("prefill_{tokens}"), prefill_rate(&mut alone, tokens, 1)?);
        most.insert(format!("prefill_{tokens}"), ceilings.prefill(tokens, slice));
    }
    let mut sequence = LongSequence::new(&mut alone);
    for &position in &positions {
        sequence.feed_to(position)?;
        ours.add(format!("decode_1_at_{position}"), sequence.decode_rate(steps)?);
        most.insert(format!("decode_1_at_{position}"), ceilings.decode(1, position, steps));
    }
    drop(alone);
    if !prompts.is_empty() {
        peer.single(&prompts, 0, &[0], &mut theirs)?;
    }
    if !positions.is_empty() {
        peer.single(&[], steps, &positions, &mut theirs)?;
    }
    println!("growth with the position, and with the prompt's length:");
    print_table(&ours.medians(), &theirs.medians(), &most);
    if positions.len() < POSITIONS.len() || prompts.len() < PROMPTS.len() {
        println!("  longer ones: skipped, the model's context is {context} tokens");
    }
    Ok(())
}
