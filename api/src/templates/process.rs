//! The program's end of its rendering process: started with the template, asked for one prompt at a time, and started
//! anew after it has ended.

use super::child::WORK_TIME_MAX;
use super::wire::{messages_value, read_error, read_reply, start_value};
use lavalane_runtime::chat::{ChatMessage, RenderedPrompt, TemplateError, TemplateTexts};
use parking_lot::Mutex;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The hidden command of the program that is the process.
const COMMAND: &str = "render-templates";

/// The most bytes of an answer: far more than any context holds.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// A chat template that is rendered in a process of its own.
#[derive(Debug)]
pub struct TemplateProcess {
    program: PathBuf,
    source: String,
    start: Value,
    /// `None` before the first start and after an end.
    worker: Mutex<Option<Worker>>,
}

impl TemplateProcess {
    /// Starts `program`, which is this program, with the template.
    ///
    /// # Errors
    /// The template is faulty or takes too much work on being tried, or the process cannot be started.
    pub fn start(program: PathBuf, source: &str, texts: &TemplateTexts) -> Result<Self, TemplateError> {
        let start = start_value(source, texts);
        let worker = Worker::start(&program, &start)?;
        Ok(Self { program, source: source.to_owned(), start, worker: Mutex::new(Some(worker)) })
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt for `messages`.
    ///
    /// # Errors
    /// As for the template itself. A process that ends over it has met one of its limits.
    pub fn render(&self, messages: &[ChatMessage]) -> Result<RenderedPrompt, TemplateError> {
        let question = messages_value(messages);
        // The process ends itself in time, so that each of those who came before is served by then.
        let mut place = self.worker.try_lock_for(2 * WORK_TIME_MAX).ok_or(TemplateError::TooMuchWork)?;
        let ready = place.take().and_then(|mut worker| worker.ask(&question).ok().map(|()| worker));
        let mut worker = match ready {
            Some(worker) => worker,
            // It had ended before it was asked anything.
            None => {
                let mut worker = Worker::start(&self.program, &self.start)?;
                worker.ask(&question).map_err(|_| TemplateError::TooMuchWork)?;
                worker
            }
        };
        let reply = worker.answer().as_ref().and_then(read_reply).ok_or(TemplateError::TooMuchWork)?;
        *place = Some(worker);
        reply
    }
}

/// A running process; it ends when this is dropped.
#[derive(Debug)]
struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(program: &PathBuf, start: &Value) -> Result<Self, TemplateError> {
        let failed =
            |problem: &str| TemplateError::Failed(format!("no process could be started for it: {problem}"));
        let child = Command::new(program)
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What it says when it meets its limits is for nobody.
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.map_err(|error| failed(&error.to_string()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("it has no pipes"));
        };
        let mut worker = Self { child, input, output: BufReader::new(output) };
        worker.ask(start).map_err(|error| failed(&error.to_string()))?;
        match worker.answer() {
            Some(answer) => read_error(&answer).map_or(Ok(worker), Err),
            None => Err(TemplateError::TooMuchWork),
        }
    }

    fn ask(&mut self, question: &Value) -> std::io::Result<()> {
        writeln!(self.input, "{question}")?;
        self.input.flush()
    }

    /// The next answer; `None` where the process has ended instead.
    fn answer(&mut self) -> Option<Value> {
        let mut line = String::new();
        (&mut self.output).take(ANSWER_BYTES_MAX).read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only for a process that has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
