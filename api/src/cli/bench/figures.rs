//! The rates that a run measured, by side and name, and the file that they go to.

use crate::cli::error::CommandError;
use lavalane_runtime::engine::bench::median;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Medians of one side by measurement, in tokens per second.
pub(super) type Medians = BTreeMap<String, f64>;

/// One side's rates by measurement, in tokens per second, one for each repeat.
#[derive(Clone, Debug, Default)]
pub(super) struct Rates(BTreeMap<String, Vec<f64>>);

impl Rates {
    /// Adds what a repeat measured.
    pub(super) fn add(&mut self, name: String, rate: f64) {
        self.0.entry(name).or_default().push(rate);
    }

    /// The median of each measurement.
    pub(super) fn medians(self) -> Medians {
        self.0.into_iter().map(|(name, rates)| (name, median(rates))).collect()
    }
}

/// What the file holds. A side of which nothing was measured is left out.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Figures {
    #[serde(skip_serializing_if = "Medians::is_empty")]
    pub(super) lavalane: Medians,
    #[serde(skip_serializing_if = "Medians::is_empty")]
    pub(super) peer: Medians,
}

impl Figures {
    /// Writes the figures to a file, whole or not at all.
    ///
    /// # Errors
    /// The file cannot be written; the error names it.
    pub(super) fn write(&self, path: &Path) -> Result<(), CommandError> {
        let text = serde_json::to_string(self).expect("names and numbers are JSON") + "\n";
        let unfinished = unfinished(path);
        let written = std::fs::File::create(&unfinished)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&unfinished, path));
        if written.is_err() {
            // The first error is the one that tells.
            let _ = std::fs::remove_file(&unfinished);
        }
        written.map_err(|source| file_error(path, source))
    }
}

/// Tells before minutes of measuring whether the figures could be written.
///
/// # Errors
/// They could not; the error names the file.
pub(super) fn check_writable(path: &Path) -> Result<(), CommandError> {
    if path.is_dir() {
        return Err(file_error(path, std::io::ErrorKind::IsADirectory.into()));
    }
    let unfinished = unfinished(path);
    let made = std::fs::File::create(&unfinished).and_then(|_| std::fs::remove_file(&unfinished));
    made.map_err(|source| file_error(path, source))
}

/// Where a file lies until it is whole: beside its place, because only then can it be moved there in one step.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.unfinished", std::process::id()));
    name.into()
}

fn file_error(path: &Path, source: std::io::Error) -> CommandError {
    CommandError::File { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(values: &[(&str, f64)]) -> Rates {
        let mut rates = Rates::default();
        values.iter().for_each(|&(name, rate)| rates.add(name.to_owned(), rate));
        rates
    }

    #[test]
    fn the_file_holds_medians_and_leaves_out_a_side_that_was_not_measured() {
        let ours = rates(&[("decode_1", 9.0), ("decode_1", 1.0), ("decode_1", 2.5)]).medians();
        let alone = Figures { lavalane: ours.clone(), peer: Rates::default().medians() };
        assert_eq!(serde_json::to_string(&alone).unwrap(), r#"{"lavalane":{"decode_1":2.5}}"#);
        let both = Figures { lavalane: ours, peer: rates(&[("prefill_512", 1.5)]).medians() };
        let text = r#"{"lavalane":{"decode_1":2.5},"peer":{"prefill_512":1.5}}"#;
        assert_eq!(serde_json::to_string(&both).unwrap(), text);
    }
}
