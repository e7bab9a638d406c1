//! The cost of plans for a node, and of a status: tests of the server's crate measure it
//! (`read/plans/tests/measure.rs`, `service/control/status/tests.rs`), as only they can.

use crate::harness::check::Findings;
use crate::harness::process::Run;
use crate::harness::report::Row;
use anyhow::Context;
use std::time::Duration;

/// The tests. Each runs by itself: memory is measured too.
const TESTS: [&str; 2] = ["what_plans_cost", "what_a_status_costs"];

/// The rows that they must print, with their units: a line each, name and value.
const ROWS: [(&str, &str); 4] =
    [("look_ms", "ms"), ("look_median_ms", "ms"), ("order_bytes_per_stream", "bytes"), ("status_ms", "ms")];

/// Rows that are judged. A look at what to prefetch holds a lock that announcements need; `forebay top` asks
/// for a status each second.
const LIMITS_MS: [(&str, f64); 3] = [("look_ms", 1.0), ("look_median_ms", 1.0), ("status_ms", 1.0)];

/// Cargo may have to build the program first.
const LIMIT: Duration = Duration::from_secs(1800);

/// Runs the tests by cargo, so that they are those of this commit.
pub fn run() -> anyhow::Result<Findings> {
    let texts = TESTS.iter().map(|test| measured(test)).collect::<anyhow::Result<Vec<String>>>()?;
    findings(&texts.concat())
}

/// What a test prints.
fn measured(test: &str) -> anyhow::Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let workspace = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let run = Run::program(cargo, "cargo test").args([
        "test",
        "--release",
        "--quiet",
        "--manifest-path",
        workspace,
    ]);
    let run = run.args(["--package", "forebay-server", "--lib", test]);
    let text = run.args(["--", "--ignored", "--nocapture"]).limit(LIMIT).stdout()?;
    Ok(String::from_utf8_lossy(&text).into_owned())
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
    for (name, limit_ms) in LIMITS_MS {
        let ms = value(name)?;
        found.check(ms < limit_ms, format!("{name} = {ms:.3}, below {limit_ms}"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_judged() {
        let of = |look: f64, median: f64, status: f64| {
            let looks = format!("look_ms {look}\nlook_median_ms {median}\n");
            let text = format!("{looks}order_bytes_per_stream 812\nstatus_ms {status}\n");
            findings(&text).expect("rows")
        };
        let found = of(0.25, 0.5, 0.125);
        assert_eq!((found.rows[2].value, found.broken().as_str()), (812.0, ""));
        assert!(of(1.5, 0.5, 0.125).broken().contains("look_ms"));
        assert!(of(0.25, 1.5, 0.125).broken().contains("look_median_ms"));
        assert!(of(0.25, 0.5, 1.5).broken().contains("status_ms"));
        assert!(findings("look_ms 0.25\norder_bytes_per_stream 812\n").is_err());
    }
}
