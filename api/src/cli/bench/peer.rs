//! A peer's benchmark programs, run beside our own measurements: llama-bench for one stream and
//! llama-batched-bench for several, both of llama.cpp. Neither is part of this project; their paths come from
//! the person who measures.

use super::figures::Rates;
use crate::cli::error::CommandError;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The peer's programs and the model file that both sides run.
pub(super) struct Peer {
    single: Option<PathBuf>,
    batched: Option<PathBuf>,
    model: PathBuf,
}

/// A row of llama-bench's JSON.
#[derive(Deserialize)]
struct SingleRow {
    n_prompt: usize,
    n_gen: usize,
    avg_ts: f64,
}

/// A row of llama-batched-bench's JSON lines.
#[derive(Deserialize)]
struct BatchedRow {
    pl: usize,
    speed_tg: f64,
}

impl Peer {
    /// A peer of which one or both programs may be missing.
    pub(super) fn new(single: Option<PathBuf>, batched: Option<PathBuf>, model: PathBuf) -> Self {
        let named = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
        Self { single: named(single), batched: named(batched), model }
    }

    /// Whether there is any program.
    pub(super) fn measures_anything(&self) -> bool {
        self.single.is_some() || self.batched.is_some()
    }

    /// Runs the programs once and adds their rates (tokens per second) under the names of our own.
    ///
    /// # Errors
    /// A program cannot be run, fails, or prints something else than it is known to.
    pub(super) fn measure(
        &self,
        prefills: &[usize],
        lanes: &[usize],
        prompt: usize,
        steps: usize,
        rates: &mut Rates,
    ) -> Result<(), CommandError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).to_string();
        let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        if let Some(program) = &self.single {
            let (prefills, steps) = (list(prefills), steps.to_string());
            let arguments = ["-t", &threads, "-p", &prefills, "-n", &steps, "-r", "1", "-o", "json"];
            let text = self.output(program, &arguments)?;
            let rows: Vec<SingleRow> = serde_json::from_str(&text).map_err(|error| failed(program, error))?;
            for row in rows {
                let name =
                    if row.n_gen == 0 { format!("prefill_{}", row.n_prompt) } else { "decode_1".to_owned() };
                rates.add(name, row.avg_ts);
            }
        }
        if let Some(program) = &self.batched {
            let several: Vec<usize> = lanes.iter().copied().filter(|&lanes| lanes > 1).collect();
            let largest = several.iter().max().copied().unwrap_or(1);
            let context = (largest * (prompt + steps)).to_string();
            let (prompt, steps, several) = (prompt.to_string(), steps.to_string(), list(&several));
            let arguments = [
                "-t",
                &threads,
                "-c",
                &context,
                "-npp",
                &prompt,
                "-ntg",
                &steps,
                "-npl",
                &several,
                "--output-format",
                "jsonl",
            ];
            let text = self.output(program, &arguments)?;
            for line in text.lines().filter(|line| line.starts_with('{')) {
                let row: BatchedRow = serde_json::from_str(line).map_err(|error| failed(program, error))?;
                rates.add(format!("decode_{}", row.pl), row.speed_tg);
            }
        }
        Ok(())
    }

    fn output(&self, program: &Path, arguments: &[&str]) -> Result<String, CommandError> {
        let output = Command::new(program)
            .arg("-m")
            .arg(&self.model)
            .args(arguments)
            .output()
            .map_err(|error| failed(program, error))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(failed(program, format!("{}: {}", output.status, said.lines().last().unwrap_or(""))));
        }
        String::from_utf8(output.stdout).map_err(|error| failed(program, error))
    }
}

fn failed(program: &Path, reason: impl std::fmt::Display) -> CommandError {
    CommandError::Peer { program: program.to_owned(), reason: reason.to_string() }
}
