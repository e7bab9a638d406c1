//! SIGTERM and Ctrl-C: the ranks agree on a step after which all of them stop.
//!
//! A rank that was told to stop cannot just do so: its peers may already be in the next step and would wait
//! for it. So the ranks compare notes, all at the same steps, as often as costs next to nothing: every step
//! where steps are long, once in many steps where they are short.
//!
//! Under torchrun the agent of each machine judges by its own ranks' exit codes: were all of them 0 after one
//! machine was told to go, the job would be over for the others as well. So ranks that were not told
//! themselves end with [`StoppedByPeer`], and their agents restart them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use forebay_c10d::{Op, ProcessGroup};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};
use tch::Tensor;

/// Between two comparisons, about.
const EVERY: Duration = Duration::from_millis(100);
/// Steps between two comparisons at most.
const STEPS_MAX: i64 = 1000;

/// Within so long of each other the machines of a job are told to end, if all of them are.
const TOLD_APART: Duration = Duration::from_secs(2);

/// All ranks have stopped because another one was told to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "other ranks were told to stop (SIGTERM), so all have: the steps done are kept, and this rank ends to be restarted"
)]
pub struct StoppedByPeer;

/// The exit status after a second Ctrl-C, as shells expect it.
const INTERRUPTED: i32 = 130;

/// The signals that tell this process to end: the first flag is set by each of them, the second by Ctrl-C.
/// Clones share both.
#[derive(Debug, Clone, Default)]
pub struct StopSignals(pub(super) Arc<AtomicBool>, pub(super) Arc<AtomicBool>);

impl StopSignals {
    /// From now on SIGTERM does not end this process, but is remembered; nor does Ctrl-C the first time: the
    /// second time it ends the process at once.
    pub fn listen() -> Result<Self> {
        let signals = Self::default();
        register(SIGTERM, signals.0.clone()).context("listen for SIGTERM")?;
        // In this order: the first finds the second's flag as it was before.
        register_conditional_shutdown(SIGINT, INTERRUPTED, signals.1.clone())
            .and_then(|_| register(SIGINT, signals.1.clone()))
            .and_then(|_| register(SIGINT, signals.0.clone()))
            .context("listen for Ctrl-C")?;
        Ok(signals)
    }

    /// Which of them came, for people: SIGTERM if none has.
    pub fn by(&self) -> &'static str {
        if self.1.load(Ordering::Relaxed) { "Ctrl-C" } else { "SIGTERM" }
    }

    /// Whether SIGTERM or Ctrl-C has come.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// One rank's part in the agreement.
#[derive(Debug)]
pub struct Stop {
    signals: StopSignals,
    /// Steps until the next comparison, and of how many that is the rest.
    left: i64,
    stride: i64,
    since: Instant,
}

impl Stop {
    /// For a rank that listens for `signals`.
    pub fn new(signals: StopSignals) -> Self {
        Self { signals, left: 1, stride: 1, since: Instant::now() }
    }

    /// Whether all ranks stop after the step that has just ended. To be asked after every step on every rank;
    /// collective every so often.
    pub fn after_step(&mut self, group: &ProcessGroup) -> Result<bool> {
        self.left -= 1;
        if self.left > 0 {
            return Ok(false);
        }
        let step = self.since.elapsed().as_secs_f64() / self.stride as f64;
        let wanted = (EVERY.as_secs_f64() / step.max(1e-9)).clamp(1.0, STEPS_MAX as f64) as i64;
        self.agree(group, wanted)
    }

    /// Steps of another length follow: the next one is compared after. On every rank.
    pub fn renew(&mut self) {
        (self.left, self.stride, self.since) = (1, 1, Instant::now());
    }

    /// The same as [`Stop::after_step`] at a moment that all ranks come to anyway; always collective.
    pub fn now(&mut self, group: &ProcessGroup) -> Result<bool> {
        self.agree(group, self.stride)
    }

    /// What told this rank, if anything did, for people.
    pub fn by(&self) -> &'static str {
        self.signals.by()
    }

    /// Once all ranks have stopped: an error if this rank was not told to itself. It may yet be: that is
    /// waited for.
    pub fn told(&self) -> Result<(), StoppedByPeer> {
        let began = Instant::now();
        while !self.signals.is_set() {
            if began.elapsed() >= TOLD_APART {
                return Err(StoppedByPeer);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn agree(&mut self, group: &ProcessGroup, wanted: i64) -> Result<bool> {
        let (mut stop, mut stride) = (self.signals.is_set(), wanted);
        if group.world() > 1 {
            let mut notes = Tensor::from_slice(&[i64::from(stop), wanted]);
            group.all_reduce(&mut notes, Op::Max)?;
            (stop, stride) = (notes.int64_value(&[0]) == 1, notes.int64_value(&[1]));
        }
        (self.left, self.stride, self.since) = (stride, stride, Instant::now());
        Ok(stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_c10d::Store;

    #[test]
    fn all_ranks_stop_after_the_same_step() {
        let timeout = Duration::from_secs(30);
        let store = Store::serve(3, timeout).unwrap();
        let port = store.port().unwrap();
        let rank = move |rank: usize| {
            let store = Store::tcp("127.0.0.1", port, 3, false, timeout).unwrap();
            let group = ProcessGroup::gloo(store, rank, 3, timeout).unwrap();
            let signals = StopSignals::default();
            let mut stop = Stop::new(signals.clone());
            for step in 0..100_000 {
                if rank == 1 && step == 2500 {
                    signals.0.store(true, Ordering::Relaxed);
                }
                if stop.after_step(&group).unwrap() {
                    return step;
                }
            }
            panic!("it never stopped");
        };
        let threads = [0, 1, 2].map(|number| std::thread::spawn(move || rank(number)));
        let steps = threads.map(|thread| thread.join().unwrap());
        assert!(steps[0] >= 2500 && steps.iter().all(|step| *step == steps[0]), "{steps:?}");
    }

    #[test]
    fn ctrl_c_is_remembered_as_sigterm_is() {
        let signals = StopSignals::listen().unwrap();
        assert!(!signals.is_set() && signals.by() == "SIGTERM");
        signal_hook::low_level::raise(SIGINT).unwrap();
        assert!(signals.is_set() && signals.by() == "Ctrl-C");
    }

    #[test]
    fn a_rank_alone_stops_at_once_and_asks_nobody() {
        let timeout = Duration::from_secs(10);
        let group = ProcessGroup::gloo(Store::serve(1, timeout).unwrap(), 0, 1, timeout).unwrap();
        let signals = StopSignals::default();
        let mut stop = Stop::new(signals.clone());
        assert!(!stop.now(&group).unwrap());
        assert_eq!(stop.told(), Err(StoppedByPeer));
        let late = signals.clone();
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            late.0.store(true, Ordering::Relaxed);
        });
        assert_eq!(stop.told(), Ok(()));
        other.join().unwrap();
        assert!(stop.now(&group).unwrap());
    }
}
