//! The faster checks of `make bench-store`, at a smaller size: restarts, kills, damaged files, faults of the
//! disk and of S3.

use forebay_tests::bench::disk::{amplification, faults, flips, kills, outages, restart};
use forebay_tests::bench::stages::runtime;
use forebay_tests::harness::check::Findings;

/// Nothing that was promised was broken.
pub fn kept(found: anyhow::Result<Findings>) {
    let broken = found.unwrap_or_else(|error| panic!("{error:#}")).broken();
    assert!(broken.is_empty(), "{broken}");
}

fn faulty() -> faults::FaultsSettings {
    faults::FaultsSettings { segments: 8, outage_s: 4, trainer: false, seed: 7 }
}

#[test]
fn every_byte_leaves_the_store_once_and_is_written_once() {
    let settings = amplification::AmplificationSettings { segments: 8, runs: 1 };
    kept(amplification::run(&runtime().expect("a runtime"), &settings));
}

#[test]
fn a_restarted_node_is_warm() {
    kept(runtime().expect("a runtime").block_on(restart::warm(8)));
}

#[test]
fn kills_while_filling_and_evicting_leave_nothing_wrong() {
    let settings = kills::KillsSettings { kills: 5, segments: 16, seed: 7 };
    kept(kills::run(&runtime().expect("a runtime"), &settings));
}

#[test]
fn damaged_files_are_noticed_while_the_node_runs() {
    let settings = flips::FlipsSettings { flips: 24, segments: 12, seed: 7 };
    kept(flips::run(&runtime().expect("a runtime"), &settings));
}

#[test]
fn a_store_that_throttles_or_breaks_off_is_ridden_out() {
    kept(runtime().expect("a runtime").block_on(async {
        let stage = faults::FaultsStage::new(&faulty()).await?;
        let mut found = stage.throttled().await?;
        found.add(stage.cut().await?);
        found.add(stage.outage().await?);
        Ok(found)
    }));
}

/// The longest wait is half of the outage at least. A request that was lost is given up after 2 s.
#[test]
fn while_nothing_comes_from_s3_a_reader_waits_and_then_goes_on() {
    let settings = outages::OutagesSettings {
        segments: 16,
        outage_s: 4,
        request_timeout_s: 2,
        trainer: false,
        hasty: false,
        seed: 7,
    };
    kept(runtime().expect("a runtime").block_on(async {
        let stage = outages::OutagesStage::new(&settings).await?;
        stage.black_hole().await
    }));
}

#[test]
fn a_disk_that_refuses_or_loses_files_comes_back() {
    kept(runtime().expect("a runtime").block_on(async {
        let stage = faults::FaultsStage::new(&faulty()).await?;
        let mut found = stage.refusing_disk().await?;
        found.add(stage.lost_disk().await?);
        found.add(stage.full_disk().await?);
        Ok(found)
    }));
}
