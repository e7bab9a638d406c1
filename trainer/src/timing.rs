//! Where a step's time goes, and what an epoch's steps add up to: medians, accelerator utilisation, the slowest rank.
//!
//! Times are the host's: on a CPU they are those of the work itself; on a GPU, whose work is only queued, a part ends
//! when the host goes on, and what the device still has to do is in the part that next waits for it.

use std::time::{Duration, Instant};

use anyhow::Result;
use forebay_c10d::{DdpStats, ProcessGroup};
use serde::Serialize;

/// Parts of a step, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Waiting for the loader.
    DataWait,
    /// Making tensors of the batch, on the device.
    Copy,
    /// The model's output and loss.
    Forward,
    /// Gradients, their communication overlapped.
    Backward,
    /// Clipping and the optimizer.
    Optimizer,
}

/// How many parts there are.
const PARTS: usize = 5;
/// Their names in reports.
const NAMES: [&str; PARTS] = ["data wait", "copy", "forward", "backward", "optimizer"];
/// Steps remembered at most; of longer epochs every second, every fourth and so on.
const REMEMBERED: usize = 1 << 14;
/// A rank is called slow when it needs so much more than the fastest, of its step.
const NOTABLE: f64 = 0.05;

/// One step on one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTimes {
    parts: [Duration; PARTS],
    /// From the end of the step before to the end of this one.
    pub total: Duration,
}

impl StepTimes {
    /// The time of one part.
    pub fn of(&self, part: Part) -> Duration {
        self.parts[part as usize]
    }

    /// What DLIO calls computation: forward, backward, optimizer.
    pub fn compute(&self) -> Duration {
        self.of(Part::Forward) + self.of(Part::Backward) + self.of(Part::Optimizer)
    }
}

/// Measures steps, part by part.
#[derive(Debug)]
pub struct Stopwatch {
    began: Instant,
    lap: Instant,
    times: StepTimes,
}

impl Stopwatch {
    /// The first step begins now.
    pub fn start() -> Self {
        let now = Instant::now();
        Self { began: now, lap: now, times: StepTimes::default() }
    }

    /// What happened since the last lap was `part`.
    pub fn lap(&mut self, part: Part) {
        let now = Instant::now();
        self.times.parts[part as usize] += now - self.lap;
        self.lap = now;
    }

    /// So much of what happens before the next lap is `part`: measured elsewhere.
    pub fn add(&mut self, part: Part, time: Duration) {
        self.times.parts[part as usize] += time;
    }

    /// What happened since the last lap was none of the parts.
    pub fn skip(&mut self) {
        self.lap = Instant::now();
    }

    /// The step ends here, and the next one begins.
    pub fn end(&mut self) -> StepTimes {
        let now = Instant::now();
        let times = StepTimes { total: now - self.began, ..std::mem::take(&mut self.times) };
        (self.began, self.lap) = (now, now);
        times
    }
}

/// One rank's steps of an epoch.
#[derive(Debug, Default)]
pub struct Ledger {
    steps: Vec<StepTimes>,
    /// Every so many steps are remembered, if not 0.
    stride: usize,
    count: usize,
    first: StepTimes,
    compute: Duration,
    waited: Duration,
    longest_wait: Duration,
}

/// What one rank's steps of an epoch were, in milliseconds: medians of the parts and of the whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct StepMedians {
    /// Waiting for the loader.
    pub data_wait_ms: f64,
    /// Making tensors of the batch, on the device.
    pub copy_ms: f64,
    /// The model's output and loss.
    pub forward_ms: f64,
    /// Gradients and their communication.
    pub backward_ms: f64,
    /// Clipping and the optimizer.
    pub optimizer_ms: f64,
    /// Everything.
    pub total_ms: f64,
    /// Communication during the backward pass, as c10d's logger samples it; 0 with one rank.
    pub communication_ms: f64,
    /// The part of it that computation hid.
    pub overlap_ms: f64,
}

/// The epoch's steps over all ranks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EpochTimes {
    /// Accelerator utilisation as DLIO has it, mean over the ranks, 0 to 1: the time spent computing over the time of
    /// the epoch, the first step left out of both. None if there was no second step.
    pub accelerator_utilisation: Option<f64>,
    /// Of each rank.
    pub ranks: Vec<StepMedians>,
    /// The longest that a step of any rank waited for the loader, in milliseconds: what a fault of the cache costs.
    pub data_wait_ms_max: f64,
    /// The rank that holds up the others, if one does.
    pub straggler: Option<Straggler>,
}

