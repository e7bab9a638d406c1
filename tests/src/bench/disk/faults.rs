//! Faults around a node: S3 throttles, breaks off or refuses everything for a while; the disk is full, takes
//! no files, or loses its files. A job that checks every value and a training run read on. No value may be
//! wrong, nothing may crash, and both must come to their end.

use super::folder::{SmallDisk, du};
use super::hits::stored_bytes;
use super::node::status;
use super::trainer::{self, Trained, TrainingBeside};
use crate::harness::check::Findings;
use crate::harness::fault::{self, Fault, Plan};
use crate::harness::mnist;
use crate::harness::process::{Run, Server, ServerOptions};
use crate::harness::reader::{EpochRead, Job, Reader};
use crate::harness::s3::S3Server;
use crate::harness::table::{MIB_ROWS, Table};
use anyhow::Context;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How large the measurement is.
#[derive(Debug, Clone, Copy)]
pub struct FaultsSettings {
    /// Segments of the dataset, 1 MiB each.
    pub segments: u64,
    /// How long S3 is gone.
    pub outage_s: u64,
    /// Whether a training run reads beside the job: one that needs S3 where S3 fails.
    pub trainer: bool,
    /// Decides which requests fail.
    pub seed: u64,
}

/// A fault of S3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObjectStoreFault {
    Throttles,
    BreaksOff,
    IsGone,
}

/// A fault of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiskFault {
    /// It is smaller than the cache may be.
    IsFull,
    /// The same, and there is another one that is large enough.
    OneOfTwoIsFull,
    /// It takes no new files for a while.
    Refuses,
    /// Everything on it vanishes.
    LosesFiles,
}

/// How often a fault struck.
#[derive(Default)]
struct Struck {
    requests: AtomicU64,
    /// Those for data of the training run.
    of_training: AtomicU64,
}

impl Struck {
    /// Those of the job that checks each value.
    fn of_the_job(&self) -> u64 {
        let of_training = self.of_training.load(Ordering::Relaxed);
        self.requests.load(Ordering::Relaxed).saturating_sub(of_training)
    }
}

/// Epochs that are read at most until a fault of one request in ten has struck: a small epoch has few
/// requests.
const EPOCHS_MAX: u32 = 20;

/// A dataset, MNIST, and the object store that holds them.
pub struct FaultsStage {
    s3: S3Server,
    table: Table,
    stored_bytes: u64,
    settings: FaultsSettings,
}

/// Runs all of them.
pub fn run(runtime: &Runtime, settings: &FaultsSettings) -> anyhow::Result<Findings> {
    let stage = runtime.block_on(FaultsStage::new(settings))?;
    let mut found = Findings::default();
    for part in [
        runtime.block_on(stage.throttled()),
        runtime.block_on(stage.cut()),
        runtime.block_on(stage.outage()),
        runtime.block_on(stage.full_disk()),
        runtime.block_on(stage.one_full_disk_of_two()),
        runtime.block_on(stage.refusing_disk()),
        runtime.block_on(stage.lost_disk()),
    ] {
        found.add(part?);
    }
    Ok(found)
}

impl FaultsStage {
    /// Puts the data into an object store.
    pub async fn new(settings: &FaultsSettings) -> anyhow::Result<Self> {
        let s3 = S3Server::start();
        let table = Table::upload(&s3, "faults", settings.segments, MIB_ROWS)?;
        mnist::upload_folder(&s3, &mnist::folder().join("test"), "mnist")?;
        if settings.trainer {
            TrainingBeside::upload(&s3)?;
        }
        let stored_bytes = stored_bytes(&s3, &table).await?;
        Ok(Self { s3, table, stored_bytes, settings: *settings })
    }

    /// One request in ten is answered 503.
    pub async fn throttled(&self) -> anyhow::Result<Findings> {
        self.store_fault("s3_503", ObjectStoreFault::Throttles).await
    }

    /// One answer in ten breaks off half-way.
    pub async fn cut(&self) -> anyhow::Result<Findings> {
        self.store_fault("s3_cut", ObjectStoreFault::BreaksOff).await
    }

    /// Every request is answered 503, for as long as the settings say.
    pub async fn outage(&self) -> anyhow::Result<Findings> {
        self.store_fault("s3_outage", ObjectStoreFault::IsGone).await
    }

