//! Token ids and texts of the reference vectors, on the models' own vocabularies.

use super::*;
use crate::gguf::GgufFile;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The reference vectors of one model.
pub(crate) fn read_vectors(name: &str) -> Value {
    let path = workspace().join("integration-tests/data/vectors").join(name);
    let vectors = std::fs::read(&path).expect("the vectors are part of the repository");
    serde_json::from_slice(&vectors).expect("the vectors are JSON")
}

/// A model's tokenizer fields; `None`, with a message, where its file is missing.
pub(crate) fn model_source(model_file: &str) -> Option<TokenizerSource> {
    let path = workspace().join("models").join(model_file);
    if !path.exists() {
        println!("skipped: models/{model_file} is missing");
        return None;
    }
    let file = GgufFile::open(&path).expect("the model file is sound");
    Some(TokenizerSource::from_gguf(&file).expect("the model file has a tokenizer"))
}

/// Encodes and decodes every text of the vectors; skips where the model file is missing.
fn check(model_file: &str, vectors: &str) {
    let Some(tokenizer) = model_tokenizer(model_file) else { return };
    let vectors = read_vectors(vectors);
    let cases = vectors["tokenize"].as_array().expect("a list of texts");
    assert_eq!(cases.len(), 24);
    for case in cases {
        let text = case["text"].as_str().expect("a text");
        let ids = token_ids(&case["ids"]);
        let encode = |add| tokenizer.encode(text, SpecialText::AsTokens, add);
        assert_eq!(encode(AddSpecial::No), ids, "{text:?}");
        assert_eq!(encode(AddSpecial::Yes), token_ids(&case["ids_with_special"]), "{text:?}");
        let detokenized = case["detokenized"].as_str().expect("a text");
        assert_eq!(tokenizer.decode(&ids, ControlText::Show), detokenized);
        let mut decoder = StreamDecoder::new();
        let mut streamed: String = ids.iter().map(|token| decoder.push(&tokenizer, *token)).collect();
        streamed += &decoder.finish();
        assert_eq!(streamed, tokenizer.decode(&ids, ControlText::Hide));
    }
}

fn model_tokenizer(model_file: &str) -> Option<Tokenizer> {
    model_source(model_file).map(|source| build(&source))
}

fn token_ids(list: &Value) -> Vec<TokenId> {
    let ids = list.as_array().expect("a list of ids").iter();
    ids.map(|id| TokenId(u32::try_from(id.as_u64().expect("an id")).expect("an id"))).collect()
}

#[test]
fn smollm2_tokens_equal_the_reference() {
    check("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m.json");
}

#[test]
fn gemma3_tokens_equal_the_reference() {
    check("gemma-3-270m-q4_k_m.gguf", "gemma3-270m.json");
}

#[test]
fn qwen2_tokens_equal_the_reference() {
    check("qwen2.5-coder-0.5b-instruct.gguf", "qwen2.5-coder-0.5b.json");
}

#[test]
fn the_models_end_tokens_are_all_found() {
    for (file, expected) in [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", vec![0, 2]),
        ("gemma-3-270m-q4_k_m.gguf", vec![1, 106]),
        ("qwen2.5-coder-0.5b-instruct.gguf", vec![151_643, 151_645]),
    ] {
        let Some(tokenizer) = model_tokenizer(file) else { continue };
        let expected: Vec<TokenId> = expected.into_iter().map(TokenId).collect();
        assert_eq!(tokenizer.end_tokens(), expected, "{file}");
    }
}
