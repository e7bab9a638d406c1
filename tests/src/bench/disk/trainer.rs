//! A training run on MNIST beside the faults: it has to come to its end with the samples that the plan says
//! and the values that S3 holds.

use crate::harness::process::{Run, Running, Server};
use crate::harness::s3::{REGION, S3Server};
use anyhow::Context;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

const BATCH: &str = "100";
const SEED: &str = "5";
/// Segments that its stream holds at once.
const WINDOW: &str = "1";

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

    /// Waits for its end, which must be a good one.
    pub fn end(self) -> anyhow::Result<Trained> {
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

impl Trained {
    /// The longest time that one of its steps waited for data.
    pub fn longest_wait_s(&self) -> f64 {
        self.longest_wait_s
    }

    /// Whether each epoch had the samples that it has without any fault, and the values that lie in S3: they
    /// are read without the node, which may hold wrong ones.
    pub fn equals_plan(&self, s3: &S3Server) -> anyhow::Result<bool> {
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
