//! Tokenizers read from a model file's metadata, and the streaming detokenizer.
//!
//! Two kinds are known: byte-level BPE (`tokenizer.ggml.model` "gpt2") and SentencePiece BPE ("llama").
//! Both run in O(n log n) of the text's length. A text from outside is encoded so that it stays text:
//! control tokens come from a chat template or from a caller that asks for them, never from a user.

mod byte_level;
mod error;
mod merge;
mod pre_tokenizer;
mod sentence_piece;
mod source;
mod special;
mod stop;
mod stream;
mod vocabulary;

#[cfg(test)]
pub(crate) mod tests;

pub use error::TokenizerError;
pub use source::{TokenizerSource, UnknownPreTokenizer};
pub use stop::{StopMatcher, Stopped};
pub use stream::StreamDecoder;
pub use vocabulary::TokenKind;

use crate::ids::TokenId;
use byte_level::ByteLevel;
use pre_tokenizer::PreTokenizer;
use sentence_piece::SentencePiece;
use special::{Part, PlainParts, SpecialTokens};
use std::borrow::Cow;
use std::ops::Range;
use vocabulary::{Spelling, Vocabulary};

/// What lanes need of a tokenizer: the bytes of a token, and which tokens end a reply.
pub trait TokenText: Send + Sync {
    /// The bytes that a token adds to the reply's text; empty for control tokens. Joined, the bytes of
    /// a reply's tokens are its text, but may break inside a character.
    fn token_bytes(&self, token: TokenId) -> &[u8];

    /// Whether the token ends a reply (there may be several).
    fn is_end_of_generation(&self, token: TokenId) -> bool;
}

/// What becomes of a control token's text, such as `<|im_end|>`, within a text to encode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialText {
    /// It is text like any other. For everything that comes from a user.
    AsText,
    /// It is the token. For templates and for callers who write whole prompts themselves.
    AsTokens,
}

/// Whether the tokens that begin and end a sequence are added, where the model wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddSpecial {
    /// BOS in front, exactly once, and EOS behind, each only if the model file asks for it.
    Yes,
    /// BOS as for `Yes`, but no EOS: for a prompt that the model is to go on with.
    Beginning,
    /// Only the text's own tokens.
    No,
}

/// Whether decoding shows control tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlText {
    /// They are left out: what a reader of a reply wants.
    Hide,
    /// Their texts are shown.
    Show,
}

/// One model's tokenizer. It is never changed after it was made, and is shared by `Arc`.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    special: SpecialTokens,
    kind: Kind,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    padding: Option<TokenId>,
    adds_bos: bool,
    adds_eos: bool,
}

#[derive(Debug)]
enum Kind {
    ByteLevel(ByteLevel),
    SentencePiece { pieces: SentencePiece, space_prefix: SpacePrefix, extra_spaces: ExtraSpaces },
}

/// Whether a text is encoded as if a space stood before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpacePrefix {
    Added,
    Absent,
}

/// What happens to spaces at the ends of a text and to runs of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExtraSpaces {
    Kept,
    Removed,
}

impl Tokenizer {
    /// Makes the tokenizer that `source` describes.
    ///
    /// # Errors
    /// Where the kind or the pre-tokenizer is not known, or the fields do not fit one another.
    pub fn new(source: &TokenizerSource, unknown: UnknownPreTokenizer) -> Result<Self, TokenizerError> {
        let (vocabulary, kind, adds_bos_by_default) = match source.model.as_str() {
            "gpt2" => {
                let pre_tokenizer = PreTokenizer::new(source.pre.as_deref(), unknown)?;
                let vocabulary = Vocabulary::new(source, Spelling::ByteLevel)?;
                let byte_level = ByteLevel::new(&vocabulary, &source.merges, pre_tokenizer)?;
                let adds_bos = byte_level.adds_bos();
                (vocabulary, Kind::ByteLevel(byte_level), adds_bos)
            }
            "llama" => {
                let vocabulary = Vocabulary::new(source, Spelling::SentencePiece)?;
                let unknown = vocabulary.checked("tokenizer.ggml.unknown_token_id", source.unknown)?;
                let pieces = SentencePiece::new(&vocabulary, &source.scores, unknown)?;
                let space_prefix = match source.add_space_prefix {
                    Some(false) => SpacePrefix::Absent,
                    Some(true) | None => SpacePrefix::Added,
                };
                let extra_spaces = match source.remove_extra_whitespaces {
                    Some(true) => ExtraSpaces::Removed,
                    Some(false) | None => ExtraSpaces::Kept,
                };
                (vocabulary, Kind::SentencePiece { pieces, space_prefix, extra_spaces }, true)
            }
            "" => return Err(TokenizerError::Missing("tokenizer.ggml.model")),
            other => return Err(TokenizerError::UnknownModel(other.to_owned())),
        };
        let bos = vocabulary.checked("tokenizer.ggml.bos_token_id", source.bos)?;
        let eos = vocabulary.checked("tokenizer.ggml.eos_token_id", source.eos)?;
        let padding = vocabulary.checked("tokenizer.ggml.padding_token_id", source.padding)?;
        Ok(Self {
            special: SpecialTokens::new(&vocabulary),
            vocabulary,
            kind,
            bos,
            eos,
            padding,
            adds_bos: source.add_bos.unwrap_or(adds_bos_by_default),
            adds_eos: source.add_eos.unwrap_or(false),
        })
    }

