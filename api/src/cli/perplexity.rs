//! `lavalane perplexity`: how well a model predicts a text, in disjoint windows of which the second half is
//! scored.

use super::device_arguments::DeviceArguments;
use super::error::CommandError;
use crate::software_threads::restart_if_alone;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lavalane_runtime::engine::WindowRunner;
use lavalane_runtime::model::Model;
use lavalane_runtime::reference::perplexity;
use lavalane_runtime::tokenizer::{AddSpecial, SpecialText, Tokenizer, TokenizerSource, UnknownPreTokenizer};
use lavalane_runtime::vulkan::VulkanError;
use std::path::PathBuf;
use std::sync::Arc;

/// Measure how well a model predicts a text file
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  lavalane perplexity --model models/SmolLM2-135M-Instruct.Q4_1.gguf text.txt"
)]
pub struct PerplexityArguments {
    /// The text file, in UTF-8
    pub text: PathBuf,
    /// The GGUF file
    #[arg(long, env = "LAVALANE_MODEL")]
    pub model: PathBuf,
    /// Tokens of one window
    #[arg(long, default_value_t = 512)]
    pub window: usize,
    /// The most windows; the rest of the text is left out
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    pub windows: usize,
    /// Where and how exactly to compute
    #[command(flatten)]
    pub device: DeviceArguments,
}

/// The least tokens of a window: half of it is scored.
const WINDOW_MIN: usize = 4;

/// Rows of one submission.
const SLICE: usize = 128;

/// Prints the text's perplexity.
///
/// # Errors
/// A file cannot be read, the text is too short, or the device fails.
pub fn run(arguments: &PerplexityArguments) -> Result<(), CommandError> {
    if arguments.window < WINDOW_MIN {
        let given = arguments.window.to_string();
        return Err(CommandError::Argument {
            argument: "window",
            given,
            reason: "a window has at least 4 tokens",
        });
    }
    if arguments.windows == 0 {
        return Err(CommandError::Argument {
            argument: "windows",
            given: "0".to_owned(),
            reason: "at least 1",
        });
    }
    let text = std::fs::read_to_string(&arguments.text)
        .map_err(|source| CommandError::File { path: arguments.text.clone(), source })?;
    let model = Arc::new(Model::open(&arguments.model)?);
    let source =
        TokenizerSource::from_gguf(model.file()).map_err(lavalane_runtime::model::ModelError::from)?;
    let tokenizer = Tokenizer::new(&source, UnknownPreTokenizer::Refuse)?;
    let tokens = tokenizer.encode(&text, SpecialText::AsText, AddSpecial::Yes);
    let window = arguments.window;
    if tokens.len() < window {
        return Err(CommandError::TextTooShort {
            path: arguments.text.clone(),
            tokens: tokens.len(),
            window,
        });
    }
    let device = &arguments.device;
    let (precision, kv_type) = (device.precision(), device.kv_type());
    let slice = SLICE.min(window);
    let mut runner = WindowRunner::new(model, device.choice(), precision, kv_type, window, slice)?;
    restart_if_alone(&runner.forward().group_report());
    let windows = arguments.windows.min(tokens.len() / window);
    let style =
        ProgressStyle::with_template("{bar:40} {pos} of {len} windows").expect("the template is valid");
    let progress = ProgressBar::new(windows as u64).with_style(style);
    let result = perplexity(&tokens, window, windows, |tokens, wanted| -> Result<Vec<f32>, VulkanError> {
        runner.feed(&tokens[..wanted.start], 0)?;
        let logits = runner.logits(&tokens[wanted.clone()], wanted.start)?;
        progress.inc(1);
        Ok(logits.concat())
    })?;
    progress.finish_and_clear();
    println!("perplexity {:.4} over {} tokens in {} windows", result.value, result.scored, result.windows);
    Ok(())
}
