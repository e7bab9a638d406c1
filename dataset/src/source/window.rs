//! How many requests may be under way at once: slow start and additive increase, multiplicative decrease, as TCP does it
//! (RFC 5681), counted in requests.
//!
//! It starts small, doubles while the store answers well, and halves when the store refuses or breaks off too many: more
//! than a quarter of a window. Scattered refusals do not shrink it: a store that is not overloaded refuses some too, and
//! each costs one retry. When nothing is answered well any more, a pause comes before each further probe. Pure: it is
//! told what happens and when.

use std::time::{Duration, Instant};

/// Requests that a new process sends at once: enough to learn something, too few to hurt.
const START: usize = 4;

/// Windows in a row without one good answer before it pauses.
const PATIENT: u32 = 3;

/// The pauses double from the first to the last.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// See [`PAUSE_FIRST`]. The store's recovery is noticed this much late at most.
const PAUSE_LAST: Duration = Duration::from_secs(5);

/// The window of one process.
#[derive(Debug)]
pub(super) struct Window {
    most: usize,
    size: usize,
    /// Up to here it doubles.
    doubles_to: usize,
    /// Grows when the window shrinks: what was sent before that tells nothing about the smaller one.
    era: u64,
    answers: usize,
    bad: usize,
    /// Whether all of it was used since the last look: else good answers say nothing about a larger one.
    full: bool,
    /// Windows in a row without a good answer.
    dark: u32,
    /// Whether a whole window went well since it last shrank.
    settled: bool,
}

impl Window {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            size: START.min(most),
            doubles_to: most,
            era: 0,
            answers: 0,
            bad: 0,
            full: false,
            dark: 0,
            settled: true,
        }
    }

    /// Requests at once.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// What a request sent now belongs to.
    pub(super) fn era(&self) -> u64 {
        self.era
    }

    /// A request of `era` was answered well; `full`: the window was used up just then.
    pub(super) fn well(&mut self, era: u64, full: bool) {
        self.dark = 0;
        if era == self.era {
            self.full |= full;
            self.count();
        }
    }

    /// A request of `era` was refused, or its answer broke off. Says until when nothing more should be sent; `jitter`
    /// is between 0 and 1.
    pub(super) fn badly(&mut self, era: u64, now: Instant, jitter: f64) -> Option<Instant> {
        if era != self.era {
            return None;
        }
        self.bad += 1;
        // After a window without a good answer the first bad one says enough.
        let tolerated = if self.dark > 0 { 0 } else { (self.size / 4).max(1) };
        if self.bad <= tolerated {
            self.count();
            return None;
        }
        let half = (self.size / 2).max(1);
        if std::mem::take(&mut self.settled) {
            self.doubles_to = half;
        }
        self.size = half;
        self.era += 1;
        self.dark += 1;
        (self.answers, self.bad, self.full) = (0, 0, false);
        let doublings = self.dark.checked_sub(PATIENT + 1)?;
        let pause = PAUSE_FIRST.saturating_mul(1 << doublings.min(16)).min(PAUSE_LAST);
        Some(now + pause.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0)))
    }

    /// One more answer; at the end of a window it may grow.
    fn count(&mut self) {
        self.answers += 1;
        if self.answers < self.size {
            return;
        }
        self.settled = true;
        if self.full {
            let aim = if self.size < self.doubles_to {
                (self.size * 2).min(self.doubles_to)
            } else {
                self.size + 1
            };
            self.size = aim.min(self.most);
        }
        (self.answers, self.bad, self.full) = (0, 0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends windows of requests of which each one's fate is `fate(number)`, and says how the size went.
    fn play(window: &mut Window, rounds: usize, mut fate: impl FnMut(usize) -> bool) -> Vec<usize> {
        let (mut sizes, mut number) = (Vec::new(), 0);
        for _ in 0..rounds {
            let (size, era) = (window.size(), window.era());
            for _ in 0..size {
                match fate(number) {
                    true => window.well(era, true),
                    false => {
                        window.badly(era, Instant::now(), 0.5);
                    }
                }
                number += 1;
            }
            sizes.push(window.size());
        }
        sizes
    }

    #[test]
    fn doubles_from_few_to_the_most() {
        assert_eq!(play(&mut Window::new(32), 5, |_| true), [8, 16, 32, 32, 32]);
        assert_eq!(play(&mut Window::new(2), 2, |_| true), [2, 2]);
        let mut idle = Window::new(32);
        (0..100).for_each(|_| idle.well(0, false));
        assert_eq!(idle.size(), 4, "what is not used up does not grow");
    }

    #[test]
    fn refusals_halve_it_once_and_then_it_grows_slowly() {
        let mut window = Window::new(32);
        play(&mut window, 3, |_| true);
        let era = window.era();
        // A whole window refused at once halves it once.
        (0..32).for_each(|_| {
            window.badly(era, Instant::now(), 0.5);
        });
        assert_eq!(window.size(), 16);
        assert_eq!(play(&mut window, 3, |_| true), [17, 18, 19]);
    }

    #[test]
    fn scattered_refusals_do_not_shrink_it() {
        let mut window = Window::new(32);
        let sizes = play(&mut window, 50, |i| i % 10 != 9);
        assert_eq!(*sizes.last().unwrap(), 32, "{sizes:?}");
    }

    #[test]
    fn an_outage_is_probed_ever_more_rarely() {
        let mut window = Window::new(64);
        play(&mut window, 5, |_| true);
        let (mut now, start, mut sent) = (Instant::now(), Instant::now(), 0);
        while now < start + Duration::from_secs(30) {
            let (size, era) = (window.size(), window.era());
            sent += size;
            let pauses: Vec<_> = (0..size).filter_map(|_| window.badly(era, now, 0.0)).collect();
            now = pauses.into_iter().max().unwrap_or(now + Duration::from_millis(1));
        }
        assert_eq!(window.size(), 1);
        assert!((64 + 32 + 16..200).contains(&sent), "{sent}");
        // The end of it: doubling up to half of what went well before, then one by one.
        assert_eq!(play(&mut window, 7, |_| true), [2, 4, 8, 16, 32, 33, 34]);
    }
}
