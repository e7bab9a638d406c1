//! `forebay-bench-ways`, small: each way is trained, and the report, the page and the table tell of all.

use forebay_tests::harness::mnist;
use forebay_tests::harness::process::{Run, ServerOptions};
use forebay_tests::harness::s3::{REGION, S3Server};
use serde_json::Value;

#[test]
fn one_training_is_timed_in_four_ways() {
    let s3 = S3Server::start();
    mnist::upload_folder(&s3, &mnist::folder().join("test"), "mnist").expect("read MNIST");
    let server = ServerOptions::for_s3(&s3).start();
    let folder = tempfile::tempdir().expect("make a folder");
    let file = |name: &str| folder.path().join(name);
    let uri = s3.uri("mnist/part-00000.parquet");
    // 5,000 samples in ten steps.
    let training = ["--train", &uri, "--batch", "500", "--emulate-step-ms", "2"];
    let run = Run::new("forebay-bench-ways").args(training).args(["--endpoint", &server.endpoint]);
    let run = run.args(["--s3-endpoint", &s3.endpoint, "--s3-region", REGION]).envs(s3.credentials());
    let run = run.arg("--out").arg(folder.path()).arg("--report").arg(file("mine.json"));
    let said = run.envs([("OMP_NUM_THREADS", "1")]).end().expect_success();
    let said = String::from_utf8_lossy(&said);
    let text = std::fs::read_to_string(file("bench.json")).expect("a report");
    assert_eq!(text, std::fs::read_to_string(file("mine.json")).expect("the same report"));
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["settings"]["train"], uri.as_str());
    assert!(report["settings"]["batch"] == 500 && report["settings"]["ranks"] == 1, "{report}");
    let rows = report["rows"].as_array().expect("rows");
    let value = |name: String| {
        let row = rows.iter().find(|row| row["name"] == name.as_str());
        row.and_then(|row| row["value"].as_f64()).unwrap_or_else(|| panic!("there is no {name}: {report}"))
    };
    let figures = ["seconds", "samples_per_s", "data_wait", "s3_bytes", "au", "au_nominal", "au_all_steps"];
    let page = std::fs::read_to_string(file("bench.html")).expect("a page");
    for (way, reads_s3) in [("cold", true), ("warm", false), ("restarted", false), ("direct", true)] {
        let [seconds, samples_per_s, data_wait, s3_bytes, au, ..] =
            figures.map(|figure| value(format!("{way}_{figure}")));
        // Ten steps of two milliseconds.
        assert!(seconds >= 0.02 && samples_per_s > 0.0, "{way}: {report}");
        assert!((0.0..=1.0).contains(&data_wait) && au > 0.0 && au <= 1.0, "{way}: {report}");
        assert_eq!(s3_bytes > 0.0, reads_s3, "{way}: {report}");
        assert!(said.contains(way) && page.contains(way), "{way}: {said}");
    }
    assert_eq!(rows.len(), 4 * figures.len(), "{report}");
    assert!(!said.contains("was not measured"), "{said}");
    server.stop();
}
