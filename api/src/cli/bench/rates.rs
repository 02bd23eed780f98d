//! The part of `lavalane bench` that measures prefill and decode, ours and the peer's in turns.

use super::figures::{Figures, Medians, Rates};
use super::peer::Peer;
use super::{BenchArguments, options, ready};
use crate::cli::error::CommandError;
use lavalane_runtime::batch::BatchExecutor;
use lavalane_runtime::engine::bench::{LongSequence, decode_rate, prefill_rate};
use lavalane_runtime::engine::work::RateCeilings;
use lavalane_runtime::engine::{EngineOptions, MemoryPlan, VulkanExecutor};
use lavalane_runtime::model::Model;
use lavalane_runtime::vulkan::chosen;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// What is measured, as far as the model's context allows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    /// Lengths of prompts.
    prefills: Vec<usize>,
    /// Lanes that decode together.
    lanes: Vec<usize>,
    /// Tokens of each of those lanes, prompt included.
    lane_tokens: usize,
    /// The position at which one lane decodes alone.
    far: Option<usize>,
    /// A line for whatever is left out.
    skipped: Vec<String>,
}

impl Plan {
    fn new(arguments: &BenchArguments, context: usize) -> Self {
        let sizes = |given: &[NonZeroUsize]| given.iter().map(|size| size.get()).collect::<Vec<_>>();
        let lane_tokens = arguments.prompt + arguments.steps;
        let mut skipped = Vec::new();
        let mut fits = |name: String, tokens: usize| {
            if tokens > context {
                skipped.push(format!(
                    "{name}: skipped, it needs {tokens} tokens and the model's context is {context}"
                ));
            }
            tokens <= context
        };
        let mut prefills = sizes(&arguments.prefill);
        prefills.retain(|&tokens| fits(format!("prefill_{tokens}"), tokens));
        let mut lanes = sizes(&arguments.lanes);
        lanes.retain(|lanes| fits(format!("decode_{lanes}"), lane_tokens));
        let far = Some(arguments.far)
            .filter(|&far| far > 0 && fits(format!("decode_1_at_{far}"), far + arguments.steps));
        Self { prefills, lanes, lane_tokens, far, skipped }
    }

    /// The engine's options: with pages for the longest sequence alone, and for all lanes together.
    fn options(&self, arguments: &BenchArguments, model: &Model) -> Result<EngineOptions, CommandError> {
        let far = self.far.map(|far| far + arguments.steps);
        let alone = self.prefills.iter().copied().chain(far).max();
        let lanes = self.lanes.iter().copied().max();
        let device = chosen(&arguments.device.choice())?;
        let kv_bytes = |lanes: usize, context: usize| {
            MemoryPlan::new(model, &options(arguments, lanes, context), &device).map(|plan| plan.kv_bytes())
        };
        let together = lanes.map(|lanes| (lanes, self.lane_tokens));
        let mut most = 0;
        for (lanes, context) in alone.map(|tokens| (1, tokens)).into_iter().chain(together) {
            most = most.max(kv_bytes(lanes, context)?);
        }
        let context = alone.max(together.map(|(_, tokens)| tokens)).unwrap_or(1);
        Ok(EngineOptions { kv_bytes: Some(most), ..options(arguments, lanes.unwrap_or(1), context) })
    }
}

/// Prints the rates and gives them.
///
/// # Errors
/// The device cannot be used, a step fails, or the peer does.
pub(super) fn print(
    arguments: &BenchArguments,
    model: &Arc<Model>,
    peer: &Peer,
    ceilings: &RateCeilings<'_>,
) -> Result<Figures, CommandError> {
    let plan = Plan::new(arguments, model.description().context);
    plan.skipped.iter().for_each(|line| println!("{line}"));
    if plan.prefills.is_empty() && plan.lanes.is_empty() && plan.far.is_none() {
        return Ok(Figures::default());
    }
    let mut executor = ready(model, &plan.options(arguments, model)?)?;
    println!("rates with the {} pack:", executor.pack().name());
    let (mut ours, mut theirs) = (Rates::default(), Rates::default());
    for _ in 0..arguments.repeats.max(1) {
        measure(arguments, &plan, &mut executor, &mut ours)?;
        measure_peer(arguments, &plan, peer, &mut theirs)?;
    }
    if let Some(far) = plan.far {
        let mut sequence = LongSequence::new(&mut executor);
        sequence.feed_to(far)?;
        for _ in 0..arguments.repeats.max(1) {
            note(&mut ours, format!("decode_1_at_{far}"), sequence.decode_rate(arguments.steps)?);
            peer.single(&[], arguments.steps, &[far], &mut theirs)?;
        }
    }
    let figures = Figures { lavalane: ours.medians(), peer: theirs.medians() };
    let slice = executor.limits().batch_rows_max;
    let mut most = Medians::new();
    for &tokens in &plan.prefills {
        most.insert(format!("prefill_{tokens}"), ceilings.prefill(tokens, slice));
    }
    for &lanes in &plan.lanes {
        let rate = ceilings.decode(lanes, arguments.prompt, arguments.steps);
        most.insert(format!("decode_{lanes}"), rate);
    }
    if let Some(far) = plan.far {
        most.insert(format!("decode_1_at_{far}"), ceilings.decode(1, far, arguments.steps));
    }
    print_table(&figures.lavalane, &figures.peer, &most);
    Ok(figures)
}

