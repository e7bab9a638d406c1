//! How busy an accelerator is kept: DLIO's utilisation with an emulated step.
//!
//! The step takes 1.25 x as long as the loader alone needs for a batch from a warm cache: it uses 80 % of the
//! loader's headspace. The same step is then measured cold, behind an S3 that is 30 ms away. Two other
//! definitions of utilisation stand beside DLIO's: see [`Utilisation`].

use anyhow::{Context, Result};
use serde_json::Value;

use super::trainer;
use super::utilisation::Utilisation;
use crate::harness::check::{Check, Findings};
use crate::harness::mnist;
use crate::harness::process::{Run, ServerOptions};
use crate::harness::report::{Row, median};
use crate::harness::s3::S3Server;
use crate::harness::slow::{SlowProxy, Slowness};

/// Copies of MNIST in the dataset: an epoch of one would be too short.
const COPIES: usize = 24;
/// Samples per step: 12.8 MB, as many bytes as 85 images of ImageNet. The step then takes some milliseconds.
/// A step much shorter than any accelerator's would measure the kernel's scheduling rather than the loader.
const BATCH: &str = "16384";
/// The share of the loader's speed that the emulated accelerator asks for.
const HEADSPACE: f64 = 0.8;

/// Measures it `runs` times.
pub fn measure(runs: u32) -> Result<Findings> {
    let s3 = S3Server::start();
    for copy in 0..COPIES {
        mnist::upload_folder(&s3, &mnist::folder().join("train"), &format!("many/{copy}"))?;
    }
    let proxy = SlowProxy::start(&s3.endpoint, Slowness::remote_s3());
    let server = ServerOptions::for_endpoint(&s3, &proxy.endpoint).try_start()?;
    let (uri, endpoint) = (s3.uri("many/"), server.endpoint.clone());
    let folder = tempfile::tempdir()?;
    let train = |flags: &[&str]| {
        let line = [&["--endpoint", &endpoint, "--train", &uri, "--batch", BATCH], flags].concat();
        Ok::<_, anyhow::Error>(trainer::report(line, folder.path())?.0)
    };
    let free = || Run::find("forebay")?.args(["free", &uri, "--endpoint", &endpoint]).stdout();
    train(&["--data-only", "--epochs", "1"])?;
    let (mut own, mut warm, mut late) = (Vec::new(), Vec::new(), Vec::new());
    let (mut cold, mut cold_samples) = (Vec::new(), Vec::new());
    let (mut warm_bytes, mut cold_bytes) = (0.0, f64::INFINITY);
    for _ in 0..runs {
        let alone = train(&["--data-only", "--epochs", "6"])?;
        let steps = number(&alone, "steps_per_epoch")?;
        // An epoch is over in a moment, and one alone says little; the first is like no other.
        let epochs = alone["epochs"].as_array().into_iter().flatten().skip(1);
        let seconds = epochs.map(|epoch| number(epoch, "seconds")).collect::<Result<Vec<_>>>()?;
        let loader_ms = 1e3 * median(&seconds) / steps;
        own.push(loader_ms);
        let step = loader_ms / HEADSPACE;
        let step_ms = format!("{step:.3}");
        let emulated = train(&["--emulate-step-ms", &step_ms, "--epochs", "4"])?;
        for epoch in emulated["epochs"].as_array().into_iter().flatten() {
            warm.push(utilisation(epoch, steps, step)?);
            warm_bytes += number(epoch, "s3_bytes")?;
            late.push(1e3 * (number(&epoch["times"], "compute_ms_mean")? - step));
        }
        free()?;
        let first = train(&["--emulate-step-ms", &step_ms, "--epochs", "1"])?;
        cold.push(utilisation(&first["epochs"][0], steps, step)?);
        cold_samples.push(number(&first["epochs"][0], "samples_per_s")?);
        cold_bytes = number(&first["epochs"][0], "s3_bytes")?.min(cold_bytes);
    }
    server.try_stop()?;
    let mut rows = Vec::from(utilisation_rows("au_warm", &warm));
    rows.push(Row::of("au_step_late_us", "us", &late));
    rows.extend(utilisation_rows("au_cold", &cold));
    rows.extend([
        Row::of("au_loader_ms_per_step", "ms", &own),
        Row::of("au_cold_samples_per_s", "samples/s", &cold_samples),
    ]);
    Ok(Findings { rows, checks: vec![temperature(warm_bytes, cold_bytes)] })
}

/// Whether warm epochs read nothing from S3, all together, and each cold one did: else the rows are not of
/// what they are named after.
fn temperature(warm_bytes: f64, cold_bytes: f64) -> Check {
    let text = format!("warm epochs read {warm_bytes} bytes from S3, a cold one {cold_bytes} at least");
    Check::of(text, "", warm_bytes == 0.0 && cold_bytes > 0.0)
}

/// The three definitions side by side. The first one keeps the plain name.
fn utilisation_rows(name: &str, epochs: &[Utilisation]) -> [Row; 3] {
    let row = |name: String, share: fn(&Utilisation) -> f64| {
        let percent: Vec<f64> = epochs.iter().map(|epoch| 100.0 * share(epoch)).collect();
        Row::of(name, "% of the time", &percent)
    };
    [
        row(name.to_owned(), |epoch| epoch.dlio),
        row(format!("{name}_nominal"), |epoch| epoch.nominal.unwrap_or(f64::NAN)),
        row(format!("{name}_all_steps"), |epoch| epoch.all_steps),
    ]
}

fn utilisation(epoch: &Value, steps: f64, step_ms: f64) -> Result<Utilisation> {
    let found = Utilisation::of(epoch, steps, Some(step_ms));
    found.with_context(|| format!("the trainer's report lacks the times of an epoch: {epoch}"))
}

fn number(value: &Value, name: &str) -> Result<f64> {
    value[name].as_f64().with_context(|| format!("the trainer's report lacks {name}: {value}"))
}

#[test]
fn each_definition_has_a_row() {
    let epoch = Utilisation { dlio: 0.99, nominal: Some(0.97), all_steps: 0.5 };
    let rows = utilisation_rows("au_warm", &[epoch]).map(|row| (row.name, row.value));
    let wanted = [("au_warm", 99.0), ("au_warm_nominal", 97.0), ("au_warm_all_steps", 50.0)];
    assert_eq!(rows, wanted.map(|(name, value)| (name.to_owned(), value)));
}

#[test]
fn warm_epochs_are_warm_and_cold_ones_cold() {
    let is_kept = |warm, cold| !temperature(warm, cold).is_broken();
    assert!(is_kept(0.0, 1.0) && !is_kept(1.0, 1.0) && !is_kept(0.0, 0.0));
}
