//! `lavalane run`: one prompt, or a conversation in the terminal.

use crate::cli::source::Sources;
use crate::cli::{RunError, template_host};
use crate::engine::{LoadedEngine, load};
use crate::generation::{Job, Step, outcome, unfinished};
use crate::text_model::TextModel;
use crate::wire::chat::ChatRequest;
use lavalane_actors::EngineHandle;
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Answer one prompt, or talk in the terminal
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  lavalane run --model model.gguf \"Tell me about the sea.\"\n  lavalane run --model model.gguf        (a conversation; an empty line or Ctrl-D ends it)"
)]
pub struct RunArguments {
    /// Prompt; without one, a conversation begins
    prompt: Option<String>,
    /// Instructions that come before everything else
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Tokens of a reply at the most
    #[arg(short = 'n', long, default_value_t = 512)]
    max_tokens: u32,
    /// Temperature; 0 always takes the likeliest token
    #[arg(short, long, default_value_t = 0.8)]
    temperature: f32,
    /// Seed, for the same reply again
    #[arg(long)]
    seed: Option<i64>,
    #[command(flatten)]
    pub(super) sources: Sources,
}

/// Runs the command.
///
/// # Errors
/// The settings, the model or the device cannot be used, or a request fails.
pub fn run(arguments: RunArguments) -> Result<(), RunError> {
    let settings = arguments.sources.clone().settings()?;
    let LoadedEngine { engine, model, .. } = load(&settings, &template_host()?)?;
    let talk = async {
        let result = converse(&arguments, &engine, &model).await;
        engine.shutdown(Duration::from_secs(1)).await;
        result
    };
    actix_web::rt::System::new().block_on(talk)
}

async fn converse(
    arguments: &RunArguments,
    engine: &EngineHandle,
    model: &TextModel,
) -> Result<(), RunError> {
    let mut messages: Vec<Value> = Vec::new();
    if let Some(system) = &arguments.system {
        messages.push(json!({ "role": "system", "content": system }));
    }
    if let Some(prompt) = &arguments.prompt {
        messages.push(json!({ "role": "user", "content": prompt }));
        answer(arguments, engine, model, &messages).await?;
        return Ok(());
    }
    let input = std::io::stdin();
    let is_terminal = input.is_terminal();
    let mut lines = input.lock().lines();
    loop {
        if is_terminal {
            print!("> ");
            std::io::stdout().flush()?;
        }
        match lines.next().transpose()? {
            Some(line) if !line.trim().is_empty() => {
                messages.push(json!({ "role": "user", "content": line }));
            }
            _ => return Ok(()),
        }
        let reply = answer(arguments, engine, model, &messages).await?;
        messages.push(json!({ "role": "assistant", "content": reply }));
    }
}

/// Streams one reply to standard output, its speed to standard error, and returns it.
async fn answer(
    arguments: &RunArguments,
    engine: &EngineHandle,
    model: &TextModel,
    messages: &[Value],
) -> Result<String, RunError> {
    let body = json!({
        "messages": messages,
        "max_tokens": arguments.max_tokens,
        "temperature": arguments.temperature,
        "seed": arguments.seed,
    });
    let job = Job::chat(ChatRequest::read(&body)?, model)?;
    let submitted = Instant::now();
    let mut choices = job.submit(engine).await?;
    let (mut reply, mut first) = (String::new(), None);
    let mut say = |text: &str| {
        reply.push_str(text);
        print!("{text}");
        std::io::stdout().flush()
    };
    let mut usage = None;
    while let Some((choice, event)) = choices.next().await {
        match outcome(&job, choice, event)? {
            Step::Started => {}
            Step::Token(token) => {
                first.get_or_insert_with(Instant::now);
                say(&token.text)?;
            }
            Step::Finished(finished) => {
                say(&finished.text)?;
                usage = Some(finished.usage);
            }
        }
    }
    println!();
    let usage = usage.ok_or_else(unfinished)?;
    let first = first.unwrap_or_else(Instant::now);
    let (prefill, decode) = (first.duration_since(submitted), first.elapsed());
    let decoded = usage.completion_tokens.saturating_sub(1);
    eprintln!(
        "[{} prompt tokens ({} cached), first token after {:.2} s; {} tokens, {:.1} tokens/s]",
        usage.prompt_tokens,
        usage.cached_tokens,
        prefill.as_secs_f64(),
        usage.completion_tokens,
        decoded as f64 / decode.as_secs_f64().max(1e-9),
    );
    Ok(reply)
}
