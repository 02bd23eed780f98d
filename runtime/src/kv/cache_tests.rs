//! The cache against a naive model: sessions come, write, publish, trim and go in any order, the device's
//! memory is a map from page to tokens, and what may be found is a plain list.

use super::*;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

const PAGE_TOKENS: usize = 4;
const PAGES: usize = 12;

/// One thing that happens. Sessions are named by a number taken modulo how many there are.
#[derive(Clone, Debug)]
enum Step {
    Begin { prompt: Vec<u32> },
    Advance { session: usize, tokens: Vec<u32> },
    Publish { session: usize },
    Trim { session: usize, tokens: usize },
    Finish { session: usize },
    Fail { session: usize },
    Evict { pages: usize },
}

fn step() -> impl Strategy<Value = Step> {
    // Two tokens, so that prefixes often agree.
    let tokens = |range| prop::collection::vec(0_u32..2, range);
    let session = 0_usize..8;
    prop_oneof![
        4 => tokens(1..18_usize).prop_map(|prompt| Step::Begin { prompt }),
        8 => (session.clone(), tokens(1..7_usize))
            .prop_map(|(session, tokens)| Step::Advance { session, tokens }),
        3 => session.clone().prop_map(|session| Step::Publish { session }),
        1 => (session.clone(), 0_usize..20).prop_map(|(session, tokens)| Step::Trim { session, tokens }),
        3 => session.clone().prop_map(|session| Step::Finish { session }),
        1 => session.prop_map(|session| Step::Fail { session }),
        1 => (0_usize..4).prop_map(|pages| Step::Evict { pages }),
    ]
}

#[derive(Default)]
struct Live {
    /// What the session's pages hold.
    tokens: Vec<TokenId>,
    /// The rest of its prompt.
    prompt: Vec<TokenId>,
    pages: Vec<PageId>,
    pending: Option<PendingCopy>,
}

/// A page that can be found, with all tokens up to its end.
struct Entry {
    path: Vec<TokenId>,
    page: PageId,
}

impl Entry {
    fn depth(&self) -> usize {
        self.path.len().div_ceil(PAGE_TOKENS)
    }
}

struct World {
    cache: KvCache,
    live: Vec<Live>,
    known: Vec<Entry>,
    device: HashMap<PageId, Vec<TokenId>>,
}

