//! Work in a directory whose disk may hang, on a thread of its own: nobody need wait for it.

use forebay_proto::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How often directories are looked at that may hang.
const LOOK: Duration = Duration::from_millis(20);

/// Work that a thread of its own does.
#[derive(Debug)]
pub struct Attempt<T>(Arc<Progress<T>>);

#[derive(Debug)]
struct Progress<T> {
    outcome: Mutex<Outcome<T>>,
    ended: Condvar,
}

#[derive(Debug)]
enum Outcome<T> {
    /// It is under way.
    Open,
    Done(Result<T>),
    /// Nobody waits for it any more.
    GivenUp,
}

impl<T: Send + 'static> Attempt<T> {
    /// Begins work. What comes of it after it was given up goes to `late`.
    pub fn begin(
        work: impl FnOnce() -> Result<T> + Send + 'static,
        late: impl FnOnce(Result<T>) + Send + 'static,
    ) -> io::Result<Self> {
        let progress = Arc::new(Progress { outcome: Mutex::new(Outcome::Open), ended: Condvar::new() });
        let theirs = progress.clone();
        let run = move || {
            let panicked = |_| Err(Error::corrupt("a thread that tried a cache directory panicked"));
            let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked);
            let mut outcome = theirs.outcome.lock();
            if matches!(*outcome, Outcome::GivenUp) {
                drop(outcome);
                return late(done);
            }
            // What work and function held is dropped before anybody hears of the end.
            drop(late);
            *outcome = Outcome::Done(done);
            theirs.ended.notify_all();
        };
        thread::Builder::new().name("forebay-dir".to_owned()).spawn(run)?;
        Ok(Self(progress))
    }
}

impl<T> Attempt<T> {
    /// Waits for its end, for a time at most. Returns whether it has come.
    pub fn has_ended(&self, time: Duration) -> bool {
        let mut outcome = self.0.outcome.lock();
        if matches!(*outcome, Outcome::Open) {
            self.0.ended.wait_for(&mut outcome, time);
        }
        !matches!(*outcome, Outcome::Open)
    }

    fn has_succeeded(&self) -> bool {
        matches!(*self.0.outcome.lock(), Outcome::Done(Ok(_)))
    }

    /// What came of it; if it is still under way `None`, and it is given up.
    fn take(self) -> Option<Result<T>> {
        match std::mem::replace(&mut *self.0.outcome.lock(), Outcome::GivenUp) {
            Outcome::Done(done) => Some(done),
            Outcome::Open | Outcome::GivenUp => None,
        }
    }
}

/// Waits for the work in some directories, by their numbers. That in those that hang, as `hangs` tells, is
/// given up once another has answered, or after `patience`: `None`.
pub fn results<T>(
    begun: Vec<(usize, Attempt<T>)>,
    patience: Duration,
    hangs: impl Fn(usize, Instant) -> bool,
) -> Vec<(usize, Option<Result<T>>)> {
    let began = Instant::now();
    let (mut open, mut done, mut has_answer) = (begun, Vec::new(), false);
    while let Some((_, first)) = open.first() {
        first.has_ended(LOOK);
        let now = Instant::now();
        let (ended, others): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|(_, attempt)| attempt.has_ended(Duration::ZERO));
        // An error of one takes no patience from those that hang.
        has_answer |= ended.iter().any(|(_, attempt)| attempt.has_succeeded());
        let is_over = has_answer || now.saturating_duration_since(began) >= patience;
        // Asked in any case: it takes more than one look to tell.
        let (given_up, waited_for): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(dir, _)| hangs(*dir, now) && is_over);
        done.extend(ended.into_iter().chain(given_up).map(|(dir, attempt)| (dir, attempt.take())));
        open = waited_for;
    }
    done
}
