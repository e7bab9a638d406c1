//! A training run on MNIST beside the faults: it has to come to its end with the samples that the plan says.

use crate::harness::answers::EpochsReport;
use crate::harness::process::{Run, Running, Server};
use std::path::{Path, PathBuf};
use std::time::Duration;

const EPOCHS: &str = "3";
const BATCH: &str = "100";
const SEED: &str = "5";

/// A training run under way.
pub struct TrainingBeside {
    run: Running,
    report: PathBuf,
    uri: String,
}

/// The order digests of its epochs.
pub struct Trained {
    digests: Vec<String>,
    uri: String,
}

impl TrainingBeside {
    /// Starts to train on the images under `uri`.
    pub fn start(server: &Server, uri: &str, folder: &Path) -> anyhow::Result<Self> {
        let report = folder.join("training.json");
        let run = Run::find("forebay-train")?;
        let run = run.args(["--endpoint", &server.endpoint, "--train", uri, "--epochs", EPOCHS]);
        let run = run.args(["--batch", BATCH, "--seed", SEED, "--report"]).arg(&report);
        let run = run.envs([("OMP_NUM_THREADS", "1")]).limit(Duration::from_secs(300));
        Ok(Self { run: run.try_start()?, report, uri: uri.to_owned() })
    }

    /// Waits for its end, which must be a good one.
    pub fn end(self) -> anyhow::Result<Trained> {
        self.run.try_end()?.success()?;
        let report = serde_json::from_slice(&std::fs::read(&self.report)?)?;
        Ok(Trained { digests: digests(report), uri: self.uri })
    }
}

impl Trained {
    /// Whether each epoch had the samples that it has without any fault.
    pub fn equals_plan(&self, server: &Server) -> anyhow::Result<bool> {
        let run = Run::find("forebay")?;
        let run = run.args(["epoch", &self.uri, "--endpoint", &server.endpoint]);
        let report = run.args(["--epochs", EPOCHS, "--batch", BATCH, "--seed", SEED]).json()?;
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
