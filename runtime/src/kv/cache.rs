//! The KV cache as the scheduler uses it: pool and prefix tree together.
//!
//! A session's life: [`KvCache::begin`] finds what is known of its prompt; [`KvCache::grow`] gives it
//! pages before each step that needs more; [`KvCache::publish`] makes the pages that a successful step
//! filled findable, while the last, unfilled one stays its own, so that appending to it never copies;
//! [`KvCache::finish`] publishes that one too and gives everything back. A session that cannot vouch for
//! its pages (its step failed) ends by [`KvCache::release`] instead. A session that was trimmed gives back
//! the pages it no longer needs, and readies the one it will write next by [`KvCache::copy_on_write`], as
//! that may be published. Pages are given back only once no batch that names them is in flight.

use super::pool::{PageError, PagePool, PoolStatistics};
use super::prefix::{PrefixTree, Tail};
use crate::batch::PageCopy;
use crate::ids::{PageId, TokenId};

/// Not enough pages, even if every page that could be evicted were. Nothing was taken or evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} KV pages are needed; {free} are free and {evictable} more could be")]
pub struct OutOfPages {
    /// How many were asked for.
    pub needed: usize,
    /// How many are free.
    pub free: usize,
    /// How many hold only what may be forgotten.
    pub evictable: usize,
}

/// A page copy that has yet to run. Its source is held until [`KvCache::copy_done`], which must be called
/// once the copy ran, or will not run any more because its session ended.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the copy's source is held until `KvCache::copy_done`"]
pub struct PendingCopy {
    copy: PageCopy,
}

impl PendingCopy {
    /// The copy to put into the next batch, before any row of its session.
    pub fn copy(&self) -> PageCopy {
        self.copy
    }
}

/// What a new session starts with.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the pages are held until `KvCache::release` or `KvCache::finish`"]
pub struct PrefixHit {
    /// The session's first pages, which it now holds. The last one is empty until `copy` ran.
    pub pages: Vec<PageId>,
    /// How many tokens of the prompt they hold: the session's first position.
    pub tokens: usize,
    /// The copy that fills the last page.
    pub copy: Option<PendingCopy>,
}

/// The cache in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvStatistics {
    /// The pool.
    pub pool: PoolStatistics,
    /// Pages that can be found by their tokens, in use or not.
    pub published: usize,
    /// Prompt tokens that were looked up since the start.
    pub looked_up_tokens: u64,
    /// Those of them that were found.
    pub found_tokens: u64,
    /// Pages evicted since the start.
    pub evicted: u64,
}

/// Pages, their holders, and what they hold.
#[derive(Clone, Debug)]
pub struct KvCache {
    pool: PagePool,
    tree: PrefixTree,
    looked_up_tokens: u64,
    found_tokens: u64,
    evicted: u64,
}

impl KvCache {
    /// An empty cache of `pages` pages of `page_tokens` tokens each.
    ///
    /// # Panics
    /// When `page_tokens` is 0 or `pages` does not fit 32 bits.
    pub fn new(pages: usize, page_tokens: usize) -> Self {
        Self {
            pool: PagePool::new(pages),
            tree: PrefixTree::new(page_tokens),
            looked_up_tokens: 0,
            found_tokens: 0,
            evicted: 0,
        }
    }

    /// Tokens per page.
    pub fn page_tokens(&self) -> usize {
        self.tree.page_tokens()
    }

