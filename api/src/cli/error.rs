//! Why a command failed, and the exit code that says so.

use lavalane_actors::StartError;
use lavalane_actors::bench::crowding::CrowdingError;
use lavalane_runtime::engine::EngineError;
use lavalane_runtime::engine::bench::BenchError;
use lavalane_runtime::model::ModelError;
use lavalane_runtime::synth::SynthError;
use lavalane_runtime::tokenizer::TokenizerError;
use lavalane_runtime::vulkan::VulkanError;
use std::path::PathBuf;

/// A command's failure; its text is for the person at the terminal.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The model file cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model's vocabulary cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// No device, one that cannot be used, or a step that failed on it.
    #[error(transparent)]
    Vulkan(#[from] VulkanError),
    /// The engine cannot be made.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The random-weight model could not be written.
    #[error(transparent)]
    Synth(#[from] SynthError),
    /// A measurement failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The engine did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A request of a measurement failed.
    #[error(transparent)]
    Crowding(#[from] CrowdingError),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The text is too short.
    #[error("{}: the text has {tokens} tokens, fewer than one window of {window}", path.display())]
    TextTooShort {
        /// The file.
        path: PathBuf,
        /// Tokens in it.
        tokens: usize,
        /// Tokens of a window.
        window: usize,
    },
    /// A process of this very program that was to be measured failed.
    #[error("measuring `lavalane {command}`: {source}")]
    Child {
        /// The program's command.
        command: &'static str,
        /// What the system or the process said.
        source: std::io::Error,
    },
    /// A peer's benchmark failed.
    #[error("the peer's benchmark {}: {reason}", program.display())]
    Peer {
        /// The program.
        program: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// An argument is out of its range.
    #[error("--{argument} {given}: {reason}")]
    Argument {
        /// The argument's name.
        argument: &'static str,
        /// What was given.
        given: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl CommandError {
    /// The program's exit code: 2 for a wrong argument, 3 for a model that cannot be used, 4 for the device,
    /// 5 for too little memory or context, 1 for anything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Argument { .. } => 2,
            Self::Model(_) | Self::Tokenizer(_) => 3,
            Self::Synth(SynthError::Io { .. }) => 1,
            Self::Synth(_) => 2,
            Self::Vulkan(error) | Self::Bench(BenchError::Step(error)) => vulkan_exit_code(error),
            Self::Engine(error) | Self::Bench(BenchError::Engine(error)) => engine_exit_code(error),
            Self::Bench(BenchError::TooSmall { .. }) => 5,
            Self::Start(_) | Self::Crowding(_) => 1,
            Self::Bench(BenchError::Batch(_)) | Self::File { .. } | Self::TextTooShort { .. } => 1,
            Self::Child { .. } | Self::Peer { .. } => 1,
        }
    }
}

/// The exit code of an engine that could not be made: 5 for too little memory or context, 4 for whatever else the
/// device says.
pub(super) fn engine_exit_code(error: &EngineError) -> u8 {
    match error {
        EngineError::Vulkan(error) => vulkan_exit_code(error),
        _ => 5,
    }
}

fn vulkan_exit_code(error: &VulkanError) -> u8 {
    match error {
        VulkanError::OutOfMemory { .. } => 5,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_has_its_own_code_wherever_it_is_found() {
        let full =
            || VulkanError::OutOfMemory { what: "a".to_owned(), needed_bytes: 1, reason: "b".to_owned() };
        let pages = BenchError::TooSmall { what: "KV pages", needed: 2, available: 1 };
        for error in [
            full().into(),
            EngineError::from(full()).into(),
            BenchError::from(full()).into(),
            BenchError::from(EngineError::from(full())).into(),
            pages.into(),
        ] {
            assert_eq!(CommandError::exit_code(&error), 5, "{error}");
        }
        assert_eq!(CommandError::from(VulkanError::Busy).exit_code(), 4);
        assert_eq!(CommandError::from(BenchError::from(VulkanError::Busy)).exit_code(), 4);
    }
}