    /// The tokens of `text`.
    pub fn encode(&self, text: &str, special_text: SpecialText, add: AddSpecial) -> Vec<TokenId> {
        let plain = match special_text {
            SpecialText::AsText => PlainParts::Everything,
            SpecialText::AsTokens => PlainParts::Spans(&[]),
        };
        self.encode_parts(text, plain, add)
    }

    /// The tokens of a text of which some byte ranges are a user's: a control token's text that
    /// touches one of `plain` stays text, elsewhere it becomes the token. The ranges are in order and
    /// apart from one another.
    pub fn encode_with_plain_spans(
        &self,
        text: &str,
        plain: &[Range<usize>],
        add: AddSpecial,
    ) -> Vec<TokenId> {
        self.encode_parts(text, PlainParts::Spans(plain), add)
    }

    fn encode_parts(&self, text: &str, plain: PlainParts<'_>, add: AddSpecial) -> Vec<TokenId> {
        let mut tokens = Vec::with_capacity(text.len() / 4 + 2);
        let mut before = Before::Nothing;
        for part in self.special.partition(text, plain) {
            match part {
                Part::Token(token) => {
                    tokens.push(token);
                    before = Before::Nothing;
                }
                Part::Text(span) => {
                    self.encode_text(&text[span], before, &mut tokens);
                    before = Before::Text;
                }
            }
        }
        if add != AddSpecial::No
            && let (true, Some(bos)) = (self.adds_bos, self.bos)
            && tokens.first() != Some(&bos)
        {
            tokens.insert(0, bos);
        }
        if add == AddSpecial::Yes
            && let (true, Some(eos)) = (self.adds_eos, self.eos)
            && tokens.last() != Some(&eos)
        {
            tokens.push(eos);
        }
        tokens
    }

    fn encode_text(&self, text: &str, before: Before, tokens: &mut Vec<TokenId>) {
        match &self.kind {
            Kind::ByteLevel(byte_level) => byte_level.encode(&self.vocabulary, text, tokens),
            Kind::SentencePiece { pieces, space_prefix, extra_spaces } => {
                let mut text = match extra_spaces {
                    ExtraSpaces::Kept => Cow::Borrowed(text),
                    ExtraSpaces::Removed => Cow::Owned(without_extra_spaces(text)),
                };
                if *space_prefix == SpacePrefix::Added && before == Before::Nothing && !text.is_empty() {
                    text.to_mut().insert(0, ' ');
                }
                pieces.encode(&self.vocabulary, &text, tokens);
            }
        }
    }

    /// The text of `tokens`; bytes that are no valid UTF-8 become U+FFFD, one for each maximal subpart
    /// of an ill-formed sequence (Unicode 16, section 3.9). Where encoding puts a space in front, one
    /// space in front is taken away, so that decoding what was encoded gives the text.
    pub fn decode(&self, tokens: &[TokenId], control: ControlText) -> String {
        let mut bytes = Vec::with_capacity(tokens.len() * 4);
        for token in tokens {
            bytes.extend_from_slice(match control {
                ControlText::Hide => self.vocabulary.visible_bytes(*token),
                ControlText::Show => self.vocabulary.all_bytes(*token),
            });
        }
        let prefixed = matches!(self.kind, Kind::SentencePiece { space_prefix: SpacePrefix::Added, .. });
        let bytes = bytes.strip_prefix(b" ").filter(|_| prefixed).unwrap_or(&bytes);
        String::from_utf8_lossy(bytes).into_owned()
    }

    /// How many tokens the vocabulary has.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The token that begins a sequence.
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// The token that ends a sequence.
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// The token that fills places without meaning.
    pub fn padding(&self) -> Option<TokenId> {
        self.padding
    }

    /// Whether [`AddSpecial::Yes`] puts BOS in front.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos && self.bos.is_some()
    }

    /// What the token is; ids outside the vocabulary count as unused.
    pub fn token_kind(&self, token: TokenId) -> TokenKind {
        self.vocabulary.kind(token)
    }

    /// The token's text in the vocabulary's own spelling; `None` outside the vocabulary.
    pub fn token_text(&self, token: TokenId) -> Option<&str> {
        self.vocabulary.text(token)
    }

    /// The token with this text in the vocabulary's own spelling.
    pub fn token_by_text(&self, text: &str) -> Option<TokenId> {
        self.vocabulary.by_text(text)
    }

    /// All tokens that end a reply, in order of their ids.
    pub fn end_tokens(&self) -> Vec<TokenId> {
        self.vocabulary.end_tokens()
    }

    /// The texts that become control tokens in a template and must stay text in a user's message.
    pub fn protected_texts(&self) -> &[String] {
        self.special.protected_texts()
    }
}

impl TokenText for Tokenizer {
    fn token_bytes(&self, token: TokenId) -> &[u8] {
        self.vocabulary.visible_bytes(token)
    }

    fn is_end_of_generation(&self, token: TokenId) -> bool {
        self.vocabulary.is_end_of_generation(token)
    }
}

/// What stands before a stretch of text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Nothing, or a whole token.
    Nothing,
    /// Other text.
    Text,
}

fn without_extra_spaces(text: &str) -> String {
    text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}
