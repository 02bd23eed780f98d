//! Pre-tokenizers of byte-level BPE: how a text is cut into words before merging.
//!
//! A vocabulary only fits the cuts that it was trained with, so the file names them
//! (`tokenizer.ggml.pre`) and an unknown name is an error. The table holds each name's patterns as the
//! models' own `tokenizer.json` files write them; each pattern cuts further what the one before left.
//!
//! The patterns run on regex-automata, which takes time linear in the text whatever the pattern: a
//! backtracking engine can be driven into quadratic time or a stack overflow by a user's text. Its one
//! lack, look-ahead, is needed in one place only: `\s+(?!\S)|\s+`, which leaves the last blank of a run
//! to the word after it. That ending is recognised and done by hand.

use super::error::TokenizerError;
use super::source::UnknownPreTokenizer;
use regex_automata::Input;
use regex_automata::meta::Regex;
use std::ops::Range;

/// The ending of a pattern that a linear-time engine cannot run: a run of white space without its last
/// character where a word follows.
const BLANK_RUN: &str = r"|\s+(?!\S)|\s+";

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const PUNCTUATION: &str = r"[\p{P}$+<=>^~|`]+";
const CJK_AND_KANA: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
const CJK_AND_HANGUL: &str = "[一-龥\u{800}-一가-\u{d7ff}]+";

const DIGITS_THEN_GPT2: &[&str] = &[r"\p{N}", GPT2];

/// Every known name, sorted. `merges` says whether a word that is itself a token skips the merges, `bos`
/// whether the sequence begins with BOS where the file does not say.
const TABLE: &[Entry] = &[
    entry("a.x-4.0", &[GPT2]),
    entry("bloom", &[BLOOM]),
    entry("chatglm-bpe", &[LLAMA3]),
    entry("codeshell", DIGITS_THEN_GPT2),
    entry("command-r", DIGITS_THEN_GPT2),
    entry("dbrx", &[LLAMA3]),
    entry("deepseek-coder", &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_AND_HANGUL, r"\p{N}"]),
    entry("deepseek-r1-qwen", &[QWEN2]),
    entry("deepseek-v3", &[r"\p{N}{1,3}", CJK_AND_KANA, DEEPSEEK_V3]),
    entry("default", &[PUNCTUATION, GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    entry("exaone", DIGITS_THEN_GPT2),
    entry("falcon", &[PUNCTUATION, GPT2, "[0-9][0-9][0-9]"]),
    entry("falcon-h1", &[LLAMA3]).whole_words().bos(),
    entry("falcon3", &[LLAMA3]).whole_words().bos(),
    entry("gigachat", &[GPT2]),
    entry("glm4", &[LLAMA3]),
    entry("gpt-2", &[GPT2]),
    entry("gpt-4o", &[GPT4O]),
    entry("gpt3-finnish", &[BLOOM]),
    entry("granite-docling", &[GPT2]),
    entry("hunyuan", &[QWEN2]),
    entry("hunyuan-dense", &[r"\p{N}{1,3}", CJK_AND_KANA, DEEPSEEK_V3]),
    entry("jais", &[GPT2]),
    entry("jina-de", &[GPT2]),
    entry("jina-es", &[GPT2]),
    entry("jina-v2-code", &[GPT2]),
    entry("kormo", &[QWEN2]),
    entry("lfm2", &[LLAMA3]).whole_words().bos(),
    entry("llama-bpe", &[LLAMA3]).whole_words().bos(),
    entry("llama-v3", &[LLAMA3]).whole_words().bos(),
    entry("llama3", &[LLAMA3]).whole_words().bos(),
    entry("llama4", &[GPT4O]),
    entry("megrez", &[QWEN2]),
    entry("mellum", &[GPT2]),
    entry("midm-2.0", &[LLAMA3]).whole_words().bos(),
    entry("minerva-7b", DIGITS_THEN_GPT2),
    entry("mpt", &[GPT2]),
    entry("olmo", &[GPT2]),
    entry("phi-2", &[GPT2]),
    entry("pixtral", &[LLAMA3]).whole_words().bos(),
    entry("poro-chat", &[BLOOM]),
    entry("qwen2", &[QWEN2]),
    entry("qwen35", &[QWEN35]),
    entry("refact", DIGITS_THEN_GPT2),
    entry("roberta-bpe", &[GPT2]),
    entry("seed-coder", &[SEED_CODER]),
    entry("smaug-bpe", &[LLAMA3]),
    entry("smollm", DIGITS_THEN_GPT2),
    entry("stablelm2", &[QWEN2]),
    entry("starcoder", DIGITS_THEN_GPT2),
    entry("tekken", &[TEKKEN]).whole_words().bos(),
    entry("trillion", &[GPT2]),
    entry("viking", &[BLOOM, r"\p{N}"]),
];

struct Entry {
    name: &'static str,
    patterns: &'static [&'static str],
    whole_words: WholeWords,
    adds_bos: bool,
}

