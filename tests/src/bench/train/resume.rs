//! A run is killed and resumed by another number of ranks, twice: does it see the samples of an undisturbed
//! run?

use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;

use super::trainer;
use crate::harness::check::{Check, Findings};
use crate::harness::mnist;
use crate::harness::process::ServerOptions;
use crate::harness::report::Row;
use crate::harness::s3::S3Server;

/// Runs it: 2 ranks, killed, 1 rank, killed, 3 ranks to the end.
pub fn measure() -> Result<Findings> {
    let s3 = S3Server::start();
    mnist::upload(&s3)?;
    let server = ServerOptions::for_s3(&s3).try_start()?;
    let (uri, endpoint) = (s3.uri("mnist/test/"), server.endpoint.clone());
    let folder = tempfile::tempdir()?;
    let line = |ranks: &str, checkpoints: &str| {
        let directory = folder.path().join(checkpoints).to_string_lossy().into_owned();
        let line =
            ["--endpoint", &endpoint, "--train", &uri, "--epochs", "3", "--batch", "60", "--nproc", ranks];
        let line =
            line.into_iter().chain(["--verify", "--checkpoint-every", "9", "--checkpoint-dir", &directory]);
        line.map(str::to_owned).collect::<Vec<_>>()
    };
    let (straight, _) = trainer::report(line("2", "straight"), folder.path())?;
    let directory = folder.path().join("killed");
    for (ranks, step) in [("2", 100), ("1", 270)] {
        let mut run = trainer::run(line(ranks, "killed"))?.try_start()?;
        trainer::wait_for_step(&mut run, &directory, step)?;
        // Dropped, it is killed; its ranks go with it.
        drop(run);
    }
    let (resumed, _) = trainer::report(line("3", "killed"), folder.path())?;
    server.try_stop()?;
    let equal = digests(&straight)? == digests(&resumed)? && straight["steps"] == resumed["steps"];
    let text = format!(
        "2 ranks, killed, 1 rank, killed, 3 ranks: digests of order and values {} the undisturbed run's over 3 epochs",
        if equal { "equal to" } else { "DIFFERS from" }
    );
    let rows = vec![Row::of("resume_digests_equal", "1 = yes", &[f64::from(u8::from(equal))])];
    Ok(Findings { rows, checks: vec![Check::of(text, "", equal)] })
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
