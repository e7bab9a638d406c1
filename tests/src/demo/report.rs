//! `report.json`: the form of all benchmark reports, and beside it the trainer's own figures and the checks.

use std::process::Command;

use serde_json::{Value, json};

use super::Options;
use super::checks::{self, Check};
use super::job::Outcome;

/// The whole report.
pub(super) fn json(options: &Options, outcome: &Outcome, checks: &[Check]) -> Value {
    let training = &outcome.training;
    json!({
        "name": "demo",
        "commit": commit(),
        "machine": machine(),
        "settings": {
            "short": options.short,
            "epochs": options.epochs(),
            "nproc": options.nproc,
            "batch": options.batch,
            "seed": options.seed,
            "window": options.window,
            "s3_first_byte_ms": 30,
            "s3_connection_mb_s": 90,
            "test_accuracy_bar": options.accuracy_bar(),
        },
        "rows": rows(outcome),
        "checks": checks,
        "passed": checks.iter().all(|check| check.passed),
        "seconds": outcome.seconds,
        "test_accuracy": training.test_accuracy,
        "parameter_hashes": training.parameter_hashes,
        "world_size": training.world_size,
        "global_batch": training.global_batch,
        "steps_per_epoch": training.steps_per_epoch,
        "projected_bytes": training.epochs.first().map(|epoch| epoch.projected_bytes),
        "epochs": training.epochs,
        "reread_epochs": outcome.reread.epochs,
        "s3_seen_by_cache": outcome.served,
        "s3_seen_by_proxy": {
            "requests": outcome.passed.requests,
            "object_gets": outcome.passed.object_gets,
            "object_bytes": outcome.passed.object_bytes,
            "reread_requests": outcome.passed_reread.requests,
            "reread_object_bytes": outcome.passed_reread.object_bytes,
        },
    })
}

fn rows(outcome: &Outcome) -> Vec<Value> {
    let training = &outcome.training;
    let row = |name: &str, value: f64, unit: &str| json!({"name": name, "value": value, "unit": unit});
    let mut rows = vec![
        row("test_accuracy", training.test_accuracy, "share"),
        row("cold_s3_bytes_per_projected_byte", checks::cold_ratio(training), "ratio"),
        row("warm_s3_requests", training.warm().iter().map(|e| e.s3_requests as f64).sum(), "requests"),
        row(
            "warm_parquet_bytes_decoded",
            training.warm().iter().map(|e| e.parquet_bytes_decoded as f64).sum(),
            "bytes",
        ),
    ];
    for epoch in &training.epochs {
        rows.push(row(&format!("epoch_{}_samples_per_s", epoch.epoch), epoch.samples_per_s, "samples/s"));
        rows.push(row(&format!("epoch_{}_data_wait_share", epoch.epoch), epoch.data_wait_share, "share"));
    }
    rows
}

/// The commit that was built, as far as git can tell.
pub(super) fn commit() -> String {
    let output = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    let hash = output.ok().filter(|output| output.status.success());
    hash.map_or_else(
        || "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// Processor, number of cores and memory.
pub(super) fn machine() -> String {
    let field = |path: &str, name: &str| {
        let text = std::fs::read_to_string(path).ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory =
        field("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    let memory = memory.map_or_else(String::new, |kib| format!(", {:.0} GB", kib as f64 * 1024.0 / 1e9));
    format!("{model}, {cores} cores{memory}")
}

#[cfg(test)]
mod tests {
    use super::super::checks::tests::{options, outcome};
    use super::*;

    #[test]
    fn the_report_has_every_agreed_field() {
        let report = json(&options(), &outcome(), &checks::all(&options(), &outcome()));
        for field in
            ["name", "commit", "machine", "settings", "rows", "test_accuracy", "epochs", "parameter_hashes"]
        {
            assert!(!report[field].is_null(), "{field}");
        }
        assert_eq!(report["epochs"][1]["parquet_bytes_decoded"], 0);
        assert_eq!(report["epochs"][0]["s3_bytes"], 10_610_000);
        assert_eq!(report["passed"], true);
        let rows = report["rows"].as_array().map(Vec::len);
        assert_eq!(rows, Some(8));
    }
}
