//! The cost of plans for a node: a test of the server's crate measures it (`read/plans/tests/measure.rs`), as
//! only that can.

use crate::harness::check::Findings;
use crate::harness::process::Run;
use crate::harness::report::Row;
use anyhow::Context;
use std::time::Duration;

/// The rows that the program must print, with their units: a line each, name and value.
const ROWS: [(&str, &str); 2] = [("look_ms", "ms"), ("order_bytes_per_stream", "bytes")];

/// A look at what to prefetch holds a lock that announcements need.
const LOOK_MS: f64 = 1.0;

/// Cargo may have to build the program first.
const LIMIT: Duration = Duration::from_secs(1800);

/// Runs the program by cargo, so that it is the one of this commit.
pub fn run() -> anyhow::Result<Findings> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let workspace = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let run = Run::program(cargo, "cargo test").args([
        "test",
        "--release",
        "--quiet",
        "--manifest-path",
        workspace,
    ]);
    let run = run.args(["--package", "forebay-server", "--lib", "what_plans_cost"]);
    let text = run.args(["--", "--ignored", "--nocapture"]).limit(LIMIT).stdout()?;
    findings(&String::from_utf8_lossy(&text))
}

fn findings(text: &str) -> anyhow::Result<Findings> {
    let value = |name: &str| -> anyhow::Result<f64> {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.with_context(|| format!("no {name} in: {text}"))?.trim().parse()?)
    };
    let mut found = Findings::default();
    for (name, unit) in ROWS {
        found.rows.push(Row::of(name, unit, &[value(name)?]));
    }
    let look_ms = value("look_ms")?;
    found.check(look_ms < LOOK_MS, format!("look_ms = {look_ms:.3}, below {LOOK_MS}"));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_the_look_is_judged() {
        let found = findings("look_ms 0.250\norder_bytes_per_stream 812\n").expect("rows");
        assert_eq!((found.rows[1].value, found.broken().as_str()), (812.0, ""));
        assert!(
            findings("look_ms 1.5\norder_bytes_per_stream 1\n").is_ok_and(|found| !found.broken().is_empty())
        );
        assert!(findings("order_bytes_per_stream 812\n").is_err());
    }
}