    /// The disk holds a quarter of the data, a third of what the cache may hold.
    pub async fn full_disk(&self) -> anyhow::Result<Findings> {
        self.disk_fault("disk_full", DiskFault::IsFull).await
    }

    /// One of two disks is full; the other one holds what belongs there.
    pub async fn one_full_disk_of_two(&self) -> anyhow::Result<Findings> {
        self.disk_fault("disk_one_full", DiskFault::OneOfTwoIsFull).await
    }

    /// No file can be made for two epochs.
    pub async fn refusing_disk(&self) -> anyhow::Result<Findings> {
        self.disk_fault("disk_refuses", DiskFault::Refuses).await
    }

    /// All segment files vanish under the node.
    pub async fn lost_disk(&self) -> anyhow::Result<Findings> {
        self.disk_fault("disk_lost", DiskFault::LosesFiles).await
    }

    async fn store_fault(&self, name: &str, what: ObjectStoreFault) -> anyhow::Result<Findings> {
        let folder = tempfile::tempdir()?;
        // A quarter of the data fits, so that S3 is needed all the time.
        let server = self.node(&[folder.path().join("cache")], self.stored_bytes / 4)?;
        let mut reader = self.reader(&server).await?;
        let mut read = reader.epoch().await?;
        let training = match self.settings.trainer {
            true => Some(TrainingBeside::start_fetching(&server, &self.s3, folder.path()).await?),
            false => None,
        };
        let lasts = Duration::from_secs(self.settings.outage_s);
        let until = Instant::now() + if what == ObjectStoreFault::IsGone { lasts } else { Duration::ZERO };
        let struck = Arc::new(Struck::default());
        self.s3.inject(counted(self.plan(what, lasts), struck.clone()));
        training.as_ref().map_or(Ok(()), |training| training.forget(&server))?;
        let outcome = async {
            for epoch in 1.. {
                read = read.and(reader.epoch().await?);
                let has_struck = struck.of_the_job() > 0 || epoch == EPOCHS_MAX;
                if Instant::now() >= until && has_struck {
                    break;
                }
            }
            read = read.and(reader.epoch().await?);
            anyhow::Ok(read)
        }
        .await;
        let trained = trainer::end(training);
        self.s3.heal();
        let mut found = self.findings(name, server, outcome, &trained)?;
        if what == ObjectStoreFault::IsGone {
            // It may have read ahead.
            let (row, least_s) = (format!("fault_{name}_training_wait_s"), 0.5 * lasts.as_secs_f64());
            trainer::judge_wait(name, row, least_s, &trained, &mut found);
        }
        let requests = struck.requests.load(Ordering::Relaxed);
        found.value(format!("fault_{name}_requests"), "requests", requests as f64);
        let of_the_job = struck.of_the_job();
        found.check(of_the_job > 0, format!("{name}: {of_the_job} requests of the checking job failed so"));
        if self.settings.trainer {
            let of_training = struck.of_training.load(Ordering::Relaxed);
            found.value(format!("fault_{name}_training_requests"), "requests", of_training as f64);
            let text = format!("{name}: {of_training} requests for data of the training run failed so");
            found.check(of_training > 0, text);
        }
        Ok(found)
    }

    /// When a fault of S3 strikes.
    fn plan(&self, what: ObjectStoreFault, lasts: Duration) -> Plan {
        let tenth = |fault| with_training(fault::share(0.1, self.settings.seed, fault), fault);
        match what {
            ObjectStoreFault::Throttles => tenth(Fault::SlowDown),
            ObjectStoreFault::BreaksOff => tenth(Fault::Cut),
            ObjectStoreFault::IsGone => fault::lasting(lasts, Fault::SlowDown),
        }
    }

