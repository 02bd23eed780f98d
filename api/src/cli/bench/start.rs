//! The part of `lavalane bench` that starts whole processes: the time to the first token with cold and with warm
//! caches of kernels, and the memory that is resident at the most.

use super::BenchArguments;
use super::child::{Measured, measure, own};
use super::peer::Peer;
use crate::cli::error::CommandError;
use lavalane_runtime::engine::bench::median;
use std::path::{Path, PathBuf};

/// Words of the prompt, which begins a conversation.
const WORDS: usize = 60;
/// Tokens that the peer reads: about as many as the words with the conversation's markers.
const PEER_PROMPT: usize = 80;
/// Tokens of the reply.
const REPLY: usize = 16;
/// Tokens of context.
const CONTEXT: usize = 512;
/// Starts with warm caches.
const WARM_STARTS: usize = 3;

/// An empty folder that is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("lavalane-bench-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Whatever else went wrong, the folder is in nobody's way.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Prints the figures.
///
/// # Errors
/// A process cannot be run, or fails.
pub(super) fn print(arguments: &BenchArguments, context: usize, peer: &Peer) -> Result<(), CommandError> {
    if context < CONTEXT {
        println!("start and memory: skipped, the model's context is shorter than {CONTEXT} tokens");
        return Ok(());
    }
    let failed = |source| CommandError::Child { command: "run", source };
    // Mesa's drivers keep their kernels there; another driver's cache stays as it is.
    let cache = Folder::new().map_err(failed)?;
    let cold = start(arguments, &cache.0).map_err(failed)?;
    let (mut warm, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..WARM_STARTS {
        warm.push(start(arguments, &cache.0).map_err(failed)?);
        theirs.extend(peer.start(PEER_PROMPT)?);
    }
    let seconds = |runs: &[Measured], time: fn(&Measured) -> f64| {
        (!runs.is_empty()).then(|| median(runs.iter().map(time).collect()))
    };
    let peer_seconds = seconds(&theirs, |run| run.whole.as_secs_f64());
    println!("{:42} {:>10} {:>10} {:>8}", "a process from its start on", "lavalane", "peer", "ratio");
    println!("  (the peer's start: its benchmark program from start to end, with a prompt as long)");
    let row = |name: &str, ours: Option<f64>, theirs: Option<f64>, unit: &str| {
        let text = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        let ratio = ours.zip(theirs).map(|(ours, theirs)| ours / theirs);
        println!(
            "  {:40} {:>10} {:>10} {:>8}",
            format!("{name}, {unit}"),
            text(ours),
            text(theirs),
            text(ratio)
        );
    };
    row("first token, cold cache of kernels", Some(cold.first_output.as_secs_f64()), peer_seconds, "s");
    let warm_seconds = seconds(&warm, |run| run.first_output.as_secs_f64());
    row("first token, warm cache of kernels", warm_seconds, peer_seconds, "s");
    let megabytes = |runs: &[Measured]| {
        let most = runs.iter().filter_map(|run| run.resident_bytes_max).max();
        most.map(|bytes| bytes as f64 / 1e6)
    };
    row("resident memory at the most", megabytes(&warm), megabytes(&theirs), "MB");
    Ok(())
}

/// Starts this program with `cache` as the folder of Mesa's kernels, and lets it answer one prompt.
fn start(arguments: &BenchArguments, cache: &Path) -> std::io::Result<Measured> {
    let mut command = own("run", &arguments.model, &arguments.device)?;
    command.env("MESA_SHADER_CACHE_DIR", cache).args(["--lanes", "1", "--chat-template", "chatml"]);
    command.args(["--context", &CONTEXT.to_string(), "-n", &REPLY.to_string(), "--temperature", "0"]);
    measure(command.arg(vec!["sea"; WORDS].join(" ")))
}
