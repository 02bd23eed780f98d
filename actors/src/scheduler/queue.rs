//! The requests that wait for a lane, in the order in which they get one.
//!
//! A higher priority goes first; within a priority the order of arrival is kept; a request that waits
//! gains one step of priority per aging interval, so that a stream of important requests cannot hold
//! it back for ever. Requests that were running and lost their lane go before all others. The bound
//! on the queue's length is the admission permit that each entry holds.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

/// Where an entry comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// It never had a lane.
    New,
    /// It had one and is to go on.
    Resumed,
}

/// What decides an entry's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Where it comes from.
    pub(crate) origin: Origin,
    /// The request's priority.
    pub(crate) priority: i32,
    /// Its place in the order of arrival.
    pub(crate) arrival: u64,
    /// When it was submitted.
    pub(crate) submitted: Instant,
}

/// The waiting requests.
#[derive(Debug)]
pub(crate) struct WaitQueue<T> {
    entries: Vec<(Turn, T)>,
    aging_interval: Duration,
}

impl<T> WaitQueue<T> {
    /// An empty queue.
    pub(crate) fn new(aging_interval: Duration) -> Self {
        Self { entries: Vec::new(), aging_interval }
    }

    /// Adds an entry.
    pub(crate) fn push(&mut self, turn: Turn, item: T) {
        self.entries.push((turn, item));
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entry whose turn is next.
    pub(crate) fn peek(&self, now: Instant) -> Option<&T> {
        self.next_index(now).map(|index| &self.entries[index].1)
    }

    /// Takes the entry whose turn is next.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<T> {
        self.next_index(now).map(|index| self.entries.swap_remove(index).1)
    }

    /// Takes every entry for which `leaves` says so, in the order of arrival.
    pub(crate) fn remove_where(&mut self, mut leaves: impl FnMut(&Turn, &T) -> bool) -> Vec<T> {
        let mut removed: Vec<(Turn, T)> =
            self.entries.extract_if(.., |(turn, item)| leaves(turn, item)).collect();
        removed.sort_by_key(|(turn, _)| turn.arrival);
        removed.into_iter().map(|(_, item)| item).collect()
    }

    /// All entries, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Turn, &T)> {
        self.entries.iter().map(|(turn, item)| (turn, item))
    }

    fn next_index(&self, now: Instant) -> Option<usize> {
        (0..self.entries.len()).max_by_key(|&index| {
            let turn = &self.entries[index].0;
            let aged = match turn.origin {
                Origin::New => i64::from(turn.priority) + self.steps_waited(turn, now),
                // Among themselves those that lost their lane go by arrival alone.
                Origin::Resumed => 0,
            };
            (turn.origin, aged, Reverse(turn.arrival))
        })
    }

    fn steps_waited(&self, turn: &Turn, now: Instant) -> i64 {
        let waited = now.saturating_duration_since(turn.submitted).as_millis();
        i64::try_from(waited / self.aging_interval.as_millis().max(1)).unwrap_or(i64::MAX / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries as (name, origin, priority, submitted at second); popped at second 10, aging 2 s.
    fn check(entries: &[(&'static str, Origin, i32, u64)], expected: &[&str]) {
        let start = Instant::now();
        let mut queue = WaitQueue::new(Duration::from_secs(2));
        for (arrival, &(name, origin, priority, second)) in entries.iter().enumerate() {
            let submitted = start + Duration::from_secs(second);
            queue.push(Turn { origin, priority, arrival: arrival as u64, submitted }, name);
        }
        let now = start + Duration::from_secs(10);
        let order: Vec<&str> = std::iter::from_fn(|| queue.pop(now)).collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn arrival_decides_within_a_priority() {
        check(
            &[("a", Origin::New, 0, 10), ("b", Origin::New, 0, 10), ("c", Origin::New, 0, 10)],
            &["a", "b", "c"],
        );
    }

    #[test]
    fn priority_goes_before_arrival() {
        check(&[("a", Origin::New, 0, 10), ("b", Origin::New, 1, 10)], &["b", "a"]);
    }

    #[test]
    fn waiting_overtakes_priority() {
        check(&[("new", Origin::New, 4, 10), ("old", Origin::New, 0, 0)], &["old", "new"]);
    }

    #[test]
    fn a_resumed_request_goes_before_all_and_by_arrival_among_its_like() {
        let entries = [
            ("new", Origin::New, 100, 0),
            ("first", Origin::Resumed, 0, 10),
            ("second", Origin::Resumed, 9, 0),
        ];
        check(&entries, &["first", "second", "new"]);
    }

    #[test]
    fn removal_takes_what_it_is_told_and_leaves_the_rest() {
        let mut queue = WaitQueue::new(Duration::from_secs(1));
        let submitted = Instant::now();
        for arrival in 0..6 {
            queue.push(Turn { origin: Origin::New, priority: 0, arrival, submitted }, arrival);
        }
        assert_eq!(queue.remove_where(|_, item| item % 2 == 0), [0, 2, 4]);
        assert_eq!(queue.len(), 3);
        assert_eq!(queue.peek(submitted), Some(&1));
    }
}
