//! Keeps a client's text apart from the template's control tokens.
//!
//! A prompt is one text by the time it is encoded, and a client may have written `<|im_end|>` into a
//! message. Escaping it would change the prompt, and marking it by hand cannot follow what templates do
//! with a message (trimming, splitting, JSON, choosing some of them). So the template is run twice: once
//! as it is, which gives the prompt, and once with every character of a control text in the client's
//! values disguised as a private-use character of its own. Disguised characters go through trimming,
//! splitting at other texts, slicing, concatenation and JSON as the originals do, and show in the second
//! prompt where each control text came from. The second prompt, undisguised, must equal the first:
//! that is checked each time, so that what is marked is certain.
//!
//! A template that looks for a control text itself (`'</think>' in content`) fails that check. Such a
//! text is left as it is and an invisible mark is put behind or before it instead. If no way gives the
//! same prompt, the message is refused: it cannot be said which tokens are whose.
//!
//! Control texts can also be made of pieces: one part that ends in `<|im_` and one that begins with
//! `end|>`. So the ends of a message's texts that could be such pieces are disguised too.

use super::TemplateError;
use super::prompt::RenderedPrompt;
use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

/// Disguises are taken from here on: planes 15 and 16, all for private use.
const DISGUISE_FIRST: u32 = 0xf_0000;

/// With more different control texts than this in one prompt, no way is sought for each.
const TEXTS_MAX: usize = 16;

/// The texts that become control tokens, with an automaton that finds them.
#[derive(Debug, Default)]
pub(super) struct ControlTexts {
    texts: Vec<String>,
    automaton: Option<AhoCorasick>,
}

impl ControlTexts {
    pub(super) fn new(texts: &[String]) -> Self {
        let automaton = AhoCorasick::builder().match_kind(MatchKind::Standard).build(texts).ok();
        Self { texts: texts.to_vec(), automaton: automaton.filter(|_| !texts.is_empty()) }
    }

    /// The different control texts within `text`, also where they overlap.
    fn within(&self, text: &str) -> Vec<&str> {
        let Some(automaton) = &self.automaton else { return Vec::new() };
        let found: BTreeSet<usize> =
            automaton.find_overlapping_iter(text).map(|found| found.pattern().as_usize()).collect();
        found.into_iter().map(|index| self.texts[index].as_str()).collect()
    }
}

/// Marks which control texts of `prompt` came from the client's values in `context`. `render` runs the
/// template on other values; `source` is the template's text.
pub(super) fn protect(
    prompt: String,
    context: &Map<String, Value>,
    control: &ControlTexts,
    source: &str,
    render: impl Fn(&Map<String, Value>) -> Result<String, TemplateError>,
) -> Result<RenderedPrompt, TemplateError> {
    let texts = control.within(&prompt);
    if texts.is_empty() {
        return Ok(RenderedPrompt::new(prompt, Vec::new()));
    }
    let disguise = Disguise::new(texts.clone(), context, source);
    let attempt = |ways: &[Way], pieces: Pieces| -> Option<Vec<Range<usize>>> {
        let disguised = disguise.apply(context, ways, pieces);
        if disguised == *context {
            return Some(Vec::new());
        }
        let (text, plain) = disguise.reveal(&render(&disguised).ok()?);
        (text == prompt).then_some(plain)
    };
    // A template may compare a message's text with a piece of a control text; then pieces stay.
    let attempt = |ways: &[Way]| attempt(ways, Pieces::Disguised).or_else(|| attempt(ways, Pieces::Left));
    let refused = |text: &str| TemplateError::ControlText { text: text.to_owned() };
    if let Some(plain) = attempt(&vec![Way::Disguise; texts.len()]) {
        return Ok(RenderedPrompt::new(prompt, plain));
    }
    if texts.len() > TEXTS_MAX {
        return Err(refused(texts[0]));
    }
    let mut ways = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        let alone = |way: Way| {
            let mut ways = vec![Way::Leave; texts.len()];
            ways[index] = way;
            ways
        };
        let candidates = [Way::Disguise, Way::MarkBehind, Way::MarkBefore];
        let way = candidates.into_iter().find(|way| attempt(&alone(*way)).is_some());
        ways.push(way.ok_or_else(|| refused(text))?);
    }
    match attempt(&ways) {
        Some(plain) => Ok(RenderedPrompt::new(prompt, plain)),
        None => Err(refused(texts[0])),
    }
}

