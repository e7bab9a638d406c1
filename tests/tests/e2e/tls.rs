//! TLS on every hop, and what does not get through it.
//!
//! * [`hops`]: a cluster of which nothing can be overheard.
//! * [`refusals`]: nodes whose certificates are not good, and files that make no sense.
//! * [`rotation`]: certificates and authorities that change while jobs read.

mod hops;
mod refusals;
mod rotation;

use crate::commands::{digests, direct, json};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use forebay_client::TlsFiles;
use forebay_tests::harness::pki::client_flags;
use forebay_tests::harness::process::{Run, Running};
use forebay_tests::harness::s3::S3Server;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use serde_json::Value;
use std::sync::Arc;

/// What all rows of [`upload`] have in them.
const KNOWN: &str = "a-known-value-of-row-";

/// A training run of two ranks, without a model.
struct Training {
    run: Running,
    folder: tempfile::TempDir,
}

/// Starts one, with a certificate.
fn train(files: &TlsFiles, at: &str, uri: &str, line: &[&str]) -> Training {
    let folder = tempfile::tempdir().expect("a folder");
    let run = Run::new("forebay-train").args(["--endpoint", at, "--train", uri]).args(client_flags(files));
    let model = ["--model", "mlp", "--feature-columns", "id", "--label-column", "label"];
    let run = run.args(model).args(["--nproc", "2", "--batch", "200", "--verify", "--report"]);
    let run = run.arg(folder.path().join("report.json")).args(line).envs([("OMP_NUM_THREADS", "1")]);
    Training { run: run.start(), folder }
}

impl Training {
    /// The digests of its epochs, at its end.
    fn epochs(self) -> Vec<(String, String)> {
        self.run.end().expect_success();
        let report = std::fs::read(self.folder.path().join("report.json")).expect("a report");
        let report: Value = serde_json::from_slice(&report).expect("the report is JSON");
        let epochs = report["epochs"].as_array().expect("epochs").len();
        (0..epochs).map(|number| digests(&report, number)).collect()
    }
}

/// The digests of the same epochs, read without a cache.
fn alone(s3: &S3Server, uri: &str, epochs: usize) -> Vec<(String, String)> {
    let count = epochs.to_string();
    let line = ["epoch", uri, "--epochs", &count, "--batch", "200", "--seed", "1", "--columns", "id,label"];
    let answer = json(direct(s3, &[&line[..], &["--verify"]].concat()));
    (0..epochs).map(|number| digests(&answer, number)).collect()
}

/// Puts a table into the object store whose values can be searched for, in objects of several row groups.
fn upload(s3: &S3Server) -> String {
    let properties = WriterProperties::builder()
        .set_compression(Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(500))
        .build();
    for object in 0..4_i64 {
        let rows = (0..4000).map(|row| object * 4000 + row);
        let text: StringArray = rows.clone().map(|row| Some(format!("{KNOWN}{row}"))).collect();
        let labels = Int64Array::from_iter_values(rows.clone().map(|row| row % 10));
        let columns: [(&str, ArrayRef); 3] = [
            ("id", Arc::new(Int64Array::from_iter_values(rows))),
            ("text", Arc::new(text)),
            ("label", Arc::new(labels)),
        ];
        let batch = RecordBatch::try_from_iter(columns).expect("a batch");
        let mut bytes = Vec::new();
        let mut writer =
            ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties.clone())).expect("a writer");
        writer.write(&batch).expect("write");
        writer.close().expect("close");
        s3.put(&format!("hidden/{object}.parquet"), bytes);
    }
    s3.uri("hidden/")
}
