//! The streaming detokenizer: tokens in, whole characters out.
//!
//! A token may end inside a character, so its last bytes wait until the character is complete or turns
//! out to be ill-formed. Ill-formed bytes become U+FFFD, one for each maximal subpart, as Unicode 16
//! (section 3.9, "U+FFFD Substitution of Maximal Subparts") and `String::from_utf8_lossy` do it: the
//! joined chunks are the same text that decoding all bytes at once gives.

use super::TokenText;
use crate::ids::TokenId;
use std::str::Utf8Error;

/// Turns the tokens of one reply into chunks of text.
#[derive(Clone, Debug, Default)]
pub struct StreamDecoder {
    /// The beginning of a character: at most 3 bytes, a valid prefix of some character.
    waiting: Vec<u8>,
}

impl StreamDecoder {
    /// A decoder at the start of a text.
    pub fn new() -> Self {
        Self::default()
    }

    /// The text that is complete with `token`; may be empty.
    #[must_use]
    pub fn push(&mut self, text: &dyn TokenText, token: TokenId) -> String {
        self.push_bytes(text.token_bytes(token))
    }

    /// The text that is complete with `bytes`; may be empty.
    #[must_use]
    pub fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.waiting.extend_from_slice(bytes);
        let whole = self.waiting.len() - unfinished_bytes(&self.waiting);
        let text = String::from_utf8_lossy(&self.waiting[..whole]).into_owned();
        self.waiting.drain(..whole);
        text
    }

    /// Ends the text: an unfinished character becomes U+FFFD.
    #[must_use]
    pub fn finish(&mut self) -> String {
        let waiting = std::mem::take(&mut self.waiting);
        String::from_utf8_lossy(&waiting).into_owned()
    }
}

/// How many bytes at the end begin a character that more bytes could complete.
fn unfinished_bytes(bytes: &[u8]) -> usize {
    // A character has at most 4 bytes, so an unfinished one begins within the last 3.
    let tail = bytes.len().saturating_sub(3);
    (tail..bytes.len())
        .find(|start| {
            let unfinished = |error: Utf8Error| error.valid_up_to() == 0 && error.error_len().is_none();
            !is_continuation(bytes[*start]) && std::str::from_utf8(&bytes[*start..]).is_err_and(unfinished)
        })
        .map_or(0, |start| bytes.len() - start)
}

fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pushes `pieces` and checks that the chunks, joined, are the text of all bytes at once.
    fn check(pieces: &[&[u8]]) -> Vec<String> {
        let mut decoder = StreamDecoder::new();
        let mut chunks: Vec<String> = pieces.iter().map(|piece| decoder.push_bytes(piece)).collect();
        chunks.push(decoder.finish());
        let all: Vec<u8> = pieces.concat();
        assert_eq!(chunks.concat(), String::from_utf8_lossy(&all));
        chunks
    }

    #[test]
    fn a_character_waits_for_its_last_byte() {
        let emoji = "👩\u{200d}👧".as_bytes();
        let pieces: Vec<&[u8]> = emoji.chunks(1).collect();
        let chunks = check(&pieces);
        assert_eq!(chunks.iter().filter(|chunk| !chunk.is_empty()).count(), 3);
    }

    #[test]
    fn lone_continuation_bytes_are_replaced_at_once_and_the_stream_goes_on() {
        assert_eq!(check(&[b"a\x80", b"\xbf", b"b"]), ["a\u{fffd}", "\u{fffd}", "b", ""]);
    }

    #[test]
    fn an_ill_formed_sequence_is_replaced_by_its_maximal_subparts() {
        // The example of Unicode 16, table 3-11.
        assert_eq!(
            check(&[b"\xe1\x80", b"\xe2", b"\xf0\x91\x92", b"\xf1\xbf", b"A"]),
            ["", "\u{fffd}", "\u{fffd}", "\u{fffd}", "\u{fffd}A", ""]
        );
        // E0 9F begins no character, so each byte is a subpart of its own.
        assert_eq!(check(&[b"\xe0", b"\x9f", b"\x80"]), ["", "\u{fffd}\u{fffd}", "\u{fffd}", ""]);
    }

    #[test]
    fn an_unfinished_character_at_the_end_is_replaced_once() {
        assert_eq!(check(&[b"a\xf0\x9f\x98"]), ["a", "\u{fffd}"]);
    }

    proptest! {
        #[test]
        fn any_bytes_cut_anywhere_give_the_same_text_as_at_once(
            pieces in prop::collection::vec(prop::collection::vec(prop_oneof![
                Just(0xf0_u8), Just(0x9f), Just(0xe2), Just(0x80), Just(b'a'), any::<u8>()
            ], 0..5), 0..12)
        ) {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            check(&pieces);
        }

        #[test]
        fn no_chunk_of_a_valid_text_holds_a_replacement(text in "\\PC{0,12}", size in 1_usize..5) {
            prop_assume!(!text.contains('\u{fffd}'));
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            let broken = check(&pieces).iter().any(|chunk| chunk.contains('\u{fffd}'));
            prop_assert!(!broken);
        }
    }
}