fn measure(
    arguments: &BenchArguments,
    plan: &Plan,
    executor: &mut VulkanExecutor,
    rates: &mut Rates,
) -> Result<(), CommandError> {
    for &tokens in &plan.prefills {
        let rate = prefill_rate(executor, tokens, 1)?;
        note(rates, format!("prefill_{tokens}"), rate);
    }
    for &lanes in &plan.lanes {
        let rate = decode_rate(executor, lanes, arguments.prompt, arguments.steps, 1)?;
        note(rates, format!("decode_{lanes}"), rate);
    }
    Ok(())
}

/// Adds a rate and prints it at once: a run that is cut short still tells what it measured.
fn note(rates: &mut Rates, name: String, rate: f64) {
    println!("  measured {name:16} {rate:12.1} tokens/s");
    rates.add(name, rate);
}

fn measure_peer(
    arguments: &BenchArguments,
    plan: &Plan,
    peer: &Peer,
    rates: &mut Rates,
) -> Result<(), CommandError> {
    let (one, several): (Vec<usize>, Vec<usize>) = plan.lanes.iter().partition(|&&lanes| lanes == 1);
    let steps = if one.is_empty() { 0 } else { arguments.steps };
    if steps > 0 || !plan.prefills.is_empty() {
        peer.single(&plan.prefills, steps, &[0], rates)?;
    }
    if !several.is_empty() {
        peer.batched(&several, arguments.prompt, arguments.steps, rates)?;
    }
    Ok(())
}

/// Prints both sides' rates, and which part ours are of those at the roofline.
pub(super) fn print_table(ours: &Medians, theirs: &Medians, most: &Medians) {
    println!(
        "{:16} {:>12} {:>12} {:>8} {:>9}   (tokens/s, medians)",
        "", "lavalane", "peer", "ratio", "roofline"
    );
    let text = |value: Option<f64>, decimals: usize| {
        value.map_or("-".to_owned(), |value| format!("{value:.decimals$}"))
    };
    for (name, rate) in ours {
        let peer = theirs.get(name).copied();
        let ratio = text(peer.map(|peer| rate / peer), 2);
        let part = most.get(name).map_or("-".to_owned(), |most| format!("{:.1}%", 100.0 * rate / most));
        println!("{name:16} {rate:12.1} {:>12} {ratio:>8} {part:>9}", text(peer, 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArguments,
    }

    /// What is measured and what is skipped, of which each is named.
    fn check(flags: &str, context: usize, measured: (&[usize], &[usize], Option<usize>), skipped: &[&str]) {
        let words = ["bench", "--model", "a.gguf"].into_iter().chain(flags.split_whitespace());
        let plan = Plan::new(&Line::parse_from(words).bench, context);
        assert_eq!((&plan.prefills[..], &plan.lanes[..], plan.far), measured, "{flags}");
        assert_eq!(plan.skipped.len(), skipped.len(), "{:?}", plan.skipped);
        for (line, part) in plan.skipped.iter().zip(skipped) {
            assert!(line.starts_with(part) && line.ends_with(&format!("context is {context}")), "{line}");
        }
    }

    #[test]
    fn what_is_longer_than_the_context_is_skipped_by_name() {
        check("", 8192, (&[128, 512], &[1, 8, 32], Some(4000)), &[]);
        check("", 2048, (&[128, 512], &[1, 8, 32], None), &["decode_1_at_4000: skipped, it needs 4032 "]);
        check(
            "--prefill 64,4096 --lanes 2,1 --far 0 --prompt 90 --steps 10",
            100,
            (&[64], &[2, 1], None),
            &["prefill_4096: skipped"],
        );
        check(
            "--prefill 100 --lanes 2,4 --far 0 --prompt 91 --steps 10",
            100,
            (&[100], &[], None),
            &["decode_2: skipped, it needs 101 tokens", "decode_4: skipped"],
        );
    }
}
