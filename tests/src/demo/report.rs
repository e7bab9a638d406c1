//! `report.json`: the form of all benchmark reports, and beside it the trainer's own figures and the checks.

use serde_json::{Value, json};

use super::checks;
use super::figures::TrainedEpoch;
use super::job::Outcome;
use super::options::DemoOptions;
use crate::harness::check::Check;
use crate::harness::report::{self, Row};

/// The whole report.
pub(super) fn json(options: &DemoOptions, outcome: &Outcome, checks: &[Check]) -> Value {
    let training = &outcome.training;
    let settings = json!({
        "short": options.short,
        "epochs": options.epochs(),
        "nproc": options.nproc,
        "batch": options.batch,
        "seed": options.seed,
        "window": options.window,
        "s3_first_byte_ms": 30,
        "s3_connection_mb_s": 90,
        "test_accuracy_bar": options.accuracy_bar(),
    });
    let mut report = report::json("demo", settings, &rows(outcome));
    let further = json!({
        "checks": checks,
        "passed": !checks.iter().any(Check::is_broken),
        "seconds": outcome.seconds,
        "test_accuracy": training.test_accuracy,
        "parameter_hashes": training.parameter_hashes,
        "world_size": training.world_size,
        "global_batch": training.global_batch,
        "steps_per_epoch": training.steps_per_epoch,
        "projected_bytes": training.epochs.first().map(|epoch| epoch.projected_bytes),
        "epochs": training.epochs,
        "reread_epochs": outcome.reread.epochs,
        "accelerated": outcome.accelerated,
        "s3_seen_by_cache": outcome.served,
        "s3_seen_by_proxy": {
            "requests": outcome.passed.requests,
            "object_gets": outcome.passed.object_gets,
            "object_bytes": outcome.passed.object_bytes,
            "reread_requests": outcome.passed_reread.requests,
            "reread_object_bytes": outcome.passed_reread.object_bytes,
        },
    });
    if let (Value::Object(report), Value::Object(further)) = (&mut report, further) {
        report.extend(further);
    }
    report
}

fn rows(outcome: &Outcome) -> Vec<Row> {
    let training = &outcome.training;
    let row = |name: &str, value: f64, unit| Row::of(name, unit, &[value]);
    let sum = |of: fn(&TrainedEpoch) -> u64| training.warm().iter().map(of).sum::<u64>() as f64;
    let mut rows = vec![
        row("test_accuracy", training.test_accuracy, "share"),
        row("cold_s3_bytes_per_projected_byte", checks::cold_ratio(training), "ratio"),
        row("warm_s3_requests", sum(|epoch| epoch.s3_requests), "requests"),
        row("warm_parquet_bytes_decoded", sum(|epoch| epoch.parquet_bytes_decoded), "bytes"),
    ];
    for (way, name) in outcome.accelerated.ways.iter().zip(["direct", "cold", "warm"]) {
        rows.push(row(&format!("fast_{name}_seconds"), way.epoch.seconds, "s"));
        rows.push(row(&format!("fast_{name}_data_wait_share"), way.epoch.data_wait_share, "share"));
        rows.push(row(&format!("fast_{name}_busy_share"), way.busy_share, "share"));
    }
    for epoch in &training.epochs {
        rows.push(row(&format!("epoch_{}_samples_per_s", epoch.epoch), epoch.samples_per_s, "samples/s"));
        rows.push(row(&format!("epoch_{}_data_wait_share", epoch.epoch), epoch.data_wait_share, "share"));
    }
    rows
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
        assert_eq!(rows, Some(17));
    }
}
