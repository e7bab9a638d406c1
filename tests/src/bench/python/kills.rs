//! SIGKILLs of a process that reads by `forebay.torch.Loader`, at random steps in the middle of an epoch.
//! Another process starts at once and goes on from the state after the last step that was heard of. Sample
//! numbers and values of all steps must be those of a process that nobody kills.

use super::settings::PythonSettings;
use super::stage::{PythonData, PythonStage};
use crate::bench::warm::{SEED, Shape};
use crate::harness::check::Findings;
use crate::harness::report::Row;
use anyhow::Context;
use fastrand::Rng;
use serde::Deserialize;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Rows of a step: 200 KB.
pub const BATCH_ROWS: u64 = 64;

/// A process is killed after this share of an epoch's steps at the latest: 50 kills are more than an epoch.
const SHARE: u64 = 16;

/// The longest wait between a step and the kill, in microseconds: some steps.
const WAIT_US: u64 = 2_000;

/// What a process has read in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct StepRead {
    epoch: u64,
    step: u64,
    rows: u64,
    /// Of sample numbers and values.
    crc32: u32,
}

/// The report of a step.
#[derive(Debug, Deserialize)]
struct StepReport {
    read: StepRead,
    /// After it.
    state: Value,
}

/// What all processes have read that were killed, and the last one.
#[derive(Debug, Default)]
struct KilledReads {
    /// Of each process.
    parts: Vec<Vec<StepRead>>,
    /// From the start of each process but the first one to its first step.
    seconds: Vec<f64>,
}

/// Runs it.
pub fn run(settings: &PythonSettings) -> anyhow::Result<Findings> {
    let stage = PythonStage::new(&PythonSettings { shapes: vec![Shape::X], ..settings.clone() })?;
    let data = stage.data.first().context("X has data")?;
    let killed = KilledReads::of(&stage, data, settings.kills)?;
    let steps: usize = killed.parts.iter().map(Vec::len).sum();
    let reader = stage.steps(data, BATCH_ROWS, &Value::Null)?;
    let whole = (0..steps).map(|_| reader.report::<StepReport>().map(|report| report.read));
    let whole = whole.collect::<anyhow::Result<Vec<_>>>()?;
    drop(reader);
    stage.end()?;
    let (kills, right) = (settings.kills, right(&killed.parts, &whole));
    let mut found = Findings::default();
    found.value("python.kills", "kills", f64::from(kills));
    found.value("python.kills_resumed", "kills", f64::from(right));
    found.value("python.kills_steps", "steps", steps as f64);
    found.rows.push(Row::of("python.kills_first_step_s", "s", &killed.seconds));
    let text = format!(
        "{right} of {kills} processes that were killed in mid-epoch went on with the next step; {steps} steps, \
         seed {SEED}"
    );
    found.check(right == kills, text);
    Ok(found)
}

impl KilledReads {
    /// Kills that often; the process after the last kill is heard as long as the others.
    fn of(stage: &PythonStage, data: &PythonData, kills: u32) -> anyhow::Result<Self> {
        let epoch_steps = data.stored.rows.div_ceil(BATCH_ROWS);
        anyhow::ensure!(epoch_steps > 1, "an epoch of one step has no middle");
        let most = (epoch_steps / SHARE).max(1);
        let mut dice = Rng::with_seed(SEED);
        let (mut reads, mut state) = (Self::default(), Value::Null);
        for process in 0..=kills {
            let started = Instant::now();
            let reader = stage.steps(data, BATCH_ROWS, &state)?;
            let (mut part, least) = (Vec::new(), dice.u64(1..=most));
            loop {
                let report: StepReport = reader.report()?;
                if part.is_empty() && process > 0 {
                    reads.seconds.push(started.elapsed().as_secs_f64());
                }
                state = report.state;
                part.push(report.read);
                let is_in_the_middle = report.read.step + 1 < epoch_steps;
                if part.len() as u64 >= least && is_in_the_middle {
                    break;
                }
            }
            reads.parts.push(part);
            // Between two steps, or within one.
            std::thread::sleep(Duration::from_micros(dice.u64(..WAIT_US)));
            drop(reader);
        }
        Ok(reads)
    }
}

/// Kills after which the steps went on as they should have.
fn right(parts: &[Vec<StepRead>], whole: &[StepRead]) -> u32 {
    let (mut at, mut right) = (0, 0);
    for (kills, part) in parts.iter().enumerate() {
        let end = at + part.len();
        right += u32::from(kills > 0 && whole.get(at..end) == Some(part.as_slice()));
        at = end;
    }
    right
}

#[test]
fn a_step_that_comes_twice_or_has_other_values_is_no_right_one() {
    let step = |step| StepRead { epoch: 0, step, rows: 64, crc32: 7 };
    let whole: Vec<StepRead> = (0..5).map(step).collect();
    let parts = |steps: &[&[u64]]| {
        let parts = steps.iter().map(|part| part.iter().map(|at| step(*at)).collect());
        right(&parts.collect::<Vec<Vec<_>>>(), &whole)
    };
    assert_eq!(parts(&[&[0, 1], &[2], &[3, 4]]), 2);
    assert_eq!(parts(&[&[0, 1], &[2], &[2, 3]]), 1, "a step came twice");
    let other = StepRead { crc32: 8, ..step(2) };
    assert_eq!(right(&[whole[..2].to_vec(), vec![other]], &whole), 0, "other values");
}
