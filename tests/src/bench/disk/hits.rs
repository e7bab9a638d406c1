//! Hits when the cache is smaller than the data: shuffled epochs through a real node, beside the hits of
//! least recently used and of the best possible policy for the same reads.
//!
//! The S3 server counts the fetches: bytes of column data sent over all bytes of column data. All segments
//! have one size, so that is fetches over segments. Epochs fetch ahead for the next ones, as far as memory
//! reaches, so single epochs say nothing. The row is about all fetches of all epochs, less those that the
//! first epoch needs whatever the cache and the memory: one of each segment. What else it fetched counts
//! against the node, so the row is a lower bound.
//!
//! The node has memory for as many segments as 2 GiB have for segments of 32 MiB. A row of two jobs is
//! with more memory than data. Of both rows the same fetches are left out, so they compare all others.

use super::node::{start, status};
use super::replay;
use crate::harness::check::Findings;
use crate::harness::process::ServerOptions;
use crate::harness::reader::{Job, Reader, read};
use crate::harness::report::Row;
use crate::harness::s3::S3Server;
use crate::harness::table::Table;
use std::collections::BTreeSet;
use tokio::runtime::Runtime;

/// How much of the dataset the cache holds, in per cent.
const PERCENTS: [u64; 5] = [10, 25, 50, 75, 100];

/// Small segments, so that a tenth of them is still a good number.
const SEGMENT_ROWS: u64 = 256;

/// The node's memory: 64 segments.
const MEMORY: &str = "16MiB";

/// More memory than data, and by how much hits may then be fewer.
const MUCH_MEMORY: &str = "2GiB";
const LOST_BY_MEMORY: f64 = 0.01;

/// How large the measurement is.
#[derive(Debug, Clone, Copy)]
pub struct HitsSettings {
    /// Segments of the dataset, a quarter of a MiB each.
    pub segments: u64,
    /// Epochs; the first does not count.
    pub epochs: u64,
    /// What the orders depend on.
    pub seed: u64,
}

/// A dataset in an object store, and its bytes on disk once it is cached.
pub struct HitsStage {
    s3: S3Server,
    table: Table,
    stored_bytes: u64,
    settings: HitsSettings,
}

/// Runs it.
pub fn run(runtime: &Runtime, settings: &HitsSettings) -> anyhow::Result<Findings> {
    let stage = runtime.block_on(HitsStage::new(settings))?;
    let mut found = Findings::default();
    for percent in PERCENTS {
        found.add(runtime.block_on(stage.one_job(percent))?);
    }
    let mut two_jobs = runtime.block_on(stage.two_jobs())?;
    let with_little = two_jobs.rows[0].value;
    let row = runtime.block_on(stage.two_jobs_with_much_memory(with_little))?;
    let least = with_little - LOST_BY_MEMORY;
    two_jobs.check(row.value >= least, format!("{} = {:.3}, at least {least:.3}", row.name, row.value));
    two_jobs.rows.push(row);
    found.add(two_jobs);
    Ok(found)
}

impl HitsStage {
    /// Makes the dataset and measures its bytes on disk.
    pub async fn new(settings: &HitsSettings) -> anyhow::Result<Self> {
        let s3 = S3Server::start();
        let table = Table::upload(&s3, "hits", settings.segments, SEGMENT_ROWS)?;
        let stored_bytes = stored_bytes(&s3, &table).await?;
        Ok(Self { s3, table, stored_bytes, settings: *settings })
    }

    /// One job with a cache of `percent` of the dataset's size.
    pub async fn one_job(&self, percent: u64) -> anyhow::Result<Findings> {
        let (fetched, trace) = self.measure(&[self.job(1)], percent, MEMORY).await?;
        let mut found = Findings::default();
        let floor = percent as f64 / 100.0;
        let row = Row::of(format!("hit_ratio_{percent}"), "ratio", &[hit_ratio(fetched, &trace)])
            .against("the share of the data that the cache holds", floor);
        let text = format!("hit_ratio_{percent} = {:.3}, at least 0.98 x {floor:.2}", row.value);
        found.check(row.value >= 0.98 * floor, text);
        found.rows.push(row);
        self.beside(&mut found, &trace, percent, &percent.to_string());
        Ok(found)
    }

    /// Two jobs that read the same dataset in different orders, with half its size as cache. A cache that
    /// never evicts hits half of the reads.
    pub async fn two_jobs(&self) -> anyhow::Result<Findings> {
        let (fetched, trace) = self.measure(&[self.job(1), self.job(2)], 50, MEMORY).await?;
        let mut found = Findings::default();
        let ratio = hit_ratio(fetched, &trace);
        let row = Row::of("hit_ratio_two_jobs_50", "ratio", &[ratio]).against("never evicting", 0.5);
        let text = format!("hit_ratio_two_jobs_50 = {:.3}, at least 1.2 x 0.5", row.value);
        found.check(row.value >= 1.2 * 0.5, text);
        found.rows.push(row);
        self.beside(&mut found, &trace, 50, "two_jobs_50");
        Ok(found)
    }