    async fn disk_fault(&self, name: &str, what: DiskFault) -> anyhow::Result<Findings> {
        let folder = tempfile::tempdir()?;
        let disk = match what {
            DiskFault::IsFull | DiskFault::OneOfTwoIsFull => {
                match SmallDisk::mount(self.small_disk_bytes()) {
                    Some(disk) => Some(disk),
                    None => return Ok(skipped(name, "no tmpfs can be mounted here")),
                }
            }
            _ => None,
        };
        let cache = disk.as_ref().map_or_else(|| folder.path().join("cache"), SmallDisk::folder);
        let mut dirs = vec![cache.clone()];
        dirs.extend((what == DiskFault::OneOfTwoIsFull).then(|| folder.path().join("other")));
        let server = self.node(&dirs, self.stored_bytes * 3 / 4)?;
        let training = self.training(&server, folder.path()).await?;
        let mut reader = self.reader(&server).await?;
        self.s3.take_log();
        let mut read = reader.epoch().await?;
        if !strike(what, &cache)? {
            return Ok(skipped(name, "folders cannot be made immutable here"));
        }
        let mut outcome = reader.epoch().await;
        if let Ok(epoch) = outcome {
            read = read.and(epoch);
            outcome = reader.epoch().await;
        }
        heal(what, &cache);
        let outcome = outcome.map(|epoch| read.and(epoch));
        let fetched = self.table.data_bytes(&self.s3.log()) as f64 / self.table.projected_bytes() as f64;
        let trained = trainer::end(training);
        // The cache's limit is three times the small disk. Fills that find it full at the same time leave
        // some room.
        let filled = disk.as_ref().map(|disk| du(&disk.folder()) as f64 / self.small_disk_bytes() as f64);
        let came_back = match what {
            DiskFault::IsFull | DiskFault::OneOfTwoIsFull => None,
            _ => Some(self.stores_again(&server, &mut reader).await?),
        };
        let mut found = self.findings(name, server, outcome, &trained)?;
        found.value(format!("fault_{name}_s3_epochs"), "epochs", fetched);
        // Three epochs; the next one, prefetched whole; and of the one after it the part that the job has
        // passed.
        let most = 4.0 + AHEAD_MIB / self.settings.segments as f64;
        found.check(
            fetched <= most,
            format!("{name}: in 3 epochs the data was fetched {fetched:.2} times, at most {most:.2}"),
        );
        if let Some(share) = filled {
            found.check(share > 0.3, format!("{name}: the small disk is used, up to {:.0} %", 100.0 * share));
        }
        if let Some(seconds) = came_back {
            found.value(format!("fault_{name}_back_s"), "s", seconds.unwrap_or(f64::NAN));
            found.check(seconds.is_some(), format!("{name}: the directory is used again once it can be"));
        }
        Ok(found)
    }

    fn small_disk_bytes(&self) -> u64 {
        self.stored_bytes / 4
    }

    /// The seconds until the node writes segment files again while the job reads on; `None` if that takes
    /// more than a minute. For a job that stands still nothing is written: its next segments are in memory.
    async fn stores_again(&self, server: &Server, reader: &mut Reader) -> anyhow::Result<Option<f64>> {
        let written = async || {
            let status = status(server).await?;
            anyhow::Ok(status.counters.context("a node has counters")?.disk_bytes_written)
        };
        let (before, since) = (written().await?, Instant::now());
        while since.elapsed() < Duration::from_secs(60) {
            // A full cache has nothing to gain from one job and would write nothing.
            let free = Run::find("forebay")?.args(["free", &self.table.uri, "--endpoint", &server.endpoint]);
            tokio::task::block_in_place(|| free.stdout())?;
            let wrong = reader.epoch().await?.wrong_values;
            anyhow::ensure!(wrong == 0, "{wrong} wrong values after the disk came back");
            if written().await? > before {
                return Ok(Some(since.elapsed().as_secs_f64()));
            }
        }
        Ok(None)
    }

    fn findings(
        &self,
        name: &str,
        server: Server,
        outcome: anyhow::Result<EpochRead>,
        trained: &anyhow::Result<Option<Trained>>,
    ) -> anyhow::Result<Findings> {
        let mut found = Findings::default();
        match outcome {
            Ok(read) => {
                found.value(format!("fault_{name}_wrong_values"), "values", read.wrong_values as f64);
                found.value(format!("fault_{name}_stall_s"), "s", read.stall.as_secs_f64());
                let (rows, wrong, stall) = (read.rows, read.wrong_values, read.stall.as_secs_f64());
                let text = format!("{name}: {rows} rows, {wrong} wrong values, longest wait {stall:.2} s");
                found.check(wrong == 0, text);
            }
            Err(error) => found.check(false, format!("{name}: the job failed: {error:#}")),
        }
        trainer::judge_end(name, trained, &self.s3, &mut found)?;
        let panicked = server.log().contains("panicked");
        let stopped = server.try_stop();
        found.check(!panicked && stopped.is_ok(), format!("{name}: the node lives and stops when told"));
        Ok(found)
    }

