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

/// Where an entry stands, until the queue changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(usize);

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

    /// The place of the entry whose turn is next among those that `may_go`, until the queue changes.
    pub(crate) fn next(&self, now: Instant, mut may_go: impl FnMut(&T) -> bool) -> Option<Place> {
        let mut places: Vec<usize> = (0..self.entries.len()).collect();
        places.sort_by_key(|&place| Reverse(self.urgency(&self.entries[place].0, now)));
        places.into_iter().find(|&place| may_go(&self.entries[place].1)).map(Place)
    }

    /// The entry at a place.
    pub(crate) fn at(&self, place: Place) -> &T {
        &self.entries[place.0].1
    }

    /// Takes the entry at a place.
    pub(crate) fn take(&mut self, place: Place) -> T {
        self.entries.swap_remove(place.0).1
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

    /// The greater goes first.
    fn urgency(&self, turn: &Turn, now: Instant) -> (Origin, i64, Reverse<u64>) {
        let aged = match turn.origin {
            Origin::New => i64::from(turn.priority) + self.steps_waited(turn, now),
            // Among themselves those that lost their lane go by arrival alone.
            Origin::Resumed => 0,
        };
        (turn.origin, aged, Reverse(turn.arrival))
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
        let pop = || queue.next(now, |_| true).map(|place| queue.take(place));
        let order: Vec<&str> = std::iter::from_fn(pop).collect();
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
        assert_eq!(queue.next(submitted, |_| true).map(|place| *queue.at(place)), Some(1));
    }

    #[test]
    fn who_may_not_go_yet_is_passed_over_and_keeps_its_turn() {
        let mut queue = WaitQueue::new(Duration::from_secs(1));
        let submitted = Instant::now();
        for arrival in 0..3 {
            queue.push(Turn { origin: Origin::New, priority: 0, arrival, submitted }, arrival);
        }
        let place = queue.next(submitted, |item| *item != 0).expect("two may go");
        assert_eq!(queue.take(place), 1);
        let place = queue.next(submitted, |_| true).expect("two are left");
        assert_eq!(queue.take(place), 0);
        assert!(queue.next(submitted, |_| false).is_none());
    }

    #[test]
    fn a_stream_of_important_requests_holds_nobody_back_for_longer_than_their_priority_says() {
        // One of priority 10 arrives every second; a step of priority takes two seconds.
        let start = Instant::now();
        let mut queue = WaitQueue::new(Duration::from_secs(2));
        queue.push(Turn { origin: Origin::New, priority: 0, arrival: 0, submitted: start }, 0);
        for second in 1..100 {
            let now = start + Duration::from_secs(second);
            let turn = Turn { origin: Origin::New, priority: 10, arrival: second, submitted: now };
            queue.push(turn, second);
            let place = queue.next(now, |_| true).expect("two wait");
            if queue.take(place) == 0 {
                assert_eq!(second, 20);
                return;
            }
        }
        panic!("the first never had its turn");
    }
}
