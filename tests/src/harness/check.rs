//! What a measurement has found: its figures, and its promises with what came of them.

use crate::harness::report::Row;

/// What a part has found.
#[derive(Debug, Default)]
pub struct Findings {
    /// The figures.
    pub rows: Vec<Row>,
    /// The promises.
    pub checks: Vec<Check>,
}

/// A promise and whether it was kept.
#[derive(Debug)]
pub struct Check {
    /// Whether it was kept; `None`: it cannot be tried here.
    pub passed: Option<bool>,
    /// What was promised and what came of it.
    pub text: String,
}

impl Findings {
    /// Adds one figure.
    pub fn value(&mut self, name: impl Into<String>, unit: &'static str, value: f64) {
        self.rows.push(Row::of(name, unit, &[value]));
    }

    /// Adds a promise.
    pub fn check(&mut self, passed: bool, text: impl Into<String>) {
        self.checks.push(Check { passed: Some(passed), text: text.into() });
    }

    /// Adds a promise that cannot be tried here.
    pub fn skip(&mut self, text: impl Into<String>) {
        self.checks.push(Check { passed: None, text: text.into() });
    }

    /// The promises that were broken, a line each.
    pub fn broken(&self) -> String {
        let broken = self.checks.iter().filter(|check| check.passed == Some(false));
        broken.map(|check| format!("{}\n", check.text)).collect()
    }

    /// Adds what another part has found.
    pub fn add(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.checks.extend(other.checks);
    }
}

/// A check as people read it.
pub fn line(check: &Check) -> String {
    let verdict = match check.passed {
        Some(true) => "PASS",
        Some(false) => "FAIL",
        None => "SKIPPED",
    };
    format!("{verdict} {}", check.text)
}
