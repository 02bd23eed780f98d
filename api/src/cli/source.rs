//! The settings flags and the settings file, for every command that runs a model.

use crate::settings::{Settings, SettingsError, SettingsSource};
use std::path::PathBuf;

/// All sources of settings.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Sources {
    /// Settings file (TOML); its keys are the flags' names
    #[arg(long, env = "LAVALANE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: SettingsSource,
}

impl Sources {
    /// Merges and checks all sources.
    ///
    /// # Errors
    /// The file cannot be read, or a setting cannot be.
    pub(crate) fn settings(self) -> Result<Settings, SettingsError> {
        let file = self.config.as_deref().map(SettingsSource::read_file).transpose()?;
        self.flags.or(file.unwrap_or_default()).validate()
    }
}
