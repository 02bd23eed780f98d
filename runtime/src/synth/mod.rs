//! Small random-weight model files: for tests, and for speed at sizes that cannot be had.
//!
//! The same settings always give the same file. It is written row by row, so it may be larger than the
//! memory.

mod random;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use random::Random;
use vocabulary::{TOKENS_MAX, TOKENS_MIN, VocabularyKind};

use crate::gguf::writer::{self, TensorEntry};
use crate::gguf::{Value, ValueType};
use crate::quant::TensorType;

/// What a generated model is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SynthSettings {
    /// One of [`synth_architectures`].
    pub architecture: String,
    /// Layers.
    pub layers: usize,
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of one head; even.
    pub head_dim: usize,
    /// Elements between the feed-forward's matrices.
    pub feed_forward: usize,
    /// Tokens of the vocabulary, 512 to 524,288.
    pub vocabulary: usize,
    /// The context that the file states.
    pub context: usize,
    /// How matrices are stored; norms and biases are F32.
    pub tensor_type: TensorType,
    /// Where the random numbers start.
    pub seed: u64,
}

/// Why a model could not be written.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// The architecture is not known.
    #[error("architecture {architecture:?} cannot be generated; known are {known}")]
    UnknownArchitecture {
        /// The name that was given.
        architecture: String,
        /// The names that are known.
        known: String,
    },
    /// A size is outside its bounds.
    #[error("{name} is {value}, expected {expected}")]
    Size {
        /// Which size.
        name: &'static str,
        /// Its value.
        value: usize,
        /// What it should be.
        expected: String,
    },
    /// The file could not be written.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// Which tensors an architecture has beyond those that all have.
struct Shape {
    name: &'static str,
    vocabulary: VocabularyKind,
    extras: &'static [Extra],
    window: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Extra {
    Biases,
    HeadNorms,
    PostNorms,
    OutputMatrix,
}

/// In alphabetical order. A small window, so that small tests reach beyond it.
const SHAPES: &[Shape] = &[
    Shape {
        name: "gemma3",
        vocabulary: VocabularyKind::SentencePiece,
        extras: &[Extra::HeadNorms, Extra::PostNorms],
        window: Some(16),
    },
    Shape {
        name: "llama",
        vocabulary: VocabularyKind::ByteLevel,
        extras: &[Extra::OutputMatrix],
        window: None,
    },
    Shape {
        name: "mistral",
        vocabulary: VocabularyKind::ByteLevel,
        extras: &[Extra::OutputMatrix],
        window: Some(16),
    },
    Shape {
        name: "qwen2",
        vocabulary: VocabularyKind::ByteLevel,
        extras: &[Extra::Biases, Extra::OutputMatrix],
        window: None,
    },
    Shape { name: "qwen3", vocabulary: VocabularyKind::ByteLevel, extras: &[Extra::HeadNorms], window: None },
];

/// The architectures that can be generated.
pub fn synth_architectures() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|shape| shape.name)
}

/// Writes a model file, replacing `path` once it is complete. Returns its size in bytes.
///
/// # Errors
/// When the settings make no model, or the file cannot be written.
pub fn write_synth(settings: &SynthSettings, path: impl AsRef<Path>) -> Result<u64, SynthError> {
    let shape = checked(settings)?;
    let path = path.as_ref();
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let io = |source| SynthError::Io { file: path.to_path_buf(), source };
    let tensors = tensors(settings, shape);
    let write = || -> io::Result<u64> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&partial)?);
        let entries: Vec<TensorEntry> = tensors.iter().map(|tensor| tensor.entry.clone()).collect();
        let written =
            writer::write(&mut file, &metadata(settings, shape), &entries, |tensor, row, weights| {
                let Spread { centre, width } = tensors[tensor].spread;
                let mut random = Random::new(settings.seed, tensor as u64, row as u64);
                weights.iter_mut().for_each(|weight| *weight = centre + width * random.centred());
            })?;
        std::fs::rename(&partial, path)?;
        Ok(written)
    };
    write().map_err(|error| {
        // Whatever was begun is of no use; the first error is the one to tell.
        let _ = std::fs::remove_file(&partial);
        io(error)
    })
}

fn checked(settings: &SynthSettings) -> Result<&'static Shape, SynthError> {
    let shape = SHAPES.iter().find(|shape| shape.name == settings.architecture).ok_or_else(|| {
        let known = synth_architectures().collect::<Vec<_>>().join(", ");
        SynthError::UnknownArchitecture { architecture: settings.architecture.clone(), known }
    })?;
    let within = |name, value: usize, low: usize, high: usize| match (low..=high).contains(&value) {
        true => Ok(()),
        false => Err(SynthError::Size { name, value, expected: format!("{low} to {high}") }),
    };
    let multiple = |name, value: usize, divisor: usize| match value.is_multiple_of(divisor) {
        true => Ok(()),
        false => Err(SynthError::Size { name, value, expected: format!("a multiple of {divisor}") }),
    };
    let block = settings.tensor_type.block_weights();
    within("layers", settings.layers, 1, 1024)?;
    within("hidden", settings.hidden, 1, 1 << 20)?;
    multiple("hidden", settings.hidden, block)?;
    within("heads", settings.heads, 1, 1 << 12)?;
    within("kv_heads", settings.kv_heads, 1, settings.heads)?;
    multiple("heads", settings.heads, settings.kv_heads)?;
    within("head_dim", settings.head_dim, 2, 4096)?;
    multiple("head_dim", settings.head_dim, 2)?;
    multiple("heads * head_dim", settings.heads * settings.head_dim, block)?;
    within("feed_forward", settings.feed_forward, 1, 1 << 22)?;
    multiple("feed_forward", settings.feed_forward, block)?;
    within("vocabulary", settings.vocabulary, TOKENS_MIN, TOKENS_MAX)?;
    within("context", settings.context, 1, 1 << 28)?;
    Ok(shape)
}

