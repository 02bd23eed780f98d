//! The prefix tree: which pages hold the KV of which token prefixes.
//!
//! Each node is one page's worth of tokens after its parent's, and the page that holds their KV. The last
//! node of a path may hold fewer (a finished sequence's tail). Children are sorted by their tokens, and
//! are compared by the tokens themselves, never by a hash. No node's tokens begin with a sibling's: the
//! longer one serves for both. The tree holds each of its pages in the pool; a page whose only holder it
//! is may be evicted, leaves first, least recently used first.

use super::pool::{PageError, PagePool};
use crate::ids::{PageId, TokenId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

/// What tells one image or sound from another where their placeholder tokens are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MediaFingerprint(pub [u8; 32]);

/// What the tree knows of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixMatch {
    /// Pages whose every token matches, in order.
    pub pages: Vec<PageId>,
    /// A page of which only the first tokens match.
    pub partial: Option<PartialMatch>,
}

/// A page of which only the first tokens match: it may be copied and written on from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialMatch {
    /// The page.
    pub page: PageId,
    /// How many of its tokens match; at least 1, less than a page.
    pub tokens: usize,
}

/// What becomes of the tokens that do not fill the last page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// They stay private: their owner is still writing to that page.
    Keep,
    /// They are published: nobody writes to that page any more.
    Publish,
}

/// A node's tokens, and the media whose places lie among them. There is no media yet: the list is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Chunk {
    tokens: Box<[TokenId]>,
    media: Vec<MediaFingerprint>,
}

impl Chunk {
    fn text(tokens: &[TokenId]) -> Self {
        Self { tokens: tokens.into(), media: Vec::new() }
    }

    /// Whether this chunk's page serves also for `other`.
    fn begins_with(&self, other: &Self) -> bool {
        self.tokens.starts_with(&other.tokens) && self.media == other.media
    }

