//! A training run on MNIST beside the faults: it has to wait and go on, and to see the samples that the plan says.

use crate::harness::process::{Run, Running, Server};
use anyhow::Context;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EPOCHS: &str = "3";
const BATCH: &str = "100";
const SEED: &str = "5";

/// A training run under way.
pub struct Training {
    run: Running,
    report: PathBuf,
    uri: String,
}

/// What it has read.
pub struct Outcome {
    digests: Vec<String>,
    uri: String,
}

/// What reports of epochs have in common.
#[derive(Deserialize)]
struct Report {
    epochs: Vec<EpochReport>,
}

#[derive(Deserialize)]
struct EpochReport {
    order_digest: String,
}

impl Training {
    /// Starts to train on the images under `uri`.
    pub fn start(server: &Server, uri: &str, folder: &Path) -> anyhow::Result<Self> {
        let report = folder.join("training.json");
        let run = Run::find("forebay-train").map_err(anyhow::Error::msg)?;
        let run = run.args(["--endpoint", &server.endpoint, "--train", uri, "--epochs", EPOCHS]);
        let run = run.args(["--batch", BATCH, "--seed", SEED, "--report"]).arg(&report);
        let run = run.envs([("OMP_NUM_THREADS", "1")]).limit(Duration::from_secs(300));
        Ok(Self { run: run.try_start().map_err(anyhow::Error::msg)?, report, uri: uri.to_owned() })
    }

    /// Waits for its end, which must be a good one.
    pub fn end(self) -> anyhow::Result<Outcome> {
        let ended = self.run.try_end().and_then(|ended| ended.success("forebay-train"));
        ended.map_err(anyhow::Error::msg)?;
        let report: Report = serde_json::from_slice(&std::fs::read(&self.report)?)?;
        Ok(Outcome { digests: digests(report), uri: self.uri })
    }
}

impl Outcome {
    /// Whether each epoch had the samples that it has without any fault.
    pub fn equals_plan(&self, server: &Server) -> anyhow::Result<bool> {
        let run = Run::find("forebay").map_err(anyhow::Error::msg)?;
        let run = run.args(["epoch", &self.uri, "--endpoint", &server.endpoint, "--json"]);
        let run = run.args(["--epochs", EPOCHS, "--batch", BATCH, "--seed", SEED]);
        let text =
            run.try_end().and_then(|ended| ended.success("forebay epoch")).map_err(anyhow::Error::msg)?;
        let report: Report = serde_json::from_slice(&text).context("what forebay epoch says")?;
        Ok(digests(report) == self.digests)
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "its order digests: {}", self.digests.join(" "))
    }
}

fn digests(report: Report) -> Vec<String> {
    report.epochs.into_iter().map(|epoch| epoch.order_digest).collect()
}