    fn node(&self, dirs: &[PathBuf], limit: u64) -> anyhow::Result<Server> {
        let dirs = dirs.iter().flat_map(|dir| ["--cache-dir".to_owned(), dir.to_string_lossy().into_owned()]);
        let options = ServerOptions::for_s3(&self.s3).args(dirs);
        let options = options.args(["--cache-bytes", &limit.to_string()]);
        // It may well complain.
        options.allow_log("").try_start()
    }

    async fn reader(&self, server: &Server) -> anyhow::Result<Reader> {
        let job = Job { world: 2, ..Job::new(self.settings.seed, u64::MAX / 2) };
        Reader::start(&server.endpoint, &self.table, &job).await
    }

    /// A training run that has got its first rows, if one is wanted.
    async fn training(&self, server: &Server, folder: &Path) -> anyhow::Result<Option<TrainingBeside>> {
        if !self.settings.trainer {
            return Ok(None);
        }
        let training = TrainingBeside::start(server, &self.s3.uri("mnist"), folder, 3)?;
        let since = Instant::now();
        while status(server).await?.counters.is_none_or(|counters| counters.rows_served == 0) {
            anyhow::ensure!(since.elapsed() < Duration::from_secs(60), "training asks for no rows");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Some(training))
    }
}

/// MiB by which the job's two ranks may be ahead of their reader: each has batches that are ready, the
/// stream's window, and two messages on their way.
const AHEAD_MIB: f64 = 2.0 * (2.0 + 1.0 + 2.0 * 1.5);

/// The same plan, which also strikes the first request for data of the training run: a tenth of the few that
/// it makes may be none.
fn with_training(mut plan: Plan, fault: Fault) -> Plan {
    let mut first = Some(fault);
    Box::new(move |seen| plan(seen).or_else(|| if trainer::needs_s3(seen) { first.take() } else { None }))
}

/// The same plan, which counts how often it struck.
fn counted(mut plan: Plan, struck: Arc<Struck>) -> Plan {
    Box::new(move |seen| {
        let fault = plan(seen);
        let of_training = fault.is_some() && trainer::needs_s3(seen);
        struck.requests.fetch_add(u64::from(fault.is_some()), Ordering::Relaxed);
        struck.of_training.fetch_add(u64::from(of_training), Ordering::Relaxed);
        fault
    })
}

/// Lets the disk do what it does; false where that is not allowed.
fn strike(what: DiskFault, cache: &Path) -> anyhow::Result<bool> {
    match what {
        DiskFault::IsFull | DiskFault::OneOfTwoIsFull => Ok(true),
        DiskFault::Refuses => Ok(immutable(true, cache)),
        DiskFault::LosesFiles => {
            lose(&cache.join("v1"))?;
            Ok(true)
        }
    }
}

/// Removes a folder under a running node, with the files that the node writes there meanwhile: a removal that
/// fails over a new file starts over.
fn lose(folder: &Path) -> std::io::Result<()> {
    let since = Instant::now();
    loop {
        match std::fs::remove_dir_all(folder) {
            Err(error)
                if error.kind() == ErrorKind::DirectoryNotEmpty
                    && since.elapsed() < Duration::from_secs(10) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            ended => return ended,
        }
    }
}

fn heal(what: DiskFault, cache: &Path) {
    if what == DiskFault::Refuses {
        immutable(false, cache);
    }
}

/// Keeps new files out of all folders of a cache directory, from root too.
fn immutable(yes: bool, cache: &Path) -> bool {
    let mut folders =
        vec![cache.to_owned(), cache.join("v1"), cache.join("v1/tmp"), cache.join("v1/segments")];
    let shards = std::fs::read_dir(cache.join("v1/segments")).into_iter().flatten().flatten();
    folders.extend(shards.map(|shard| shard.path()).filter(|path: &PathBuf| path.is_dir()));
    let flag = if yes { "+i" } else { "-i" };
    Command::new("chattr").arg(flag).args(folders).output().is_ok_and(|ended| ended.status.success())
}

fn skipped(name: &str, why: &str) -> Findings {
    let mut found = Findings::default();
    found.skip(format!("{name}: {why}"));
    found
}
