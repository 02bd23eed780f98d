//! Stop texts in a stream: nothing of a stop text leaks, and nothing else is kept back longer than
//! needed.
//!
//! The longest end of the text so far that begins a stop text waits; once it can no longer become one it
//! is let go. Of stop texts that end at the same byte, the one that begins first is met.

/// Watches one reply's text for stop texts.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// The end of the text so far that is a proper prefix of a stop text.
    held: String,
    met: Option<usize>,
}

/// What a chunk of text led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Text that is certain now: no stop text can begin in it any more.
    pub text: String,
    /// The stop text that was met, if one was; the reply ends here.
    pub stop: Option<String>,
}

impl StopMatcher {
    /// A matcher for `stops`; empty ones are left out, since they would end every reply at once.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, held: String::new(), met: None }
    }

    /// Takes the next chunk. Once a stop text was met, everything after it is dropped.
    #[must_use]
    pub fn push(&mut self, chunk: &str) -> Stopped {
        if let Some(met) = self.met {
            return Stopped { text: String::new(), stop: Some(self.stops[met].clone()) };
        }
        if self.stops.is_empty() {
            return Stopped { text: chunk.to_owned(), stop: None };
        }
        self.held.push_str(chunk);
        if let Some((start, index)) = self.first_stop() {
            self.met = Some(index);
            self.held.truncate(start);
            return Stopped { text: std::mem::take(&mut self.held), stop: Some(self.stops[index].clone()) };
        }
        let certain = self.held.len() - self.undecided();
        let rest = self.held.split_off(certain);
        Stopped { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// Ends the text: what was held back is text after all.
    #[must_use]
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the stop text that is complete first begins, and which it is.
    fn first_stop(&self) -> Option<(usize, usize)> {
        self.stops
            .iter()
            .enumerate()
            .filter_map(|(index, stop)| self.held.find(stop.as_str()).map(|start| (start, index)))
            .min_by_key(|(start, index)| (start + self.stops[*index].len(), *start))
    }

    /// The length of the longest end of the held text that is a proper prefix of a stop text.
    fn undecided(&self) -> usize {
        let held = self.held.as_bytes();
        let longest_end = |stop: &String| {
            let stop = stop.as_bytes();
            let longest = held.len().min(stop.len() - 1);
            (1..=longest).rev().find(|length| held.ends_with(&stop[..*length])).unwrap_or(0)
        };
        // A prefix of a stop text that ends this text begins where a character begins, as both are
        // whole characters at their starts and the held text has no unfinished one at its end.
        self.stops.iter().map(longest_end).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pushes `chunks`; gives the text let go at each, the text of the end, and the stop text met.
    fn run(stops: &[&str], chunks: &[&str]) -> (Vec<String>, String, Option<String>) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut texts = Vec::new();
        let mut met = None;
        for chunk in chunks {
            let Stopped { text, stop } = matcher.push(chunk);
            texts.push(text);
            met = met.or(stop);
        }
        (texts, matcher.finish(), met)
    }

    fn check(stops: &[&str], chunks: &[&str], texts: &[&str], end: &str, met: Option<&str>) {
        let found = run(stops, chunks);
        assert_eq!(
            found,
            (texts.iter().map(|text| (*text).to_owned()).collect(), end.into(), met.map(Into::into))
        );
    }

    #[test]
    fn a_stop_text_across_chunks_does_not_leak() {
        check(&["STOP"], &["ab S", "TO", "P cd", "ef"], &["ab ", "", "", ""], "", Some("STOP"));
    }

    #[test]
    fn a_prefix_that_comes_to_nothing_is_let_go() {
        check(&["STOP"], &["a ST", "ART"], &["a ", "START"], "", None);
        check(&["STOP"], &["a ST"], &["a "], "ST", None);
        check(&["aab"], &["aa", "aab"], &["", "aa"], "", Some("aab"));
    }

    #[test]
    fn the_stop_text_that_is_complete_first_is_met() {
        check(&["abc", "b"], &["abc"], &["a"], "", Some("b"));
        check(&["bc", "abc"], &["xabc"], &["x"], "", Some("abc"));
        check(&["é", "日本"], &["a日", "本"], &["a", ""], "", Some("日本"));
    }

    #[test]
    fn no_stop_texts_hold_nothing_back_and_empty_ones_count_as_none() {
        check(&[""], &["a", "b"], &["a", "b"], "", None);
    }

    proptest! {
        #[test]
        fn cutting_a_text_in_another_way_changes_nothing(
            text in "[abé]{0,24}",
            stops in prop::collection::vec("[abé]{1,4}", 0..3),
            sizes in prop::collection::vec(0_usize..4, 0..24),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let mut rest = text.as_str();
            let mut chunks = Vec::new();
            for size in sizes {
                let cut = rest.char_indices().nth(size).map_or(rest.len(), |(at, _)| at);
                let (chunk, after) = rest.split_at(cut);
                chunks.push(chunk);
                rest = after;
            }
            chunks.push(rest);
            let (texts, end, met) = run(&stops, &chunks);
            let found = texts.concat() + &end;
            // The plain rule: the text up to the stop text that is complete first.
            let first = (0..=text.len()).filter(|end| text.is_char_boundary(*end)).find_map(|end| {
                let hits = stops.iter().filter(|stop| text[..end].ends_with(**stop));
                hits.max_by_key(|stop| stop.len()).map(|stop| (end - stop.len(), (*stop).to_owned()))
            });
            match first {
                Some((start, stop)) => prop_assert_eq!((found.as_str(), met), (&text[..start], Some(stop))),
                None => prop_assert_eq!((found, met), (text, None)),
            }
        }

        #[test]
        fn what_is_held_back_always_begins_a_stop_text(text in "[ab]{0,16}", stop in "[ab]{1,5}") {
            let mut matcher = StopMatcher::new(std::slice::from_ref(&stop));
            for character in text.chars() {
                let _ = matcher.push(character.encode_utf8(&mut [0; 4]));
                prop_assert!(stop.starts_with(&matcher.held));
            }
        }
    }
}
