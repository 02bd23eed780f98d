//! What a tokenizer is made of: the `tokenizer.*` metadata of a model file as plain values, so that
//! tokenizers can be built and tested without a file.

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

/// What to do with a pre-tokenizer whose name is not in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownPreTokenizer {
    /// Refuse the file: split in a wrong way, a text gives tokens that the model never saw.
    #[default]
    Refuse,
    /// Warn, and split as the default pre-tokenizer does.
    Allow,
}
