//! A stretch of work: when it was, and its processor time. Several processes' spans can be put together.

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};

/// A stretch of work of one or more processes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Span {
    /// By the clock that all processes of a machine share.
    began_ns: u64,
    ended_ns: u64,
    /// Processor time, of the kernel's work for the processes too.
    pub cpu_s: f64,
}

impl Span {
    /// Runs something and measures it, with all threads of this process.
    pub fn of<T>(run: impl FnOnce() -> T) -> (Self, T) {
        let (began_ns, cpu) = (now_ns(ClockId::Monotonic), now_ns(ClockId::ProcessCPUTime));
        let done = run();
        let (ended_ns, cpu_ended) = (now_ns(ClockId::Monotonic), now_ns(ClockId::ProcessCPUTime));
        (Self { began_ns, ended_ns, cpu_s: (cpu_ended - cpu) as f64 / 1e9 }, done)
    }

    /// From the first beginning to the last end.
    pub fn together(spans: impl IntoIterator<Item = Self>) -> Option<Self> {
        spans.into_iter().reduce(|a, b| Self {
            began_ns: a.began_ns.min(b.began_ns),
            ended_ns: a.ended_ns.max(b.ended_ns),
            cpu_s: a.cpu_s + b.cpu_s,
        })
    }

    /// How long it was.
    pub fn seconds(&self) -> f64 {
        (self.ended_ns - self.began_ns) as f64 / 1e9
    }
}

fn now_ns(clock: ClockId) -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    tv_sec as u64 * 1_000_000_000 + tv_nsec as u64
}

#[test]
fn spans_of_several_processes_are_one() {
    let span = |began_ns, ended_ns, cpu_s| Span { began_ns, ended_ns, cpu_s };
    let all = Span::together([span(5, 9, 1.0), span(3, 7, 0.5)]).expect("two spans");
    assert_eq!((all.began_ns, all.ended_ns, all.cpu_s), (3, 9, 1.5));
    assert!(Span::together([]).is_none());
}
