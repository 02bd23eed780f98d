//! Which stored image holds the KV of which token prefixes; in memory, without any file.
//!
//! Every prefix of whole pages of every image is found by its chained hash, and then held against the
//! tokens themselves. An image whose tokens begin another's is of no use beside it.

use super::format::ImageHeader;
use super::identity::chained;
use super::score::{Use, worth};
use crate::ids::TokenId;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

/// One stored image. Never given to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageId(u64);

/// A file that the index knows.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The file's name.
    pub(super) name: String,
    /// What it says of itself; `None` for an image of another kind of executor, which is never found.
    pub(super) header: Option<Arc<ImageHeader>>,
    /// Its length.
    pub(super) bytes: u64,
    pub(super) hits: u32,
    pub(super) last_used: SystemTime,
}

/// The longest stored prefix of some tokens.
#[derive(Clone, Debug)]
pub(super) struct Match {
    pub(super) image: ImageId,
    /// How many of the image's first pages match.
    pub(super) pages: usize,
}

/// The index.
#[derive(Debug)]
pub(super) struct Index {
    page_tokens: usize,
    entries: HashMap<ImageId, Entry>,
    by_prefix: HashMap<u64, Vec<ImageId>>,
    bytes: u64,
    next: u64,
}

impl Index {
    /// An empty index over pages of `page_tokens` tokens, at least one.
    pub(super) fn new(page_tokens: usize) -> Self {
        assert!(page_tokens > 0, "a page holds at least one token");
        Self { page_tokens, entries: HashMap::new(), by_prefix: HashMap::new(), bytes: 0, next: 0 }
    }

    /// Adds a file.
    pub(super) fn insert(&mut self, entry: Entry) -> ImageId {
        let id = ImageId(self.next);
        self.next += 1;
        self.bytes += entry.bytes;
        for hash in self.hashes_of(&entry) {
            self.by_prefix.entry(hash).or_default().push(id);
        }
        self.entries.insert(id, entry);
        id
    }

    /// Forgets a file.
    pub(super) fn remove(&mut self, id: ImageId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.bytes -= entry.bytes;
        for hash in self.hashes_of(&entry) {
            if let Some(images) = self.by_prefix.get_mut(&hash) {
                images.retain(|image| *image != id);
                if images.is_empty() {
                    self.by_prefix.remove(&hash);
                }
            }
        }
        Some(entry)
    }

    /// The longest prefix of whole pages of `tokens` that an image holds.
    pub(super) fn find(&self, tokens: &[TokenId]) -> Option<Match> {
        let hashes = self.hashes(tokens);
        hashes.iter().enumerate().rev().find_map(|(page, hash)| {
            let prefix = &tokens[..(page + 1) * self.page_tokens];
            let images = self.by_prefix.get(hash)?.iter();
            let image = *images.into_iter().find(|image| self.begins_with(**image, prefix))?;
            Some(Match { image, pages: page + 1 })
        })
    }

    /// The images whose tokens are a beginning of `tokens`, and shorter.
    pub(super) fn superseded_by(&self, tokens: &[TokenId]) -> Vec<ImageId> {
        let of_file = |entry: &Entry| entry.header.as_ref().map(|header| header.tokens.len());
        let shorter = |id: &ImageId| {
            let length = self.entries.get(id).and_then(of_file);
            length.is_some_and(|length| length < tokens.len() && self.begins_with(*id, &tokens[..length]))
        };
        // An image of n pages that begins `tokens` is found under the hash of their first n pages.
        let hashes = self.hashes(tokens);
        let mut found: Vec<ImageId> =
            hashes.iter().filter_map(|hash| self.by_prefix.get(hash)).flatten().copied().collect();
        found.sort_unstable();
        found.dedup();
        found.retain(shorter);
        found
    }

    /// Notes that an image was used; `None` where it is gone.
    pub(super) fn touch(&mut self, id: ImageId, now: SystemTime) -> Option<&Entry> {
        let entry = self.entries.get_mut(&id)?;
        entry.hits = entry.hits.saturating_add(1);
        entry.last_used = now;
        Some(entry)
    }

    /// The image that is worth least. One that is never found is worth nothing.
    pub(super) fn least(&self, now: SystemTime) -> Option<ImageId> {
        let worth = |entry: &Entry| match entry.header {
            None => 0.0,
            Some(_) => {
                let idle = now.duration_since(entry.last_used).unwrap_or_default();
                worth(&Use { hits: entry.hits, idle, bytes: entry.bytes })
            }
        };
        let least = self.entries.iter().min_by(|(one_id, one), (other_id, other)| {
            worth(one).total_cmp(&worth(other)).then(one_id.cmp(other_id))
        });
        least.map(|(id, _)| *id)
    }