    /// How many tokens are the same from the start; none where media could tell them apart.
    fn common(&self, other: &Self) -> usize {
        if self.media != other.media {
            return 0;
        }
        self.tokens.iter().zip(&other.tokens).take_while(|(one, other)| one == other).count()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NodeId(usize);

type Children = BTreeMap<Chunk, NodeId>;

#[derive(Clone, Debug)]
struct Node {
    chunk: Chunk,
    page: PageId,
    parent: Option<NodeId>,
    children: Children,
    last_used: u64,
}

/// The tree. Its methods that take a pool must always be given the same one.
#[derive(Clone, Debug)]
pub struct PrefixTree {
    page_tokens: usize,
    roots: Children,
    nodes: Vec<Option<Node>>,
    unused: Vec<NodeId>,
    by_page: HashMap<PageId, NodeId>,
    /// Nodes without children, least recently used first.
    leaves: BTreeSet<(u64, NodeId)>,
    clock: u64,
}

impl PrefixTree {
    /// An empty tree over pages of `page_tokens` tokens.
    ///
    /// # Panics
    /// When that is 0.
    pub fn new(page_tokens: usize) -> Self {
        assert!(page_tokens > 0, "a page holds at least one token");
        Self {
            page_tokens,
            roots: Children::new(),
            nodes: Vec::new(),
            unused: Vec::new(),
            by_page: HashMap::new(),
            leaves: BTreeSet::new(),
            clock: 0,
        }
    }

    /// Tokens per page.
    pub fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// How many pages the tree holds.
    pub fn pages(&self) -> usize {
        self.by_page.len()
    }

    /// The longest known prefix of `tokens`, but for the last one, which is always left to compute: its
    /// logits are wanted. What matches counts as used now. The caller retains what it means to use before
    /// it calls anything else.
    pub fn lookup(&mut self, tokens: &[TokenId]) -> PrefixMatch {
        let (found, path) = self.search(tokens);
        self.clock += 1;
        path.into_iter().for_each(|node| self.touch(node));
        found
    }

    /// How many tokens [`PrefixTree::lookup`] would match; changes nothing.
    pub fn peek(&self, tokens: &[TokenId]) -> usize {
        let (found, _) = self.search(tokens);
        found.pages.len() * self.page_tokens + found.partial.map_or(0, |partial| partial.tokens)
    }

    /// Makes a sequence findable: `pages[i]` holds the KV of the `i`-th page's worth of `tokens`, whose
    /// steps all succeeded. Where the tree knows a page's tokens already, it keeps the page that it has.
    /// A full page may be read by anyone from now on and must not be written; see [`Tail`] for the rest.
    ///
    /// # Errors
    /// There are too few pages, or one is free or stands elsewhere in the tree. Nothing is changed then.
    pub fn insert(
        &mut self,
        pool: &mut PagePool,
        tokens: &[TokenId],
        pages: &[PageId],
        tail: Tail,
    ) -> Result<(), PageError> {
        if tokens.len().div_ceil(self.page_tokens) > pages.len() {
            return Err(PageError::TooFewPages { tokens: tokens.len(), pages: pages.len() });
        }
        let chunks = tokens.chunks(self.page_tokens).zip(pages.iter().copied());
        let chunks = chunks.filter(|(chunk, _)| tail == Tail::Publish || chunk.len() == self.page_tokens);
        let chunks: Vec<(Chunk, PageId)> = chunks.map(|(chunk, page)| (Chunk::text(chunk), page)).collect();
        self.check_insert(pool, &chunks)?;
        self.clock += 1;
        let mut parent = None;
        for (chunk, page) in chunks {
            parent = Some(match self.covering(parent, &chunk) {
                Some(known) => known,
                None => self.add(pool, parent, chunk, page),
            });
            parent.into_iter().for_each(|node| self.touch(node));
        }
        Ok(())
    }

    /// Gives up to `count` pages back to the pool that nobody but the tree holds, and says which.
    pub fn evict(&mut self, pool: &mut PagePool, count: usize) -> Vec<PageId> {
        let mut evicted = Vec::new();
        while evicted.len() < count {
            let idle = |node: NodeId| pool.holders(self.node(node).page) == Some(1);
            let Some(node) = self.leaves.iter().map(|&(_, node)| node).find(|&node| idle(node)) else {
                break;
            };
            evicted.push(self.remove_leaf(pool, node));
        }
        evicted
    }

    /// How many pages [`PrefixTree::evict`] could give back. Takes time in the tree's size.
    pub fn evictable(&self, pool: &PagePool) -> usize {
        // A node must stay while its page is held by another, or a child stays.
        let mut stays = vec![false; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let held = node.as_ref().is_some_and(|node| pool.holders(node.page) != Some(1));
            let mut at = held.then_some(NodeId(index));
            while let Some(node) = at.filter(|node| !stays[node.0]) {
                stays[node.0] = true;
                at = self.node(node).parent;
            }
        }
        self.pages() - stays.into_iter().filter(|&stays| stays).count()
    }

    /// Asserts that the tree is well formed and holds its pages. For tests: it takes time in its size.
    ///
    /// # Panics
    /// When that is not so.
    pub fn check_invariants(&self, pool: &PagePool) {
        let mut seen = 0;
        let mut open: Vec<(Option<NodeId>, &Children)> = vec![(None, &self.roots)];
        while let Some((parent, children)) = open.pop() {
            let mut before: Option<&Chunk> = None;
            for (chunk, &id) in children {
                let node = self.node(id);
                assert_eq!((&node.chunk, node.parent), (chunk, parent), "a node and its parent disagree");
                assert!((1..=self.page_tokens).contains(&chunk.tokens.len()), "a chunk's length is wrong");
                let full = chunk.tokens.len() == self.page_tokens;
                assert!(full || node.children.is_empty(), "a tail has children");
                let redundant = before.is_some_and(|before| chunk.begins_with(before));
                assert!(!redundant, "a node's tokens begin with its sibling's");
                assert!(pool.holders(node.page) > Some(0), "the tree has the free page {}", node.page);
                assert_eq!(self.by_page.get(&node.page), Some(&id), "a page is not found by its id");
                let leaf = self.leaves.contains(&(node.last_used, id));
                assert_eq!(leaf, node.children.is_empty(), "the list of leaves is wrong");
                open.push((Some(id), &node.children));
                before = Some(chunk);
                seen += 1;
            }
        }
        assert_eq!(seen, self.by_page.len(), "a node is lost, or two have one page");
        assert_eq!(seen + self.unused.len(), self.nodes.len(), "a node's place is lost");
        let leaves = self.nodes.iter().flatten().filter(|node| node.children.is_empty()).count();
        assert_eq!(leaves, self.leaves.len(), "the list of leaves holds others too");
    }

    /// The pages that the tree holds, in no order.
    pub fn held_pages(&self) -> impl Iterator<Item = PageId> {
        self.by_page.keys().copied()
    }

    fn search(&self, tokens: &[TokenId]) -> (PrefixMatch, Vec<NodeId>) {
        let usable = &tokens[..tokens.len().saturating_sub(1)];
        let (mut found, mut path) = (PrefixMatch::default(), Vec::new());
        let mut children = &self.roots;
        for tokens in usable.chunks(self.page_tokens) {
            let chunk = Chunk::text(tokens);
            let exact = children.get(&chunk).filter(|_| tokens.len() == self.page_tokens);
            if let Some(&id) = exact {
                let node = self.node(id);
                found.pages.push(node.page);
                path.push(id);
                children = &node.children;
                continue;
            }
            // In sorted order, the longest common start is that of one of the two neighbours.
            let before = children.range(..&chunk).next_back();
            let after = children.range(&chunk..).next();
            let neighbours = [before, after].into_iter().flatten();
            let closest = neighbours.max_by_key(|(other, _)| other.common(&chunk));
            if let Some((other, &id)) = closest.filter(|(other, _)| other.common(&chunk) > 0) {
                found.partial = Some(PartialMatch { page: self.node(id).page, tokens: other.common(&chunk) });
                path.push(id);
            }
            break;
        }
        (found, path)
    }

    /// Checks what [`PrefixTree::insert`] would do before it does it.
    fn check_insert(&self, pool: &PagePool, chunks: &[(Chunk, PageId)]) -> Result<(), PageError> {
        let mut parent = Some(None);
        let mut added = BTreeSet::new();
        for (chunk, page) in chunks {
            let page = *page;
            pool.held(page)?;
            let known = parent.and_then(|parent| self.covering(parent, chunk));
            if known.is_none() && (self.by_page.contains_key(&page) || !added.insert(page)) {
                return Err(PageError::PublishedElsewhere { page });
            }
            parent = known.map(Some);
        }
        Ok(())
    }

    /// The child whose page serves for `chunk`: its tokens begin with the chunk's.
    fn covering(&self, parent: Option<NodeId>, chunk: &Chunk) -> Option<NodeId> {
        let (first, &id) = self.children(parent).range(chunk..).next()?;
        first.begins_with(chunk).then_some(id)
    }

    fn add(&mut self, pool: &mut PagePool, parent: Option<NodeId>, chunk: Chunk, page: PageId) -> NodeId {
        // A tail that the new chunk begins with stands right before it, and is needed no longer.
        let below = (Bound::Unbounded, Bound::Excluded(&chunk));
        let before = self.children(parent).range::<Chunk, _>(below).next_back();
        let redundant = before.filter(|(before, _)| chunk.begins_with(before)).map(|(_, &id)| id);
        pool.retain(page).expect("the page was checked to be held");
        let id = self.unused.pop().unwrap_or(NodeId(self.nodes.len()));
        let last_used = self.clock;
        let node = Node { chunk: chunk.clone(), page, parent, children: Children::new(), last_used };
        match self.nodes.get_mut(id.0) {
            Some(place) => *place = Some(node),
            None => self.nodes.push(Some(node)),
        }
        if let Some(parent) = parent {
            self.leaves.remove(&(self.node(parent).last_used, parent));
        }
        self.children_mut(parent).insert(chunk, id);
        self.leaves.insert((last_used, id));
        self.by_page.insert(page, id);
        if let Some(redundant) = redundant {
            self.remove_leaf(pool, redundant);
        }
        id
    }

    fn remove_leaf(&mut self, pool: &mut PagePool, id: NodeId) -> PageId {
        let node = self.nodes[id.0].take().expect("the node exists");
        self.unused.push(id);
        self.leaves.remove(&(node.last_used, id));
        self.by_page.remove(&node.page);
        self.children_mut(node.parent).remove(&node.chunk);
        if let Some(parent) = node.parent.filter(|&parent| self.node(parent).children.is_empty()) {
            self.leaves.insert((self.node(parent).last_used, parent));
        }
        pool.release(node.page).expect("the tree holds its pages");
        node.page
    }

    fn touch(&mut self, id: NodeId) {
        let clock = self.clock;
        let node = self.node_mut(id);
        let before = std::mem::replace(&mut node.last_used, clock);
        if self.leaves.remove(&(before, id)) {
            self.leaves.insert((clock, id));
        }
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0].as_ref().expect("a node's id is used only while the node exists")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0].as_mut().expect("a node's id is used only while the node exists")
    }

    fn children(&self, parent: Option<NodeId>) -> &Children {
        parent.map_or(&self.roots, |parent| &self.node(parent).children)
    }

    fn children_mut(&mut self, parent: Option<NodeId>) -> &mut Children {
        match parent {
            Some(parent) => &mut self.node_mut(parent).children,
            None => &mut self.roots,
        }
    }
}

#[cfg(test)]
#[path = "prefix_tests.rs"]
mod tests;
