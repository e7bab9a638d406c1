//! The disk under a node hangs while jobs read what lies on it: they go on from S3, or from the nodes that
//! have copies, and wait two seconds at most. A thread that waits for such a disk cannot be ended. Each
//! request that was under way costs one; what begins when the disk is set aside costs none, however long it
//! hangs.
//!
//! The disk is told to hang by a library that the node loads before its own (`tests/shim/hang.c`).

use super::node::status;
use crate::harness::background::{BackgroundReader, EpochsRead};
use crate::harness::check::Findings;
use crate::harness::ports::free_addresses;
use crate::harness::process::{Run, Server, ServerOptions};
use crate::harness::reader::Job;
use crate::harness::report::Row;
use crate::harness::s3::S3Server;
use crate::harness::table::{MIB_ROWS, Table};
use crate::harness::wait::try_until;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How long a job may wait when a disk begins to hang.
const STALL_S: f64 = 2.0;

/// Threads that requests to a disk which hangs cost at most: those that work on disks at once
/// (docs/disk-cache.md).
const THREADS_LOST_MAX: usize = 64;

/// Threads that wait for a disk beside its requests: one looks at it, and one tries it again.
const LOOKING: usize = 2;

/// How long anything here may take that is not measured.
const PATIENCE: Duration = Duration::from_secs(90);

/// What the node says when it gives a disk up, and when it uses it again.
const SET_ASIDE: &str = "hangs and is set aside";
const WORKS_AGAIN: &str = "a cache directory works again";

/// How large the measurement is.
#[derive(Debug, Clone, Copy)]
pub struct HangSettings {
    /// Segments of the dataset, 1 MiB each.
    pub segments: u64,
    /// How often the disk hangs, of a node alone and of one of three.
    pub rounds: u64,
    /// Decides the order of samples.
    pub seed: u64,
}

/// A node on a disk that hangs as long as the control file says `hang`.
pub struct HangingDisk {
    control: PathBuf,
}

impl HangingDisk {
    /// Puts the cache directory of a node into `folder`, on such a disk. An error if there is no C compiler.
    pub fn under(options: ServerOptions, folder: &Path) -> anyhow::Result<(ServerOptions, Self)> {
        let library = folder.join("hang.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/shim/hang.c");
        let cc = Run::program("cc", "cc").args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]);
        cc.arg(&library).args([source, "-ldl"]).stdout()?;
        let (cache, control) = (folder.join("cache"), folder.join("control"));
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let options = options
            .args(["--cache-dir", &text(&cache)])
            .env("LD_PRELOAD", &text(&library))
            .env("HANG_DIR", &text(&cache))
            .env("HANG_CONTROL", &text(&control))
            .allow_log("is set aside")
            .allow_log("a segment file is damaged")
            .allow_log("could not be");
        Ok((options, Self { control }))
    }

    /// From now on calls below the directory stand still (`hang`), or fail (`eio`).
    pub fn tell(&self, what: &str) -> std::io::Result<()> {
        std::fs::write(&self.control, what)
    }

    /// From now on it answers.
    pub fn heal(&self) -> std::io::Result<()> {
        std::fs::remove_file(&self.control)
    }
}

/// One cluster.
struct HangStage {
    s3: S3Server,
    table: Table,
    /// The first one's disk hangs.
    nodes: Vec<Server>,
    disk: HangingDisk,
    _folder: tempfile::TempDir,
}

/// The figures of one hang.
struct HangSeen {
    stall_s: f64,
    /// Threads that stand in a call to the disk when it is set aside: the requests that hang.
    hung: usize,
    /// The same after further epochs.
    lost: usize,
    /// All threads of the node beyond the most that there were before. Other work has some of them.
    more: usize,
    s3_bytes: u64,
    /// What may leave S3 where other nodes have copies (docs/runbook.md): segments that nodes could not get
    /// from others in time.
    s3_bytes_most: Option<u64>,
}

