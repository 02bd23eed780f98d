//! One sequence's state on the device: its page table, its length and its sampler.
//!
//! A session has one owner. It moves into an iteration batch and comes back with the batch's answer;
//! while it runs its lane holds none, so there is neither a lock nor an alias. What must survive the
//! loss of a batch (the transcript, the admission permit, the list of pages) is kept by the lane and
//! the scheduler, outside.

use crate::ids::{PageId, Position};
use crate::sampling::Sampler;

/// A lane's word in the device's buffer of KV lengths, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LengthSlot(pub u32);

/// One sequence on the device.
#[derive(Debug)]
pub struct Session {
    slot: LengthSlot,
    length: Position,
    pages: Vec<PageId>,
    sampler: Sampler,
}

impl Session {
    /// An empty session at position 0, which owns no page yet.
    pub fn new(slot: LengthSlot, sampler: Sampler) -> Self {
        Self { slot, length: Position::START, pages: Vec::new(), sampler }
    }

    /// Takes over the KV of a known prefix: `pages` hold the first `length` tokens.
    ///
    /// # Panics
    /// When the session is not empty: a prefix is adopted before anything runs.
    pub fn adopt_prefix(&mut self, pages: Vec<PageId>, length: Position) {
        assert!(
            self.pages.is_empty() && self.length == Position::START,
            "only an empty session adopts a prefix"
        );
        self.pages = pages;
        self.length = length;
    }

    /// The session's word in the device's buffer of KV lengths.
    pub fn slot(&self) -> LengthSlot {
        self.slot
    }

    /// How many tokens the session holds in the KV cache.
    pub fn length(&self) -> Position {
        self.length
    }

    /// The pages that hold the sequence, in order; page `i` holds tokens
    /// `[i * page_tokens, (i + 1) * page_tokens)`. The last ones may be empty still.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// Appends freshly allocated pages to the page table.
    pub fn extend_pages(&mut self, pages: impl IntoIterator<Item = PageId>) {
        self.pages.extend(pages);
    }

    /// Replaces one page of the table (copy-on-write) and gives back the old one.
    ///
    /// # Panics
    /// When the table has no such entry.
    pub fn replace_page(&mut self, index: usize, page: PageId) -> PageId {
        std::mem::replace(&mut self.pages[index], page)
    }

    /// Moves the length on by `count` tokens, after the device has run them.
    pub fn advance(&mut self, count: usize) {
        self.length = self.length.advance(count);
    }

    /// Cuts the sequence back to `tokens` tokens and returns the pages that no longer hold any of
    /// it, or `None` where the session holds fewer tokens than that.
    pub fn trim(&mut self, tokens: usize, page_tokens: usize) -> Option<Vec<PageId>> {
        self.length = self.length.trim(tokens)?;
        self.sampler.trim(tokens);
        let kept = tokens.div_ceil(page_tokens).min(self.pages.len());
        Some(self.pages.split_off(kept))
    }

    /// The sampler that draws this sequence's tokens.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// The sampler, to tell it which tokens the sequence now holds.
    pub fn sampler_mut(&mut self) -> &mut Sampler {
        &mut self.sampler
    }

    /// Ends the session and gives back its pages.
    pub fn into_pages(self) -> Vec<PageId> {
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TokenId;
    use crate::sampling::{SamplingOptions, SamplingSettings};

    #[test]
    fn trimming_gives_back_pages_and_takes_back_penalties() {
        let options =
            SamplingOptions { temperature: 0.0, presence_penalty: 2.0, ..SamplingOptions::default() };
        let settings = SamplingSettings::new(options, 0).expect("valid options");
        let mut session = Session::new(LengthSlot(0), Sampler::new(settings, 0));
        session.extend_pages([PageId(4), PageId(7)]);
        session.sampler_mut().accept(&[TokenId(1), TokenId(0)]);
        session.advance(2);
        assert_eq!(session.trim(3, 1), None);
        assert_eq!(session.trim(1, 1), Some(vec![PageId(7)]));
        assert_eq!((session.length().tokens(), session.pages()), (1, &[PageId(4)][..]));
        let sampled = session.sampler().draw(&[1.0, 1.5], session.length()).expect("usable logits");
        assert_eq!(sampled.token, TokenId(0), "only token 1 is penalised now");
    }
}
