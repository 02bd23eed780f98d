//! The tokens of a vocabulary: their texts, kinds, bytes, and which of them end a reply.

use super::byte_level::decode_spelling;
use super::error::TokenizerError;
use super::source::TokenizerSource;
use crate::ids::TokenId;
use std::collections::{HashMap, HashSet};

/// How SentencePiece spells a space.
pub(super) const SPACE_MARK: char = '\u{2581}';

/// No known vocabulary comes near this; a larger one is taken for a damaged file.
const TOKENS_MAX: usize = 1 << 24;

/// What a token is, as `tokenizer.ggml.token_type` numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A piece of text (1).
    Normal,
    /// Stands for what the vocabulary cannot spell (2).
    Unknown,
    /// Steers the model and is no text: turns, beginnings, ends (3).
    Control,
    /// Added as a whole beside the merges; text all the same (4).
    UserDefined,
    /// A place that is kept free (5).
    Unused,
    /// One byte, for characters that the vocabulary lacks (6).
    Byte,
}

/// Which spelling a vocabulary uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// One character for each byte.
    ByteLevel,
    /// U+2581 for a space and `<0xAB>` for single bytes.
    SentencePiece,
}

#[derive(Debug)]
struct Token {
    kind: TokenKind,
    text: Box<str>,
    /// What the token adds to a text; the raw text for control tokens.
    bytes: Box<[u8]>,
}

/// All tokens of one model.
#[derive(Debug)]
pub(super) struct Vocabulary {
    tokens: Vec<Token>,
    by_text: HashMap<Box<str>, u32>,
    /// Tokens that merging may give, by their bytes.
    mergeable: HashMap<Box<[u8]>, u32>,
    mergeable_bytes_max: usize,
    end_of_generation: HashSet<TokenId>,
    byte_tokens: Vec<Option<TokenId>>,
}

/// Texts that end a reply wherever a vocabulary has them as control tokens, or as added tokens with the
/// looks of a mark.
const END_TEXTS: &[&str] = &[
    "</s>",
    "<EOT>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|call|>",
    "<|calls|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|flush|>",
    "<|im_end|>",
    "<|return|>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
    "[EOT]",
    "_<EOT>",
];

impl Vocabulary {
    /// Reads the tokens of `source`.
    pub(super) fn new(source: &TokenizerSource, spelling: Spelling) -> Result<Self, TokenizerError> {
        let count = source.tokens.len();
        if count == 0 {
            return Err(TokenizerError::Missing("tokenizer.ggml.tokens"));
        }
        if count > TOKENS_MAX {
            return Err(TokenizerError::Invalid {
                field: "tokenizer.ggml.tokens",
                problem: format!("{count} tokens are more than {TOKENS_MAX}"),
            });
        }
        let kinds = &source.token_types;
        if !kinds.is_empty() && kinds.len() != count {
            return Err(TokenizerError::WrongCount {
                field: "tokenizer.ggml.token_type",
                found: kinds.len(),
                tokens: count,
            });
        }
        let mut vocabulary = Self {
            tokens: Vec::with_capacity(count),
            by_text: HashMap::with_capacity(count),
            mergeable: HashMap::with_capacity(count),
            mergeable_bytes_max: 0,
            end_of_generation: HashSet::new(),
            byte_tokens: vec![None; 256],
        };
        for (index, text) in source.tokens.iter().enumerate() {
            let kind = token_kind(kinds.get(index).copied().unwrap_or(1))?;
            vocabulary.push(text, kind, spelling);
        }
        vocabulary.find_end_tokens(source)?;
        Ok(vocabulary)
    }

    fn push(&mut self, text: &str, kind: TokenKind, spelling: Spelling) {
        // The count is capped, so the id fits.
        let id = self.tokens.len() as u32;
        let bytes: Box<[u8]> = match (kind, spelling) {
            (TokenKind::Normal, Spelling::ByteLevel) => match decode_spelling(text) {
                Some(bytes) => {
                    self.add_mergeable(&bytes, id);
                    bytes.into()
                }
                None => text.as_bytes().into(),
            },
            (TokenKind::Normal, Spelling::SentencePiece) => {
                self.add_mergeable(text.as_bytes(), id);
                text.replace(SPACE_MARK, " ").into_bytes().into()
            }
            (TokenKind::UserDefined, _) => {
                self.add_mergeable(text.as_bytes(), id);
                text.as_bytes().into()
            }
            (TokenKind::Byte, _) => match byte_token(text) {
                Some(byte) => {
                    self.byte_tokens[usize::from(byte)] = Some(TokenId(id));
                    [byte].into()
                }
                None => text.as_bytes().into(),
            },
            (TokenKind::Unknown | TokenKind::Control | TokenKind::Unused, _) => text.as_bytes().into(),
        };
        // The last of several equal texts counts, as in the reference.
        self.by_text.insert(text.into(), id);
        self.tokens.push(Token { kind, text: text.into(), bytes });
    }

    fn add_mergeable(&mut self, bytes: &[u8], id: u32) {
        self.mergeable_bytes_max = self.mergeable_bytes_max.max(bytes.len());
        self.mergeable.insert(bytes.into(), id);
    }

