//! A training run on MNIST beside the faults: it has to come to its end with the samples that the plan says
//! and the values that S3 holds. One that needs S3 reads the larger half, of more segments than its stream
//! holds: a fault of S3 begins once the node fetches data for it, and then the node drops what it holds of
//! them.

use crate::harness::check::Findings;
use crate::harness::mnist;
use crate::harness::process::{Run, Running, Server};
use crate::harness::s3::{REGION, S3Server};
use crate::harness::seen::SeenRequest;
use anyhow::Context;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

const BATCH: &str = "100";
const SEED: &str = "5";
/// Segments that its stream holds at once.
const WINDOW: &str = "1";

/// Where the data of runs that need S3 lie. Nobody else reads them.
const NEEDS_S3: &str = "trained";

/// Epochs of such a run: enough that it still trains when a fault has begun.
const EPOCHS: u32 = 6;

/// Bytes of its data after which it is known to read: more than the footers.
const FETCHED_BYTES: u64 = 4 << 20;

/// A training run under way.
pub struct TrainingBeside {
    run: Running,
    report: PathBuf,
    uri: String,
    epochs: u32,
}

/// The digests of its epochs, and the longest time that one of its steps waited for data.
pub struct Trained {
    digests: Vec<TrainedDigests>,
    longest_wait_s: f64,
    uri: String,
}

/// What an epoch of a training run held: which samples, and their values.
#[derive(Debug, PartialEq, Eq)]
struct TrainedDigests {
    order: String,
    content: String,
}

impl TrainingBeside {
    /// Starts to train on the images under `uri`. Little is read ahead, so that a fault shows.
    pub fn start(server: &Server, uri: &str, folder: &Path, epochs: u32) -> anyhow::Result<Self> {
        let report = folder.join("training.json");
        let run = Run::find("forebay-train")?;
        let run = run.args(["--endpoint", &server.endpoint, "--train", uri]);
        let run = run.args(["--epochs", &epochs.to_string(), "--prefetch-bytes", "1MiB", "--verify"]);
        let run = run.args(["--window", WINDOW, "--batch", BATCH, "--seed", SEED, "--report"]).arg(&report);
        let run = run.envs([("OMP_NUM_THREADS", "1")]).limit(Duration::from_secs(300));
        Ok(Self { run: run.try_start()?, report, uri: uri.to_owned(), epochs })
    }

    /// Puts the data of runs that need S3 into the object store.
    pub fn upload(s3: &S3Server) -> anyhow::Result<()> {
        mnist::upload_folder(s3, &mnist::folder().join("train"), NEEDS_S3)?;
        Ok(())
    }

    /// Starts a run that needs S3, and waits until the node has fetched data for it.
    pub async fn start_fetching(server: &Server, s3: &S3Server, folder: &Path) -> anyhow::Result<Self> {
        s3.take_log();
        let training = Self::start(server, &s3.uri(NEEDS_S3), folder, EPOCHS)?;
        let fetched = || s3.log().iter().filter(|seen| needs_s3(seen)).map(|seen| seen.bytes).sum::<u64>();
        let since = Instant::now();
        while fetched() < FETCHED_BYTES {
            anyhow::ensure!(since.elapsed() < Duration::from_secs(60), "training asks for no data");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(training)
    }

    /// Has the node drop what it holds of the run's data: only S3 has them then.
    pub fn forget(&self, server: &Server) -> anyhow::Result<()> {
        let free = Run::find("forebay")?.args(["free", &self.uri, "--endpoint", &server.endpoint]);
        block_in_place(|| free.stdout()).map(drop)
    }

    /// Waits for its end, which must be a good one.
    fn end(self) -> anyhow::Result<Trained> {
        self.run.try_end()?.success()?;
        let text = std::fs::read(&self.report)?;
        let report: Value = serde_json::from_slice(&text)?;
        let epochs = report["epochs"].as_array().context("the report has epochs")?;
        anyhow::ensure!(epochs.len() == self.epochs as usize, "{} of {} epochs", epochs.len(), self.epochs);
        let wait = |epoch: &Value| epoch["times"]["data_wait_ms_max"].as_f64().context("a longest wait");
        let waits = epochs.iter().map(wait).collect::<anyhow::Result<Vec<_>>>()?;
        let longest_wait_s = waits.into_iter().fold(0.0, f64::max) / 1e3;
        Ok(Trained { digests: digests(&report)?, longest_wait_s, uri: self.uri })
    }
}

/// Whether a request is for the data of a run that needs S3.
pub fn needs_s3(seen: &SeenRequest) -> bool {
    seen.is_object_get() && seen.key.starts_with(NEEDS_S3)
}

/// Waits for the end of a run, if there is one.
pub fn end(training: Option<TrainingBeside>) -> anyhow::Result<Option<Trained>> {
    block_in_place(|| training.map(TrainingBeside::end).transpose())
}

/// Judges how a run ended, if there was one. `what` is the fault's name in reports.
pub fn judge_end(
    what: &str,
    trained: &anyhow::Result<Option<Trained>>,
    s3: &S3Server,
    found: &mut Findings,
) -> anyhow::Result<()> {
    match trained {
        Ok(Some(trained)) => {
            let equal = block_in_place(|| trained.equals_plan(s3))?;
            found.check(equal, format!("{what}: training went on to its end, {trained}"));
        }
        Ok(None) => {}
        Err(error) => found.check(false, format!("{what}: training failed: {error:#}")),
    }
    Ok(())
}

/// Judges that one of its steps waited for S3 so long, if it came to its end. `row` is the figure's name.
pub fn judge_wait(
    what: &str,
    row: String,
    least_s: f64,
    trained: &anyhow::Result<Option<Trained>>,
    found: &mut Findings,
) {
    let Ok(Some(Trained { longest_wait_s: wait, .. })) = trained else { return };
    found.value(row, "s", *wait);
    let text = format!("{what}: a step of the training run waited {wait:.1} s, {least_s:.1} at least");
    found.check(*wait >= least_s, text);
}

impl Trained {
    /// Whether each epoch had the samples that it has without any fault, and the values that lie in S3: they
    /// are read without the node, which may hold wrong ones.
    fn equals_plan(&self, s3: &S3Server) -> anyhow::Result<bool> {
        let run = Run::find("forebay")?.args(["epoch", &self.uri, "--verify", "--direct"]);
        let run = run.args(["--s3-endpoint", &s3.endpoint, "--s3-region", REGION]).envs(s3.credentials());
        let report: Value = run
            .args(["--epochs", &self.digests.len().to_string(), "--window", WINDOW])
            .args(["--batch", BATCH, "--seed", SEED])
            .json()?;
        Ok(digests(&report)? == self.digests)
    }
}

impl std::fmt::Display for Trained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "its digests of order and values:")?;
        self.digests.iter().try_for_each(|epoch| write!(f, " {}/{}", epoch.order, epoch.content))
    }
}

/// The digests of the epochs of a report, of `forebay-train` or of `forebay epoch`.
fn digests(report: &Value) -> anyhow::Result<Vec<TrainedDigests>> {
    let epochs = report["epochs"].as_array().context("the report has epochs")?;
    let text = |epoch: &Value, name: &str| {
        epoch[name].as_str().map(str::to_owned).with_context(|| format!("no {name} in {epoch}"))
    };
    let of = |epoch: &Value| {
        let (order, content) = (text(epoch, "order_digest")?, text(epoch, "content_digest")?);
        anyhow::Ok(TrainedDigests { order, content })
    };
    epochs.iter().map(of).collect()
}
