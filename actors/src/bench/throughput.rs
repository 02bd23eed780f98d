//! How fast clients that come at once are served, prompts included: what a way to the engine, such as HTTP, is
//! compared with.

use super::block_on;
use super::crowding::{CrowdingError, next_token, request};
use crate::EngineHandle;
use std::time::Instant;

/// Requests that come at once, each with a prompt of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// How many.
    pub clients: usize,
    /// Tokens of each prompt.
    pub prompt_tokens: usize,
    /// Tokens of each reply.
    pub reply_tokens: u32,
}

/// Tokens of all replies per second, from the first request to the end of the last; another `seed` has other
/// prompts.
///
/// # Errors
/// A request did not run to its end.
pub fn reply_rate(engine: &EngineHandle, requests: Requests, seed: usize) -> Result<f64, CrowdingError> {
    let start = Instant::now();
    let mut readers = Vec::new();
    for client in 0..requests.clients {
        let seed = seed * requests.clients + client;
        let request = request(engine, seed, requests.prompt_tokens, requests.reply_tokens);
        let mut stream = block_on(engine.submit(request))?;
        readers.push(std::thread::spawn(move || {
            block_on(async {
                for _ in 0..requests.reply_tokens {
                    next_token(&mut stream).await?;
                }
                Ok::<_, CrowdingError>(())
            })
        }));
    }
    for reader in readers {
        reader.join().map_err(|_| CrowdingError::Unfinished)??;
    }
    let tokens = requests.clients as f64 * f64::from(requests.reply_tokens);
    Ok(tokens / start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::crowding::start;
    use crate::testing::{ScriptedExecutor, scripted_limits};

    #[test]
    fn all_clients_are_served_to_their_ends() {
        let executor = ScriptedExecutor::new(scripted_limits());
        let engine = start(Box::new(executor), 2).expect("the engine starts");
        let requests = Requests { clients: 2, prompt_tokens: 8, reply_tokens: 3 };
        let rate = reply_rate(&engine, requests, 1).expect("all run");
        assert!(rate.is_finite() && rate > 0.0, "{rate}");
        assert!(engine.statistics().iterations >= 3, "{:?}", engine.statistics());
    }
}