const fn entry(name: &'static str, patterns: &'static [&'static str]) -> Entry {
    Entry { name, patterns, whole_words: WholeWords::Merge, adds_bos: false }
}

impl Entry {
    const fn whole_words(self) -> Self {
        Self { whole_words: WholeWords::TakeFirst, ..self }
    }

    const fn bos(self) -> Self {
        Self { adds_bos: true, ..self }
    }
}

/// What happens to a word that is itself a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WholeWords {
    /// It is merged like any other, and may end up as several tokens.
    Merge,
    /// It is that token.
    TakeFirst,
}

/// One of the table's pre-tokenizers, ready to run.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    stages: Vec<Stage>,
    pub(super) whole_words: WholeWords,
    pub(super) adds_bos: bool,
}

#[derive(Debug)]
struct Stage {
    /// Pattern 0 is the stage's own; pattern 1, where present, a blank run.
    regex: Regex,
}

const BLANK_RUN_PATTERN: usize = 1;

impl PreTokenizer {
    /// The pre-tokenizer called `name`; a file without a name gets "default".
    pub(super) fn new(name: Option<&str>, unknown: UnknownPreTokenizer) -> Result<Self, TokenizerError> {
        let name = name.unwrap_or("default");
        let found = find(name).or_else(|| {
            (unknown == UnknownPreTokenizer::Allow).then(|| {
                tracing::warn!(name, "unknown pre-tokenizer; the default one is used, replies may be poor");
                find("default").expect("the table has a default")
            })
        });
        let entry = found.ok_or_else(|| TokenizerError::UnknownPreTokenizer(name.to_owned()))?;
        Ok(Self {
            stages: entry.patterns.iter().map(|pattern| Stage::new(pattern)).collect(),
            whole_words: entry.whole_words,
            adds_bos: entry.adds_bos,
        })
    }

    /// Cuts `text` into words that, joined, are the text.
    pub(super) fn split(&self, text: &str) -> Vec<Range<usize>> {
        let mut pieces = Vec::new();
        if !text.is_empty() {
            pieces.push(0..text.len());
        }
        for stage in &self.stages {
            let mut finer = Vec::with_capacity(pieces.len());
            for piece in pieces {
                stage.split(text, piece, &mut finer);
            }
            pieces = finer;
        }
        pieces
    }
}

fn find(name: &str) -> Option<&'static Entry> {
    TABLE.binary_search_by(|entry| entry.name.cmp(name)).ok().map(|index| &TABLE[index])
}

impl Stage {
    fn new(pattern: &str) -> Self {
        let regex = match pattern.strip_suffix(BLANK_RUN) {
            Some(own) => Regex::new_many(&[own, r"\s+"]),
            None => Regex::new(pattern),
        };
        Self { regex: regex.expect("every pattern of the table is valid, as a test checks") }
    }

