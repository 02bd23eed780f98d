//! `lavalane inspect`: what a model file holds, the memory it needs on this device, and the lanes that fit.

use super::device_arguments::DeviceArguments;
use super::devices::gibibytes;
use super::error::CommandError;
use clap::Args;
use lavalane_runtime::engine::{EngineOptions, MemoryPlan};
use lavalane_runtime::model::Model;
use lavalane_runtime::vulkan::chosen;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Show a model file's metadata, tensors, and what it needs on this device
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  lavalane inspect models/SmolLM2-135M-Instruct.Q4_1.gguf --tensors")]
pub struct InspectArguments {
    /// The GGUF file; of a split file, its first part
    pub model: PathBuf,
    /// List every tensor
    #[arg(long)]
    pub tensors: bool,
    /// Tokens of one sequence [default: the model's context, at most 8192]
    #[arg(long)]
    pub context: Option<usize>,
    /// Where and how exactly to compute
    #[command(flatten)]
    pub device: DeviceArguments,
}

/// The longest metadata value that is printed whole, in characters.
const VALUE_CHARACTERS_MAX: usize = 100;

/// Prints what the file holds and needs.
///
/// # Errors
/// The file cannot be read as a model, or there is no device.
pub fn run(arguments: &InspectArguments) -> Result<(), CommandError> {
    let model = Model::open(&arguments.model)?;
    print_metadata(&model);
    print_tensors(&model, if arguments.tensors { Listing::Every } else { Listing::Totals });
    print_needs(&model, arguments)
}

fn print_metadata(model: &Model) {
    let description = model.description();
    println!("{} ({})", description.name, description.architecture);
    println!(
        "  {} layers, {} wide, {} heads of {}, {} KV heads, feed-forward {}, vocabulary {}, context {}",
        description.layers.len(),
        description.hidden,
        description.heads,
        description.head_dim,
        description.kv_heads,
        description.feed_forward,
        description.vocabulary,
        description.context,
    );
    println!("metadata (GGUF version {}):", model.file().version());
    for (key, value) in model.file().entries() {
        let text = format!("{value:?}");
        let short: String = text.chars().take(VALUE_CHARACTERS_MAX).collect();
        let cut = if short.len() < text.len() { "…" } else { "" };
        println!("  {key} = {short}{cut}");
    }
}

/// Which tensors are listed by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    /// Each, before the totals.
    Every,
    /// None.
    Totals,
}

fn print_tensors(model: &Model, listing: Listing) {
    let mut by_type: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for tensor in model.file().tensors() {
        let entry = by_type.entry(tensor.tensor_type().name()).or_default();
        entry.0 += 1;
        entry.1 += tensor.bytes() as u64;
        if listing == Listing::Every {
            println!("  {} {:?} {}", tensor.name(), tensor.dimensions(), tensor.tensor_type());
        }
    }
    println!("tensors:");
    for (name, (count, bytes)) in by_type {
        println!("  {name}: {count}, {:.1} MiB", bytes as f64 / f64::from(1 << 20));
    }
}

fn print_needs(model: &Model, arguments: &InspectArguments) -> Result<(), CommandError> {
    let device = chosen(&arguments.device.choice())?;
    let options = EngineOptions {
        lanes: 1,
        context_tokens: arguments.context,
        kv_type: arguments.device.kv_type(),
        ..EngineOptions::default()
    };
    let plan = MemoryPlan::new(model, &options, &device)?;
    let lane = plan.kv_bytes();
    let left = device.memory_bytes.saturating_sub(plan.weight_bytes + plan.scratch_bytes);
    println!("on {} ({:.1} GiB):", device.name, gibibytes(device.memory_bytes));
    println!(
        "  weights {:.2} GiB, scratch {:.2} GiB",
        gibibytes(plan.weight_bytes),
        gibibytes(plan.scratch_bytes)
    );
    println!(
        "  a lane of {} tokens takes {:.2} GiB of KV cache; {} such lanes fit",
        plan.context_tokens,
        gibibytes(lane),
        left / lane.max(1),
    );
    Ok(())
}
