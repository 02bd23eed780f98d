//! Finding whole tokens in a text: control tokens of a prompt, and added tokens that are text.
//!
//! The longest token at the leftmost place wins, found by one automaton over all of them, so the time
//! is linear in the text. Where a part of the text is a user's, control tokens are not found in it: the
//! text `<|im_end|>` of a user must never become the token that ends a turn.

use super::vocabulary::{TokenKind, Vocabulary, looks_like_a_mark};
use crate::ids::TokenId;
use aho_corasick::{AhoCorasick, AhoCorasickBuilder, Input, MatchKind};
use std::ops::Range;

/// Which parts of a text are plain, so that control tokens are not looked for in them.
#[derive(Clone, Copy, Debug)]
pub(super) enum PlainParts<'a> {
    /// All of it.
    Everything,
    /// These byte ranges, in order and apart from one another.
    Spans(&'a [Range<usize>]),
}

impl PlainParts<'_> {
    fn overlaps(self, span: &Range<usize>) -> bool {
        match self {
            Self::Everything => true,
            Self::Spans(spans) => {
                let first = spans.partition_point(|plain| plain.end <= span.start);
                spans.get(first).is_some_and(|plain| plain.start < span.end)
            }
        }
    }
}

/// A stretch of text, either one whole token or text still to be encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// One token.
    Token(TokenId),
    /// Text without whole tokens; never empty.
    Text(Range<usize>),
}

/// Finds whole tokens.
#[derive(Debug)]
pub(super) struct SpecialTokens {
    all: Finder,
    text_only: Finder,
    protected_texts: Vec<String>,
}

#[derive(Debug)]
struct Finder {
    automaton: Option<AhoCorasick>,
    tokens: Vec<(TokenId, Protection)>,
}

/// Whether a user's text may hold the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protection {
    Open,
    Protected,
}

impl SpecialTokens {
    pub(super) fn new(vocabulary: &Vocabulary) -> Self {
        let entries: Vec<(TokenId, Protection, &str)> = vocabulary
            .special_tokens()
            .map(|(token, kind, text)| (token, protection(kind, text), text))
            .collect();
        let protected_texts = entries
            .iter()
            .filter(|(_, protection, _)| *protection == Protection::Protected)
            .map(|(_, _, text)| (*text).to_owned())
            .collect();
        let text_only: Vec<_> =
            entries.iter().copied().filter(|(_, protection, _)| *protection == Protection::Open).collect();
        Self { all: Finder::new(&entries), text_only: Finder::new(&text_only), protected_texts }
    }

    /// The texts that a user's part of a prompt must not turn into tokens.
    pub(super) fn protected_texts(&self) -> &[String] {
        &self.protected_texts
    }

    /// Cuts `text` into whole tokens and the text between them.
    pub(super) fn partition(&self, text: &str, plain: PlainParts<'_>) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut done = 0;
        let mut control = Cursor::default();
        let mut open = Cursor::default();
        while done < text.len() {
            let control = control.next(done, |from| self.next_allowed(text, from, plain));
            let open = open.next(done, |from| self.text_only.find(text, from..text.len()));
            let found = match (control, open) {
                (Some(control), Some(open)) => {
                    let earlier = (open.span.start, control.span.end) < (control.span.start, open.span.end);
                    Some(if earlier { open } else { control })
                }
                (found, None) | (None, found) => found,
            };
            let Some(found) = found else { break };
            if done < found.span.start {
                parts.push(Part::Text(done..found.span.start));
            }
            parts.push(Part::Token(found.token));
            done = found.span.end;
        }
        if done < text.len() {
            parts.push(Part::Text(done..text.len()));
        }
        parts
    }

    /// The next token of any kind that lies where it may.
    fn next_allowed(&self, text: &str, mut from: usize, plain: PlainParts<'_>) -> Option<Found> {
        if let PlainParts::Everything = plain {
            return None;
        }
        loop {
            let mut found = self.all.find(text, from..text.len())?;
            let start = found.span.start;
            while found.span.start == start {
                if found.protection == Protection::Open || !plain.overlaps(&found.span) {
                    return Some(found);
                }
                // A shorter token with the same beginning may still lie outside the user's part.
                match self.all.find(text, start..found.span.end - 1) {
                    Some(shorter) => found = shorter,
                    None => break,
                }
            }
            // So may one that begins further on.
            from = start + text[start..].chars().next().map_or(1, char::len_utf8);
        }
    }
}

#[derive(Clone, Debug)]
struct Found {
    span: Range<usize>,
    token: TokenId,
    protection: Protection,
}

/// Remembers the next find until the text has been passed, so that no stretch is searched twice.
#[derive(Default)]
enum Cursor {
    #[default]
    Start,
    At(Found),
    Exhausted,
}

impl Cursor {
    fn next(&mut self, done: usize, search: impl FnOnce(usize) -> Option<Found>) -> Option<Found> {
        let stale = match self {
            Self::Start => true,
            Self::At(found) => found.span.start < done,
            Self::Exhausted => false,
        };
        if stale {
            *self = search(done).map_or(Self::Exhausted, Self::At);
        }
        match self {
            Self::At(found) => Some(found.clone()),
            Self::Start | Self::Exhausted => None,
        }
    }
}

impl Finder {
    fn new(entries: &[(TokenId, Protection, &str)]) -> Self {
        let tokens = entries.iter().map(|(token, protection, _)| (*token, *protection)).collect();
        let automaton = AhoCorasickBuilder::new()
            .match_kind(MatchKind::LeftmostLongest)
            .build(entries.iter().map(|(_, _, text)| text));
        match automaton {
            Ok(automaton) if !entries.is_empty() => Self { automaton: Some(automaton), tokens },
            Ok(_) => Self { automaton: None, tokens },
            Err(error) => {
                // Only reached with more states than 2^31, far beyond the vocabulary's cap.
                tracing::error!(%error, "the special tokens are too many to be found in texts");
                Self { automaton: None, tokens: Vec::new() }
            }
        }
    }

    fn find(&self, text: &str, within: Range<usize>) -> Option<Found> {
        let found = self.automaton.as_ref()?.find(Input::new(text).range(within))?;
        let (token, protection) = self.tokens[found.pattern().as_usize()];
        Some(Found { span: found.range(), token, protection })
    }
}

/// Control tokens are protected, and so are added tokens that are marks of the prompt's form by their
/// looks, since some files give those the wrong kind. Other added tokens (runs of blanks, HTML tags)
/// are text.
fn protection(kind: TokenKind, text: &str) -> Protection {
    match kind {
        TokenKind::UserDefined if !looks_like_a_mark(text) => Protection::Open,
        _ => Protection::Protected,
    }
}
