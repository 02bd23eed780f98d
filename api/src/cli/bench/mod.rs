//! `lavalane bench`: prefill and decode rates over lanes, starts, memory, clients, the time per kernel, and a peer's
//! figures beside them where its programs are named by `PEER_BENCH`, `PEER_BATCHED_BENCH` and `PEER_SERVER`.
//!
//! The two sides take turns within one run, because machines drift; the medians are printed with their ratio.

mod child;
mod figures;
mod growth;
mod peer;
mod profile;
mod rates;
mod scheduling;
mod serving;
mod start;

use super::device_arguments::DeviceArguments;
use super::error::CommandError;
use clap::{Args, ValueEnum};
use figures::Figures;
use lavalane_runtime::batch::BatchExecutor;
use lavalane_runtime::engine::work::RateCeilings;
use lavalane_runtime::engine::{EngineOptions, VulkanExecutor};
use lavalane_runtime::model::Model;
use lavalane_runtime::vulkan::chosen;
use lavalane_runtime::vulkan::roofline::Roofline;
use peer::Peer;
use std::num::NonZeroUsize;
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
    /// What is measured, by name and separated by commas; everything where this is not given
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS", hide_default_value = true,
        default_values_t = Part::value_variants().to_vec())]
    pub parts: Vec<Part>,
    /// Lengths of the prompts whose prefill is measured, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "TOKENS", default_value = "128,512")]
    pub prefill: Vec<NonZeroUsize>,
    /// How many lanes decode together, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "LANES", default_value = "1,8,32")]
    pub lanes: Vec<NonZeroUsize>,
    /// The position far into the context at which one lane's decoding is measured; 0 leaves this out
    #[arg(long, value_name = "POSITION", default_value_t = 4000)]
    pub far: usize,
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

/// What `lavalane bench` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Prefill and decode
    Rates,
    /// Starts of whole processes, and their memory
    Starts,
    /// Clients over HTTP, beside an embedded engine
    Clients,
    /// The time per kernel
    Kernels,
    /// The scheduler's own cost, and who waits for whom
    Scheduling,
}

/// Prints the figures.
///
/// # Errors
/// The model or device cannot be used, the file cannot be written, or the peer fails.
pub fn run(arguments: &BenchArguments) -> Result<(), CommandError> {
    let wanted = |part| arguments.parts.contains(&part);
    if let Some(path) = &arguments.json {
        if !wanted(Part::Rates) {
            return Err(CommandError::Argument {
                argument: "json",
                given: path.display().to_string(),
                reason: "it would hold rates, and they are not among --parts",
            });
        }
        figures::check_writable(path)?;
    }
    let model = Arc::new(Model::open(&arguments.model)?);
    let device = chosen(&arguments.device.choice())?;
    println!("{} on {}", model.description().name, device.name);
    let (single, batched) = (arguments.peer.clone(), arguments.peer_batched.clone());
    let peer = Peer::new(single, batched, arguments.peer_server.clone(), arguments.model.clone());
    if !peer.missing().is_empty() {
        println!("not all of a peer is measured: {} not set", peer.missing().join(", "));
    }
    let roofline = Roofline::of(&arguments.device.choice())?;
    println!(
        "roofline of {}: {:.1} GB/s read, {:.0} G f32 multiplications and additions/s",
        if device.kind == "Cpu" { "all cores" } else { "the device" },
        roofline.bytes_per_second / 1e9,
        roofline.operations_per_second / 1e9
    );
    let ceilings = RateCeilings { model: &model, kv_type: arguments.device.kv_type(), roofline };
    let mut figures = Figures::default();
    if wanted(Part::Rates) {
        figures = rates::print(arguments, &model, &peer, &ceilings)?;
    }
    if wanted(Part::Starts) {
        start::print(arguments, model.description().context, &peer)?;
    }
    if wanted(Part::Clients) {
        serving::print(arguments, &model, &peer)?;
    }
    if wanted(Part::Kernels) {
        profile::print(arguments, &model, &roofline)?;
    }
    if arguments.growth {
        growth::print(arguments, &model, &peer, &ceilings)?;
    }
    if wanted(Part::Scheduling) {
        scheduling::print(arguments, model)?;
    }
    if let Some(path) = &arguments.json {
        figures.write(path)?;
    }
    Ok(())
}

/// The options of an engine with room for `lanes` sequences of `context` tokens.
fn options(arguments: &BenchArguments, lanes: usize, context: usize) -> EngineOptions {
    EngineOptions {
        choice: arguments.device.choice(),
        precision: arguments.device.precision(),
        kv_type: arguments.device.kv_type(),
        lanes,
        context_tokens: Some(context),
        ..EngineOptions::default()
    }
}

/// An executor with room for `lanes` sequences of `context` tokens.
fn executor(
    arguments: &BenchArguments,
    model: &Arc<Model>,
    lanes: usize,
    context: usize,
) -> Result<VulkanExecutor, CommandError> {
    ready(model, &options(arguments, lanes, context))
}

/// An executor with all kernels compiled, as that of a server that was idle for a moment.
fn ready(model: &Arc<Model>, options: &EngineOptions) -> Result<VulkanExecutor, CommandError> {
    let mut executor = VulkanExecutor::new(model.clone(), options)?;
    while executor.prepare() {}
    Ok(executor)
}
