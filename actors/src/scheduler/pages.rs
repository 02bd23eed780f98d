//! The scheduler's use of the KV cache: pages for a request's whole transcript when it is admitted, one
//! more at a time as it grows, and all back when it ends.
//!
//! Pages are given to a lane in two steps, first into what it holds and then, with its next order,
//! into its session's table; so a plan that is given up half-way loses none.

use crate::settings::PrefixReuse;
use lavalane_runtime::batch::{ExecutorLimits, PageCopy};
use lavalane_runtime::ids::{PageId, Position, TokenId};
use lavalane_runtime::kv::{KvCache, PageError, PendingCopy};

/// The pages that one lane holds.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pages: Vec<PageId>,
    /// How many of them stand in the session's table.
    in_table: usize,
    /// The copy that must run before the lane's first rows.
    copy: Option<PendingCopy>,
}

impl Held {
    /// How many pages these are.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// The pages, in order.
    pub(crate) fn all(&self) -> &[PageId] {
        &self.pages
    }

    /// The pages that do not stand in the session's table yet; they are taken to stand there now.
    pub(crate) fn for_table(&mut self) -> Vec<PageId> {
        let new = self.pages[self.in_table..].to_vec();
        self.in_table = self.pages.len();
        new
    }

    /// The copy that the next batch of this lane must make.
    pub(crate) fn copy(&self) -> Option<PageCopy> {
        self.copy.as_ref().map(PendingCopy::copy)
    }
}

/// Pages in use, for the gauges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageUse {
    /// Held by running requests.
    pub(crate) used: usize,
    /// Holding nothing but reusable prefixes.
    pub(crate) cached: usize,
}

/// The pool, and what is known of its pages.
#[derive(Debug)]
pub(crate) struct Pages {
    cache: KvCache,
    reuse: PrefixReuse,
    total: usize,
    /// The pages in use, until something changes them.
    known_use: Option<PageUse>,
}

impl Pages {
    pub(crate) fn new(limits: &ExecutorLimits, reuse: PrefixReuse) -> Self {
        let cache = KvCache::new(limits.pages, limits.page_tokens);
        Self { cache, reuse, total: limits.pages, known_use: None }
    }

    /// Forgets everything: the device was made anew and no lane holds pages.
    pub(crate) fn reset(&mut self) {
        self.known_use = None;
        self.cache.reset();
    }

    /// Pages for a sequence of `tokens`, with one token's room to grow, and how many of the tokens
    /// they hold already; all or nothing.
    pub(crate) fn admit(&mut self, tokens: &[TokenId]) -> Option<(Held, Position)> {
        let known = self.known(tokens).unwrap_or(0);
        // A rough look first, since a request that waits for pages asks again in every iteration.
        let shared = known / self.cache.page_tokens();
        if self.cache.pages_for(tokens.len() + 1) - shared > self.cache.available() {
            return None;
        }
        self.known_use = None;
        let (mut held, cached) = match self.reuse {
            PrefixReuse::On => {
                let hit = self.cache.begin(tokens);
                (Held { in_table: 0, pages: hit.pages, copy: hit.copy }, hit.tokens)
            }
            PrefixReuse::Off => (Held::default(), 0),
        };
        if !self.grow(&mut held, tokens.len() + 1) {
            self.release(held);
            return None;
        }
        Some((held, Position::START.advance(cached)))
    }

    /// How many of the tokens could be found at this moment; `None` where nothing is reused.
    pub(crate) fn known(&self, tokens: &[TokenId]) -> Option<usize> {
        (self.reuse == PrefixReuse::On).then(|| self.cache.peek(tokens))
    }

    /// Extends `held` to cover `tokens` tokens; false where the pool is exhausted, and then nothing
    /// changes.
    pub(crate) fn grow(&mut self, held: &mut Held, tokens: usize) -> bool {
        if self.cache.pages_for(tokens) <= held.len() {
            return true;
        }
        self.known_use = None;
        match self.cache.grow(held.len(), tokens) {
            Ok(new) => {
                held.pages.extend(new);
                true
            }
            Err(_) => false,
        }
    }

    /// Pages for the whole pages of `tokens`, and how many of them hold those already; all or nothing.
    pub(crate) fn hold_prefix(&mut self, tokens: &[TokenId]) -> Option<(Held, usize)> {
        self.known_use = None;
        let mut held = Held { pages: self.cache.hold_whole_pages(tokens), ..Held::default() };
        let known = held.len();
        if !self.grow(&mut held, tokens.len()) {
            self.release(held);
            return None;
        }
        Some((held, known))
    }

