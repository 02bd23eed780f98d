//! Byte-level BPE, the GPT-2 kind: text is cut into words, each word into bytes, and neighbouring
//! symbols merge by the rank of the file's merge list.
//!
//! Vocabularies of this kind spell each byte as one printable character (from GPT-2's `encoder.py`):
//! printable Latin-1 bytes stand for themselves, the other 68 for U+0100 and up, in order. Symbols here
//! are the bytes themselves, so the spelling ends at [`decode_spelling`].

use super::error::TokenizerError;
use super::merge::{Symbol, merge};
use super::pre_tokenizer::{PreTokenizer, WholeWords};
use super::vocabulary::Vocabulary;
use crate::ids::TokenId;
use std::collections::HashMap;

/// The merge rules and the byte alphabet of one vocabulary.
#[derive(Debug)]
pub(super) struct ByteLevel {
    pre_tokenizer: PreTokenizer,
    /// The symbol of each byte. Symbols below the vocabulary's size are tokens; those from there on
    /// are pieces that merge but are no tokens themselves.
    byte_symbols: Box<[u32; 256]>,
    /// The rank and the merged symbol of each pair that merges.
    rules: HashMap<(u32, u32), (u32, u32)>,
}

impl ByteLevel {
    /// Reads the merge list: pairs "left right", the first merges first.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        merges: &[String],
        pre_tokenizer: PreTokenizer,
    ) -> Result<Self, TokenizerError> {
        let mut symbols = Symbols { vocabulary, extra: HashMap::new() };
        let mut byte_symbols = Box::new([0; 256]);
        for byte in 0..=u8::MAX {
            byte_symbols[usize::from(byte)] = symbols.intern(vec![byte]);
        }
        let mut rules = HashMap::with_capacity(merges.len());
        for (rank, line) in merges.iter().enumerate() {
            let (left, right) = split_merge(line).ok_or_else(|| TokenizerError::Invalid {
                field: "tokenizer.ggml.merges",
                problem: format!("entry {rank} ({line:?}) is not two symbols with a space between"),
            })?;
            let mut bytes = symbol_bytes(left);
            let left = symbols.intern(bytes.clone());
            let right = symbol_bytes(right);
            bytes.extend_from_slice(&right);
            let right = symbols.intern(right);
            let rank = u32::try_from(rank).map_err(|_| TokenizerError::Invalid {
                field: "tokenizer.ggml.merges",
                problem: "there are more than 2^32 entries".to_owned(),
            })?;
            rules.entry((left, right)).or_insert((rank, symbols.intern(bytes)));
        }
        Ok(Self { pre_tokenizer, byte_symbols, rules })
    }

    /// Whether the pre-tokenizer's models begin each sequence with BOS where the file does not say.
    pub(super) fn adds_bos(&self) -> bool {
        self.pre_tokenizer.adds_bos
    }

    /// Appends the tokens of `text`. A byte that the vocabulary lacks is left out: such vocabularies
    /// lack bytes that occur in no or hardly any text, and have no token that would stand for them.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, tokens: &mut Vec<TokenId>) {
        for piece in self.pre_tokenizer.split(text) {
            let word = &text.as_bytes()[piece];
            if self.pre_tokenizer.whole_words == WholeWords::TakeFirst
                && let Some(token) = vocabulary.mergeable(word)
            {
                tokens.push(token);
                continue;
            }
            let symbols = word
                .iter()
                .enumerate()
                .map(|(at, byte)| Symbol { span: at..at + 1, id: self.byte_symbols[usize::from(*byte)] })
                .collect();
            let merged = merge(symbols, |left, right| {
                self.rules.get(&(left.id, right.id)).map(|(rank, merged)| (u64::from(*rank), *merged))
            });
            for symbol in merged {
                self.push_symbol(vocabulary, &word[symbol.span.clone()], symbol.id, tokens);
            }
        }
    }

    fn push_symbol(&self, vocabulary: &Vocabulary, bytes: &[u8], symbol: u32, tokens: &mut Vec<TokenId>) {
        if vocabulary.contains(TokenId(symbol)) {
            tokens.push(TokenId(symbol));
            return;
        }
        let singles = bytes.iter().map(|byte| TokenId(self.byte_symbols[usize::from(*byte)]));
        tokens.extend(singles.filter(|token| vocabulary.contains(*token)));
    }
}

/// Numbers symbols: tokens keep their ids, other pieces get ids beyond the vocabulary.
struct Symbols<'a> {
    vocabulary: &'a Vocabulary,
    extra: HashMap<Vec<u8>, u32>,
}

impl Symbols<'_> {
    fn intern(&mut self, bytes: Vec<u8>) -> u32 {
        if let Some(token) = self.vocabulary.mergeable(&bytes) {
            return token.0;
        }
        // The vocabulary is capped far below 2^31 and merge lists are of its order, so this fits.
        let next = self.vocabulary.len().saturating_add(self.extra.len());
        *self.extra.entry(bytes).or_insert(u32::try_from(next).unwrap_or(u32::MAX))
    }
}

/// The two sides of a merge. A side may itself begin with a space in files that do not spell bytes.
fn split_merge(line: &str) -> Option<(&str, &str)> {
    let first = line.chars().next()?.len_utf8();
    let space = first + line.get(first..)?.find(' ')?;
    let (left, right) = (&line[..space], &line[space + 1..]);
    (!right.is_empty()).then_some((left, right))
}

fn symbol_bytes(spelling: &str) -> Vec<u8> {
    decode_spelling(spelling).unwrap_or_else(|| spelling.as_bytes().to_vec())
}

/// The bytes that a token's spelling stands for; `None` where some character stands for no byte.
pub(super) fn decode_spelling(spelling: &str) -> Option<Vec<u8>> {
    spelling.chars().map(byte_of).collect()
}

/// The byte that a character of a spelling stands for.
fn byte_of(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        // The 68 other bytes in order: 0x00 to 0x20, 0x7f to 0xa0, and 0xad.
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The character that spells a byte: the inverse of [`byte_of`], for vocabularies made in tests.
#[cfg(test)]
pub(super) fn spell(bytes: &[u8]) -> String {
    let character = |byte: u8| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        0x00..=0x20 => char::from_u32(0x100 + u32::from(byte)).expect("a valid character"),
        0x7f..=0xa0 => char::from_u32(0x121 + u32::from(byte) - 0x7f).expect("a valid character"),
        0xad => '\u{143}',
    };
    bytes.iter().map(|byte| character(*byte)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_spelling_of_its_own() {
        for byte in 0..=u8::MAX {
            assert_eq!(decode_spelling(&spell(&[byte])), Some(vec![byte]));
        }
        assert_eq!(spell(b" a\n"), "ĠaĊ");
        assert_eq!(decode_spelling("日"), None);
    }

    #[test]
    fn a_merge_is_two_symbols_with_a_space_between() {
        assert_eq!(split_merge("Ġ t"), Some(("Ġ", "t")));
        assert_eq!(split_merge("  b"), Some((" ", "b")));
        for line in ["", "a", "a ", " ", "ab"] {
            assert_eq!(split_merge(line), None, "{line:?}");
        }
    }
}
