//! The same epochs in front of an emulated accelerator, ten times as fast as this machine trains: with small
//! MNIST the processor is the limit, on an accelerator it is the data.

use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::figures::{TrainedEpoch, Training};
use super::parts::Parts;
use crate::harness::process::Run;

/// How much faster than the warm epochs of the training the accelerator is.
pub(super) const FASTER: f64 = 10.0;

/// What the accelerator saw.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Accelerated {
    /// Of the emulated step.
    pub(super) step_ms: f64,
    /// Epoch 0 without a cache, epoch 0 from an empty cache, epoch 1 from a full one.
    pub(super) ways: [FastWay; 3],
}

/// One epoch.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FastWay {
    pub(super) name: &'static str,
    #[serde(flatten)]
    pub(super) epoch: TrainedEpoch,
    /// The time of the emulated steps over that of the epoch, all steps counted.
    pub(super) busy_share: f64,
}

#[derive(Deserialize)]
struct FastReport {
    epochs: Vec<TrainedEpoch>,
}

/// Reads the three epochs. The cache is emptied first.
pub(super) fn run(parts: &Parts<'_>, training: &Training) -> anyhow::Result<Accelerated> {
    let warm: f64 = training.warm().iter().map(|epoch| epoch.seconds).sum();
    let steps = training.steps_per_epoch as f64;
    // To the microsecond, as it is passed on a command line.
    let step_ms = (1e6 * warm / (training.warm().len() as f64 * steps) / FASTER).round() / 1e3;
    let direct = epochs(parts, step_ms, 1, &["--direct", "--s3-endpoint", &parts.proxy.endpoint])?;
    Run::find("forebay")?
        .args(["free", &parts.train_uri(), "--endpoint", &parts.server.endpoint])
        .limit(Duration::from_secs(60))
        .stdout()?;
    let cached = epochs(parts, step_ms, 2, &["--endpoint", &parts.server.endpoint])?;
    let way = |name, epoch: &TrainedEpoch| {
        let busy_share = steps * step_ms / 1e3 / epoch.seconds;
        FastWay { name, epoch: epoch.clone(), busy_share }
    };
    let ways = [way("no cache", &direct[0]), way("cache, cold", &cached[0]), way("cache, warm", &cached[1])];
    Ok(Accelerated { step_ms, ways })
}

/// The first `count` epochs in front of the accelerator.
fn epochs(
    parts: &Parts<'_>,
    step_ms: f64,
    count: usize,
    access: &[&str],
) -> anyhow::Result<Vec<TrainedEpoch>> {
    let report = parts.folder.join("accelerated.json");
    Run::find("forebay-train")?
        .args(["--train", &parts.train_uri(), "--emulate-step-ms", &step_ms.to_string()])
        .args(["--epochs", &count.to_string()])
        .args(parts.options.run_flags())
        .args(access)
        .envs(parts.s3.credentials())
        .arg("--report")
        .arg(&report)
        .limit(parts.options.patience())
        .stdout()?;
    let text = std::fs::read(&report).with_context(|| format!("read {}", report.display()))?;
    let FastReport { epochs } =
        serde_json::from_slice(&text).with_context(|| format!("read {}", report.display()))?;
    anyhow::ensure!(epochs.len() == count, "forebay-train reports {} epochs, not {count}", epochs.len());
    Ok(epochs)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::figures::tests::training;
    use super::*;

    pub(crate) fn accelerated() -> Accelerated {
        let [cold, warm] = training().epochs.try_into().expect("two epochs");
        let cold = TrainedEpoch { loss: None, seconds: 1.0, samples_per_s: 59_904.0, ..cold };
        let warm = TrainedEpoch { loss: None, seconds: 0.5, samples_per_s: 119_808.0, ..warm };
        let way = |name, epoch: &TrainedEpoch, busy_share| FastWay { name, epoch: epoch.clone(), busy_share };
        let ways =
            [way("no cache", &cold, 0.4), way("cache, cold", &cold, 0.45), way("cache, warm", &warm, 0.9)];
        Accelerated { step_ms: 0.962, ways }
    }
}
