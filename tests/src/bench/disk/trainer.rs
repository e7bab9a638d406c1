//! A training run on MNIST beside the faults: it has to come to its end with the samples that the plan says.

use crate::harness::answers::EpochsReport;
use crate::harness::process::{Run, Running, Server};
use anyhow::Context;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

const BATCH: &str = "100";
const SEED: &str = "5";

/// A training run under way.
pub struct TrainingBeside {
    run: Running,
    report: PathBuf,
    uri: String,
    epochs: u32,
}

/// The order digests of its epochs, and the longest time that one of its steps waited for data.
pub struct Trained {
    digests: Vec<String>,
    longest_wait_s: f64,
    uri: String,
}

impl TrainingBeside {
    /// Starts to train on the images under `uri`. Little is read ahead, so that a fault shows.
    pub fn start(server: &Server, uri: &str, folder: &Path, epochs: u32) -> anyhow::Result<Self> {
        let report = folder.join("training.json");
        let run = Run::find("forebay-train")?;
        let run = run.args(["--endpoint", &server.endpoint, "--train", uri]);
        let run = run.args(["--epochs", &epochs.to_string(), "--prefetch-bytes", "1MiB"]);
        let run = run.args(["--batch", BATCH, "--seed", SEED, "--report"]).arg(&report);
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
        Ok(Trained { digests: digests(serde_json::from_slice(&text)?), longest_wait_s, uri: self.uri })
    }
}

impl Trained {
    /// The longest time that one of its steps waited for data.
    pub fn longest_wait_s(&self) -> f64 {
        self.longest_wait_s
    }

    /// Whether each epoch had the samples that it has without any fault.
    pub fn equals_plan(&self, server: &Server) -> anyhow::Result<bool> {
        let run = Run::find("forebay")?;
        let run = run.args(["epoch", &self.uri, "--endpoint", &server.endpoint]);
        let report = run
            .args(["--epochs", &self.digests.len().to_string(), "--batch", BATCH, "--seed", SEED])
            .json()?;
        Ok(digests(report) == self.digests)
    }
}

impl std::fmt::Display for Trained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "its order digests: {}", self.digests.join(" "))
    }
}

fn digests(report: EpochsReport) -> Vec<String> {
    report.epochs.into_iter().map(|epoch| epoch.order_digest).collect()
}