    /// Cuts one piece into its matches and what lies between them.
    fn split(&self, text: &str, piece: Range<usize>, finer: &mut Vec<Range<usize>>) {
        let within = &text[piece.clone()];
        let mut done = 0;
        while done < within.len() {
            let Some(found) = self.regex.find(Input::new(within).range(done..)) else {
                break;
            };
            let mut end = found.end();
            if found.pattern().as_usize() == BLANK_RUN_PATTERN && end < within.len() {
                end = without_last_character(within, found.start(), end);
            }
            if done < found.start() {
                finer.push(piece.start + done..piece.start + found.start());
            }
            finer.push(piece.start + found.start()..piece.start + end);
            done = end;
        }
        if done < within.len() {
            finer.push(piece.start + done..piece.end);
        }
    }
}

/// Where the run `start..end` ends without its last character; a run of one character stays whole.
fn without_last_character(text: &str, start: usize, end: usize) -> usize {
    match text[start..end].char_indices().next_back() {
        Some((last, _)) if last > 0 => start + last,
        _ => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, text: &str, expected: &[&str]) {
        let pre_tokenizer =
            PreTokenizer::new(Some(name), UnknownPreTokenizer::Refuse).expect("the name is known");
        let found: Vec<&str> = pre_tokenizer.split(text).into_iter().map(|piece| &text[piece]).collect();
        assert_eq!(found, expected, "{name}");
    }

    #[test]
    fn the_table_is_sorted_and_every_pattern_is_valid() {
        assert!(TABLE.windows(2).all(|pair| pair[0].name < pair[1].name));
        for entry in TABLE {
            check(entry.name, "", &[]);
        }
    }

    #[test]
    fn the_last_blank_of_a_run_goes_to_the_next_word() {
        check("gpt-2", "a   b  ", &["a", "  ", " b", "  "]);
        check("gpt-2", "a\n\nb", &["a", "\n", "\n", "b"]);
        check("qwen2", "a\n\n  b", &["a", "\n\n", " ", " b"]);
        check("qwen2", " \u{a0}\u{3000}1", &[" \u{a0}", "\u{3000}", "1"]);
    }

    #[test]
    fn digits_and_contractions_are_cut_as_the_name_says() {
        check(
            "smollm",
            "in 2024, I'LL don't",
            &["in", " ", "2", "0", "2", "4", ",", " I", "'", "LL", " don", "'t"],
        );
        check("llama-bpe", "in 12345 I'LL", &["in", " ", "123", "45", " I", "'LL"]);
        check("gpt-2", "x 12345", &["x", " 12345"]);
        check("falcon", "a 12345!?", &["a", " ", "123", "45", "!?"]);
        check("deepseek-coder", "ab, 漢字9\n", &["ab", ",", " ", "漢字", "9", "\n"]);
        check("deepseek-v3", "x=1234漢", &["x", "=", "123", "4", "漢"]);
        check("tekken", "fooBar HTTPServer's", &["foo", "Bar", " HTTPServer", "'s"]);
        check("gpt-4o", "fooBar's", &["foo", "Bar's"]);
        check("bloom", "Hi, you", &["Hi", ",", " you"]);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_names_it_unless_allowed() {
        let refused = PreTokenizer::new(Some("klingon"), UnknownPreTokenizer::Refuse).map(|_| ());
        assert_eq!(refused, Err(TokenizerError::UnknownPreTokenizer("klingon".into())));
        let allowed = PreTokenizer::new(Some("klingon"), UnknownPreTokenizer::Allow).expect("it is allowed");
        assert_eq!(allowed.split("a b"), [0..1, 1..3]);
    }

    #[test]
    fn a_hundred_thousand_equal_characters_are_cut_by_every_pattern() {
        for entry in TABLE {
            let pre_tokenizer =
                PreTokenizer::new(Some(entry.name), UnknownPreTokenizer::Refuse).expect("the name is known");
            for character in ["a", "A", " ", "\n", "1", "!", "漢"] {
                let text = character.repeat(100_000);
                let pieces = pre_tokenizer.split(&text);
                let covered: usize = pieces.iter().map(Range::len).sum();
                assert_eq!(covered, text.len(), "{} on {character:?}", entry.name);
            }
        }
    }
}
