//! `make bench-peers` at a five-hundredth of its size, with the peers that need no more than pyarrow: no
//! figure is judged, but rows and checksums of every subject are, and a peer that is not there is told.

use forebay_tests::harness::process::Run;
use serde_json::Value;
use std::path::Path;

#[test]
fn peers_are_measured_beside_us_and_those_that_are_missing_are_told() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let folder = tempfile::tempdir().expect("a folder");
    let environments = folder.path().join("environments");
    std::fs::create_dir(&environments).expect("a folder");
    for script in ["pyarrow_dataset", "pyarrow_loader"] {
        std::os::unix::fs::symlink(project.join(".venv"), environments.join(script)).expect("a link");
    }
    let run = Run::new("forebay-bench-peers").args(["--rounds", "1", "--scale", "0.002"]);
    let run =
        run.args(["--subjects", "forebay.,s3.forebay,pyarrow,s3.pyarrow,mosaic.0.shuffled", "--folder"]);
    let run = run.arg(folder.path()).arg("--environments").arg(&environments);
    run.arg("--scripts").arg(project.join("tests/peers")).end().expect_success();
    let report = std::fs::read(folder.path().join("peers.json")).expect("a report");
    let report: Value = serde_json::from_slice(&report).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let row = |name: &str| {
        let found = rows.iter().find(|row| row["name"] == name);
        found.unwrap_or_else(|| panic!("there is no row {name}"))
    };
    for shape in ["X", "T", "B"] {
        let measured = ["forebay.window16", "s3.forebay.window16", "pyarrow_dataset", "pyarrow.window16"];
        for what in measured.iter().flat_map(|name| ["rows_per_s", "peak_mb"].map(|w| format!("{name}.{w}")))
        {
            let row = row(&format!("peers.{shape}.{what}"));
            assert!(row["value"].as_f64().is_some_and(|value| value > 0.0), "{row}");
        }
        for name in ["pyarrow_dataset", "pyarrow.window16"] {
            let row = row(&format!("peers.{shape}.s3.{name}.epoch1.rows_per_s"));
            assert!(row["value"].as_f64().is_some_and(|value| value > 0.0), "{row}");
        }
        for compared in ["vs_best", "vs.pyarrow_dataset", "vs.pyarrow.window16"] {
            assert!(row(&format!("peers.{shape}.{compared}"))["value"].as_f64().is_some());
        }
        let missing = row(&format!("peers.{shape}.mosaic.0.shuffled.rows_per_s"));
        assert!(
            missing["value"].is_null() && missing["unit"].as_str().is_some_and(|u| u.contains("setup.sh"))
        );
    }
    assert_eq!(report["settings"]["targets"]["T"], 4.0);
    let cannot = report["settings"]["cannot"]["peers.X.mosaic.0.shuffled"].as_str();
    assert!(cannot.is_some_and(|reason| reason.contains("setup.sh")), "{cannot:?}");
}