/// How one control text is followed through the template.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Disguise,
    MarkBehind,
    MarkBefore,
    Leave,
}

/// What happens to pieces of control texts at the ends of a message's texts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pieces {
    Disguised,
    Left,
}

struct Disguise<'a> {
    texts: Vec<&'a str>,
    shadows: HashMap<char, char>,
    revealed: HashMap<char, Meaning>,
    marks_behind: Vec<char>,
    marks_before: Vec<char>,
}

#[derive(Clone, Copy)]
enum Meaning {
    Shadow(char),
    MarkBehind(usize),
    MarkBefore(usize),
}

impl<'a> Disguise<'a> {
    fn new(texts: Vec<&'a str>, context: &Map<String, Value>, source: &str) -> Self {
        let mut taken: HashSet<char> = disguises_in(source).collect();
        for (key, value) in context {
            taken.extend(disguises_in(key));
            collect_disguises(value, &mut taken);
        }
        let mut free = (DISGUISE_FIRST..=u32::from(char::MAX))
            .filter_map(char::from_u32)
            .filter(|character| !taken.contains(character));
        let mut revealed = HashMap::new();
        let mut shadows = HashMap::new();
        // Where a context uses up both planes, characters go without disguise and the check of the
        // two prompts, or of their tokens' origin, has the last word.
        for original in texts.iter().flat_map(|text| text.chars()) {
            if !shadows.contains_key(&original)
                && let Some(shadow) = free.next()
            {
                shadows.insert(original, shadow);
                revealed.insert(shadow, Meaning::Shadow(original));
            }
        }
        let mut marks = |meaning: fn(usize) -> Meaning| -> Vec<char> {
            let marks: Vec<char> = free.by_ref().take(texts.len()).collect();
            revealed.extend(marks.iter().enumerate().map(|(index, mark)| (*mark, meaning(index))));
            marks
        };
        let marks_behind = marks(Meaning::MarkBehind);
        let marks_before = marks(Meaning::MarkBefore);
        Self { texts, shadows, revealed, marks_behind, marks_before }
    }

    /// The values with control texts treated in their ways.
    fn apply(&self, context: &Map<String, Value>, ways: &[Way], pieces: Pieces) -> Map<String, Value> {
        let disguised = context.iter().map(|(key, value)| {
            let pieces = if key == "messages" { pieces } else { Pieces::Left };
            (key.clone(), self.apply_to_value(value, ways, pieces))
        });
        disguised.collect()
    }