/// Runs it.
pub fn run(runtime: &Runtime, settings: &HangSettings) -> anyhow::Result<Findings> {
    let mut found = Findings::default();
    if Run::program("cc", "cc").arg("--version").try_end().is_err() {
        found.skip("hang: there is no C compiler for the library that makes a disk hang");
        return Ok(found);
    }
    for (what, nodes) in [("hang", 1), ("hang_peers", 3)] {
        let mut stage = HangStage::new(nodes, settings)?;
        let reader = stage.warm(runtime, settings)?;
        let mut seen = Vec::new();
        for round in 0..settings.rounds as usize {
            seen.push(stage.round(runtime, &reader, round)?);
        }
        judge(what, &seen, &mut found);
        let (read, errors) = (reader.compare()?, reader.errors());
        drop(reader);
        let EpochsRead { epochs, wrong_digests, wrong_values } = read;
        let text = format!(
            "{what}: {epochs} epochs, {wrong_digests} with a wrong digest, {wrong_values} wrong values, errors {errors:?}"
        );
        found.check(errors.is_empty() && epochs > 0 && wrong_digests == 0 && wrong_values == 0, text);
        stage.nodes.drain(..).try_for_each(Server::try_stop)?;
    }
    Ok(found)
}

fn judge(what: &str, seen: &[HangSeen], found: &mut Findings) {
    let of = |value: fn(&HangSeen) -> f64| seen.iter().map(value).collect::<Vec<_>>();
    let stalls = of(|seen| seen.stall_s);
    let worst = stalls.iter().copied().fold(0.0, f64::max);
    found.rows.push(Row::of(format!("{what}_stall_s"), "s", &stalls));
    found.rows.push(Row::of(format!("{what}_requests_hung"), "calls", &of(|seen| seen.hung as f64)));
    found.rows.push(Row::of(format!("{what}_threads_lost"), "threads", &of(|seen| seen.lost as f64)));
    found.rows.push(Row::of(format!("{what}_threads_more"), "threads", &of(|seen| seen.more as f64)));
    found.rows.push(Row::of(format!("{what}_s3_bytes"), "bytes", &of(|seen| seen.s3_bytes as f64)));
    let text = format!("{what}: the longest wait when the disk hung was {worst:.2} s, {STALL_S} at most");
    found.check(worst <= STALL_S, text);
    for &HangSeen { hung, lost, s3_bytes, s3_bytes_most, .. } in seen {
        if let Some(most) = s3_bytes_most {
            let text = format!(
                "{what}: {s3_bytes} bytes from S3, {most} at most: segments that others were late with"
            );
            found.check(s3_bytes <= most, text);
        }
        if hung == 0 {
            // Some call hung, for the disk was set aside.
            found.skip(format!("{what}: what threads wait for cannot be seen here"));
            continue;
        }
        let threads_max = THREADS_LOST_MAX + LOOKING;
        let text = format!(
            "{what}: {hung} threads waited for the disk when it was set aside, {threads_max} at most"
        );
        found.check(hung <= threads_max, text);
        let most = (hung + 1).min(threads_max);
        let text = format!(
            "{what}: some epochs after {hung} threads waited for the disk, {lost} did: {most} at most"
        );
        found.check(lost <= most, text);
    }
}

impl HangStage {
    fn new(count: usize, settings: &HangSettings) -> anyhow::Result<Self> {
        let (s3, folder) = (S3Server::start(), tempfile::tempdir()?);
        let table = Table::upload(&s3, "hang", settings.segments, MIB_ROWS)?;
        let addresses = free_addresses(count)?;
        let list: Vec<String> = match count {
            1 => Vec::new(),
            _ => addresses
                .iter()
                .flat_map(|at| ["--cluster-node".to_owned(), format!("http://{at}")])
                .collect(),
        };
        let replicas = if count > 1 { &["--replicas", "2"][..] } else { &[] };
        let options =
            |address: &str| ServerOptions::for_s3(&s3).args(["--listen", address]).args(&list).args(replicas);
        let (hanging, disk) = HangingDisk::under(options(addresses[0].as_str()), folder.path())?;
        let mut nodes = vec![hanging.folder(folder.path().join("node")).try_start()?];
        for address in &addresses[1..] {
            nodes.push(options(address.as_str()).slow_disk().try_start()?);
        }
        Ok(Self { s3, table, nodes, disk, _folder: folder })
    }

    /// Starts a job at a steady pace, and waits until the nodes hold all copies.
    fn warm(&self, runtime: &Runtime, settings: &HangSettings) -> anyhow::Result<BackgroundReader> {
        let endpoints: Vec<_> = self.nodes.iter().map(|node| node.endpoint.as_str()).collect();
        let job = Job::new(settings.seed, u64::MAX / 2);
        let job = Job { world: 2, step: Duration::from_millis(5), ..job };
        let reader = BackgroundReader::start(runtime, &endpoints.join(","), &self.table, job)?;
        self.epochs(&reader, 2)?;
        self.copies(runtime)?;
        Ok(reader)
    }

