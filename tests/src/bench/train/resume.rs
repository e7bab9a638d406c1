//! A run is killed and resumed by another number of ranks, twice: does it see the samples of an undisturbed
//! run?

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;

use super::trainer;
use crate::harness::check::{Check, Findings};
use crate::harness::mnist;
use crate::harness::process::ServerOptions;
use crate::harness::report::Row;
use crate::harness::s3::S3Server;

/// How many epochs a run has.
const EPOCHS: usize = 3;

/// The ranks of the runs that are killed, and the step whose checkpoint each leaves at least.
const KILLED: [(&str, u64); 2] = [("2", 100), ("1", 270)];

/// Runs it: 2 ranks, killed, 1 rank, killed, 3 ranks to the end.
pub fn measure() -> Result<Findings> {
    let s3 = S3Server::start();
    mnist::upload(&s3)?;
    let server = ServerOptions::for_s3(&s3).try_start()?;
    let (uri, endpoint) = (s3.uri("mnist/test/"), server.endpoint.clone());
    let folder = tempfile::tempdir()?;
    let line = |ranks: &str, checkpoints: &str| {
        let directory = folder.path().join(checkpoints).to_string_lossy().into_owned();
        let epochs = EPOCHS.to_string();
        let line = ["--endpoint", &endpoint, "--train", &uri, "--epochs", &epochs, "--verify"];
        let line = line.into_iter().chain(["--batch", "60", "--nproc", ranks]);
        let line = line.chain(["--checkpoint-every", "9", "--checkpoint-dir", &directory]);
        line.map(str::to_owned).collect::<Vec<_>>()
    };
    let (straight, _) = trainer::report(line("2", "straight"), folder.path())?;
    let directory = folder.path().join("killed");
    let mut told = Vec::new();
    for (ranks, step) in KILLED {
        let mut run = trainer::run(line(ranks, "killed"))?.try_start()?;
        trainer::wait_for_step(&mut run, &directory, step)?;
        // Its ranks go with it.
        trainer::kill(run.pid())?;
        told.push(String::from_utf8_lossy(&run.try_end()?.stdout).into_owned());
    }
    let (resumed, last) = trainer::report(line("3", "killed"), folder.path())?;
    told.push(last);
    server.try_stop()?;
    // A run that began again from its first step would have equal digests too.
    for ((ranks, step), said) in KILLED.iter().zip(&told[1..]) {
        let after = resumed_after(said);
        ensure!(after >= Some(*step), "after {ranks} ranks the run went on from {after:?}: {said}");
    }
    ensure!(digests(&straight)?.1.len() == EPOCHS, "the undisturbed run tells other epochs: {straight}");
    let equal = digests(&straight)? == digests(&resumed)? && straight["steps"] == resumed["steps"];
    let text = format!(
        "2 ranks, killed, 1 rank, killed, 3 ranks: digests of order and values {} the undisturbed run's over {EPOCHS} epochs",
        if equal { "equal to" } else { "DIFFERS from" }
    );
    let rows = vec![Row::of("resume_digests_equal", "1 = yes", &[f64::from(u8::from(equal))])];
    Ok(Findings { rows, checks: vec![Check::of(text, "", equal)] })
}

/// The step that a run says it went on after.
fn resumed_after(said: &str) -> Option<u64> {
    said.split_once("resumed after step ")?.1.split(':').next()?.parse().ok()
}

/// The order digest of a run, and the content digest of each of its epochs. An epoch that was resumed is told
/// twice: as far as it had come before, and as the whole that it became.
fn digests(report: &Value) -> Result<(String, BTreeMap<u64, String>)> {
    let told = ["earlier_epochs", "epochs"].into_iter().filter_map(|list| report[list].as_array()).flatten();
    let text = |digest: &Value| digest.as_str().map(str::to_owned).context("a digest");
    let of = |epoch: &Value| {
        let number = epoch["epoch"].as_u64().context("an epoch's number")?;
        Ok((number, text(&epoch["content_digest"])?))
    };
    Ok((text(&report["order_digest"])?, told.map(of).collect::<Result<_>>()?))
}

#[test]
fn of_an_epoch_that_was_resumed_the_whole_counts() {
    let epoch = |number: u64, digest: &str| serde_json::json!({"epoch": number, "content_digest": digest});
    let report = serde_json::json!({
        "order_digest": "0f",
        "earlier_epochs": [epoch(0, "aa"), epoch(1, "a part")],
        "epochs": [epoch(1, "bb"), epoch(2, "cc")],
    });
    let wanted = [(0, "aa"), (1, "bb"), (2, "cc")].map(|(number, digest)| (number, digest.to_owned()));
    assert_eq!(digests(&report).expect("digests"), ("0f".to_owned(), BTreeMap::from(wanted)));
}

#[test]
fn a_run_that_began_again_is_told_from_one_that_went_on() {
    let said = "3 ranks\nresumed after step 270: epoch 2, 6180 of its samples done\n";
    assert_eq!(resumed_after(said), Some(270));
    assert!(resumed_after("epoch 1: 167 steps") < Some(100), "it did not go on at all");
}
