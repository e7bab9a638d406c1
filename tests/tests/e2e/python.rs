//! `make bench-python` at a five-hundredth of its size: no figure is judged, but rows, checksums and
//! orders of both sides are, and that a process which is killed once goes on.

use forebay_tests::harness::process::Run;
use serde_json::Value;
use std::path::Path;

#[test]
fn python_is_measured_beside_rust() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let folder = tempfile::tempdir().expect("a folder");
    let run = Run::new("forebay-bench-python").args(["--rounds", "1", "--scale", "0.002", "--epochs", "3"]);
    let run = run.arg("--repository").arg(project).arg("--folder").arg(folder.path());
    run.end().expect_success();
    let report = std::fs::read(folder.path().join("python.json")).expect("a report");
    let report: Value = serde_json::from_slice(&report).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let value = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name);
        row.and_then(|row| row["value"].as_f64()).unwrap_or_else(|| panic!("there is no {name}: {rows:?}"))
    };
    for shape in ["X", "T", "B"] {
        for what in ["vs_rust", "rows_per_s", "rust_rows_per_s"] {
            assert!(value(&format!("python.{shape}.{what}")) > 0.0);
        }
    }
    for what in ["vs_rust", "rows_per_s"] {
        assert!(value(&format!("python.B.raw.{what}")) > 0.0);
    }
    assert!(value("python.handover_us") > 0.0);
    value("python.rss_growth_mb");
    value("python.own_growth_mb");
    assert_eq!((value("python.kills"), value("python.kills_resumed")), (1.0, 1.0));
}
