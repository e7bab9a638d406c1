//! How many requests may be under way at once, found by how they are answered.
//!
//! Slow start, additive increase, multiplicative decrease, as TCP does it (RFC 5681), counted in requests;
//! that this converges to a fair share of what the other side bears is shown by D.-M. Chiu and R. Jain,
//! "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in Computer Networks", 1989.
//!
//! The limit starts small, doubles while the object store answers well, and halves when more than a quarter
//! of a limit's worth of requests is refused or breaks off. Scattered refusals do not shrink it: an object
//! store that is not overloaded refuses some too, and each costs one retry. When nothing is answered well any
//! more, a pause comes before each further probe. It reads no clock; the caller passes the time.

use forebay_proto::Backoff;
use std::time::{Duration, Instant};

/// Requests that a new process sends at once: enough to learn something, too few to hurt.
const START: usize = 4;

/// Halvings in a row without one good answer before it pauses.
const HALVINGS: u32 = 3;

const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The object store's recovery is noticed this much late at most.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How many requests a process may have under way: more while answers are good, half when they are not.
#[derive(Debug)]
pub(super) struct ConcurrencyLimit {
    max: usize,
    limit: usize,
    /// Up to here it doubles.
    doubles_to: usize,
    /// Grows when the limit shrinks: requests sent before that tell nothing about the smaller limit.
    era: u64,
    /// Answers, and bad ones among them, since the limit was last looked at.
    answers: usize,
    bad: usize,
    /// Whether the limit was reached since then: if not, good answers say nothing about a larger one.
    was_full: bool,
    /// Halvings in a row without a good answer.
    halvings: u32,
    pauses: Backoff,
    /// Whether as many requests as the limit allows went well since it last shrank.
    has_settled: bool,
}

impl ConcurrencyLimit {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            limit: START.min(max),
            doubles_to: max,
            era: 0,
            answers: 0,
            bad: 0,
            was_full: false,
            halvings: 0,
            pauses: Backoff::new(PAUSE_FIRST, PAUSE_MAX),
            has_settled: true,
        }
    }

    /// Requests at once.
    pub(super) fn get(&self) -> usize {
        self.limit
    }

    /// The era that a request sent now belongs to.
    pub(super) fn era(&self) -> u64 {
        self.era
    }

    /// A request of `era` was answered well; `is_full`: the limit was reached at that moment.
    pub(super) fn on_success(&mut self, era: u64, is_full: bool) {
        self.halvings = 0;
        self.pauses.reset();
        if era == self.era {
            self.was_full |= is_full;
            self.count();
        }
    }

    /// A request of `era` was refused, or its answer broke off. Says until when nothing more should be sent.
    pub(super) fn on_throttle(&mut self, era: u64, now: Instant) -> Option<Instant> {
        if era != self.era {
            return None;
        }
        self.bad += 1;
        // Right after a halving without a good answer the first bad one says enough.
        let tolerated = if self.halvings > 0 { 0 } else { (self.limit / 4).max(1) };
        if self.bad <= tolerated {
            self.count();
            return None;
        }
        let half = (self.limit / 2).max(1);
        if std::mem::take(&mut self.has_settled) {
            self.doubles_to = half;
        }
        self.limit = half;
        self.era += 1;
        self.halvings += 1;
        (self.answers, self.bad, self.was_full) = (0, 0, false);
        (self.halvings > HALVINGS).then(|| now + self.pauses.next())
    }

    /// Counts an answer; after as many as the limit it may grow.
    fn count(&mut self) {
        self.answers += 1;
        if self.answers < self.limit {
            return;
        }
        self.has_settled = true;
        if self.was_full {
            let larger = match self.limit < self.doubles_to {
                true => (self.limit * 2).min(self.doubles_to),
                false => self.limit + 1,
            };
            self.limit = larger.min(self.max);
        }
        (self.answers, self.bad, self.was_full) = (0, 0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends rounds of as many requests as the limit; `fate(number)` is each one's. Says how the limit went.
    fn play(limit: &mut ConcurrencyLimit, rounds: usize, mut fate: impl FnMut(usize) -> bool) -> Vec<usize> {
        let (mut sizes, mut number) = (Vec::new(), 0);
        for _ in 0..rounds {
            let (size, era) = (limit.get(), limit.era());
            for _ in 0..size {
                match fate(number) {
                    true => limit.on_success(era, true),
                    false => {
                        limit.on_throttle(era, Instant::now());
                    }
                }
                number += 1;
            }
            sizes.push(limit.get());
        }
        sizes
    }

    #[test]
    fn doubles_from_few_to_the_most() {
        assert_eq!(play(&mut ConcurrencyLimit::new(32), 5, |_| true), [8, 16, 32, 32, 32]);
        assert_eq!(play(&mut ConcurrencyLimit::new(2), 2, |_| true), [2, 2]);
        let mut idle = ConcurrencyLimit::new(32);
        (0..100).for_each(|_| idle.on_success(0, false));
        assert_eq!(idle.get(), 4, "a limit that is not reached does not grow");
    }

    #[test]
    fn refusals_halve_it_once_and_then_it_grows_slowly() {
        let mut limit = ConcurrencyLimit::new(32);
        play(&mut limit, 3, |_| true);
        let era = limit.era();
        // A whole round refused at once halves it once.
        (0..32).for_each(|_| {
            limit.on_throttle(era, Instant::now());
        });
        assert_eq!(limit.get(), 16);
        assert_eq!(play(&mut limit, 3, |_| true), [17, 18, 19]);
    }

    #[test]
    fn scattered_refusals_do_not_shrink_it() {
        let mut limit = ConcurrencyLimit::new(32);
        let sizes = play(&mut limit, 50, |i| i % 10 != 9);
        assert_eq!(*sizes.last().unwrap(), 32, "{sizes:?}");
    }

    #[test]
    fn an_outage_is_probed_ever_more_rarely() {
        let mut limit = ConcurrencyLimit::new(64);
        play(&mut limit, 5, |_| true);
        let (mut now, start, mut sent) = (Instant::now(), Instant::now(), 0);
        while now < start + Duration::from_secs(30) {
            let (size, era) = (limit.get(), limit.era());
            sent += size;
            let pauses: Vec<_> = (0..size).filter_map(|_| limit.on_throttle(era, now)).collect();
            now = pauses.into_iter().max().unwrap_or(now + Duration::from_millis(1));
        }
        assert_eq!(limit.get(), 1);
        assert!((64 + 32 + 16..200).contains(&sent), "{sent}");
        // The end of it: doubling up to half of what went well before, then one by one.
        assert_eq!(play(&mut limit, 7, |_| true), [2, 4, 8, 16, 32, 33, 34]);
    }
}