    /// The disk hangs, is set aside, answers and is used again.
    fn round(&self, runtime: &Runtime, reader: &BackgroundReader, round: usize) -> anyhow::Result<HangSeen> {
        let node = &self.nodes[0];
        // Threads come and go with the work: those of a whole epoch are there before.
        let before = self.most_threads_of_an_epoch(reader)?;
        let missed = self.missed()?;
        self.s3.take_log();
        let began = Instant::now();
        self.disk.tell("hang")?;
        let mut then = NodeThreads::default();
        try_until("the disk is set aside", PATIENCE, || {
            then = then.most(NodeThreads::of(node.pid())?);
            Ok(node.log().matches(SET_ASIDE).count() > round)
        })?;
        self.epochs(reader, 3)?;
        let during = self.most_threads_of_an_epoch(reader)?;
        let stall_s = reader.longest_wait_ms(began) / 1e3;
        let s3_bytes = self.table.data_bytes(&self.s3.take_log());
        let missed = self.missed()? - missed;
        self.disk.heal()?;
        try_until(
            "the disk is used again",
            PATIENCE,
            || Ok(node.log().matches(WORKS_AGAIN).count() > round),
        )?;
        self.epochs(reader, 2)?;
        self.copies(runtime)?;
        let seen = HangSeen {
            stall_s,
            hung: then.asleep.saturating_sub(before.asleep),
            lost: during.asleep.saturating_sub(before.asleep),
            more: during.all.saturating_sub(before.all),
            s3_bytes,
            s3_bytes_most: (self.nodes.len() > 1).then_some(missed * self.table.segment_bytes),
        };
        let HangSeen { hung, lost, more, .. } = seen;
        eprintln!("hang {round}: {stall_s:.2} s, {hung} calls hung, {lost} later, {more} threads more");
        Ok(seen)
    }

    /// Segments that nodes fetched from S3 although another one, which did not answer, may have had them.
    fn missed(&self) -> anyhow::Result<u64> {
        let missed = self.nodes.iter().map(|node| node.metric("forebay_peer_missed_total"));
        Ok(missed.sum::<anyhow::Result<f64>>()? as u64)
    }

    /// Waits for this number of further epochs.
    fn epochs(&self, reader: &BackgroundReader, more: usize) -> anyhow::Result<()> {
        let wanted = reader.epochs() + more;
        try_until("the job reads on", PATIENCE, || {
            anyhow::ensure!(reader.errors().is_empty(), "a rank ended: {:?}", reader.errors());
            Ok(reader.epochs() >= wanted)
        })
    }

    /// The most threads that the node with the disk has while the job reads an epoch whole.
    fn most_threads_of_an_epoch(&self, reader: &BackgroundReader) -> anyhow::Result<NodeThreads> {
        let (wanted, mut most) = (reader.epochs() + 2, NodeThreads::default());
        try_until("the job reads on", PATIENCE, || {
            anyhow::ensure!(reader.errors().is_empty(), "a rank ended: {:?}", reader.errors());
            most = most.most(NodeThreads::of(self.nodes[0].pid())?);
            Ok(reader.epochs() >= wanted)
        })?;
        Ok(most)
    }

    /// Waits until each segment lies on two nodes, or on the only one.
    fn copies(&self, runtime: &Runtime) -> anyhow::Result<()> {
        let wanted = self.table.segments * self.nodes.len().min(2) as u64;
        try_until("the nodes hold all copies", PATIENCE, || {
            let mut held = 0;
            for node in &self.nodes {
                let status = runtime.block_on(status(node))?;
                held += status
                    .datasets
                    .iter()
                    .filter(|d| d.uri == self.table.uri)
                    .map(|d| d.segments_held)
                    .sum::<u64>();
            }
            Ok(held >= wanted)
        })
    }
}

/// The threads of a process.
#[derive(Debug, Clone, Copy, Default)]
struct NodeThreads {
    all: usize,
    /// Those that sleep for a time, as calls do that the library has stand still. A node has a few of its
    /// own.
    asleep: usize,
}

impl NodeThreads {
    fn of(pid: u32) -> anyhow::Result<Self> {
        let mut now = Self::default();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).context("the node's threads")?;
        for task in tasks {
            now.all += 1;
            // A thread that has ended meanwhile has none.
            let waits_in = std::fs::read_to_string(task?.path().join("wchan")).unwrap_or_default();
            now.asleep += usize::from(waits_in.contains("nanosleep"));
        }
        Ok(now)
    }

    /// The more of both.
    fn most(self, other: Self) -> Self {
        Self { all: self.all.max(other.all), asleep: self.asleep.max(other.asleep) }
    }
}
