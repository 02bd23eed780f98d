//! A peer's programs, run beside our own measurements: llama-bench for one stream, llama-batched-bench for
//! several and llama-server for clients, all of llama.cpp. None is part of this project; their paths come from
//! the person who measures.

use super::child::{Measured, measure};
use super::figures::Rates;
use crate::cli::error::CommandError;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The peer's programs and the model file that both sides run.
pub(super) struct Peer {
    single: Option<PathBuf>,
    batched: Option<PathBuf>,
    server: Option<PathBuf>,
    model: PathBuf,
}

/// A row of llama-bench's JSON.
#[derive(Deserialize)]
struct SingleRow {
    n_prompt: usize,
    n_gen: usize,
    #[serde(default)]
    n_depth: usize,
    avg_ts: f64,
}

/// A row of llama-batched-bench's JSON lines.
#[derive(Deserialize)]
struct BatchedRow {
    pl: usize,
    speed_tg: f64,
}

impl Peer {
    /// A peer of which any program may be missing.
    pub(super) fn new(
        single: Option<PathBuf>,
        batched: Option<PathBuf>,
        server: Option<PathBuf>,
        model: PathBuf,
    ) -> Self {
        let named = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
        Self { single: named(single), batched: named(batched), server: named(server), model }
    }

    /// What is not measured for want of a program.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        let programs = [
            (&self.single, "PEER_BENCH"),
            (&self.batched, "PEER_BATCHED_BENCH"),
            (&self.server, "PEER_SERVER"),
        ];
        programs.into_iter().filter(|(path, _)| path.is_none()).map(|(_, name)| name).collect()
    }

    /// The peer's server.
    pub(super) fn server(&self) -> Option<&Path> {
        self.server.as_deref()
    }

    /// Measures one stream: each prompt's prefill, and decoding `steps` tokens at each of `positions`. Rates go
    /// under the names of our own.
    ///
    /// # Errors
    /// The program cannot be run, fails, or prints something else than it is known to.
    pub(super) fn single(
        &self,
        prefills: &[usize],
        steps: usize,
        positions: &[usize],
        rates: &mut Rates,
    ) -> Result<(), CommandError> {
        let Some(program) = &self.single else { return Ok(()) };
        let (threads, steps) = (threads(), steps.to_string());
        let prefills = if prefills.is_empty() { "0".to_owned() } else { list(prefills) };
        let positions = list(positions);
        let arguments =
            ["-t", &threads, "-p", &prefills, "-n", &steps, "-d", &positions, "-r", "1", "-o", "json"];
        let text = self.output(program, &arguments)?;
        let rows: Vec<SingleRow> = serde_json::from_str(&text).map_err(|error| failed(program, error))?;
        for row in rows {
            let name = match (row.n_gen, row.n_depth) {
                (0, _) => format!("prefill_{}", row.n_prompt),
                (_, 0) => "decode_1".to_owned(),
                (_, position) => format!("decode_1_at_{position}"),
            };
            rates.add(name, row.avg_ts);
        }
        Ok(())
    }

    /// Measures each number of streams together, `steps` tokens each after prompts of `prompt` tokens.
    ///
    /// # Errors
    /// As [`Peer::single`].
    pub(super) fn batched(
        &self,
        lanes: &[usize],
        prompt: usize,
        steps: usize,
        rates: &mut Rates,
    ) -> Result<(), CommandError> {
        let Some(program) = &self.batched else { return Ok(()) };
        let largest = lanes.iter().max().copied().unwrap_or(1);
        let (context, threads) = ((largest * (prompt + steps)).to_string(), threads());
        let (prompt, steps, lanes) = (prompt.to_string(), steps.to_string(), list(lanes));
        let mut arguments = vec!["-t", &threads, "-c", &context, "-npp", &prompt, "-ntg", &steps];
        arguments.extend(["-npl", &lanes, "--output-format", "jsonl"]);
        let text = self.output(program, &arguments)?;
        for line in text.lines().filter(|line| line.starts_with('{')) {
            let row: BatchedRow = serde_json::from_str(line).map_err(|error| failed(program, error))?;
            rates.add(format!("decode_{}", row.pl), row.speed_tg);
        }
        Ok(())
    }

    /// A process that loads the model, reads one prompt and ends; `None` without the program.
    ///
    /// # Errors
    /// The program cannot be run, or fails.
    pub(super) fn start(&self, prompt: usize) -> Result<Option<Measured>, CommandError> {
        let Some(program) = &self.single else { return Ok(None) };
        let mut command = Command::new(program);
        command.arg("-m").arg(&self.model).args(["-t", &threads(), "-p", &prompt.to_string()]);
        command.args(["-n", "0", "-r", "1", "--no-warmup"]);
        measure(&mut command).map(Some).map_err(|error| failed(program, error))
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

/// As many threads as there are cores.
pub(super) fn threads() -> String {
    std::thread::available_parallelism().map_or(1, usize::from).to_string()
}

fn list(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// A failure of one of the peer's programs.
pub(super) fn failed(program: &Path, reason: impl std::fmt::Display) -> CommandError {
    CommandError::Peer { program: program.to_owned(), reason: reason.to_string() }
}
