//! What a tokenizer is made of: the `tokenizer.*` metadata of a model file as plain values, so that
//! tokenizers can be built and tested without a file.

use crate::gguf::{GgufError, GgufFile};

/// The tokenizer fields of a model file. Field names follow `tokenizer.ggml.*` of the GGUF
/// specification; `None` means that the file does not say.
#[derive(Clone, Debug, Default)]
pub struct TokenizerSource {
    /// `model`: "gpt2" for byte-level BPE, "llama" for SentencePiece BPE.
    pub model: String,
    /// `pre`: the name of the pre-tokenizer of a byte-level BPE.
    pub pre: Option<String>,
    /// `tokens`: each token's text, in the vocabulary's own spelling (bytes mapped to characters for
    /// byte-level BPE, spaces as U+2581 for SentencePiece).
    pub tokens: Vec<String>,
    /// `scores`: one for each token; higher merges first (SentencePiece only).
    pub scores: Vec<f32>,
    /// `token_type`: one for each token, 1 to 6; empty means that all are normal.
    pub token_types: Vec<u32>,
    /// `merges`: pairs "left right", the first merges first (byte-level BPE only).
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`: end of turn.
    pub eot: Option<u32>,
    /// `eom_token_id`: end of message.
    pub eom: Option<u32>,
    /// `unknown_token_id`.
    pub unknown: Option<u32>,
    /// `padding_token_id`.
    pub padding: Option<u32>,
    /// `add_bos_token`; where absent, SentencePiece adds it and byte-level BPE does so only for
    /// pre-tokenizers that are known to.
    pub add_bos: Option<bool>,
    /// `add_eos_token`; absent means no.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`; absent means yes for SentencePiece. Byte-level BPE ignores it.
    pub add_space_prefix: Option<bool>,
    /// `remove_extra_whitespaces`; absent means no.
    pub remove_extra_whitespaces: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

impl TokenizerSource {
    /// The tokenizer fields of a model file.
    ///
    /// # Errors
    /// The model or the tokens are missing, or a field is of the wrong type.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, GgufError> {
        let texts = |key| Ok(file.metadata_optional::<&[String]>(key)?.unwrap_or_default().to_vec());
        let text = |key| Ok(file.metadata_optional::<&str>(key)?.map(str::to_owned));
        let types = file.metadata_optional::<&[i64]>("tokenizer.ggml.token_type")?.unwrap_or_default();
        Ok(Self {
            model: file.metadata_str("tokenizer.ggml.model")?.to_owned(),
            pre: text("tokenizer.ggml.pre")?,
            tokens: file.metadata::<&[String]>("tokenizer.ggml.tokens")?.to_vec(),
            scores: file.metadata_optional::<&[f32]>("tokenizer.ggml.scores")?.unwrap_or_default().to_vec(),
            // Numbers that fit no type stay such when they are cut to fit: the tokenizer refuses them.
            token_types: types.iter().map(|kind| u32::try_from(*kind).unwrap_or(u32::MAX)).collect(),
            merges: texts("tokenizer.ggml.merges")?,
            bos: file.metadata_optional("tokenizer.ggml.bos_token_id")?,
            eos: file.metadata_optional("tokenizer.ggml.eos_token_id")?,
            eot: file.metadata_optional("tokenizer.ggml.eot_token_id")?,
            eom: file.metadata_optional("tokenizer.ggml.eom_token_id")?,
            unknown: file.metadata_optional("tokenizer.ggml.unknown_token_id")?,
            padding: file.metadata_optional("tokenizer.ggml.padding_token_id")?,
            add_bos: file.metadata_optional("tokenizer.ggml.add_bos_token")?,
            add_eos: file.metadata_optional("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: file.metadata_optional("tokenizer.ggml.add_space_prefix")?,
            remove_extra_whitespaces: file.metadata_optional("tokenizer.ggml.remove_extra_whitespaces")?,
            chat_template: text("tokenizer.chat_template")?,
        })
    }
}

/// What to do with a pre-tokenizer whose name is not in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownPreTokenizer {
    /// Refuse the file: split in a wrong way, a text gives tokens that the model never saw.
    #[default]
    Refuse,
    /// Warn, and split as the default pre-tokenizer does.
    Allow,
}
