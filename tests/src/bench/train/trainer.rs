//! `forebay-train` as the measurements use it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::harness::process::{Run, Running};

/// A limit that no run of these comes near.
const LIMIT: Duration = Duration::from_secs(600);

/// A run of the trainer. Ranks share the cores of this machine, so each has one thread.
pub fn run<S: AsRef<str>>(line: impl IntoIterator<Item = S>) -> Result<Run> {
    let run = Run::find("forebay-train")?;
    let line: Vec<String> = line.into_iter().map(|word| word.as_ref().to_owned()).collect();
    Ok(run.args(line).envs([("OMP_NUM_THREADS", "1")]).limit(LIMIT))
}

/// Runs to the end; gives the report and the output.
pub fn report<S: AsRef<str>>(line: impl IntoIterator<Item = S>, folder: &Path) -> Result<(Value, String)> {
    let file = folder.join("report.json");
    let run = run(line)?.arg("--report").arg(&file);
    let said = run.stdout()?;
    let report = serde_json::from_slice(&std::fs::read(&file)?).context("the trainer's report")?;
    Ok((report, String::from_utf8_lossy(&said).into_owned()))
}

/// The steps of which a directory has checkpoints, in ascending order.
pub fn checkpoints(folder: &Path) -> Vec<u64> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let mut steps: Vec<u64> = names.filter_map(|name| name.strip_prefix("step-")?.parse().ok()).collect();
    steps.sort_unstable();
    steps
}

/// Waits until a checkpoint of this step or a later one is there.
pub fn wait_for_step(running: &mut Running, folder: &Path, step: u64) -> Result<()> {
    let began = Instant::now();
    while checkpoints(folder).last().is_none_or(|last| *last < step) {
        ensure!(running.is_running(), "the trainer ended before step {step}");
        ensure!(began.elapsed() < LIMIT, "no checkpoint of step {step}");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// The processes that a process has started.
pub fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// SIGKILL.
pub fn kill(pid: u32) -> Result<()> {
    use rustix::process::{Pid, Signal, kill_process};
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no such process")?;
    Ok(kill_process(pid, Signal::KILL)?)
}
