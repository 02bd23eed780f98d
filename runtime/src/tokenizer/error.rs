//! What can be wrong with a tokenizer's metadata.

/// Why a tokenizer could not be made from a model file's metadata.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// The file has no tokenizer of a kind that is known here.
    #[error(
        "tokenizer.ggml.model is \"{0}\"; known are \"gpt2\" (byte-level BPE) and \"llama\" (SentencePiece BPE)"
    )]
    UnknownModel(String),
    /// The file names a pre-tokenizer that is not in the table.
    #[error(
        "tokenizer.ggml.pre is \"{0}\", which is not known: words would be split in a wrong way \
         (allow unknown pre-tokenizers to go on with the default one)"
    )]
    UnknownPreTokenizer(String),
    /// A required field is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A field has a value that cannot be used.
    #[error("{field} is wrong: {problem}")]
    Invalid {
        /// The field's name in the file.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A list does not have one entry for each token.
    #[error("{field} has {found} entries for {tokens} tokens")]
    WrongCount {
        /// The field's name in the file.
        field: &'static str,
        /// How many entries it has.
        found: usize,
        /// How many tokens the vocabulary has.
        tokens: usize,
    },
    /// A token id lies outside the vocabulary.
    #[error("{field} is {id}, but the vocabulary has {tokens} tokens")]
    OutsideVocabulary {
        /// The field's name in the file.
        field: &'static str,
        /// The id.
        id: u32,
        /// How many tokens the vocabulary has.
        tokens: usize,
    },
}