impl World {
    fn new() -> Self {
        let cache = KvCache::new(PAGES, PAGE_TOKENS);
        Self { cache, live: Vec::new(), known: Vec::new(), device: HashMap::new() }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Begin { prompt } => self.begin(prompt.into_iter().map(TokenId).collect()),
            Step::Evict { pages } => {
                let evictable = self.cache.available() - self.cache.statistics().pool.free;
                assert_eq!(self.cache.evict(pages).len(), pages.min(evictable));
            }
            _ if self.live.is_empty() => {}
            Step::Advance { session, tokens } => self.advance(session, tokens),
            Step::Publish { session } => {
                let index = session % self.live.len();
                let live = &self.live[index];
                // What a pending copy has not filled yet is not valid.
                let valid = if live.pending.is_some() { 0 } else { live.tokens.len() };
                self.cache.publish(&live.tokens, &live.pages, valid).expect("a session's own pages");
                let full = valid - valid % PAGE_TOKENS;
                self.learn(index, full);
            }
            Step::Trim { session, tokens } => self.trim(session, tokens),
            Step::Finish { session } => {
                let index = session % self.live.len();
                self.copy(index);
                let live = &self.live[index];
                let (tokens, pages, valid) = (&live.tokens, &live.pages, live.tokens.len());
                self.cache.finish(tokens, pages, valid).expect("a session's own pages");
                self.learn(index, valid);
                self.live.swap_remove(index);
            }
            Step::Fail { session } => {
                let index = session % self.live.len();
                let live = self.live.swap_remove(index);
                self.cache.release(&live.pages).expect("a session's own pages");
                live.pending.into_iter().for_each(|copy| self.cache.copy_done(copy).expect("held"));
            }
        }
        self.forget_evicted();
    }

    fn begin(&mut self, prompt: Vec<TokenId>) {
        let usable = &prompt[..prompt.len() - 1];
        let expected = self.known.iter().map(|entry| common(&entry.path, usable)).max().unwrap_or(0);
        let available = self.cache.available();
        assert_eq!(self.cache.peek(&prompt), expected);
        let hit = self.cache.begin(&prompt);
        // Only where no page was left for the copy may the hit end at its page's beginning.
        let shortened =
            hit.tokens == expected - expected % PAGE_TOKENS && available <= expected / PAGE_TOKENS + 1;
        assert!(hit.tokens == expected || shortened, "{} found, {expected} are known", hit.tokens);
        assert_eq!(hit.copy.is_none(), hit.tokens.is_multiple_of(PAGE_TOKENS));
        assert_eq!(hit.pages.len(), hit.tokens.div_ceil(PAGE_TOKENS));
        let tokens = prompt[..hit.tokens].to_vec();
        let prompt = prompt[hit.tokens..].to_vec();
        self.live.push(Live { tokens, prompt, pages: hit.pages, pending: hit.copy });
    }

    /// Runs a session's pending copy.
    fn copy(&mut self, index: usize) {
        if let Some(pending) = self.live[index].pending.take() {
            let PageCopy { from, to } = pending.copy();
            let content = self.device[&from].clone();
            self.device.insert(to, content);
            self.cache.copy_done(pending).expect("the source is held");
        }
    }

    fn advance(&mut self, session: usize, fallback: Vec<u32>) {
        let index = session % self.live.len();
        let live = &self.live[index];
        let count = fallback.len();
        let mut new: Vec<TokenId> = live.prompt.iter().copied().take(count).collect();
        new.extend(fallback.into_iter().skip(new.len()).map(TokenId));
        let (start, end) = (live.tokens.len(), live.tokens.len() + count);
        let before = self.cache.statistics();
        match self.cache.grow(live.pages.len(), end) {
            Err(error) => {
                assert_eq!((error.free, self.cache.statistics()), (before.pool.free, before));
                assert!(error.needed > error.free + error.evictable);
                assert_eq!(error.free + error.evictable, self.cache.available());
                return;
            }
            Ok(pages) => {
                let evicted = self.cache.statistics().evicted - before.evicted;
                assert_eq!(evicted as usize, pages.len().saturating_sub(before.pool.free));
                self.live[index].pages.extend(pages);
            }
        }
        self.copy(index);
        let Ok(pending) = self.cache.copy_on_write(self.live[index].pages[start / PAGE_TOKENS]) else {
            return;
        };
        if let Some(pending) = pending {
            self.live[index].pages[start / PAGE_TOKENS] = pending.copy().to;
            self.live[index].pending = Some(pending);
            self.copy(index);
        }
        for (place, &token) in (start..end).zip(&new) {
            let page = self.live[index].pages[place / PAGE_TOKENS];
            assert_eq!(self.cache.pool.holders(page), Some(1), "a page that others read is written");
            let content = self.device.entry(page).or_default();
            content.truncate(place % PAGE_TOKENS);
            content.push(token);
            assert_eq!(content.len(), place % PAGE_TOKENS + 1, "a page has a hole");
        }
        let live = &mut self.live[index];
        live.tokens.extend(new);
        live.prompt.drain(..count.min(live.prompt.len()));
    }

    fn trim(&mut self, session: usize, tokens: usize) {
        let index = session % self.live.len();
        self.copy(index);
        let live = &mut self.live[index];
        live.tokens.truncate(tokens);
        live.prompt.clear();
        let cut = live.pages.split_off(live.tokens.len().div_ceil(PAGE_TOKENS).min(live.pages.len()));
        self.cache.release(&cut).expect("a session's own pages");
    }

    /// Notes what a session published: its first `tokens` tokens.
    fn learn(&mut self, index: usize, tokens: usize) {
        let live = &self.live[index];
        for (number, &page) in live.pages.iter().enumerate().take(tokens.div_ceil(PAGE_TOKENS)) {
            let path = live.tokens[..tokens.min((number + 1) * PAGE_TOKENS)].to_vec();
            let new = Entry { path, page };
            let same_depth = |entry: &Entry| entry.depth() == new.depth();
            if self.known.iter().any(|entry| same_depth(entry) && entry.path.starts_with(&new.path)) {
                continue;
            }
            self.known.retain(|entry| !(same_depth(entry) && new.path.starts_with(&entry.path)));
            self.known.push(new);
        }
    }

    /// Takes out of the list what the cache evicted, which nobody may have held.
    fn forget_evicted(&mut self) {
        let held: HashSet<PageId> = self.held().into_iter().collect();
        let published: HashSet<PageId> = self.cache.tree.held_pages().collect();
        let (kept, gone): (Vec<Entry>, Vec<Entry>) =
            self.known.drain(..).partition(|entry| published.contains(&entry.page));
        self.known = kept;
        // A page that was evicted and given to a session at once is held again, but by one alone.
        let shared = |page: &PageId| held.contains(page) && self.cache.pool.holders(*page) != Some(1);
        assert!(gone.iter().all(|entry| !shared(&entry.page)), "a page in use was evicted");
        assert_eq!(self.known.len(), published.len(), "the cache publishes what it was not told");
    }

    fn held(&self) -> Vec<PageId> {
        let pages = self.live.iter().flat_map(|live| live.pages.iter().copied());
        pages.chain(self.live.iter().filter_map(|live| Some(live.pending.as_ref()?.copy().from))).collect()
    }

    fn check(&self) {
        self.cache.check_invariants(self.held());
        for entry in &self.known {
            let chunk = &entry.path[(entry.depth() - 1) * PAGE_TOKENS..];
            assert!(self.device[&entry.page].starts_with(chunk), "a published page holds other tokens");
            let above = entry.path.len() > PAGE_TOKENS;
            let parent = &entry.path[..(entry.depth() - 1) * PAGE_TOKENS];
            assert!(!above || self.known.iter().any(|other| other.path == parent), "a page has no parent");
        }
        for live in &self.live {
            let filled = if live.pending.is_some() { live.pages.len() - 1 } else { live.pages.len() };
            for (chunk, page) in live.tokens.chunks(PAGE_TOKENS).zip(&live.pages[..filled]) {
                assert!(self.device[page].starts_with(chunk), "a session's page holds other tokens");
            }
        }
    }
}

