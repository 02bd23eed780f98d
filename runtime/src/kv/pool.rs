//! The pool of KV pages: which are free, and how many holders each of the others has.

use crate::ids::PageId;

/// Not enough free pages; none was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} KV pages are needed and {free} are free")]
pub struct PoolExhausted {
    /// How many were asked for.
    pub needed: usize,
    /// How many there are.
    pub free: usize,
}

/// A page was named that cannot be meant: its holder lost count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// The pool has no such page.
    #[error("KV page {page} is not one of the pool's {capacity}")]
    Unknown {
        /// The page.
        page: PageId,
        /// How many pages there are, from 0.
        capacity: usize,
    },
    /// Nobody holds the page.
    #[error("KV page {page} is free, and cannot be shared, published or given back")]
    Free {
        /// The page.
        page: PageId,
    },
    /// The page's content is known already under other tokens.
    #[error("KV page {page} is published already under other tokens")]
    PublishedElsewhere {
        /// The page.
        page: PageId,
    },
    /// A sequence has fewer pages than its tokens need.
    #[error("{tokens} tokens do not fit the sequence's {pages} KV pages")]
    TooFewPages {
        /// How many tokens the sequence is said to have.
        tokens: usize,
        /// How many pages it has.
        pages: usize,
    },
    /// More tokens are said to be valid than the sequence has.
    #[error("{valid} tokens are said to be in the KV cache, but the sequence has only {tokens}")]
    TooFewTokens {
        /// How many tokens are said to be valid.
        valid: usize,
        /// How many the sequence has.
        tokens: usize,
    },
}

/// What giving a page back came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// Others hold the page still.
    Held,
    /// That was the last holder: the page is free.
    Freed,
}

/// The pool in numbers, all in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStatistics {
    /// All pages.
    pub capacity: usize,
    /// Pages that nobody holds.
    pub free: usize,
    /// Pages with more than one holder.
    pub shared: usize,
    /// The most pages that were held at one time.
    pub held_max: usize,
}

/// Pages with their holders counted. The order in which pages are given out is a function of the calls
/// made: first ascending, later the page that was freed last.
#[derive(Clone, Debug)]
pub struct PagePool {
    holders: Vec<u32>,
    /// The next page to give out is the last.
    free: Vec<PageId>,
    shared: usize,
    held_max: usize,
}

impl PagePool {
    /// A pool of `capacity` free pages.
    ///
    /// # Panics
    /// When the capacity does not fit a page id's 32 bits.
    pub fn new(capacity: usize) -> Self {
        let count = u32::try_from(capacity).expect("a page id fits 32 bits");
        let free = (0..count).rev().map(PageId).collect();
        Self { holders: vec![0; capacity], free, shared: 0, held_max: 0 }
    }

    /// Takes `count` free pages, each with one holder: all or none.
    ///
    /// # Errors
    /// Fewer are free.
    pub fn allocate(&mut self, count: usize) -> Result<Vec<PageId>, PoolExhausted> {
        let Some(kept) = self.free.len().checked_sub(count) else {
            return Err(PoolExhausted { needed: count, free: self.free.len() });
        };
        let mut pages = self.free.split_off(kept);
        pages.reverse();
        for page in &pages {
            self.holders[page.index()] = 1;
        }
        self.held_max = self.held_max.max(self.capacity() - self.free.len());
        Ok(pages)
    }

    /// Adds a holder to a page that has one.
    ///
    /// # Errors
    /// The page is unknown or free.
    pub fn retain(&mut self, page: PageId) -> Result<(), PageError> {
        let holders = self.held(page)?;
        self.holders[page.index()] = holders.checked_add(1).expect("far fewer holders than 2^32");
        self.shared += usize::from(holders == 1);
        Ok(())
    }

    /// Takes a holder from a page, and frees it where that was the last.
    ///
    /// # Errors
    /// The page is unknown or free.
    pub fn release(&mut self, page: PageId) -> Result<Released, PageError> {
        let holders = self.held(page)?;
        self.holders[page.index()] = holders - 1;
        self.shared -= usize::from(holders == 2);
        if holders > 1 {
            return Ok(Released::Held);
        }
        self.free.push(page);
        Ok(Released::Freed)
    }