    fn apply_to_value(&self, value: &Value, ways: &[Way], pieces: Pieces) -> Value {
        match value {
            Value::String(text) => self.apply_to_text(text, ways, pieces).into(),
            Value::Array(items) => items.iter().map(|item| self.apply_to_value(item, ways, pieces)).collect(),
            Value::Object(fields) => {
                let disguised = fields.iter().map(|(key, value)| {
                    // These two are compared by templates, and never printed beside a client's text.
                    let pieces = if matches!(key.as_str(), "role" | "type") { Pieces::Left } else { pieces };
                    let key = self.apply_to_text(key, ways, Pieces::Left);
                    (key, self.apply_to_value(value, ways, pieces))
                });
                Value::Object(disguised.collect())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    fn apply_to_text(&self, text: &str, ways: &[Way], pieces: Pieces) -> String {
        let mut hidden = Vec::new();
        let mut marks = Vec::new();
        for (index, (control, way)) in self.texts.iter().zip(ways).enumerate() {
            for span in occurrences(text, control) {
                match way {
                    Way::Disguise => hidden.push(span),
                    Way::MarkBehind => marks.push((span.end, self.marks_behind.get(index))),
                    Way::MarkBefore => marks.push((span.start, self.marks_before.get(index))),
                    Way::Leave => {}
                }
            }
            if pieces == Pieces::Disguised {
                hidden.extend(pieces_of(control, text));
            }
        }
        if hidden.is_empty() && marks.is_empty() {
            return text.to_owned();
        }
        let hidden = joined(hidden);
        marks.sort_unstable();
        let mut marks = marks.into_iter().peekable();
        let mut disguised = String::with_capacity(text.len() * 2);
        for (at, character) in text.char_indices().chain([(text.len(), '\0')]) {
            while let Some((_, mark)) = marks.next_if(|(place, _)| *place == at) {
                disguised.extend(mark);
            }
            if at == text.len() {
                break;
            }
            let first = hidden.partition_point(|span| span.end <= at);
            let is_hidden = hidden.get(first).is_some_and(|span| span.start <= at);
            let shadow = self.shadows.get(&character).filter(|_| is_hidden);
            disguised.push(*shadow.unwrap_or(&character));
        }
        disguised
    }

    /// Undoes the disguise in a prompt; also gives where it was.
    fn reveal(&self, prompt: &str) -> (String, Vec<Range<usize>>) {
        let mut text = String::with_capacity(prompt.len());
        let mut plain = Vec::new();
        let mut marks_before = Vec::new();
        for character in prompt.chars() {
            let start = text.len();
            match self.revealed.get(&character) {
                None => text.push(character),
                Some(Meaning::Shadow(original)) => {
                    text.push(*original);
                    plain.push(start..text.len());
                }
                Some(Meaning::MarkBehind(index)) => {
                    let control = self.texts[*index];
                    if text.ends_with(control) {
                        plain.push(start - control.len()..start);
                    }
                }
                Some(Meaning::MarkBefore(index)) => marks_before.push((start, self.texts[*index])),
            }
        }
        for (start, control) in marks_before {
            if text[start..].starts_with(control) {
                plain.push(start..start + control.len());
            }
        }
        (text, joined(plain))
    }
}

fn disguises_in(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(|character| u32::from(*character) >= DISGUISE_FIRST)
}

fn collect_disguises(value: &Value, taken: &mut HashSet<char>) {
    match value {
        Value::String(text) => taken.extend(disguises_in(text)),
        Value::Array(items) => items.iter().for_each(|item| collect_disguises(item, taken)),
        Value::Object(fields) => {
            for (key, value) in fields {
                taken.extend(disguises_in(key));
                collect_disguises(value, taken);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Every place of `control` in `text`, also where they overlap.
fn occurrences(text: &str, control: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find(control) {
        let start = from + at;
        found.push(start..start + control.len());
        from = start + control.chars().next().map_or(1, char::len_utf8);
    }
    found
}

/// The parts at the ends of `text`, white space aside, that could be pieces of `control`: all of it
/// where it lies within `control`, else the longest beginning and the longest end that fit.
fn pieces_of(control: &str, text: &str) -> Vec<Range<usize>> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Vec::new();
    }
    let start = text.len() - text.trim_start().len();
    let end = start + trimmed.len();
    let mut pieces = Vec::new();
    if control.contains(trimmed) {
        pieces.push(start..end);
        return pieces;
    }
    let cuts = || control.char_indices().map(|(at, _)| at).filter(|at| *at > 0);
    if let Some(cut) = cuts().find(|cut| trimmed.starts_with(&control[*cut..])) {
        pieces.push(start..start + control.len() - cut);
    }
    if let Some(cut) = cuts().rev().find(|cut| trimmed.ends_with(&control[..*cut])) {
        pieces.push(end - cut..end);
    }
    pieces
}

/// The ranges in order, with those that touch or overlap made one.
fn joined(mut spans: Vec<Range<usize>>) -> Vec<Range<usize>> {
    spans.sort_unstable_by_key(|span| span.start);
    let mut joined: Vec<Range<usize>> = Vec::with_capacity(spans.len());
    for span in spans {
        match joined.last_mut() {
            Some(last) if last.end >= span.start => last.end = last.end.max(span.end),
            _ => joined.push(span),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(control: &str, text: &str, expected: &[&str]) {
        let pieces: Vec<&str> = pieces_of(control, text).into_iter().map(|piece| &text[piece]).collect();
        assert_eq!(pieces, expected, "{text:?}");
    }

    #[test]
    fn pieces_are_found_at_the_ends_only() {
        check("<|end|>", "say <|en", &["<|en"]);
        check("<|end|>", "d|> and <|", &["d|>", "<|"]);
        check("<|end|>", " |e\n", &["|e"]);
        check("<|end|>", "a <|end b", &[]);
        check("<|end|>", "  ", &[]);
    }

    #[test]
    fn overlapping_places_are_all_found_and_joined() {
        assert_eq!(occurrences("aaa", "aa"), [0..2, 1..3]);
        assert_eq!(joined(vec![4..5, 0..2, 1..3]), [0..3, 4..5]);
    }
}
