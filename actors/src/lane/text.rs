//! From tokens to text that is certain: whole characters, and nothing that may begin a stop text.

use std::borrow::Cow;

/// Text that became certain, and the stop text that was met, where one was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Certain {
    /// The text, up to and without the stop text.
    pub(crate) text: String,
    /// The stop text.
    pub(crate) stop: Option<String>,
}

/// A reply's text as it grows.
#[derive(Clone, Debug)]
pub(crate) struct ReplyText {
    stops: Vec<String>,
    /// The bytes of a character that is not whole yet.
    bytes: Vec<u8>,
    /// Text that may begin a stop text.
    held: String,
}

impl ReplyText {
    /// An empty reply that ends at any of `stops`.
    pub(crate) fn new(stops: Vec<String>) -> Self {
        Self { stops, bytes: Vec::new(), held: String::new() }
    }

    /// Adds one token's bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Certain {
        self.bytes.extend_from_slice(bytes);
        while !self.bytes.is_empty() {
            match std::str::from_utf8(&self.bytes) {
                Ok(text) => {
                    self.held.push_str(text);
                    self.bytes.clear();
                }
                Err(error) => {
                    let whole = error.valid_up_to();
                    self.held.push_str(&String::from_utf8_lossy(&self.bytes[..whole]));
                    let Some(broken) = error.error_len() else {
                        self.bytes.drain(..whole);
                        break;
                    };
                    self.held.push(char::REPLACEMENT_CHARACTER);
                    self.bytes.drain(..whole + broken);
                }
            }
        }
        self.release()
    }

    /// What was held back, now that nothing follows.
    pub(crate) fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.bytes);
        let mut text = std::mem::take(&mut self.held);
        match String::from_utf8_lossy(&rest) {
            Cow::Borrowed(rest) => text.push_str(rest),
            Cow::Owned(rest) => text.push_str(&rest),
        }
        text
    }

    fn release(&mut self) -> Certain {
        let met = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str()).map(|at| (at, stop)));
        if let Some((at, stop)) = met.min_by_key(|(at, _)| *at) {
            let stop = Some(stop.clone());
            self.held.truncate(at);
            return Certain { text: std::mem::take(&mut self.held), stop };
        }
        let kept = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - kept);
        Certain { text: std::mem::replace(&mut self.held, rest), stop: None }
    }
}

/// How many bytes at the end of `text` begin `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    (1..=longest).rev().find(|&length| text.as_bytes().ends_with(&stop.as_bytes()[..length])).unwrap_or(0)
}
