//! Generated models are real ones: they open, tokenize and compute; and a generated file that was
//! damaged is an error or another model, never a panic.

use proptest::prelude::*;

use super::*;
use crate::model::Model;
use crate::reference::ReferenceModel;
use crate::tokenizer::{
    AddSpecial, ControlText, SpecialText, Tokenizer, TokenizerSource, UnknownPreTokenizer,
};

fn settings(architecture: &str, tensor_type: TensorType) -> SynthSettings {
    SynthSettings {
        architecture: architecture.to_owned(),
        // Enough for Gemma's pattern of local and global layers.
        layers: 7,
        hidden: 256,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        feed_forward: 256,
        vocabulary: 600,
        context: 128,
        tensor_type,
        seed: 1,
    }
}

/// A file that is removed when it is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("lavalane-synth-{name}-{}.gguf", std::process::id())))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes, opens, tokenizes and computes.
#[track_caller]
fn check(architecture: &str, tensor_type: TensorType) {
    let file = Temporary::new(&format!("{architecture}-{tensor_type}"));
    let bytes = write_synth(&settings(architecture, tensor_type), &file.0).unwrap();
    assert_eq!(std::fs::metadata(&file.0).unwrap().len(), bytes);
    let model = Model::open(&file.0).unwrap();
    assert_eq!(model.description().vocabulary, 600);
    let source = TokenizerSource::from_gguf(model.file()).unwrap();
    let tokenizer = Tokenizer::new(&source, UnknownPreTokenizer::Refuse).unwrap();
    let text = "Every text, even 日本語, goes in and comes back out again.";
    let tokens = tokenizer.encode(text, SpecialText::AsText, AddSpecial::Yes);
    assert_eq!(tokenizer.decode(&tokens, ControlText::Hide), text);
    let logits = ReferenceModel::new(&model).last_logits(&tokens);
    assert!(logits.iter().all(|logit| logit.is_finite()), "{architecture} {tensor_type}");
    assert!(logits.iter().any(|logit| *logit != logits[0]), "{architecture} {tensor_type}: all logits equal");
}

#[test]
fn every_architecture_opens_tokenizes_and_computes() {
    for architecture in synth_architectures() {
        for tensor_type in [TensorType::F16, TensorType::Q4_0, TensorType::Q4_K] {
            check(architecture, tensor_type);
        }
    }
}

#[test]
fn every_tensor_type_opens_and_computes() {
    for tensor_type in TensorType::all() {
        check("llama", tensor_type);
    }
}

#[test]
fn the_same_settings_give_the_same_file_and_another_seed_another() {
    let files = ["first", "second", "third"].map(Temporary::new);
    let first = settings("qwen2", TensorType::Q8_0);
    let third = SynthSettings { seed: 2, ..first.clone() };
    for (file, settings) in files.iter().zip([&first, &first, &third]) {
        write_synth(settings, &file.0).unwrap();
    }
    let [first, second, third] = files.each_ref().map(|file| std::fs::read(&file.0).unwrap());
    assert!(first == second && first != third);
}

#[test]
fn settings_that_make_no_model_are_refused_by_name() {
    let file = Temporary::new("refused");
    let refuse = |settings: SynthSettings| write_synth(&settings, &file.0).unwrap_err().to_string();
    let good = settings("llama", TensorType::Q4_K);
    let error = refuse(SynthSettings { architecture: "mamba".to_owned(), ..good.clone() });
    assert!(
        error.starts_with("architecture \"mamba\" cannot be generated; known are gemma3, llama"),
        "{error}"
    );
    let error = refuse(SynthSettings { hidden: 96, ..good.clone() });
    assert_eq!(error, "hidden is 96, expected a multiple of 256");
    let error = refuse(SynthSettings { kv_heads: 3, ..good });
    assert_eq!(error, "heads is 4, expected a multiple of 3");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_file_is_an_error_or_another_model_but_never_a_panic(
        changes in prop::collection::vec((0.0..1.0_f64, any::<u8>()), 1..8),
        kept in 0.0..1.2_f64,
    ) {
        let small = SynthSettings {
            layers: 1, hidden: 32, heads: 2, kv_heads: 1, head_dim: 16, feed_forward: 32,
            vocabulary: 512, ..settings("gemma3", TensorType::Q4_0)
        };
        let file = Temporary::new("damaged");
        write_synth(&small, &file.0).unwrap();
        let mut bytes = std::fs::read(&file.0).unwrap();
        // Most of what can be damaged lies before the weights.
        let header = Model::open(&file.0).unwrap().tensors().embedding.start() as usize;
        for (place, byte) in changes {
            bytes[(place * header as f64) as usize] = byte;
        }
        bytes.truncate(((kept * bytes.len() as f64) as usize).max(1));
        std::fs::write(&file.0, &bytes).unwrap();
        if let Err(error) = Model::open(&file.0) {
            prop_assert!(error.to_string().contains("damaged"), "{} does not name its file", error);
        }
    }
}