    /// How often each file was used, by its name.
    pub(super) fn hits(&self) -> impl Iterator<Item = (&str, u32)> {
        self.entries.values().map(|entry| (entry.name.as_str(), entry.hits))
    }

    /// How many files there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn begins_with(&self, id: ImageId, prefix: &[TokenId]) -> bool {
        let header = self.entries.get(&id).and_then(|entry| entry.header.as_ref());
        header.is_some_and(|header| header.tokens.starts_with(prefix))
    }

    /// The hashes under which a file is found.
    fn hashes_of(&self, entry: &Entry) -> Vec<u64> {
        entry.header.as_ref().map(|header| self.hashes(&header.tokens)).unwrap_or_default()
    }

    /// The chained hash after each whole page.
    fn hashes(&self, tokens: &[TokenId]) -> Vec<u64> {
        let pages = tokens.chunks_exact(self.page_tokens);
        let chain = pages.scan(0, |hash, page| {
            *hash = chained(*hash, page);
            Some(*hash)
        });
        chain.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::{PREAMBLE_BYTES, Preamble};
    use super::super::identity::tests::identity;
    use super::super::image::Image;
    use super::*;
    use std::time::Duration;

    fn tokens(from: u32, count: u32) -> Vec<TokenId> {
        (from..from + count).map(TokenId).collect()
    }

    fn entry(tokens: Vec<TokenId>, hits: u32) -> Entry {
        let payload = vec![0; tokens.len().div_ceil(4) * 24];
        let bytes = Image::new(identity(), tokens, payload).expect("it is whole").to_bytes();
        let preamble = Preamble::read(&bytes).expect("it was written so");
        let header = ImageHeader::read(preamble, &bytes[PREAMBLE_BYTES..], bytes.len() as u64);
        let header = Some(Arc::new(header.expect("it was written so")));
        let last_used = SystemTime::UNIX_EPOCH;
        Entry { name: "a file".to_owned(), header, bytes: bytes.len() as u64, hits, last_used }
    }

    fn check_find(index: &Index, tokens: &[TokenId], expected: Option<(ImageId, usize)>) {
        assert_eq!(index.find(tokens).map(|found| (found.image, found.pages)), expected);
    }

    #[test]
    fn the_longest_prefix_of_whole_pages_is_found_of_any_image() {
        let mut index = Index::new(4);
        let short = index.insert(entry(tokens(0, 8), 0));
        let other = index.insert(entry(tokens(100, 12), 0));
        check_find(&index, &tokens(0, 8), Some((short, 2)));
        check_find(&index, &tokens(0, 50), Some((short, 2)));
        check_find(&index, &tokens(0, 7), Some((short, 1)));
        check_find(&index, &tokens(0, 3), None);
        check_find(&index, &tokens(1, 8), None);
        let mut forked = tokens(100, 12);
        forked[9] = TokenId(7);
        check_find(&index, &forked, Some((other, 2)));
        let long = index.insert(entry(tokens(0, 16), 0));
        check_find(&index, &tokens(0, 50), Some((long, 4)));
        index.remove(long);
        check_find(&index, &tokens(0, 50), Some((short, 2)));
        index.remove(short);
        index.remove(other);
        assert_eq!((index.len(), index.bytes(), index.by_prefix.len()), (0, 0, 0));
    }

    #[test]
    fn tokens_are_compared_and_not_only_their_hashes() {
        let mut index = Index::new(4);
        let image = index.insert(entry(tokens(0, 8), 0));
        // As if the hash of other tokens were the same.
        let other = tokens(50, 4);
        let hash = index.hashes(&other)[0];
        index.by_prefix.entry(hash).or_default().push(image);
        check_find(&index, &other, None);
    }

    #[test]
    fn an_image_that_begins_a_longer_one_is_superseded_by_it() {
        let mut index = Index::new(4);
        let begins = index.insert(entry(tokens(0, 8), 0));
        index.insert(entry(tokens(0, 16), 0));
        index.insert(entry(tokens(100, 8), 0));
        let mut forked = tokens(0, 8);
        forked[6] = TokenId(9);
        index.insert(entry(forked, 0));
        assert_eq!(index.superseded_by(&tokens(0, 12)), [begins]);
        assert_eq!(index.superseded_by(&tokens(0, 8)), []);
    }

    #[test]
    fn the_least_used_goes_first_and_what_is_never_found_before_all() {
        let mut index = Index::new(4);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(60);
        let used = index.insert(entry(tokens(0, 8), 0));
        let unused = index.insert(entry(tokens(100, 8), 0));
        index.touch(used, now);
        assert_eq!(index.least(now), Some(unused));
        let foreign = index.insert(Entry { header: None, hits: 9, ..entry(tokens(0, 4), 0) });
        assert_eq!(index.least(now), Some(foreign));
        check_find(&index, &tokens(0, 4), Some((used, 1)));
    }
}
