//! The rendering process: reads conversations from its input, writes prompts to its output, and ends itself when a
//! template takes too long.

use super::wire::{error_value, read_conversation, read_start, reply_value};
use lavalane_runtime::chat::{ChatTemplate, RenderOptions, TemplateError};
use serde_json::{Value, json};
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// How long one conversation may take. Honest templates take milliseconds.
pub const WORK_TIME_MAX: Duration = Duration::from_secs(5);

/// The memory that the process may map, its program and its stacks included. Linux holds it to that.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

/// Renders until the input ends.
///
/// # Errors
/// Input or output fail, or the first line is not what it must be.
pub fn run() -> std::io::Result<()> {
    limit_memory()?;
    let watchdog = Watchdog::start()?;
    let (input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut lines = input.lines();
    let mut answer = |value: &Value| {
        writeln!(output, "{value}")?;
        output.flush()
    };
    let Some(start) = lines.next().transpose()? else { return Ok(()) };
    let invalid = || std::io::Error::new(std::io::ErrorKind::InvalidData, "no template");
    let (source, texts) =
        serde_json::from_str(&start).ok().as_ref().and_then(read_start).ok_or_else(invalid)?;
    let template = match watchdog.watch(|| ChatTemplate::with_texts(&source, texts)) {
        Ok(template) => template,
        Err(error) => return answer(&error_value(&error)),
    };
    answer(&json!({}))?;
    for line in lines {
        let line = line?;
        let reply = watchdog.watch(|| {
            let value =
                serde_json::from_str(&line).map_err(|error| TemplateError::Failed(error.to_string()))?;
            template.render(&read_conversation(&value)?, &RenderOptions::default())
        });
        answer(&reply_value(&reply))?;
    }
    Ok(())
}

#[cfg(unix)]
fn limit_memory() -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit { current: Some(MEMORY_BYTES_MAX), maximum: Some(MEMORY_BYTES_MAX) };
    Ok(setrlimit(Resource::As, limit)?)
}

#[cfg(not(unix))]
fn limit_memory() -> std::io::Result<()> {
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    Begin,
    End,
}

/// Ends the process when a piece of work takes too long: nothing else can stop it.
struct Watchdog(SyncSender<Signal>);

impl Watchdog {
    fn start() -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(2);
        std::thread::Builder::new().name("watchdog".to_owned()).spawn(move || wait(&receiver))?;
        Ok(Self(sender))
    }

    fn watch<T>(&self, work: impl FnOnce() -> T) -> T {
        // The watchdog lives until the sender is gone.
        let _ = self.0.send(Signal::Begin);
        let result = work();
        let _ = self.0.send(Signal::End);
        result
    }
}

fn wait(receiver: &Receiver<Signal>) {
    while receiver.recv().is_ok() {
        match receiver.recv_timeout(WORK_TIME_MAX) {
            Ok(_) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => std::process::exit(1),
        }
    }
}