fn metadata(settings: &SynthSettings, shape: &Shape) -> Vec<(String, Value)> {
    let prefix = shape.name;
    let whole = |name: &str, value: usize| {
        (format!("{prefix}.{name}"), Value::Integer(ValueType::U32, value as i128))
    };
    let float = |name: &str, value: f64| (format!("{prefix}.{name}"), Value::Float(ValueType::F32, value));
    let text = |name: &str, value: String| (name.to_owned(), Value::String(value));
    let mut metadata = vec![
        text("general.architecture", prefix.to_owned()),
        text("general.name", format!("synthetic {prefix} {}", settings.tensor_type)),
        whole("block_count", settings.layers),
        whole("context_length", settings.context),
        whole("embedding_length", settings.hidden),
        whole("feed_forward_length", settings.feed_forward),
        whole("attention.head_count", settings.heads),
        whole("attention.head_count_kv", settings.kv_heads),
        whole("attention.key_length", settings.head_dim),
        whole("attention.value_length", settings.head_dim),
        whole("rope.dimension_count", settings.head_dim),
        float("attention.layer_norm_rms_epsilon", 1e-6),
        float("rope.freq_base", 10_000.0),
    ];
    metadata.extend(shape.window.map(|window| whole("attention.sliding_window", window)));
    metadata.extend(vocabulary::metadata(shape.vocabulary, settings.vocabulary));
    metadata
}

/// How a tensor's numbers are drawn: evenly within `width` of `centre`.
#[derive(Clone, Copy)]
struct Spread {
    centre: f32,
    width: f32,
}

struct SynthTensor {
    entry: TensorEntry,
    spread: Spread,
}

fn tensors(settings: &SynthSettings, shape: &Shape) -> Vec<SynthTensor> {
    let matrix = |name: &str, row: usize, rows: usize| {
        let entry = TensorEntry {
            name: format!("{name}.weight"),
            dimensions: vec![row, rows],
            tensor_type: settings.tensor_type,
        };
        // Products with inputs of variance 1 have about variance 1 again.
        SynthTensor { entry, spread: Spread { centre: 0.0, width: (3.0 / row as f32).sqrt() } }
    };
    let vector = |name: String, elements: usize, spread| {
        let entry = TensorEntry { name, dimensions: vec![elements], tensor_type: TensorType::F32 };
        SynthTensor { entry, spread }
    };
    let norm =
        |name: &str, elements| vector(format!("{name}.weight"), elements, Spread { centre: 1.0, width: 0.1 });
    let has = |extra| shape.extras.contains(&extra);
    let (hidden, head_dim) = (settings.hidden, settings.head_dim);
    let (queries, keys) = (settings.heads * head_dim, settings.kv_heads * head_dim);
    let mut tensors = vec![matrix("token_embd", hidden, settings.vocabulary), norm("output_norm", hidden)];
    if has(Extra::OutputMatrix) {
        tensors.push(matrix("output", hidden, settings.vocabulary));
    }
    for layer in 0..settings.layers {
        let name = |name: &str| format!("blk.{layer}.{name}");
        tensors.extend([
            norm(&name("attn_norm"), hidden),
            matrix(&name("attn_q"), hidden, queries),
            matrix(&name("attn_k"), hidden, keys),
            matrix(&name("attn_v"), hidden, keys),
            matrix(&name("attn_output"), queries, hidden),
            norm(&name("ffn_norm"), hidden),
            matrix(&name("ffn_gate"), hidden, settings.feed_forward),
            matrix(&name("ffn_up"), hidden, settings.feed_forward),
            matrix(&name("ffn_down"), settings.feed_forward, hidden),
        ]);
        if has(Extra::Biases) {
            let spread = Spread { centre: 0.0, width: 0.1 };
            tensors.push(vector(name("attn_q.bias"), queries, spread));
            tensors.push(vector(name("attn_k.bias"), keys, spread));
            tensors.push(vector(name("attn_v.bias"), keys, spread));
        }
        if has(Extra::HeadNorms) {
            tensors.extend(["attn_q_norm", "attn_k_norm"].map(|part| norm(&name(part), head_dim)));
        }
        if has(Extra::PostNorms) {
            tensors.extend(["post_attention_norm", "post_ffw_norm"].map(|part| norm(&name(part), hidden)));
        }
    }
    tensors
}
