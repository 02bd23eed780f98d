//! Merging of neighbouring symbols by priority, which both kinds of BPE share.
//!
//! A heap holds every pair that may merge, best first and leftmost among equals; merged symbols stay
//! linked to their neighbours, and a pair whose parts have changed since is skipped. Each merge adds at
//! most two pairs, so n symbols take O(n log n) however alike they are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// A run of the text's bytes that is one symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    /// The bytes that the symbol covers.
    pub(super) span: Range<usize>,
    /// What the symbol is, for the rules that merge it and the vocabulary that names it.
    pub(super) id: u32,
}

/// One pair that may merge. The order of the fields is the order of the heap.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: Reverse<u64>,
    left: Reverse<usize>,
    right: usize,
    end: usize,
    merged: u32,
}

const NONE: usize = usize::MAX;

struct Node {
    symbol: Symbol,
    previous: usize,
    next: usize,
    live: Liveness,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Liveness {
    Live,
    Merged,
}

/// Merges `symbols`, which follow one another without a gap, until no rule applies. `rule` gives a
/// pair's priority (lower merges first) and the merged symbol's id; it must depend on the two symbols
/// alone.
pub(super) fn merge(
    symbols: Vec<Symbol>,
    mut rule: impl FnMut(&Symbol, &Symbol) -> Option<(u64, u32)>,
) -> Vec<Symbol> {
    let count = symbols.len();
    let mut nodes: Vec<Node> = symbols
        .into_iter()
        .enumerate()
        .map(|(index, symbol)| Node {
            symbol,
            previous: if index == 0 { NONE } else { index - 1 },
            next: if index + 1 == count { NONE } else { index + 1 },
            live: Liveness::Live,
        })
        .collect();
    let mut heap = BinaryHeap::with_capacity(count);
    let mut propose = |nodes: &[Node], heap: &mut BinaryHeap<Candidate>, left: usize, right: usize| {
        if left == NONE || right == NONE {
            return;
        }
        if let Some((priority, merged)) = rule(&nodes[left].symbol, &nodes[right].symbol) {
            let end = nodes[right].symbol.span.end;
            heap.push(Candidate { priority: Reverse(priority), left: Reverse(left), right, end, merged });
        }
    };
    for right in 1..count {
        propose(&nodes, &mut heap, right - 1, right);
    }
    while let Some(Candidate { left: Reverse(left), right, end, merged, .. }) = heap.pop() {
        // Stale where either side has gone, or has grown: a symbol grows only to its right.
        let fresh = nodes[left].live == Liveness::Live
            && nodes[right].live == Liveness::Live
            && nodes[left].next == right
            && nodes[left].symbol.span.end == nodes[right].symbol.span.start
            && nodes[right].symbol.span.end == end;
        if !fresh {
            continue;
        }
        let next = nodes[right].next;
        nodes[right].live = Liveness::Merged;
        nodes[left].symbol.span.end = end;
        nodes[left].symbol.id = merged;
        nodes[left].next = next;
        if next != NONE {
            nodes[next].previous = left;
        }
        let previous = nodes[left].previous;
        propose(&nodes, &mut heap, previous, left);
        propose(&nodes, &mut heap, left, next);
    }
    nodes.into_iter().filter(|node| node.live == Liveness::Live).map(|node| node.symbol).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges single-byte symbols of `text` with rules "left right" of growing priority value.
    fn check(text: &str, rules: &[(&str, &str)], expected: &[&str]) -> usize {
        let symbols = (0..text.len()).map(|at| Symbol { span: at..at + 1, id: 0 }).collect();
        let mut asked = 0;
        let merged = merge(symbols, |left, right| {
            asked += 1;
            let pair = (&text[left.span.clone()], &text[right.span.clone()]);
            rules.iter().position(|rule| *rule == pair).map(|rank| (rank as u64, 0))
        });
        let found: Vec<&str> = merged.iter().map(|symbol| &text[symbol.span.clone()]).collect();
        assert_eq!(found, expected);
        asked
    }

    #[test]
    fn the_best_pair_merges_first_and_the_leftmost_among_equals() {
        check("abcab", &[("b", "c"), ("a", "b")], &["a", "bc", "ab"]);
        check("aaa", &[("a", "a")], &["aa", "a"]);
        check("aaaa", &[("a", "a"), ("aa", "aa")], &["aaaa"]);
        check("", &[("a", "a")], &[]);
    }

    #[test]
    fn equal_characters_ask_for_a_rule_at_most_three_times_each() {
        let text = "a".repeat(4096);
        let rules = [("a", "a"), ("aa", "aa"), ("aaaa", "aaaa")];
        let expected = vec!["aaaaaaaa"; 512];
        let asked = check(&text, &rules, &expected);
        assert!(asked <= 3 * text.len(), "{asked} questions for {} characters", text.len());
    }
}
