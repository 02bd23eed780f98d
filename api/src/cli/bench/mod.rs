//! `lavalane bench`: prefill and decode rates over lanes, starts, memory, clients, the time per kernel, and a peer's
//! figures beside them where its programs are named by `PEER_BENCH`, `PEER_BATCHED_BENCH` and `PEER_SERVER`.
//!
//! The two sides take turns within one run, because machines drift; the medians are printed with their ratio.

mod child;
mod figures;
mod growth;
mod peer;
mod profile;
mod scheduling;
mod serving;
mod start;

use super::device_arguments::DeviceArguments;
use super::error::CommandError;
use clap::Args;
use figures::{Figures, Medians, Rates};
use lavalane_runtime::engine::bench::{LongSequence, decode_rate, prefill_rate};
use lavalane_runtime::engine::{EngineOptions, VulkanExecutor};
use lavalane_runtime::model::Model;
use peer::Peer;
use std::path::PathBuf;
use std::sync::Arc;

/// Measure prefill, decode, starts, memory, clients over HTTP and the time per kernel
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  PEER_BENCH=…/llama-bench lavalane bench --model models/SmolLM2-135M-Instruct.Q4_1.gguf"
)]
pub struct BenchArguments {
    /// The GGUF file
    #[arg(long, env = "LAVALANE_MODEL")]
    pub model: PathBuf,
    /// Tokens of each prompt before decoding
    #[arg(long, default_value_t = 128)]
    pub prompt: usize,
    /// Tokens decoded on each lane
    #[arg(long, default_value_t = 32)]
    pub steps: usize,
    /// Repeats of each measurement; medians are printed
    #[arg(long, default_value_t = 3)]
    pub repeats: usize,
    /// Tokens of the prompt that arrives while another request draws tokens; 0 leaves this out
    #[arg(long, default_value_t = 8000)]
    pub long_prompt: usize,
    /// Also write the rates of both sides (tokens/s, medians) to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// A peer's program that measures one stream (llama-bench)
    #[arg(long, env = "PEER_BENCH", hide_env_values = true)]
    pub peer: Option<PathBuf>,
    /// A peer's program that measures streams together (llama-batched-bench)
    #[arg(long, env = "PEER_BATCHED_BENCH", hide_env_values = true)]
    pub peer_batched: Option<PathBuf>,
    /// A peer's server, to be asked by the same clients as ours (llama-server)
    #[arg(long, env = "PEER_SERVER", hide_env_values = true)]
    pub peer_server: Option<PathBuf>,
    /// Also show how costs grow with lanes, with the position and with the prompt's length (minutes more)
    #[arg(long)]
    pub growth: bool,
    /// Where and how exactly to compute
    #[command(flatten)]
    pub device: DeviceArguments,
}

/// Lanes whose decoding is measured.
const LANES: [usize; 3] = [1, 8, 32];

/// The position far into the context at which one lane's decoding is measured.
const FAR: usize = 4000;

/// Prompt lengths whose prefill is measured.
const PREFILLS: [usize; 2] = [128, 512];

/// Prints the figures.
///
/// # Errors
/// The model or device cannot be used, the file cannot be written, or the peer fails.
pub fn run(arguments: &BenchArguments) -> Result<(), CommandError> {
    if let Some(path) = &arguments.json {
        figures::check_writable(path)?;
    }
    let model = Arc::new(Model::open(&arguments.model)?);
    let sequence = (arguments.prompt + arguments.steps).max(PREFILLS[1]);
    let context = model.description().context;
    let mut executor = executor(arguments, &model, LANES[2], sequence.min(context))?;
    println!("{} on {}, pack {}", model.description().name, executor.device().name, executor.pack().name());
    let (single, batched) = (arguments.peer.clone(), arguments.peer_batched.clone());
    let peer = Peer::new(single, batched, arguments.peer_server.clone(), arguments.model.clone());
    if !peer.missing().is_empty() {
        println!("not all of a peer is measured: {} not set", peer.missing().join(", "));
    }
    let (mut ours, mut theirs) = (Rates::default(), Rates::default());
    for _ in 0..arguments.repeats.max(1) {
        measure(arguments, &mut executor, &mut ours)?;
        peer.single(&PREFILLS, arguments.steps, &[0], &mut theirs)?;
        peer.batched(&LANES[1..], arguments.prompt, arguments.steps, &mut theirs)?;
    }
    drop(executor);
    measure_far(arguments, &model, &peer, &mut ours, &mut theirs)?;
    let figures = Figures { lavalane: ours.medians(), peer: theirs.medians() };
    print_rates(&figures.lavalane, &figures.peer);
    start::print(arguments, context, &peer)?;
    serving::print(arguments, &model, &peer)?;
    profile::print(arguments, model.clone())?;
    if arguments.growth {
        growth::print(arguments, &model, &peer)?;
    }
    scheduling::print(arguments, model)?;
    if let Some(path) = &arguments.json {
        figures.write(path)?;
    }
    Ok(())
}

/// An executor with room for `lanes` sequences of `context` tokens.
fn executor(
    arguments: &BenchArguments,
    model: &Arc<Model>,
    lanes: usize,
    context: usize,
) -> Result<VulkanExecutor, CommandError> {
    let options = EngineOptions {
        choice: arguments.device.choice(),
        precision: arguments.device.precision(),
        kv_type: arguments.device.kv_type(),
        lanes,
        context_tokens: Some(context),
        ..EngineOptions::default()
    };
    Ok(VulkanExecutor::new(model.clone(), &options)?)
}

/// Measures one stream far into its context, where both sides read much of their caches.
fn measure_far(
    arguments: &BenchArguments,
    model: &Arc<Model>,
    peer: &Peer,
    ours: &mut Rates,
    theirs: &mut Rates,
) -> Result<(), CommandError> {
    let (needed, context) = (FAR + arguments.steps, model.description().context);
    if needed > context {
        println!("decode_1_at_{FAR}: skipped, the model's context is {context} tokens");
        return Ok(());
    }
    let mut executor = executor(arguments, model, 1, needed)?;
    let mut sequence = LongSequence::new(&mut executor);
    sequence.feed_to(FAR)?;
    for _ in 0..arguments.repeats.max(1) {
        ours.add(format!("decode_1_at_{FAR}"), sequence.decode_rate(arguments.steps)?);
        peer.single(&[], arguments.steps, &[FAR], theirs)?;
    }
    Ok(())
}

fn measure(
    arguments: &BenchArguments,
    executor: &mut VulkanExecutor,
    rates: &mut Rates,
) -> Result<(), CommandError> {
    for tokens in PREFILLS {
        let rate = prefill_rate(executor, tokens, 1)?;
        rates.add(format!("prefill_{tokens}"), rate);
    }
    for lanes in LANES {
        let rate = decode_rate(executor, lanes, arguments.prompt, arguments.steps, 1)?;
        rates.add(format!("decode_{lanes}"), rate);
    }
    Ok(())
}

fn print_rates(ours: &Medians, theirs: &Medians) {
    println!("{:16} {:>12} {:>12} {:>8}   (tokens/s, medians)", "", "lavalane", "peer", "ratio");
    for (name, rate) in ours {
        match theirs.get(name) {
            Some(peer) => println!("{name:16} {rate:12.1} {peer:12.1} {:8.2}", rate / peer),
            None => println!("{name:16} {rate:12.1} {:>12} {:>8}", "-", "-"),
        }
    }
}