    /// How many pages a sequence of `tokens` tokens has.
    pub fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_tokens())
    }

    /// How many pages could be had now: free ones, and those that could be evicted. Takes time in the
    /// number of published pages.
    pub fn available(&self) -> usize {
        self.pool.free() + self.tree.evictable(&self.pool)
    }

    /// How many tokens [`KvCache::begin`] would find, changing nothing.
    pub fn peek(&self, prompt: &[TokenId]) -> usize {
        self.tree.peek(prompt)
    }

    /// Starts a session with what is known of its prompt. At least the prompt's last token is left to
    /// compute. Where the match ends inside a page, a fresh page takes a copy of it; where there is no
    /// page for that, the session starts at the page's beginning.
    pub fn begin(&mut self, prompt: &[TokenId]) -> PrefixHit {
        let found = self.tree.lookup(prompt);
        let mut pages = found.pages;
        let mut tokens = pages.len() * self.page_tokens();
        for &page in pages.iter().chain(found.partial.as_ref().map(|partial| &partial.page)) {
            self.pool.retain(page).expect("the tree holds its pages");
        }
        let mut copy = None;
        if let Some(partial) = found.partial {
            let pending = self.copy_to_fresh(partial.page);
            match pending {
                Ok(pending) => {
                    pages.push(pending.copy.to);
                    tokens += partial.tokens;
                    copy = Some(pending);
                }
                Err(_) => self.release_one(partial.page).expect("the page was retained above"),
            }
        }
        self.looked_up_tokens += prompt.len() as u64;
        self.found_tokens += tokens as u64;
        PrefixHit { pages, tokens, copy }
    }

    /// The pages that a session with `pages_held` pages must add to hold `tokens` tokens; it holds them
    /// from now on. Empty where it has enough.
    ///
    /// # Errors
    /// Not so many can be had; see [`OutOfPages`].
    pub fn grow(&mut self, pages_held: usize, tokens: usize) -> Result<Vec<PageId>, OutOfPages> {
        self.allocate(self.pages_for(tokens).saturating_sub(pages_held))
    }

    /// Holds the whole pages that are known of `tokens`, all of them if they are; copies nothing. They are
    /// given back by [`KvCache::release`] or [`KvCache::finish`].
    pub fn hold_whole_pages(&mut self, tokens: &[TokenId]) -> Vec<PageId> {
        // The tree leaves the last token to compute, which here is none of the sequence's own.
        let beyond: Vec<TokenId> = tokens.iter().copied().chain([TokenId(0)]).collect();
        let pages = self.tree.lookup(&beyond).pages;
        self.hold(&pages).expect("the tree holds its pages");
        pages
    }

    /// Holds pages of a session once more, beyond its end. They are given back by [`KvCache::release`].
    ///
    /// # Errors
    /// The first page that nobody holds; those before it are held.
    pub fn hold(&mut self, pages: &[PageId]) -> Result<(), PageError> {
        pages.iter().try_for_each(|&page| self.pool.retain(page))
    }

    /// Makes a live session's full pages findable: the first `valid` of its `tokens` are in `pages`, and
    /// the steps that put them there succeeded. Worth calling when a page has filled up. A full page must
    /// not be written afterwards but by way of [`KvCache::copy_on_write`].
    ///
    /// # Errors
    /// The numbers or pages do not agree with one another; nothing is published then.
    pub fn publish(&mut self, tokens: &[TokenId], pages: &[PageId], valid: usize) -> Result<(), PageError> {
        self.insert(tokens, pages, valid, Tail::Keep)
    }

    /// Ends a session: publishes all of its `valid` tokens, those in its last, unfilled page too, and
    /// gives its pages back.
    ///
    /// # Errors
    /// As [`KvCache::publish`] and [`KvCache::release`]; the pages are given back all the same.
    pub fn finish(&mut self, tokens: &[TokenId], pages: &[PageId], valid: usize) -> Result<(), PageError> {
        let published = self.insert(tokens, pages, valid, Tail::Publish);
        published.and(self.release(pages))
    }

    /// Gives pages back that a session held.
    ///
    /// # Errors
    /// The first page that nobody holds; the others are given back all the same.
    pub fn release(&mut self, pages: &[PageId]) -> Result<(), PageError> {
        let mut result = Ok(());
        for &page in pages {
            result = result.and(self.release_one(page));
        }
        result
    }

    /// Readies one of a session's pages to be written. `None` where the session is its only holder.
    /// Otherwise the session takes the copy's `to` into its table in the page's place.
    ///
    /// # Errors
    /// There is no page for the copy.
    ///
    /// # Panics
    /// When nobody holds the page.
    pub fn copy_on_write(&mut self, page: PageId) -> Result<Option<PendingCopy>, OutOfPages> {
        match self.pool.held(page).expect("a session holds the pages of its table") {
            1 => Ok(None),
            _ => self.copy_to_fresh(page).map(Some),
        }
    }

    /// Says that a copy ran, or never will: its source is held no longer.
    ///
    /// # Errors
    /// Its source is held by nobody: the cache was reset in between.
    pub fn copy_done(&mut self, pending: PendingCopy) -> Result<(), PageError> {
        self.release_one(pending.copy.from)
    }

    /// Evicts up to `count` pages that no session holds, least recently used first, and says which.
    pub fn evict(&mut self, count: usize) -> Vec<PageId> {
        let evicted = self.tree.evict(&mut self.pool, count);
        self.evicted += evicted.len() as u64;
        evicted
    }

    /// Forgets everything, after the device lost its memory: all pages are free, and every page id and
    /// pending copy given out before is void.
    pub fn reset(&mut self) {
        self.pool = PagePool::new(self.pool.capacity());
        self.tree = PrefixTree::new(self.tree.page_tokens());
    }

    /// The cache in numbers.
    pub fn statistics(&self) -> KvStatistics {
        KvStatistics {
            pool: self.pool.statistics(),
            published: self.tree.pages(),
            looked_up_tokens: self.looked_up_tokens,
            found_tokens: self.found_tokens,
            evicted: self.evicted,
        }
    }

    /// Asserts that pool and tree are well formed, and that every page's holders are the tree and the
    /// places where it stands in `held`: the tables of all sessions and the sources of pending copies.
    /// For tests: it takes time in the pool's size.
    ///
    /// # Panics
    /// When that is not so.
    pub fn check_invariants(&self, held: impl IntoIterator<Item = PageId>) {
        self.pool.check_invariants();
        self.tree.check_invariants(&self.pool);
        let mut holders = vec![0_u32; self.pool.capacity()];
        for page in self.tree.held_pages().chain(held) {
            holders[page.index()] += 1;
        }
        for (page, holders) in (0_u32..).map(PageId).zip(holders) {
            assert_eq!(self.pool.holders(page), Some(holders), "page {page} has other holders");
        }
    }

    fn insert(
        &mut self,
        tokens: &[TokenId],
        pages: &[PageId],
        valid: usize,
        tail: Tail,
    ) -> Result<(), PageError> {
        let Some(tokens) = tokens.get(..valid) else {
            return Err(PageError::TooFewTokens { valid, tokens: tokens.len() });
        };
        self.tree.insert(&mut self.pool, tokens, pages, tail)
    }

    /// A fresh page to copy `from` to; the caller's hold on `from` passes to the pending copy.
    fn copy_to_fresh(&mut self, from: PageId) -> Result<PendingCopy, OutOfPages> {
        let fresh = self.allocate(1)?;
        Ok(PendingCopy { copy: PageCopy { from, to: fresh[0] } })
    }

    fn allocate(&mut self, needed: usize) -> Result<Vec<PageId>, OutOfPages> {
        let free = self.pool.free();
        if needed > free {
            let evictable = self.tree.evictable(&self.pool);
            if needed > free + evictable {
                return Err(OutOfPages { needed, free, evictable });
            }
            self.evict(needed - free);
        }
        Ok(self.pool.allocate(needed).expect("enough pages are free now"))
    }

    fn release_one(&mut self, page: PageId) -> Result<(), PageError> {
        self.pool.release(page).map(|_| ())
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
