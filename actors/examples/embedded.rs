//! Embeds the engine as actors: streams two prompts at once and cancels one. No HTTP, and no runtime
//! but the one that awaits the streams.
//!
//! `cargo run --release -p lavalane-actors --example embedded -- models/SmolLM2-135M-Instruct.Q4_1.gguf`

use lavalane_actors::request::{RequestEvent, ValidRequest};
use lavalane_actors::{Engine, EngineHandle, EngineSettings};
use lavalane_runtime::engine::{EngineOptions, VulkanExecutor};
use lavalane_runtime::ids::TokenId;
use lavalane_runtime::model::Model;
use lavalane_runtime::sampling::SamplingSettings;
use lavalane_runtime::tokenizer::{AddSpecial, SpecialText, Tokenizer, TokenizerSource, UnknownPreTokenizer};
use std::{error::Error, sync::Arc, time::Duration};

/// Prints a reply's text, and cancels the request after `tokens_max` tokens.
async fn print(
    engine: &EngineHandle,
    name: &str,
    prompt: Vec<TokenId>,
    tokens_max: usize,
) -> Result<(), Box<dyn Error>> {
    let mut stream = engine.submit(ValidRequest::new(prompt, SamplingSettings::greedy(), 32)).await?;
    let mut tokens = 0;
    while let Some(event) = stream.next().await {
        match event {
            RequestEvent::Token(token) => {
                println!("{name}: {:?}", token.text);
                tokens += 1;
                if tokens == tokens_max {
                    stream.cancel();
                }
            }
            event => println!("{name}: {event:?}"),
        }
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: embedded MODEL.gguf")?;
    let model = Arc::new(Model::open(path)?);
    let source = TokenizerSource::from_gguf(model.file())?;
    let tokenizer = Arc::new(Tokenizer::new(&source, UnknownPreTokenizer::Refuse)?);
    let executor = Box::new(VulkanExecutor::new(model, &EngineOptions::default())?);
    let engine = Engine::start(executor, tokenizer.clone(), EngineSettings::default())?;
    let encode = |text| tokenizer.encode(text, SpecialText::AsText, AddSpecial::Beginning);
    let (sea, city) = (encode("The sea is"), encode("The capital of France is"));
    tokio::try_join!(print(&engine, "sea", sea, 8), print(&engine, "city", city, usize::MAX))?;
    engine.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
