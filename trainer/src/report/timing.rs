//! Where a step's time goes, and what an epoch's steps add up to: medians, accelerator utilisation, the
//! slowest rank.
//!
//! Times are the host's. On a CPU they are those of the work itself. A GPU's work is only queued: what it
//! still has to do when all of a step's passes are queued is waited for and counts as the backward pass, so
//! that forward, backward and optimizer together are the time in which the device computes. Two corrections:
//! where the device itself waited for a batch that was still travelling, that is copying
//! ([`Stopwatch::shift`]); and what the optimizer leaves to do is in the next step's wait for the device, or,
//! if data comes late, in that for data.

use std::time::{Duration, Instant};

use anyhow::Result;
use forebay_c10d::ProcessGroup;
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
    /// What of the parts was talking to other ranks.
    pub exchange: Exchange,
}

/// What of a step's forward and backward pass was talking to other ranks; nothing with one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exchange {
    /// From the departure of the first gradients to the arrival of the last ones, within the backward pass.
    pub communication: Duration,
    /// How much of that computation hid.
    pub overlap: Duration,
    /// Taking rank 0's buffers, within the forward pass.
    pub buffers: Duration,
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

    /// What a rank can be slow at by itself. Fast ranks wait for slow ones where they talk to each other:
    /// communication that nothing hid is left out.
    fn own(&self) -> [Duration; PARTS] {
        let Exchange { communication, overlap, buffers } = self.exchange;
        let mut own = self.parts;
        for (part, waited) in
            [(Part::Forward, buffers), (Part::Backward, communication.saturating_sub(overlap))]
        {
            own[part as usize] = own[part as usize].saturating_sub(waited);
        }
        own
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

    /// So much of what was counted as `from` was in truth `to`.
    pub fn shift(&mut self, from: Part, to: Part, time: Duration) {
        let time = time.min(self.times.of(from));
        self.times.parts[from as usize] -= time;
        self.times.parts[to as usize] += time;
    }

    /// What of this step was talking to other ranks.
    pub fn exchanged(&mut self, exchange: Exchange) {
        self.times.exchange = exchange;
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
    /// One step in this many is remembered.
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
    /// From the end of the step before to the end of this one.
    pub total_ms: f64,
    /// Communication during the backward pass, as c10d's logger measures it; 0 with one rank.
    pub communication_ms: f64,
    /// The part of it that computation hid.
    pub overlap_ms: f64,
    /// The parts, without the time that went into waiting for other ranks.
    #[serde(skip)]
    own: [f64; PARTS],
    /// Quartiles of what a step takes without that: of a quarter of the steps less than the first, and so on.
    #[serde(skip)]
    own_total: [f64; 3],
}

/// The epoch's steps over all ranks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EpochTimes {
    /// Accelerator utilisation as DLIO has it, mean over the ranks, 0 to 1: the time spent computing over the
    /// time of the epoch, the first step left out of both. None if there was no second step.
    pub accelerator_utilisation: Option<f64>,
    /// What a step computes on average over steps and ranks, in milliseconds, the first one left out.
    pub compute_ms_mean: f64,
    /// The medians of each rank, in the order of ranks.
    pub ranks: Vec<StepMedians>,
    /// The longest that a step of any rank waited for the loader, in milliseconds: what a fault of the cache
    /// costs.
    pub data_wait_ms_max: f64,
    /// The rank that holds up the others, if one does.
    pub straggler: Option<Straggler>,
}

/// A rank that needs longer than the others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Straggler {
    pub rank: usize,
    /// The part of the step in which it loses most against the fastest rank.
    pub part: &'static str,
    /// By how much it is slower than the fastest rank there, in the median step.
    pub slower_by_ms: f64,
}

impl Ledger {
    /// Counts a step. The first one of an epoch is left out of the computing time.
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

