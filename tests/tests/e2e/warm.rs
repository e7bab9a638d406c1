//! `make bench-warm` at a five-hundredth of its size: no figure is judged, but every value and order is, and
//! that warm epochs leave the object store alone.

use forebay_tests::harness::process::Run;
use serde_json::Value;

/// The report of a small run.
fn report(arguments: [&str; 2]) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let run = Run::new("forebay-bench-warm").args(arguments).args(["--scale", "0.002", "--folder"]);
    run.arg(folder.path()).end().expect_success();
    let report = std::fs::read(folder.path().join("warm.json")).expect("a report");
    serde_json::from_slice(&report).expect("JSON")
}

#[test]
fn warm_epochs_are_measured_beside_their_floors() {
    let report = report(["--rounds", "1"]);
    let floors = ["tcp", "unix", "memcpy", "pread"].map(str::to_owned).into_iter();
    let floors = floors.chain(["X", "T", "B", "N"].map(|shape| format!("prebuilt.{shape}")));
    let mut names: Vec<String> = floors
        .flat_map(|floor| ["mb_per_s", "cpu_s_per_gb"].map(|what| format!("floor.{floor}.{what}")))
        .collect();
    names.extend(["X", "T", "B", "N"].map(|shape| format!("data.{shape}.segments")));
    let verified = ["verify.mb_per_s", "verify.cpu_s_per_gb", "verify_price"];
    names.extend(
        ["X", "T", "B"]
            .iter()
            .flat_map(|shape| verified.map(|what| format!("warm.fd.{shape}.sequential.{what}"))),
    );
    let figures = [
        "",
        ".mb_per_s",
        ".rows_per_s",
        ".cpu_s_per_gb",
        ".node_cpu_s_per_gb",
        ".client_cpu_s_per_gb",
        ".first_batch_ms",
    ];
    names.extend(
        ["X", "T", "B"]
            .iter()
            .flat_map(|shape| ["", ".parquet_crate", ".pages"].map(|what| format!("decode.{shape}{what}"))),
    );
    for subject in ["X", "T", "B"].iter().flat_map(|s| ["sequential", "window16"].map(|o| format!("{s}.{o}")))
    {
        names.extend(figures.iter().map(|what| format!("warm.fd.{subject}{what}")));
        for ranks in ["", ".2ranks", ".4ranks"] {
            names.extend(figures.iter().map(|what| format!("warm.grpc.{subject}{ranks}{what}")));
            names.extend((!ranks.is_empty()).then(|| format!("warm.grpc.{subject}{ranks}.of_one_rank")));
        }
    }
    // By one rank, and without a price or a decoder's figures.
    for subject in
        ["grpc", "fd"].iter().flat_map(|way| ["sequential", "window16"].map(|o| format!("{way}.N.{o}")))
    {
        names.extend(figures.iter().map(|what| format!("warm.{subject}{what}")));
    }
    let rows = report["rows"].as_array().expect("rows");
    let mut found: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    found.sort_unstable();
    names.sort();
    assert_eq!(found, names);
    for row in rows {
        let value = row["value"].as_f64().unwrap_or_else(|| panic!("no value: {row}"));
        // The node's clock counts hundredths of a second: at this size it may say nothing. Nor does a price.
        let says_nothing = row["unit"] == "s/GB" && value == 0.0 || row["unit"] == "of its speed";
        assert!(value > 0.0 || says_nothing, "{row}");
    }
    assert_eq!(report["settings"]["targets"]["warm.grpc.T.window16"]["cpu_s_per_gb"], 1.2);
    assert_eq!(report["settings"]["targets"]["warm.fd.T.window16"]["ratio"], 0.25);
    assert_eq!(report["settings"]["targets"]["warm.fd.X.sequential"]["first_batch_ms"], 1.0);
    assert!(report["settings"]["targets"]["warm.fd.N.window16"].is_null(), "N has no targets");
}

#[test]
fn a_loader_that_waits_is_looked_at_both_ways() {
    let report = report(["--subjects", "waiting"]);
    let rows = report["rows"].as_array().expect("rows");
    for way in ["grpc", "fd"] {
        for what in
            ["rss_growth_mb", "anonymous_growth_mb", "shared_growth_mb", "files_growth_mb", "data_wait"]
        {
            let name = format!("warm.waiting.{way}.{what}");
            assert!(rows.iter().any(|row| row["name"] == name.as_str()), "{name} in {report}");
        }
    }
    assert!(rows.iter().any(|row| row["name"] == "warm.waiting.budget_mb"), "{report}");
}