/// A rank that needs longer than the others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Straggler {
    /// Which.
    pub rank: usize,
    /// The part of the step in which it loses most against the fastest rank.
    pub part: &'static str,
    /// By how much it is slower than the fastest rank there, in the median step.
    pub slower_by_ms: f64,
}

impl Ledger {
    /// Adds a step.
    pub fn add(&mut self, step: StepTimes) {
        if self.count == 0 {
            (self.first, self.stride) = (step, 1);
        } else {
            self.compute += step.compute();
        }
        self.waited += step.of(Part::DataWait);
        self.longest_wait = self.longest_wait.max(step.of(Part::DataWait));
        if self.count.is_multiple_of(self.stride) {
            self.steps.push(step);
        }
        self.count += 1;
        if self.steps.len() == REMEMBERED {
            self.stride *= 2;
            let mut index = 0;
            self.steps.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
    }

    /// Time spent waiting for the loader.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Merges the ranks' steps. `took` is how long this rank's epoch was; `communication` what its reducer measured.
    pub fn merge(
        &self,
        group: &ProcessGroup,
        took: Duration,
        communication: Option<DdpStats>,
    ) -> Result<EpochTimes> {
        let stats = communication.unwrap_or_default().mean;
        let mut numbers: Vec<i64> = (0..PARTS).map(|part| self.median(|step| step.parts[part])).collect();
        numbers.push(self.median(|step| step.total));
        numbers.extend([stats.backward_comm_ns, stats.backward_overlap_ns]);
        let utilisation = self.utilisation(took);
        numbers.extend([utilisation.unwrap_or(0.0).to_bits() as i64, i64::from(utilisation.is_some())]);
        numbers.push(nanoseconds(self.longest_wait));
        let ranks = group.all_gather_i64(&numbers)?;
        let mean = ranks.iter().map(|rank| f64::from_bits(rank[8] as u64)).sum::<f64>() / ranks.len() as f64;
        let all: Vec<_> = ranks.iter().map(|rank| StepMedians::of(rank)).collect();
        Ok(EpochTimes {
            accelerator_utilisation: ranks.iter().all(|rank| rank[9] == 1).then_some(mean),
            data_wait_ms_max: ranks.iter().map(|rank| rank[10]).max().unwrap_or_default() as f64 / 1e6,
            straggler: straggler(&all),
            ranks: all,
        })
    }

    /// DLIO's utils/statscounter.py, `compute_metrics_train`, with one step left out at the start and none at the end.
    fn utilisation(&self, took: Duration) -> Option<f64> {
        let total = took.checked_sub(self.first.total).filter(|total| !total.is_zero())?;
        (self.count > 1).then(|| self.compute.as_secs_f64() / total.as_secs_f64())
    }

    fn median(&self, value: impl Fn(&StepTimes) -> Duration) -> i64 {
        // The first step is like no other.
        let mut values: Vec<_> = self.steps.iter().skip(usize::from(self.count > 1)).map(value).collect();
        values.sort_unstable();
        values.get(values.len() / 2).map_or(0, |middle| nanoseconds(*middle))
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

impl StepMedians {
    fn of(numbers: &[i64]) -> Self {
        let ms = |index: usize| numbers[index] as f64 / 1e6;
        Self {
            data_wait_ms: ms(0),
            copy_ms: ms(1),
            forward_ms: ms(2),
            backward_ms: ms(3),
            optimizer_ms: ms(4),
            total_ms: ms(5),
            communication_ms: ms(6),
            overlap_ms: ms(7),
        }
    }

    /// The parts in which a rank can be slow by itself. Fast ranks wait for slow ones within the backward pass; what
    /// of it is communication that nothing hid is therefore not counted.
    fn own(&self) -> [f64; PARTS] {
        let backward = (self.backward_ms - (self.communication_ms - self.overlap_ms).max(0.0)).max(0.0);
        [self.data_wait_ms, self.copy_ms, self.forward_ms, backward, self.optimizer_ms]
    }
}

/// The slowest rank, if it is notably slower than the fastest, and where it loses most.
fn straggler(ranks: &[StepMedians]) -> Option<Straggler> {
    let sum = |rank: &StepMedians| rank.own().iter().sum::<f64>();
    let by_sum = |a: &(usize, &StepMedians), b: &(usize, &StepMedians)| sum(a.1).total_cmp(&sum(b.1));
    let (slow, slowest) = ranks.iter().enumerate().max_by(by_sum)?;
    let (fast, fastest) = ranks.iter().enumerate().min_by(by_sum)?;
    if fast == slow || sum(slowest) - sum(fastest) < NOTABLE * slowest.total_ms {
        return None;
    }
    let (own, other) = (slowest.own(), fastest.own());
    let lost = |part: &usize| own[*part] - other[*part];
    let part = (0..PARTS).max_by(|a, b| lost(a).total_cmp(&lost(b)))?;
    Some(Straggler { rank: slow, part: NAMES[part], slower_by_ms: lost(&part) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_c10d::Store;

    fn step(parts: [u64; PARTS]) -> StepTimes {
        let parts = parts.map(Duration::from_millis);
        StepTimes { parts, total: parts.iter().sum() }
    }

    #[test]
    fn utilisation_is_dlios() {
        let mut ledger = Ledger::default();
        // The first step, a cold start, counts for nothing.
        ledger.add(step([500, 0, 100, 0, 0]));
        for _ in 0..4 {
            ledger.add(step([10, 10, 30, 40, 10]));
        }
        // 4 x 80 ms of computation in 4 x 100 ms.
        let group_timeout = Duration::from_secs(10);
        let group = ProcessGroup::gloo(Store::serve(1, group_timeout).unwrap(), 0, 1, group_timeout).unwrap();
        let times = ledger.merge(&group, Duration::from_millis(1000), None).unwrap();
        assert!((times.accelerator_utilisation.unwrap() - 0.8).abs() < 1e-9, "{times:?}");
        assert_eq!((times.ranks[0].backward_ms, times.ranks[0].total_ms), (40.0, 100.0));
        assert_eq!((times.straggler, ledger.waited()), (None, Duration::from_millis(540)));
        // A wait is a wait, in the first step too.
        assert_eq!(times.data_wait_ms_max, 500.0);

        let mut one = Ledger::default();
        one.add(step([1, 1, 1, 1, 1]));
        assert_eq!(one.utilisation(Duration::from_millis(5)), None);
        assert_eq!(Ledger::default().utilisation(Duration::from_millis(5)), None);
    }

    #[test]
    fn a_slow_rank_is_named_with_its_reason() {
        let fast = StepMedians { data_wait_ms: 1.0, backward_ms: 59.0, total_ms: 60.0, ..Default::default() };
        // The fast rank's backward pass waits for the slow one's.
        let fast = StepMedians { communication_ms: 52.0, overlap_ms: 2.0, ..fast };
        let slow = StepMedians { data_wait_ms: 51.0, backward_ms: 9.0, total_ms: 60.0, ..Default::default() };
        let found = straggler(&[fast, slow, fast]).unwrap();
        assert_eq!(found, Straggler { rank: 1, part: "data wait", slower_by_ms: 50.0 });
        assert_eq!(straggler(&[fast, fast]), None);
        assert_eq!(straggler(&[slow]), None);
    }

    #[test]
    fn long_epochs_take_no_more_room_than_short_ones() {
        let mut ledger = Ledger::default();
        for index in 0..100_000 {
            ledger.add(step([0, 0, index / 1000, 0, 0]));
        }
        assert!(ledger.steps.len() < REMEMBERED && ledger.steps.len() > REMEMBERED / 4);
        assert!((ledger.median(|step| step.of(Part::Forward)) / 1_000_000).abs_diff(50) <= 1);
    }

    #[test]
    fn laps_add_up() {
        let mut watch = Stopwatch::start();
        watch.lap(Part::DataWait);
        std::thread::sleep(Duration::from_millis(2));
        watch.lap(Part::Forward);
        watch.skip();
        watch.lap(Part::Forward);
        let times = watch.end();
        assert!(times.of(Part::Forward) >= Duration::from_millis(2));
        assert!(times.compute() + times.of(Part::DataWait) <= times.total);
        assert_eq!(watch.end().of(Part::Forward), Duration::ZERO);
    }
}