    /// Merges the ranks' steps. `took` is how long this rank's epoch was. Collective.
    pub fn merge(&self, group: &ProcessGroup, took: Duration) -> Result<EpochTimes> {
        let mut numbers: Vec<i64> = (0..PARTS).map(|part| self.median(|step| step.parts[part])).collect();
        numbers.push(self.median(|step| step.total));
        numbers.push(self.median(|step| step.exchange.communication));
        numbers.push(self.median(|step| step.exchange.overlap));
        numbers.extend((0..PARTS).map(|part| self.median(|step| step.own()[part])));
        numbers.extend(self.quartiles(|step| step.own().iter().sum()));
        let medians = numbers.len();
        let utilisation = self.utilisation(took);
        numbers.extend([utilisation.unwrap_or(0.0).to_bits() as i64, i64::from(utilisation.is_some())]);
        numbers.extend([nanoseconds(self.longest_wait), self.compute_mean()]);
        let ranks = group.all_gather_i64(&numbers)?;
        let utilisations = ranks.iter().map(|rank| f64::from_bits(rank[medians] as u64));
        let mean = utilisations.sum::<f64>() / ranks.len() as f64;
        let longest = ranks.iter().map(|rank| rank[medians + 2]).max().unwrap_or_default();
        let all: Vec<_> = ranks.iter().map(|rank| StepMedians::of(rank)).collect();
        let compute = ranks.iter().map(|rank| rank[medians + 3]).sum::<i64>() as f64 / ranks.len() as f64;
        Ok(EpochTimes {
            compute_ms_mean: compute / 1e6,
            accelerator_utilisation: ranks.iter().all(|rank| rank[medians + 1] == 1).then_some(mean),
            data_wait_ms_max: longest as f64 / 1e6,
            straggler: straggler(&all),
            ranks: all,
        })
    }

    /// DLIO's utils/statscounter.py, `compute_metrics_train`, with one step left out at the start and none at
    /// the end.
    fn utilisation(&self, took: Duration) -> Option<f64> {
        let total = took.checked_sub(self.first.total).filter(|total| !total.is_zero())?;
        (self.count > 1).then(|| self.compute.as_secs_f64() / total.as_secs_f64())
    }

    fn compute_mean(&self) -> i64 {
        let others = self.count.saturating_sub(1).max(1) as u32;
        nanoseconds(self.compute / others)
    }

    fn median(&self, value: impl Fn(&StepTimes) -> Duration) -> i64 {
        self.quartiles(value)[1]
    }

    fn quartiles(&self, value: impl Fn(&StepTimes) -> Duration) -> [i64; 3] {
        // The first step is like no other.
        let mut values: Vec<_> = self.steps.iter().skip(usize::from(self.count > 1)).map(value).collect();
        values.sort_unstable();
        [1, 2, 3].map(|quarters| values.get(values.len() * quarters / 4).map_or(0, |time| nanoseconds(*time)))
    }
}

/// For numbers that travel between ranks.
pub fn nanoseconds(time: Duration) -> i64 {
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
            own: std::array::from_fn(|part| ms(8 + part)),
            own_total: std::array::from_fn(|quartile| ms(8 + PARTS + quartile)),
        }
    }
}

/// The slowest rank, if it is notably slower than the fastest, and where it loses most. Chance makes steps
/// longer or shorter too: most steps of a slow rank are longer than most of a fast one's.
fn straggler(ranks: &[StepMedians]) -> Option<Straggler> {
    let median = |rank: &StepMedians| rank.own_total[1];
    let by_median =
        |a: &(usize, &StepMedians), b: &(usize, &StepMedians)| median(a.1).total_cmp(&median(b.1));
    let (slow, slowest) = ranks.iter().enumerate().max_by(by_median)?;
    let (_, fastest) = ranks.iter().enumerate().min_by(by_median)?;
    if median(slowest) - median(fastest) <= NOTABLE * slowest.total_ms
        || slowest.own_total[0] <= fastest.own_total[2]
    {
        return None;
    }
    let (own, other) = (slowest.own, fastest.own);
    let lost = |part: &usize| own[*part] - other[*part];
    let part = (0..PARTS).max_by(|a, b| lost(a).total_cmp(&lost(b)))?;
    Some(Straggler { rank: slow, part: NAMES[part], slower_by_ms: lost(&part) })
}

#[cfg(test)]
mod tests;
