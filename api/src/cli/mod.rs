//! The command line.

pub mod bench;
pub mod device_arguments;
pub mod devices;
pub mod error;
pub mod inspect;
pub mod perplexity;
pub mod run;
pub mod serve;
pub(crate) mod source;
pub mod synth;

use crate::engine::{LoadError, TemplateHost};
use crate::error::ApiError;
use crate::faults::FaultsError;
use crate::server::ServerError;
use crate::settings::SettingsError;
use crate::software_threads::{self, ThreadsChoice};
use crate::templates::child;
use clap::{Parser, Subcommand};
use error::{CommandError, engine_exit_code};
use lavalane_runtime::vulkan::DeviceChoice;
use std::process::ExitCode;

/// An inference server for language models on Vulkan.
#[derive(Parser, Debug)]
#[command(
    name = "lavalane",
    version,
    about,
    after_help = "Example:\n  lavalane serve --model models/SmolLM2-135M-Instruct.Q4_1.gguf"
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Serve(Box<serve::ServeArguments>),
    Run(Box<run::RunArguments>),
    Bench(bench::BenchArguments),
    Inspect(inspect::InspectArguments),
    Devices(devices::DevicesArguments),
    Perplexity(perplexity::PerplexityArguments),
    Synth(synth::SynthArguments),
    /// Render chat templates for another process of this program
    #[command(hide = true)]
    RenderTemplates,
}

/// Why a command that runs a model failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The settings cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A fault was ordered that cannot be had.
    #[error(transparent)]
    Faults(#[from] FaultsError),
    /// The model or the device cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The server did not start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A command that needs no engine failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A request failed.
    #[error(transparent)]
    Request(#[from] ApiError),
    /// The terminal or the system failed.
    #[error(transparent)]
    System(#[from] std::io::Error),
}

impl RunError {
    /// The process's exit code: 2 for settings (as for a wrong flag), 3 for the model file, 4 for the
    /// device, 5 for too little memory or context, 6 for the address, 1 for the rest.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Settings(_)
            | Self::Faults(_)
            | Self::Load(LoadError::Start(_) | LoadError::TemplateFile { .. } | LoadError::Template(_)) => 2,
            Self::Load(LoadError::Model(_) | LoadError::Metadata(_) | LoadError::Tokenizer(_)) => 3,
            Self::Load(LoadError::Engine(error)) => engine_exit_code(error),
            Self::Server(_) => 6,
            Self::Command(error) => error.exit_code(),
            Self::Request(_) | Self::System(_) => 1,
        }
    }
}

/// This program, which renders chat templates in a process of its own.
///
/// # Errors
/// The system does not tell what this program is.
fn template_host() -> std::io::Result<TemplateHost> {
    // On Linux the link leads to this very program, even if its file was replaced meanwhile.
    let program = if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { std::env::current_exe()? };
    Ok(TemplateHost::Apart { program })
}

impl Command {
    /// The device that the command computes on, if it computes and its settings can be read.
    fn computes_on(&self) -> Option<DeviceChoice> {
        match self {
            Self::Serve(arguments) => software_threads::of_settings(&arguments.sources),
            Self::Run(arguments) => software_threads::of_settings(&arguments.sources),
            Self::Bench(arguments) => Some(arguments.device.choice()),
            Self::Perplexity(arguments) => Some(arguments.device.choice()),
            Self::Devices(arguments) => Some(arguments.choice()),
            Self::Inspect(_) | Self::Synth(_) | Self::RenderTemplates => None,
        }
    }
}

/// Runs the command that the process's arguments name.
pub fn main(threads: ThreadsChoice) -> ExitCode {
    let command = CommandLine::parse().command;
    if threads == ThreadsChoice::Program
        && let Some(choice) = command.computes_on()
    {
        // Before any thread starts, because it sets a variable that drivers read.
        software_threads::prepare(&choice);
    }
    let result = match command {
        Command::Serve(arguments) => serve::run(*arguments),
        Command::Run(arguments) => run::run(*arguments),
        Command::Bench(arguments) => bench::run(&arguments).map_err(RunError::from),
        Command::Inspect(arguments) => inspect::run(&arguments).map_err(RunError::from),
        Command::Devices(arguments) => devices::run(&arguments).map_err(RunError::from),
        Command::Perplexity(arguments) => perplexity::run(&arguments).map_err(RunError::from),
        Command::Synth(arguments) => synth::run(&arguments).map_err(RunError::from),
        Command::RenderTemplates => child::run().map_err(RunError::from),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
