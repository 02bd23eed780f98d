//! SentencePiece BPE: characters merge by the score of the token that the pair would make, and what
//! stays unknown is spelled in bytes.

use super::error::TokenizerError;
use super::merge::{Symbol, merge};
use super::vocabulary::{SPACE_MARK, Vocabulary};
use crate::ids::TokenId;

/// The symbol of a character that is no token.
const NO_TOKEN: u32 = u32::MAX;

/// The scores of one vocabulary.
#[derive(Debug)]
pub(super) struct SentencePiece {
    /// One for each token; smaller merges first.
    priorities: Vec<u32>,
    unknown: Option<TokenId>,
}

impl SentencePiece {
    /// Reads the scores, one for each token.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        scores: &[f32],
        unknown: Option<TokenId>,
    ) -> Result<Self, TokenizerError> {
        const FIELD: &str = "tokenizer.ggml.scores";
        if scores.len() != vocabulary.len() {
            return Err(TokenizerError::WrongCount {
                field: FIELD,
                found: scores.len(),
                tokens: vocabulary.len(),
            });
        }
        if let Some(index) = scores.iter().position(|score| score.is_nan()) {
            return Err(TokenizerError::Invalid {
                field: FIELD,
                problem: format!("the score of token {index} is not a number"),
            });
        }
        Ok(Self { priorities: scores.iter().map(|score| priority(*score)).collect(), unknown })
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, tokens: &mut Vec<TokenId>) {
        let text = text.replace(' ', SPACE_MARK.encode_utf8(&mut [0; 4]));
        let bytes = text.as_bytes();
        let symbols = text
            .char_indices()
            .map(|(start, character)| {
                let span = start..start + character.len_utf8();
                let id = vocabulary.mergeable(&bytes[span.clone()]).map_or(NO_TOKEN, |token| token.0);
                Symbol { span, id }
            })
            .collect();
        let merged = merge(symbols, |left, right| {
            let token = vocabulary.mergeable(&bytes[left.span.start..right.span.end])?;
            Some((u64::from(self.priorities[token.index()]), token.0))
        });
        for symbol in merged {
            if symbol.id == NO_TOKEN {
                self.spell(vocabulary, &bytes[symbol.span], tokens);
            } else {
                tokens.push(TokenId(symbol.id));
            }
        }
    }

    /// Appends byte tokens, or the unknown token once where a byte has none.
    fn spell(&self, vocabulary: &Vocabulary, bytes: &[u8], tokens: &mut Vec<TokenId>) {
        let spelled: Option<Vec<TokenId>> = bytes.iter().map(|byte| vocabulary.byte_token(*byte)).collect();
        match spelled {
            Some(spelled) => tokens.extend(spelled),
            None => tokens.extend(self.unknown),
        }
    }
}

/// Maps scores to numbers of the opposite order: the highest score becomes the smallest number.
fn priority(score: f32) -> u32 {
    // Adding zero turns -0.0 into 0.0, which must be its equal.
    let bits = (score + 0.0).to_bits();
    // The usual total order of floats: flip all bits of negative ones, the sign bit of the others.
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_score_is_a_smaller_priority() {
        let scores = [f32::INFINITY, 2.5, 1.0, 0.0, -0.5, -1.0, -1000.0, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|pair| priority(pair[0]) < priority(pair[1])));
        assert_eq!(priority(0.0), priority(-0.0));
    }
}
