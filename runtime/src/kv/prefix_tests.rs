//! What the prefix tree finds, keeps and forgets, on small cases that can be read.

use super::*;

fn tokens(text: &str) -> Vec<TokenId> {
    text.bytes().map(|byte| TokenId(u32::from(byte))).collect()
}

/// A tree over pages of 4 tokens, and a pool whose pages only the tree holds.
fn tree(sequences: &[&str]) -> (PrefixTree, PagePool) {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(32));
    for text in sequences {
        publish(&mut tree, &mut pool, text);
    }
    (tree, pool)
}

/// Publishes a sequence on fresh pages that are given back at once, and returns those pages.
fn publish(tree: &mut PrefixTree, pool: &mut PagePool, text: &str) -> Vec<PageId> {
    let pages = pool.allocate(text.len().div_ceil(4)).expect("pages are free");
    tree.insert(pool, &tokens(text), &pages, Tail::Publish).expect("the pages are held");
    give_back(pool, &pages);
    tree.check_invariants(pool);
    pages
}

fn give_back(pool: &mut PagePool, pages: &[PageId]) {
    for &page in pages {
        pool.release(page).expect("the page is held");
    }
}

/// Asserts how many full pages and how many tokens of a partial one match.
fn check(tree: &mut PrefixTree, prompt: &str, pages: usize, partial: usize) {
    assert_eq!(tree.peek(&tokens(prompt)), pages * 4 + partial, "{prompt}");
    let found = tree.lookup(&tokens(prompt));
    assert_eq!((found.pages.len(), found.partial.map_or(0, |p| p.tokens)), (pages, partial), "{prompt}");
}

#[test]
fn the_longest_common_prefix_is_found_and_ends_at_the_first_other_token() {
    let (mut tree, _) = tree(&["abcdefghij", "abcdxyz", "qrst"]);
    check(&mut tree, "abcdefghijkl", 2, 2);
    check(&mut tree, "abcdefgX", 1, 3);
    check(&mut tree, "abcdxyX", 1, 2);
    check(&mut tree, "abXdefghij", 0, 2);
    check(&mut tree, "Xbcdefgh", 0, 0);
    check(&mut tree, "qrstuvw", 1, 0);
}

#[test]
fn at_least_one_token_is_left_to_compute() {
    let (mut tree, _) = tree(&["abcdefgh"]);
    check(&mut tree, "abcdefgh", 1, 3);
    check(&mut tree, "abcdefghi", 2, 0);
    check(&mut tree, "abcd", 0, 3);
    check(&mut tree, "a", 0, 0);
    check(&mut tree, "", 0, 0);
}

#[test]
fn a_longer_chunk_takes_the_place_of_one_that_it_begins_with() {
    let (mut tree, mut pool) = tree(&["abcdef"]);
    assert_eq!(tree.pages(), 2);
    publish(&mut tree, &mut pool, "abcdefg");
    publish(&mut tree, &mut pool, "abcde");
    assert_eq!((tree.pages(), pool.free()), (2, 30));
    check(&mut tree, "abcdefgh", 1, 3);
    publish(&mut tree, &mut pool, "abcdefXY");
    assert_eq!(tree.pages(), 3);
    publish(&mut tree, &mut pool, "abcdefgh");
    assert_eq!((tree.pages(), pool.free()), (3, 29));
}

#[test]
fn a_live_sequence_keeps_its_tail_to_itself() {
    let (mut tree, mut pool) = tree(&[]);
    let pages = pool.allocate(2).expect("pages are free");
    tree.insert(&mut pool, &tokens("abcdef"), &pages, Tail::Keep).expect("the pages are held");
    assert_eq!((pool.holders(pages[0]), pool.holders(pages[1])), (Some(2), Some(1)));
    check(&mut tree, "abcdef", 1, 0);
}

#[test]
fn eviction_takes_the_least_recently_used_leaf_that_nobody_else_holds() {
    let (mut tree, mut pool) = tree(&[]);
    let first = publish(&mut tree, &mut pool, "abcdefgh");
    let second = publish(&mut tree, &mut pool, "abcdijkl");
    let third = publish(&mut tree, &mut pool, "mnop");
    check(&mut tree, "abcdefghX", 2, 0);
    pool.retain(third[0]).expect("the tree holds it");
    assert_eq!(tree.evictable(&pool), 3);
    assert_eq!(tree.evict(&mut pool, 1), [second[1]]);
    assert_eq!(tree.evict(&mut pool, 9), [first[1], first[0]]);
    assert_eq!((tree.pages(), tree.evictable(&pool)), (1, 0));
    tree.check_invariants(&pool);
}

#[test]
fn a_page_that_a_held_one_follows_is_not_evictable() {
    let (mut tree, mut pool) = tree(&["abcd"]);
    // Another sequence computed the same first page on its own, and holds its second one.
    let pages = pool.allocate(2).expect("pages are free");
    tree.insert(&mut pool, &tokens("abcdefgh"), &pages, Tail::Keep).expect("the pages are held");
    assert_eq!(pool.holders(pages[0]), Some(1), "the first page was known and is not taken");
    assert_eq!((tree.evictable(&pool), tree.evict(&mut pool, 9).len()), (0, 0));
    give_back(&mut pool, &pages);
    assert_eq!((tree.evictable(&pool), tree.evict(&mut pool, 9).len()), (2, 2));
    assert_eq!(pool.free(), 32);
}

#[test]
fn a_bad_insertion_is_refused_and_changes_nothing() {
    let (mut tree, mut pool) = tree(&["abcd"]);
    let known = tree.held_pages().next().expect("one page is published");
    let pages = pool.allocate(1).expect("pages are free");
    let mut refused = |text: &str, pages: &[PageId]| {
        let error = tree.insert(&mut pool, &tokens(text), pages, Tail::Publish).expect_err("refused");
        tree.check_invariants(&pool);
        assert_eq!(tree.pages(), 1);
        error
    };
    assert_eq!(refused("efghi", &pages), PageError::TooFewPages { tokens: 5, pages: 1 });
    assert_eq!(refused("efgh", &[PageId(9)]), PageError::Free { page: PageId(9) });
    assert_eq!(refused("efgh", &[PageId(99)]), PageError::Unknown { page: PageId(99), capacity: 32 });
    assert_eq!(refused("efghij", &[pages[0], known]), PageError::PublishedElsewhere { page: known });
    let twice = [pages[0], pages[0]];
    assert_eq!(refused("efghij", &twice), PageError::PublishedElsewhere { page: pages[0] });
}
