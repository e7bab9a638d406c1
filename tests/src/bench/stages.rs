//! The stages of a benchmark: each runs by itself, and the others run on if one breaks off.

use crate::harness::check::{Check, Findings};
use crate::harness::report;
use clap::ValueEnum;
use serde_json::Value;
use std::fmt::Debug;
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
        let found = run().unwrap_or_else(|error| {
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