    fn find_end_tokens(&mut self, source: &TokenizerSource) -> Result<(), TokenizerError> {
        let named = [
            ("tokenizer.ggml.eos_token_id", source.eos),
            ("tokenizer.ggml.eot_token_id", source.eot),
            ("tokenizer.ggml.eom_token_id", source.eom),
        ];
        for (field, id) in named {
            self.end_of_generation.extend(self.checked(field, id)?);
        }
        for text in END_TEXTS {
            let Some(token) = self.by_text(text) else { continue };
            // An added token without those looks is text: Gemma's `</s>` is the end of HTML's <s>.
            let ends = match self.kind(token) {
                TokenKind::Control => true,
                TokenKind::UserDefined => looks_like_a_mark(text),
                _ => false,
            };
            if ends {
                self.end_of_generation.insert(token);
            }
        }
        // Vocabularies of the Harmony format end a message, not the reply, with <|end|>.
        let harmony = self.by_text("<|return|>").is_some() && self.by_text("<|call|>").is_some();
        if let (true, Some(end)) = (harmony, self.by_text("<|end|>")) {
            self.end_of_generation.remove(&end);
        }
        for token in &self.end_of_generation {
            let token = &mut self.tokens[token.index()];
            if token.kind == TokenKind::UserDefined {
                token.kind = TokenKind::Control;
                self.mergeable.remove(token.text.as_bytes());
            }
        }
        Ok(())
    }

    /// A token id of the file, checked against the vocabulary's size.
    pub(super) fn checked(
        &self,
        field: &'static str,
        id: Option<u32>,
    ) -> Result<Option<TokenId>, TokenizerError> {
        match id {
            Some(id) if id as usize >= self.len() => {
                Err(TokenizerError::OutsideVocabulary { field, id, tokens: self.len() })
            }
            id => Ok(id.map(TokenId)),
        }
    }

    /// How many tokens there are.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether the id is one of the vocabulary's.
    pub(super) fn contains(&self, token: TokenId) -> bool {
        token.index() < self.tokens.len()
    }

    /// What the token is; ids outside the vocabulary count as unused.
    pub(super) fn kind(&self, token: TokenId) -> TokenKind {
        self.tokens.get(token.index()).map_or(TokenKind::Unused, |token| token.kind)
    }

    /// The token's text in the vocabulary's own spelling.
    pub(super) fn text(&self, token: TokenId) -> Option<&str> {
        self.tokens.get(token.index()).map(|token| &*token.text)
    }

    /// The token with this text, in the vocabulary's own spelling.
    pub(super) fn by_text(&self, text: &str) -> Option<TokenId> {
        self.by_text.get(text).copied().map(TokenId)
    }

    /// The token that these bytes of a text merge to, spaces spelled as the vocabulary does. Never a
    /// control token: text is only text.
    pub(super) fn mergeable(&self, bytes: &[u8]) -> Option<TokenId> {
        if bytes.len() > self.mergeable_bytes_max {
            return None;
        }
        self.mergeable.get(bytes).copied().map(TokenId)
    }

    /// The token of a single byte, where the vocabulary has one.
    pub(super) fn byte_token(&self, byte: u8) -> Option<TokenId> {
        self.byte_tokens[usize::from(byte)]
    }

    /// What the token adds to a text: nothing for control, unknown and unused tokens.
    pub(super) fn visible_bytes(&self, token: TokenId) -> &[u8] {
        match self.kind(token) {
            TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte => &self.tokens[token.index()].bytes,
            TokenKind::Unknown | TokenKind::Control | TokenKind::Unused => &[],
        }
    }

    /// What the token adds to a text that shows control tokens; nothing for unused tokens.
    pub(super) fn all_bytes(&self, token: TokenId) -> &[u8] {
        match self.kind(token) {
            TokenKind::Unused => &[],
            _ => &self.tokens[token.index()].bytes,
        }
    }

    /// Whether the token ends a reply.
    pub(super) fn is_end_of_generation(&self, token: TokenId) -> bool {
        self.end_of_generation.contains(&token)
    }

    /// The tokens that end a reply, in order of their ids.
    pub(super) fn end_tokens(&self) -> Vec<TokenId> {
        let mut tokens: Vec<TokenId> = self.end_of_generation.iter().copied().collect();
        tokens.sort_unstable();
        tokens
    }

    /// Tokens that are found in a text as a whole, before any merging.
    pub(super) fn special_tokens(&self) -> impl Iterator<Item = (TokenId, TokenKind, &str)> {
        let special = |kind| matches!(kind, TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown);
        self.tokens
            .iter()
            .enumerate()
            .filter(move |(_, token)| special(token.kind) && !token.text.is_empty())
            .map(|(index, token)| (TokenId(index as u32), token.kind, &*token.text))
    }
}

/// Whether a token's text has the looks of a mark of a prompt's form, as control tokens have.
pub(super) fn looks_like_a_mark(text: &str) -> bool {
    (text.starts_with("<|") && text.ends_with("|>"))
        || (text.starts_with("<｜") && text.ends_with("｜>"))
        || text.starts_with("<start_of_")
        || text.starts_with("<end_of_")
}

fn token_kind(number: u32) -> Result<TokenKind, TokenizerError> {
    match number {
        // 0 is "undefined" in the format; such tokens are text.
        0 | 1 => Ok(TokenKind::Normal),
        2 => Ok(TokenKind::Unknown),
        3 => Ok(TokenKind::Control),
        4 => Ok(TokenKind::UserDefined),
        5 => Ok(TokenKind::Unused),
        6 => Ok(TokenKind::Byte),
        _ => Err(TokenizerError::Invalid {
            field: "tokenizer.ggml.token_type",
            problem: format!("{number} is not one of 0 to 6"),
        }),
    }
}

/// The byte of a token spelled `<0xAB>`.
fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}
