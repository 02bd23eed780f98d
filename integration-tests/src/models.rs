//! The model files that tests use where they are present, and their reference values.

use serde::de::DeserializeOwned;
use std::path::PathBuf;

/// A model file that tests know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelFile {
    /// SmolLM2-135M-Instruct, the default.
    SmolLm2,
    /// Qwen2.5-Coder-0.5B-Instruct.
    Qwen25Coder,
    /// Gemma 3 270M.
    Gemma3,
}

impl ModelFile {
    fn file_name(self) -> &'static str {
        match self {
            Self::SmolLm2 => "SmolLM2-135M-Instruct.Q4_1.gguf",
            Self::Qwen25Coder => "qwen2.5-coder-0.5b-instruct.gguf",
            Self::Gemma3 => "gemma-3-270m-q4_k_m.gguf",
        }
    }

    fn vectors_name(self) -> &'static str {
        match self {
            Self::SmolLm2 => "smollm2-135m.json",
            Self::Qwen25Coder => "qwen2.5-coder-0.5b.json",
            Self::Gemma3 => "gemma3-270m.json",
        }
    }
}

/// The workspace's root folder.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file of this crate's `data/` folder.
pub fn data(name: &str) -> PathBuf {
    root().join("integration-tests/data").join(name)
}

/// Where the model's file is, or `None` after saying that the test is skipped.
pub fn find(file: ModelFile) -> Option<PathBuf> {
    let path = root().join("models").join(file.file_name());
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} is not in models/ (`make models` fetches it)", file.file_name());
    None
}

/// The model's reference values.
///
/// # Panics
/// When they are missing or not of this shape: they are part of the repository.
pub fn vectors<T: DeserializeOwned>(file: ModelFile) -> T {
    let path = data("vectors").join(file.vectors_name());
    let text = std::fs::read_to_string(&path).expect("the vectors are in the repository");
    serde_json::from_str(&text).expect("the vectors have the test's shape")
}
