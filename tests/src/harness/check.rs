//! The findings of a measurement: figures, and promises that were kept or broken.

use crate::harness::report::Row;
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;

/// The findings of a measurement.
#[derive(Debug, Default)]
pub struct Findings {
    /// The figures.
    pub rows: Vec<Row>,
    /// The promises.
    pub checks: Vec<Check>,
}

/// A promise and whether it was kept.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// The promise; with the outcome, unless that stands in `measured`.
    pub claim: String,
    /// The outcome.
    pub measured: String,
    /// Whether it was kept; `None`: it cannot be tried here.
    pub passed: Option<bool>,
}

impl Findings {
    /// Adds one figure.
    pub fn value(&mut self, name: impl Into<String>, unit: &'static str, value: f64) {
        self.rows.push(Row::of(name, unit, &[value]));
    }

    /// Adds a promise.
    pub fn check(&mut self, passed: bool, text: impl Into<String>) {
        self.checks.push(Check::of(text, "", passed));
    }

    /// Adds a promise that cannot be tried here: a broken one where all must be tried.
    pub fn skip(&mut self, text: impl Into<String>) {
        let passed = must_try_all().then_some(false);
        self.checks.push(Check { passed, ..Check::of(text, "", true) });
    }

    /// Adds a promise that is not judged this time: of less data than it is about, or of another commit.
    pub fn leave_out(&mut self, text: impl Into<String>) {
        self.checks.push(Check { passed: None, ..Check::of(text, "", true) });
    }

    /// The promises that were broken, a line each.
    pub fn broken(&self) -> String {
        self.checks
            .iter()
            .filter(|check| check.is_broken())
            .map(|check| format!("{}\n", check.claim))
            .collect()
    }

    /// Adds the findings of another part.
    pub fn add(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.checks.extend(other.checks);
    }
}

impl Check {
    /// A promise that was tried.
    pub fn of(claim: impl Into<String>, measured: impl Into<String>, passed: bool) -> Self {
        Self { claim: claim.into(), measured: measured.into(), passed: Some(passed) }
    }

    /// Whether it was tried and not kept.
    pub fn is_broken(&self) -> bool {
        self.passed == Some(false)
    }

    /// Whether it was kept, in one word.
    pub fn verdict(&self) -> &'static str {
        match self.passed {
            Some(true) => "PASS",
            Some(false) => "FAIL",
            None => "SKIPPED",
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.measured.is_empty() { "" } else { ": " };
        write!(f, "{}  {}{colon}{}", self.verdict(), self.claim, self.measured)
    }
}

/// Whether what cannot be tried here is an error: where `CI` is set, `make setup` has installed all that
/// tests need.
pub fn must_try_all() -> bool {
    std::env::var_os("CI").is_some_and(|ci| !ci.is_empty() && ci != "false")
}

/// How a program ends: well if all promises were kept.
pub fn exit(program: &str, kept: anyhow::Result<bool>) -> ExitCode {
    match kept {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{program}: error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
