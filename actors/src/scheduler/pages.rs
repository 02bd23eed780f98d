//! The scheduler's use of the KV pool: pages for a request's whole transcript when it is admitted, one
//! more at a time as it grows, all back when it ends.

use lavalane_runtime::batch::ExecutorLimits;
use lavalane_runtime::ids::{PageId, Position, TokenId};

/// What a request is given when it is admitted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// Pages for its whole transcript, in order.
    pub(crate) pages: Vec<PageId>,
    /// How many of its tokens they hold already.
    pub(crate) cached: Position,
}

/// The pool.
#[derive(Debug)]
pub(crate) struct Pages {
    free: Vec<PageId>,
    total: usize,
    page_tokens: usize,
}

impl Pages {
    pub(crate) fn new(limits: &ExecutorLimits) -> Self {
        let mut pages = Self { free: Vec::new(), total: limits.pages, page_tokens: limits.page_tokens };
        pages.reset();
        pages
    }

    /// Forgets everything: the device was made anew and no session is left.
    pub(crate) fn reset(&mut self) {
        self.free = (0..self.total as u32).rev().map(PageId).collect();
    }

    /// Pages for a sequence of `tokens`, with one token's room to grow; all or nothing.
    pub(crate) fn admit(&mut self, tokens: &[TokenId]) -> Option<Admitted> {
        let needed = (tokens.len() + 1).div_ceil(self.page_tokens);
        if needed > self.free.len() {
            return None;
        }
        let pages = self.free.split_off(self.free.len() - needed);
        Some(Admitted { pages, cached: Position::START })
    }

    /// Extends `held` to cover `tokens` tokens and returns the new pages, or `None` where the pool is
    /// exhausted; then nothing changes.
    pub(crate) fn grow(&mut self, held: &mut Vec<PageId>, tokens: usize) -> Option<Vec<PageId>> {
        let needed = tokens.div_ceil(self.page_tokens).saturating_sub(held.len());
        if needed > self.free.len() {
            return None;
        }
        let new = self.free.split_off(self.free.len() - needed);
        held.extend_from_slice(&new);
        Some(new)
    }

    /// Takes back a sequence's pages.
    pub(crate) fn release(&mut self, pages: Vec<PageId>) {
        self.free.extend(pages);
        debug_assert!(self.free.len() <= self.total, "a page was given back twice");
    }

    /// Pages that running requests hold.
    pub(crate) fn used(&self) -> usize {
        self.total - self.free.len()
    }

    /// Pages that hold nothing but reusable prefixes.
    pub(crate) fn cached(&self) -> usize {
        0
    }
}
