//! `lavalane synth`: writes a random-weight model file, for tests and for speed at sizes that cannot be
//! downloaded.

use super::error::CommandError;
use clap::Args;
use lavalane_runtime::quant::TensorType;
use lavalane_runtime::synth::{SynthSettings, write_synth};
use std::path::PathBuf;

/// Write a random-weight model file
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  lavalane synth --architecture llama --layers 4 --hidden 256 --type q4_0 tiny.gguf"
)]
pub struct SynthArguments {
    /// The file to write
    file: PathBuf,
    /// Architecture: gemma3, llama, mistral, qwen2 or qwen3
    #[arg(long, default_value = "llama")]
    architecture: String,
    /// Layers
    #[arg(long, default_value_t = 2)]
    layers: usize,
    /// Elements of a hidden state
    #[arg(long, default_value_t = 256)]
    hidden: usize,
    /// Query heads
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// Key and value heads
    #[arg(long, default_value_t = 2)]
    kv_heads: usize,
    /// Elements of one head
    #[arg(long, default_value_t = 64)]
    head_dim: usize,
    /// Elements between the feed-forward's matrices
    #[arg(long, default_value_t = 512)]
    feed_forward: usize,
    /// Tokens of the vocabulary
    #[arg(long, default_value_t = 1024)]
    vocabulary: usize,
    /// Context, in tokens
    #[arg(long, default_value_t = 2048)]
    context: usize,
    /// How matrices are stored, such as f16, q4_0 or q6_k
    #[arg(long = "type", default_value = "q4_0")]
    tensor_type: String,
    /// Where the random numbers start
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Writes the file and prints its size.
///
/// # Errors
/// The sizes make no model, or the file cannot be written.
pub fn run(arguments: &SynthArguments) -> Result<(), CommandError> {
    let tensor_type = TensorType::from_name(&arguments.tensor_type).ok_or(CommandError::Argument {
        argument: "type",
        given: arguments.tensor_type.clone(),
        reason: "no such tensor type",
    })?;
    let settings = SynthSettings {
        architecture: arguments.architecture.clone(),
        layers: arguments.layers,
        hidden: arguments.hidden,
        heads: arguments.heads,
        kv_heads: arguments.kv_heads,
        head_dim: arguments.head_dim,
        feed_forward: arguments.feed_forward,
        vocabulary: arguments.vocabulary,
        context: arguments.context,
        tensor_type,
        seed: arguments.seed,
    };
    let bytes = write_synth(&settings, &arguments.file)?;
    println!("{}: {bytes} bytes", arguments.file.display());
    Ok(())
}
