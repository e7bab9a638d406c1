//! The trainer is killed while it writes checkpoints, over and over: the last complete one must always load.
//!
//! It writes one after every step, and is killed at a random moment within the next few. The directory shows
//! which checkpoints are complete at that moment; the next process says where it goes on.

use std::time::Duration;

use anyhow::{Context, Result};

use super::trainer;
use crate::harness::check::{Check, Findings};
use crate::harness::mnist;
use crate::harness::report::Row;

/// One crash of this many must fall into the writing of a checkpoint.
const IN_MID_WRITE: u32 = 4;

/// Kills it `crashes` times.
pub fn measure(crashes: u32, seed: u64) -> Result<Findings> {
    let uri = format!("file://{}", mnist::folder().join("test").canonicalize()?.display());
    let folder = tempfile::tempdir()?;
    let checkpoints = folder.path().join("checkpoints");
    let directory = checkpoints.to_string_lossy().into_owned();
    let line =
        ["--direct", "--train", &uri, "--epochs", "100000", "--batch", "50", "--checkpoint-every", "1"];
    let line: Vec<_> = line.into_iter().chain(["--checkpoint-dir", &directory]).collect();
    let mut dice = fastrand::Rng::with_seed(seed);
    let (mut last, mut unfinished, mut wrong) = (0, 0, Vec::new());
    for crash in 0..crashes {
        let mut run = trainer::run(&line)?.try_start()?;
        trainer::wait_for_step(&mut run, &checkpoints, last + 1)?;
        // Within about two steps, each of which writes one.
        std::thread::sleep(Duration::from_secs_f64(0.03 * dice.f64()));
        // The rank itself: its launcher ends when it is gone.
        trainer::children(run.pid()).into_iter().try_for_each(trainer::kill)?;
        let ended = run.try_end()?;
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        wrong.extend(lost(last, &said, &ended.stderr).map(|what| format!("crash {crash}: {what}")));
        unfinished += u32::from(leftovers(&checkpoints)?);
        last = trainer::checkpoints(&checkpoints).last().copied().context("no checkpoint is left")?;
    }
    // The last crash as well: whether it cost its checkpoint shows when that is loaded.
    let mut run = trainer::run(&line)?.try_start()?;
    trainer::wait_for_step(&mut run, &checkpoints, last + 1)?;
    trainer::children(run.pid()).into_iter().try_for_each(trainer::kill)?;
    let ended = run.try_end()?;
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    wrong.extend(lost(last, &said, &ended.stderr).map(|what| format!("after the last crash: {what}")));
    let text = format!(
        "{crashes} crashes while writing checkpoints, seed {seed} ({unfinished} of them in the middle of one): the last complete one \
         did not load {} times{}",
        wrong.len(),
        wrong.first().map(|first| format!(", first {first}")).unwrap_or_default()
    );
    let rows = vec![
        Row::of("checkpoint_crashes", "crashes", &[f64::from(crashes)]),
        Row::of("checkpoint_crashes_in_mid_write", "crashes", &[f64::from(unfinished)]),
        Row::of("checkpoint_crashes_lost", "checkpoints", &[wrong.len() as f64]),
    ];
    let least = crashes / IN_MID_WRITE;
    let often = format!("{unfinished} of {crashes} crashes in the middle of a checkpoint, at least {least}");
    let checks = vec![Check::of(text, "", wrong.is_empty()), Check::of(often, "", unfinished >= least)];
    Ok(Findings { rows, checks })
}

/// Why a run did not go on from the checkpoint of step `last`; `None` if it did.
fn lost(last: u64, said: &str, stderr: &str) -> Option<String> {
    let resumed = last == 0 || said.contains(&format!("resumed after step {last}:"));
    let whole = resumed && !stderr.contains("damaged");
    (!whole).then(|| format!("step {last} was complete, but it said: {said} {stderr}"))
}

/// Whether the crash left a checkpoint half written.
fn leftovers(folder: &std::path::Path) -> Result<bool> {
    let mut names = std::fs::read_dir(folder)?.flatten().map(|entry| entry.file_name());
    Ok(names.any(|name| name.to_string_lossy().starts_with(".writing-")))
}