    /// The first `count` pages of a lane once more, which are full and will not be written again.
    pub(crate) fn hold_again(&mut self, held: &Held, count: usize) -> Held {
        self.known_use = None;
        let pages = held.pages[..count].to_vec();
        check(self.cache.hold(&pages));
        Held { pages, ..Held::default() }
    }

    /// Notes that the lane's copy ran.
    pub(crate) fn copied(&mut self, held: &mut Held) {
        if let Some(copy) = held.copy.take() {
            self.known_use = None;
            check(self.cache.copy_done(copy));
        }
    }

    /// Lets others find the full pages among those that hold the first `valid` of `tokens`.
    pub(crate) fn publish(&mut self, held: &Held, tokens: &[TokenId], valid: Position) {
        if self.reuse == PrefixReuse::On {
            check(self.cache.publish(tokens, &held.pages, valid.tokens()));
        }
    }

    /// Takes back the pages of a sequence of which the first `valid` tokens are surely in them, and
    /// lets others find those.
    pub(crate) fn finish(&mut self, mut held: Held, tokens: &[TokenId], valid: Position) {
        // A copy that has not run leaves a page that holds nothing.
        if self.reuse == PrefixReuse::Off || held.copy.is_some() {
            return self.release(held);
        }
        self.known_use = None;
        let pages = std::mem::take(&mut held.pages);
        check(self.cache.finish(tokens, &pages, valid.tokens()));
    }

    /// Takes back pages whose content nobody may rely on.
    pub(crate) fn release(&mut self, mut held: Held) {
        self.known_use = None;
        self.copied(&mut held);
        check(self.cache.release(&held.pages));
    }

    /// The pages in use.
    pub(crate) fn in_use(&mut self) -> PageUse {
        *self.known_use.get_or_insert_with(|| {
            let free = self.cache.statistics().pool.free;
            let available = self.cache.available();
            PageUse { used: self.total - available, cached: available - free }
        })
    }
}

/// A page that is given back twice is a mistake in this crate's books. It is reported and does not stop
/// the other lanes.
fn check(result: Result<(), PageError>) {
    if let Err(error) = result {
        debug_assert!(false, "the books of KV pages are wrong: {error}");
        tracing::error!("the books of KV pages are wrong: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ExecutorLimits = ExecutorLimits {
        batch_rows_max: 8,
        lane_rows_max: 8,
        lanes_max: 2,
        context_tokens_max: 64,
        page_tokens: 4,
        pages: 8,
        vocabulary: 100,
    };

    fn tokens(count: u32) -> Vec<TokenId> {
        (0..count).map(TokenId).collect()
    }

    /// Admits `first`, finishes it whole, admits `second`; checks what the second finds and that all
    /// pages come back.
    fn check_reuse(reuse: PrefixReuse, first: &[TokenId], second: &[TokenId], cached: usize) {
        let mut pages = Pages::new(&LIMITS, reuse);
        let (held, position) = pages.admit(first).expect("an empty pool takes it");
        assert_eq!(position, Position::START);
        pages.finish(held, first, Position::START.advance(first.len()));
        let (held, position) = pages.admit(second).expect("a pool in use by nobody takes it");
        assert_eq!(position.tokens(), cached);
        assert!(pages.in_use().used >= second.len().div_ceil(LIMITS.page_tokens));
        pages.release(held);
        assert_eq!(pages.in_use().used, 0);
    }

    #[test]
    fn a_finished_prompt_is_found_again_but_for_its_last_token() {
        check_reuse(PrefixReuse::On, &tokens(10), &tokens(10), 9);
        check_reuse(PrefixReuse::Off, &tokens(10), &tokens(10), 0);
    }

    #[test]
    fn a_hit_ends_at_the_first_changed_token() {
        let mut changed = tokens(10);
        changed[5] = TokenId(99);
        check_reuse(PrefixReuse::On, &tokens(10), &changed, 5);
    }

    #[test]
    fn a_sequence_that_finds_no_room_takes_nothing() {
        let mut pages = Pages::new(&LIMITS, PrefixReuse::On);
        let (held, _) = pages.admit(&tokens(20)).expect("an empty pool takes it");
        let before = pages.in_use();
        assert!(pages.admit(&tokens(12)).is_none());
        assert_eq!(pages.in_use(), before);
        pages.release(held);
        assert_eq!(pages.in_use(), PageUse { used: 0, cached: 0 });
    }

    #[test]
    fn a_page_goes_into_the_table_once() {
        let mut pages = Pages::new(&LIMITS, PrefixReuse::On);
        let (mut held, _) = pages.admit(&tokens(3)).expect("an empty pool takes it");
        assert_eq!(held.for_table().len(), 1);
        assert!(pages.grow(&mut held, 9));
        assert_eq!((held.for_table().len(), held.for_table().len()), (2, 0));
        pages.release(held);
    }
}
