//! `lavalane bench`: prefill and decode rates over lanes, the time per kernel, and a peer's figures beside
//! them where its benchmark programs are named by `PEER_BENCH` and `PEER_BATCHED_BENCH`.
//!
//! The two sides take turns within one run, because machines drift; the medians are printed with their ratio.

mod figures;
mod peer;
mod scheduling;

use super::device_arguments::DeviceArguments;
use super::error::CommandError;
use clap::Args;
use figures::{Figures, Medians, Rates};
use lavalane_runtime::engine::bench::{decode_rate, prefill_rate, stage_times};
use lavalane_runtime::engine::{EngineOptions, VulkanExecutor, WindowRunner};
use lavalane_runtime::model::Model;
use peer::Peer;
use std::path::PathBuf;
use std::sync::Arc;

/// Measure prefill, decode and the time per kernel
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
    /// Where and how exactly to compute
    #[command(flatten)]
    pub device: DeviceArguments,
}

/// Lanes whose decoding is measured.
const LANES: [usize; 3] = [1, 8, 32];

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
    let options = EngineOptions {
        choice: arguments.device.choice(),
        precision: arguments.device.precision(),
        kv_type: arguments.device.kv_type(),
        lanes: LANES[2],
        context_tokens: Some(sequence.min(model.description().context)),
        ..EngineOptions::default()
    };
    let mut executor = VulkanExecutor::new(model.clone(), &options)?;
    let device = executor.device().clone();
    println!("{} on {}, pack {}", model.description().name, device.name, executor.pack().name());
    let peer = Peer::new(arguments.peer.clone(), arguments.peer_batched.clone(), arguments.model.clone());
    if !peer.measures_anything() {
        println!("no peer: PEER_BENCH and PEER_BATCHED_BENCH are not set");
    }
    let (mut ours, mut theirs) = (Rates::default(), Rates::default());
    for _ in 0..arguments.repeats.max(1) {
        measure(arguments, &mut executor, &mut ours)?;
        peer.measure(&PREFILLS, &LANES, arguments.prompt, arguments.steps, &mut theirs)?;
    }
    drop(executor);
    let figures = Figures { lavalane: ours.medians(), peer: theirs.medians() };
    print_rates(&figures.lavalane, &figures.peer);
    print_stages(arguments, model.clone())?;
    scheduling::print(arguments, model)?;
    if let Some(path) = &arguments.json {
        figures.write(path)?;
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
    println!("{:14} {:>12} {:>12} {:>8}   (tokens/s, medians)", "", "lavalane", "peer", "ratio");
    for (name, rate) in ours {
        match theirs.get(name) {
            Some(peer) => println!("{name:14} {rate:12.1} {peer:12.1} {:8.2}", rate / peer),
            None => println!("{name:14} {rate:12.1} {:>12} {:>8}", "-", "-"),
        }
    }
}

fn print_stages(arguments: &BenchArguments, model: Arc<Model>) -> Result<(), CommandError> {
    let device = &arguments.device;
    let (precision, kv_type) = (device.precision(), device.kv_type());
    let mut runner = WindowRunner::new(model, device.choice(), precision, kv_type, 128, 128)?;
    for rows in [1, 8, 128] {
        let times = stage_times(&mut runner, rows, 0)?;
        let total: f64 = times.iter().map(|time| time.seconds).sum();
        println!("time per kernel, a step of {rows} rows: {:.2} ms on the device", total * 1e3);
        for time in times {
            println!(
                "  {:32} {:4} times {:9.3} ms {:5.1}%",
                time.name,
                time.count,
                time.seconds * 1e3,
                100.0 * time.seconds / total
            );
        }
    }
    Ok(())
}