fn common(one: &[TokenId], other: &[TokenId]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

fn ids(text: &str) -> Vec<TokenId> {
    text.bytes().map(|byte| TokenId(u32::from(byte))).collect()
}

/// Runs the steps, checking the world after each; at the end everything can be had again.
fn check(steps: Vec<Step>) {
    let mut world = World::new();
    for step in steps {
        world.apply(step);
        world.check();
    }
    while !world.live.is_empty() {
        world.apply(Step::Finish { session: 0 });
        world.check();
    }
    assert_eq!(world.cache.available(), PAGES);
    world.apply(Step::Evict { pages: PAGES });
    assert_eq!(world.cache.statistics().pool.free, PAGES);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn any_course_of_sessions_agrees_with_the_naive_model(steps in prop::collection::vec(step(), 0..80)) {
        check(steps);
    }
}

#[test]
fn a_decoding_session_never_copies_its_own_last_page() {
    let mut cache = KvCache::new(8, 4);
    let mut tokens = ids("ab");
    let mut pages = cache.begin(&tokens).pages;
    for _ in 0..12 {
        pages.extend(cache.grow(pages.len(), tokens.len()).expect("pages are free"));
        let last = pages[(tokens.len() - 1) / 4];
        assert_eq!(cache.copy_on_write(last), Ok(None));
        cache.publish(&tokens, &pages, tokens.len()).expect("its own pages");
        tokens.push(TokenId(7));
    }
    assert_eq!(cache.statistics().published, 3);
    cache.check_invariants(pages);
}

#[test]
fn the_second_of_two_equal_prompts_is_a_hit_but_for_one_token() {
    let mut cache = KvCache::new(8, 4);
    let prompt = ids("abcdefgh");
    let first = cache.begin(&prompt);
    assert_eq!((first.tokens, first.copy), (0, None));
    let pages = cache.grow(0, 8).expect("pages are free");
    cache.finish(&prompt, &pages, 8).expect("its own pages");
    let second = cache.begin(&prompt);
    assert_eq!((second.tokens, second.pages.len(), second.pages[0]), (7, 2, pages[0]));
    let copy = second.copy.expect("the last page is copied");
    assert_eq!(copy.copy(), PageCopy { from: pages[1], to: second.pages[1] });
    let source = copy.copy().from;
    cache.check_invariants(second.pages.iter().copied().chain([source]));
    cache.copy_done(copy).expect("the source is held");
    cache.check_invariants(second.pages);
    let statistics = cache.statistics();
    assert_eq!((statistics.looked_up_tokens, statistics.found_tokens), (16, 7));
}

#[test]
fn without_a_page_for_the_copy_the_hit_ends_at_the_page() {
    let mut cache = KvCache::new(2, 4);
    let prompt = ids("abcdefgh");
    let pages = cache.grow(0, 8).expect("pages are free");
    cache.finish(&prompt, &pages, 8).expect("its own pages");
    // The page that could be evicted for the copy is the copy's own source.
    let hit = cache.begin(&prompt);
    assert_eq!((hit.tokens, hit.pages.as_slice(), hit.copy), (4, &pages[..1], None));
    assert_eq!(cache.grow(1, 8), Ok(vec![pages[1]]));
}

#[test]
fn growth_beyond_the_pool_is_refused_whole_and_says_what_there_is() {
    let mut cache = KvCache::new(4, 4);
    let old = cache.grow(0, 8).expect("pages are free");
    cache.finish(&ids("abcdefgh"), &old, 8).expect("its own pages");
    assert_eq!(cache.grow(0, 17), Err(OutOfPages { needed: 5, free: 2, evictable: 2 }));
    assert_eq!(cache.statistics().published, 2);
    assert_eq!(cache.grow(0, 12).map(|pages| pages.len()), Ok(3));
    assert_eq!((cache.statistics().published, cache.statistics().evicted), (1, 1));
}

#[test]
fn a_trimmed_session_copies_the_published_page_that_it_writes_again() {
    let mut cache = KvCache::new(4, 4);
    let pages = cache.grow(0, 4).expect("pages are free");
    cache.publish(&ids("abcd"), &pages, 4).expect("its own pages");
    let pending = cache.copy_on_write(pages[0]).expect("a page is free").expect("the tree reads it too");
    let mine = pending.copy().to;
    assert_eq!(pending.copy().from, pages[0]);
    cache.copy_done(pending).expect("the source is held");
    cache.check_invariants([mine]);
    assert_eq!(cache.peek(&ids("abcde")), 4);
}

#[test]
fn numbers_that_disagree_are_refused_and_pages_are_given_back_all_the_same() {
    let mut cache = KvCache::new(4, 4);
    let pages = cache.grow(0, 4).expect("pages are free");
    let refusal = PageError::TooFewTokens { valid: 5, tokens: 4 };
    assert_eq!(cache.publish(&ids("abcd"), &pages, 5), Err(refusal));
    assert_eq!(cache.finish(&ids("abcd"), &pages, 5), Err(refusal));
    assert_eq!(cache.statistics().pool.free, 4);
    assert_eq!(cache.release(&pages), Err(PageError::Free { page: pages[0] }));
}

#[test]
fn a_reset_frees_everything() {
    let mut cache = KvCache::new(4, 4);
    let pages = cache.grow(0, 16).expect("pages are free");
    cache.publish(&ids("abcd"), &pages, 4).expect("its own pages");
    cache.reset();
    cache.check_invariants([]);
    assert_eq!((cache.available(), cache.peek(&ids("abcde"))), (4, 0));
}

#[test]
fn a_prefix_is_held_by_whole_pages_and_all_of_them_where_it_is_known_whole() {
    let mut cache = KvCache::new(6, 4);
    let pages = cache.grow(0, 10).expect("pages are free");
    cache.finish(&ids("abcdefghij"), &pages, 10).expect("its own pages");
    let held = cache.hold_whole_pages(&ids("abcdefgh"));
    assert_eq!(held, pages[..2]);
    cache.hold(&held[..1]).expect("it is held already");
    cache.check_invariants([held[0], held[1], held[0]]);
    assert_eq!(cache.evict(9).len(), 1, "what is held stays");
    cache.release(&[held[0], held[1], held[0]]).expect("they are held");
    assert_eq!(cache.hold_whole_pages(&ids("abcx")), []);
    assert_eq!(cache.hold(&[PageId(5)]), Err(PageError::Free { page: PageId(5) }));
    cache.check_invariants([]);
}