    /// The same with more memory than data; beside the hits with little.
    async fn two_jobs_with_much_memory(&self, with_little: f64) -> anyhow::Result<Row> {
        let (fetched, trace) = self.measure(&[self.job(1), self.job(2)], 50, MUCH_MEMORY).await?;
        let ratio = hit_ratio(fetched, &trace);
        Ok(Row::of("hit_ratio_two_jobs_50_much_memory", "ratio", &[ratio])
            .against("little memory", with_little))
    }

    fn job(&self, number: u64) -> Job {
        Job::new(self.settings.seed * 10 + number, self.settings.epochs)
    }

    /// How many segments were fetched, and the order in which they were asked for, by epoch.
    async fn measure(
        &self,
        jobs: &[Job],
        percent: u64,
        memory: &str,
    ) -> anyhow::Result<(f64, Vec<Vec<u32>>)> {
        let cache_bytes = (self.stored_bytes * percent).div_ceil(100).to_string();
        let options = ServerOptions::for_s3(&self.s3).args(["--cache-bytes", &cache_bytes]);
        let server = options.args(["--memory-bytes", memory]).try_start()?;
        // Readers fetch as soon as they are started.
        self.s3.take_log();
        let mut readers = Vec::new();
        for job in jobs {
            readers.push(Reader::start(&server.endpoint, &self.table, job).await?);
        }
        let mut trace = Vec::new();
        for number in 0..self.settings.epochs {
            let traces = readers.iter().map(|reader| reader.trace(number)).collect::<Result<Vec<_>, _>>()?;
            trace.push(interleave(&traces));
            let epochs = futures::future::try_join_all(readers.iter_mut().map(Reader::epoch)).await?;
            let wrong: u64 = epochs.iter().map(|epoch| epoch.wrong_values).sum();
            anyhow::ensure!(wrong == 0, "{wrong} wrong values in epoch {number}");
        }
        drop(readers);
        server.try_stop()?;
        let datasets =
            self.table.data_bytes(&self.s3.take_log()) as f64 / self.table.projected_bytes() as f64;
        Ok((datasets * self.settings.segments as f64, trace))
    }

    /// Rows of other policies on the same reads.
    fn beside(&self, found: &mut Findings, trace: &[Vec<u32>], percent: u64, suffix: &str) {
        let capacity = (self.settings.segments * percent / 100) as usize;
        for (name, hits) in [("lru", replay::lru(trace, capacity)), ("best", replay::best(trace, capacity))] {
            let ratios =
                hits.iter().zip(trace).skip(1).map(|(hits, reads)| *hits as f64 / reads.len() as f64);
            let ratios: Vec<f64> = ratios.collect();
            found.rows.push(Row::of(format!("{name}_hit_ratio_{suffix}"), "ratio", &ratios));
        }
    }
}

/// Of the reads after the first epoch, those that fetched nothing; `fetched` segments in all epochs.
fn hit_ratio(fetched: f64, trace: &[Vec<u32>]) -> f64 {
    let first = trace[0].iter().collect::<BTreeSet<_>>().len();
    let reads = trace[1..].iter().map(Vec::len).sum::<usize>();
    1.0 - (fetched - first as f64) / reads as f64
}

/// The bytes on disk of a dataset when all of it is cached.
pub async fn stored_bytes(s3: &S3Server, table: &Table) -> anyhow::Result<u64> {
    let server = start(s3, 4 << 30)?;
    let epoch = read(&server.endpoint, table, &Job::new(0, 1)).await?;
    anyhow::ensure!(epoch.wrong_values == 0, "{} wrong values in a cold epoch", epoch.wrong_values);
    let bytes = status(&server).await?.cache_bytes_used;
    server.try_stop()?;
    Ok(bytes)
}

/// One read of each in turn.
fn interleave(traces: &[Vec<u32>]) -> Vec<u32> {
    let longest = traces.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest).flat_map(|at| traces.iter().filter_map(move |trace| trace.get(at).copied())).collect()
}

#[test]
fn of_the_first_epoch_one_fetch_of_each_segment_is_left_out_whatever_the_cache() {
    let one = [vec![0, 1, 2, 3], vec![3, 2, 1, 0]];
    assert_eq!([4.0, 6.0, 8.0].map(|fetched| hit_ratio(fetched, &one)), [1.0, 0.5, 0.0]);
    // Two jobs in turn. By the best policy a cache of two segments would have fetched some of them twice: a
    // node with memory beside it need not, and what it fetches twice counts against it.
    let two = [
        interleave(&[vec![0, 1, 2, 3], vec![2, 3, 0, 1]]),
        interleave(&[vec![1, 0, 3, 2], vec![3, 2, 1, 0]]),
    ];
    assert!(replay::best(&two, 2)[0] < 4, "fewer hits than second reads");
    assert_eq!([4.0, 8.0, 12.0].map(|fetched| hit_ratio(fetched, &two)), [1.0, 0.5, 0.0]);
}
