//! The part of `lavalane bench` that serves clients over HTTP, beside the same requests to an embedded engine and,
//! where `PEER_SERVER` names it, to the peer's server.

use super::child::{ServerProcess, own};
use super::peer::{Peer, failed, threads};
use super::{BenchArguments, executor};
use crate::cli::error::CommandError;
use lavalane_actors::bench::crowding;
use lavalane_actors::bench::throughput::{Requests, reply_rate};
use lavalane_runtime::engine::bench::median;
use lavalane_runtime::model::Model;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Clients at once.
const CLIENTS: usize = 8;
/// Tokens of each reply.
const REPLY: usize = 64;
/// How long a server may take to load the model.
const LOAD_TIME_MAX: Duration = Duration::from_secs(180);

/// Prints the figures.
///
/// # Errors
/// A server does not start, or a request fails.
pub(super) fn print(arguments: &BenchArguments, model: &Arc<Model>, peer: &Peer) -> Result<(), CommandError> {
    let (prompt, context) = (arguments.prompt, arguments.prompt + REPLY);
    if context > model.description().context {
        println!("{CLIENTS} clients: skipped, their {context} tokens are more than the model's context");
        return Ok(());
    }
    let engine = crowding::start(Box::new(executor(arguments, model, CLIENTS, context)?), CLIENTS)?;
    let (_ours, address) = own_server(arguments, context).map_err(failed_own)?;
    let theirs = match peer.server() {
        Some(program) => Some((
            peer_server(program, &arguments.model, context).map_err(|error| failed(program, error))?,
            program,
        )),
        None => None,
    };
    let vocabulary = model.description().vocabulary;
    let requests = Requests { clients: CLIENTS, prompt_tokens: prompt, reply_tokens: REPLY as u32 };
    let (mut embedded, mut served, mut peers) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 1..=arguments.repeats.max(1) {
        embedded.push(reply_rate(&engine, requests, seed)?);
        let rate = served_rate(&address, prompt, vocabulary, seed);
        served.push(rate.map_err(failed_own)?);
        if let Some(((_, address), program)) = &theirs {
            let rate = served_rate(address, prompt, vocabulary, seed);
            peers.push(rate.map_err(|error| failed(program, error))?);
        }
    }
    let (embedded, served) = (median(embedded), median(served));
    println!(
        "{CLIENTS} clients, prompts of {prompt} tokens and replies of {REPLY} (reply tokens/s, prompts included):"
    );
    println!("  embedded {embedded:8.1}");
    println!("  HTTP     {served:8.1}, {:.0}% of embedded", 100.0 * served / embedded);
    if !peers.is_empty() {
        let peer = median(peers);
        println!("  peer     {peer:8.1} over HTTP, ratio {:.2}", served / peer);
    }
    Ok(())
}

fn failed_own(source: io::Error) -> CommandError {
    CommandError::Child { command: "serve", source }
}

/// This program as a server, and its address.
fn own_server(arguments: &BenchArguments, context: usize) -> io::Result<(ServerProcess, String)> {
    let mut command = own("serve", &arguments.model, &arguments.device)?;
    command.args(["--host", "127.0.0.1", "--port", "0", "--lanes", &CLIENTS.to_string()]);
    command.args(["--context", &context.to_string(), "--prefix-reuse", "false"]);
    let mut server = ServerProcess(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
    let (line, mut output) = server.first_line()?;
    // A server whose output nobody reads would wait.
    std::thread::spawn(move || io::copy(&mut output, &mut io::sink()));
    let address = line.trim_end().rsplit_once("http://").map(|(_, address)| address.to_owned());
    let address = address.ok_or_else(|| io::Error::other(format!("the server did not start: {line}")))?;
    Ok((server, address))
}

/// The peer's server, and its address, once it has loaded the model.
fn peer_server(program: &Path, model: &Path, context: usize) -> io::Result<(ServerProcess, String)> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut command = Command::new(program);
    command.arg("-m").arg(model).args(["-t", &threads(), "-np", &CLIENTS.to_string()]);
    command.args(["-c", &(CLIENTS * context).to_string(), "--host", "127.0.0.1"]);
    command.args(["--port", &address.port().to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = ServerProcess(command.spawn()?);
    let address = address.to_string();
    let deadline = Instant::now() + LOAD_TIME_MAX;
    while !exchange(&address, "GET /health", "").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")) {
        if let Some(status) = server.0.try_wait()? {
            return Err(io::Error::other(format!("the server ended: {status}")));
        }
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok((server, address))
}

/// Tokens of all replies per second, as [`reply_rate`] counts them.
fn served_rate(address: &str, prompt_tokens: usize, vocabulary: usize, seed: usize) -> io::Result<f64> {
    let start = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let seed = seed * CLIENTS + client;
            let prompt: Vec<u32> =
                crowding::prompt(vocabulary, seed, prompt_tokens).map(|token| token.0).collect();
            let body = json!({
                "prompt": prompt, "max_tokens": REPLY, "temperature": 0, "ignore_eos": true,
                "stream": true, "stream_options": { "include_usage": true },
            });
            let address = address.to_owned();
            std::thread::spawn(move || {
                exchange(&address, "POST /v1/completions", &body.to_string()).and_then(|text| tokens(&text))
            })
        })
        .collect();
    for client in clients {
        let tokens = client.join().map_err(|_| io::Error::other("a client panicked"))??;
        if tokens != REPLY as u64 {
            return Err(io::Error::other(format!("a reply has {tokens} tokens instead of {REPLY}")));
        }
    }
    Ok((CLIENTS * REPLY) as f64 / start.elapsed().as_secs_f64())
}

/// Sends one request on a connection of its own and reads all of its answer.
fn exchange(address: &str, route: &str, body: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let head = format!("{route} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    let kind = format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{kind}{body}").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// How many tokens a streamed reply says that it has.
fn tokens(answer: &str) -> io::Result<u64> {
    let events = answer.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let mut counts = events.filter_map(|event| event["usage"]["completion_tokens"].as_u64());
    counts.next_back().ok_or_else(|| {
        let said = answer.lines().last().unwrap_or("nothing");
        io::Error::other(format!("the reply has no count of tokens: {said}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_count_of_a_reply_counts_and_a_refusal_is_told() {
        let counted =
            "data: {\"usage\":null}\n\ndata: {\"usage\":{\"completion_tokens\":7}}\n\ndata: [DONE]\n";
        assert_eq!(tokens(counted).unwrap(), 7);
        let refused = tokens("HTTP/1.1 400 Bad Request\r\n\r\n{\"error\":\"no\"}").unwrap_err();
        assert!(refused.to_string().ends_with("{\"error\":\"no\"}"), "{refused}");
    }
}