    /// How many hold the page; 0 where it is free, `None` where there is no such page.
    pub fn holders(&self, page: PageId) -> Option<u32> {
        self.holders.get(page.index()).copied()
    }

    /// How many hold the page, which is at least one.
    ///
    /// # Errors
    /// The page is unknown or free.
    pub fn held(&self, page: PageId) -> Result<u32, PageError> {
        match self.holders(page) {
            None => Err(PageError::Unknown { page, capacity: self.capacity() }),
            Some(0) => Err(PageError::Free { page }),
            Some(holders) => Ok(holders),
        }
    }

    /// All pages, free or not.
    pub fn capacity(&self) -> usize {
        self.holders.len()
    }

    /// How many pages nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// The pool in numbers.
    pub fn statistics(&self) -> PoolStatistics {
        PoolStatistics {
            capacity: self.capacity(),
            free: self.free.len(),
            shared: self.shared,
            held_max: self.held_max,
        }
    }

    /// Asserts that the free list holds exactly the pages without holders, each once, and that the
    /// counts are right. For tests: it takes time in the pool's size.
    ///
    /// # Panics
    /// When that is not so.
    pub fn check_invariants(&self) {
        let mut listed = vec![false; self.capacity()];
        for page in &self.free {
            assert!(!std::mem::replace(&mut listed[page.index()], true), "page {page} is free twice");
            assert_eq!(self.holders[page.index()], 0, "page {page} is free and held");
        }
        for (page, (&holders, &listed)) in self.holders.iter().zip(&listed).enumerate() {
            assert!(listed || holders > 0, "page {page} is lost: neither free nor held");
        }
        let shared = self.holders.iter().filter(|&&holders| holders > 1).count();
        assert_eq!(self.shared, shared, "the count of shared pages is wrong");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts the pool's numbers and invariants.
    fn check(pool: &PagePool, free: usize, shared: usize, held_max: usize) {
        pool.check_invariants();
        let expected = PoolStatistics { capacity: pool.capacity(), free, shared, held_max };
        assert_eq!(pool.statistics(), expected);
    }

    #[test]
    fn pages_come_in_order_and_the_last_freed_comes_first() {
        let mut pool = PagePool::new(4);
        assert_eq!(pool.allocate(3), Ok(vec![PageId(0), PageId(1), PageId(2)]));
        assert_eq!(pool.release(PageId(1)), Ok(Released::Freed));
        assert_eq!(pool.allocate(2), Ok(vec![PageId(1), PageId(3)]));
        check(&pool, 0, 0, 4);
    }

    #[test]
    fn an_exhausted_pool_gives_none_and_says_what_is_free() {
        let mut pool = PagePool::new(2);
        assert_eq!(pool.allocate(3), Err(PoolExhausted { needed: 3, free: 2 }));
        check(&pool, 2, 0, 0);
        assert_eq!(pool.allocate(0), Ok(Vec::new()));
    }

    #[test]
    fn a_shared_page_is_free_only_after_its_last_holder() {
        let mut pool = PagePool::new(1);
        pool.allocate(1).expect("a page is free");
        assert_eq!(pool.retain(PageId(0)), Ok(()));
        check(&pool, 0, 1, 1);
        assert_eq!(pool.release(PageId(0)), Ok(Released::Held));
        check(&pool, 0, 0, 1);
        assert_eq!(pool.release(PageId(0)), Ok(Released::Freed));
        check(&pool, 1, 0, 1);
    }

    #[test]
    fn a_free_or_unknown_page_is_neither_shared_nor_given_back() {
        let mut pool = PagePool::new(1);
        let (free, unknown) = (PageId(0), PageId(1));
        assert_eq!(pool.retain(free), Err(PageError::Free { page: free }));
        assert_eq!(pool.release(free), Err(PageError::Free { page: free }));
        assert_eq!(pool.retain(unknown), Err(PageError::Unknown { page: unknown, capacity: 1 }));
        assert_eq!(pool.release(unknown), Err(PageError::Unknown { page: unknown, capacity: 1 }));
        check(&pool, 1, 0, 0);
    }
}
