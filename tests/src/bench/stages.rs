//! The stages of a benchmark: each runs by itself, and the others run on if one breaks off, by an error or a
//! panic.

use crate::harness::check::{Check, Findings};
use crate::harness::report;
use clap::ValueEnum;
use serde_json::Value;
use std::any::Any;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Instant;
use tokio::runtime::Runtime;

/// The stages to run: those that `--only` names, or all.
pub fn wanted<S: ValueEnum + PartialEq>(only: &[S]) -> impl Iterator<Item = S> {
    S::value_variants().iter().filter(|stage| only.is_empty() || only.contains(stage)).cloned()
}

/// What the stages so far have found.
#[derive(Default)]
pub struct Stages {
    found: Findings,
}

impl Stages {
    /// Runs one stage and prints its checks.
    pub fn run(&mut self, stage: impl Debug, run: impl FnOnce() -> anyhow::Result<Findings>) {
        println!("{stage:?} ...");
        let started = Instant::now();
        // A server whose log has what it should not panics where it is dropped.
        let ran = catch_unwind(AssertUnwindSafe(run));
        let ran = ran.unwrap_or_else(|panic| Err(anyhow::anyhow!("panicked: {}", words(&*panic))));
        let found = ran.unwrap_or_else(|error| {
            let mut found = Findings::default();
            found.check(false, format!("{stage:?} did not come to its end: {error:#}"));
            found
        });
        found.checks.iter().for_each(|check| println!("  {check}"));
        println!("  {:.0} s", started.elapsed().as_secs_f64());
        self.found.add(found);
    }

    /// The figures so far.
    pub fn found(&mut self) -> &mut Findings {
        &mut self.found
    }

    /// Writes the report and prints all checks; false if a promise was broken.
    pub fn end(self, folder: &Path, name: &str, settings: Value) -> anyhow::Result<bool> {
        report::write(folder, name, settings, &self.found.rows)?;
        self.found.checks.iter().for_each(|check| println!("{check}"));
        Ok(!self.found.checks.iter().any(Check::is_broken))
    }
}

/// The runtime that readers live on.
pub fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

/// The message of a panic.
fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[test]
fn a_stage_that_breaks_off_is_a_broken_promise_and_the_others_run_on() {
    let (mut stages, log) = (Stages::default(), "WARN");
    stages.run("log", || panic!("unexpected: {log}"));
    stages.run("words", || panic!("no log"));
    stages.run("error", || anyhow::bail!("no node"));
    stages.run("last", || Ok(Findings::default()));
    let broken = [("log", "panicked: unexpected: WARN"), ("words", "panicked: no log"), ("error", "no node")];
    let lines = broken.map(|(stage, why)| format!("{stage:?} did not come to its end: {why}\n"));
    assert_eq!(stages.found().broken(), lines.concat());
}
