//! Tables as real writers leave them are read as pyarrow.dataset reads them: schemas that grow, Hive's
//! directories, names of Spark and Hive, patterns, lists.

use std::path::Path;

use forebay_tests::harness::ports::free_addresses;
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use serde::Deserialize;

use crate::commands::{cached, digest, direct, json};
use crate::fixtures::{Comparison, real_tables, script};
use crate::refused::refused;

/// A dataset, as `cases.json` has it.
#[derive(Deserialize)]
struct Case {
    name: String,
    /// Below the tables' folder, maybe a pattern.
    uri: String,
    options: Vec<String>,
    /// Keys of the objects, if it is a list of them.
    #[serde(default)]
    list: Vec<String>,
}

/// A bucket with all tables.
struct Corpus {
    s3: S3Server,
    cases: Vec<Case>,
    /// Where the lists are.
    folder: tempfile::TempDir,
}

impl Corpus {
    fn upload() -> Self {
        let (s3, root) = (S3Server::start(), real_tables());
        let cases = std::fs::read(root.join("cases.json")).expect("read the cases");
        let cases: Vec<Case> = serde_json::from_slice(&cases).expect("JSON");
        assert!(cases.len() >= 43, "the tables are not all there");
        for case in &cases {
            upload(&s3, &root.join(&case.name), &case.name);
        }
        Self { s3, cases, folder: tempfile::tempdir().expect("make a folder") }
    }

    fn uri(&self, name: &str) -> String {
        self.s3.uri(name)
    }

    /// A command on a case.
    fn line(&self, command: &str, case: &Case) -> Vec<String> {
        let mut uri = self.uri(&case.uri);
        if !case.list.is_empty() {
            let list = self.folder.path().join(&case.name);
            let lines: Vec<_> =
                case.list.iter().map(|key| self.uri(key).replace("s3://", "s3a://")).collect();
            std::fs::write(&list, lines.join("\n")).expect("write a list");
            uri = format!("@{}", list.display());
        }
        [command.to_owned(), uri].into_iter().chain(case.options.iter().cloned()).collect()
    }

    /// Compares what a stock Flight client reads of all cases that a URI alone names.
    fn compare_flight(&self, server: &Server) {
        let by_uri = || self.cases.iter().filter(|case| case.options.is_empty() && case.list.is_empty());
        let stream = |case: &Case| self.folder.path().join(format!("{}.flight", case.name));
        let read = script("flight_read.py").arg(server.endpoint.replace("http://", "grpc://"));
        let read = by_uri().fold(read, |read, case| read.arg(self.uri(&case.uri)).arg(stream(case)));
        read.end().expect_success();
        let mut comparison = Comparison::new();
        for case in by_uri() {
            let wanted = real_tables().join(format!("{}.arrow", case.name));
            comparison.add(wanted, &std::fs::read(stream(case)).expect("a stream"));
        }
        comparison.check(&[]);
    }

    /// Compares what `cat` prints of all cases with what pyarrow read.
    fn compare(&self, run: impl Fn(&[&str]) -> Run) {
        let mut comparison = Comparison::new();
        for case in &self.cases {
            let line = self.line("cat", case);
            let line: Vec<&str> = line.iter().map(String::as_str).chain(["--format", "arrow"]).collect();
            let read = run(&line).end().expect_success();
            comparison.add(real_tables().join(format!("{}.arrow", case.name)), &read);
        }
        comparison.check(&[]);
    }
}

#[test]
fn real_tables_equal_pyarrows_without_a_cache() {
    let corpus = Corpus::upload();
    corpus.compare(|line| direct(&corpus.s3, line));
}

#[test]
fn real_tables_equal_pyarrows_cold_warm_and_after_a_restart() {
    let corpus = Corpus::upload();
    let folder = tempfile::tempdir().expect("make a folder");
    let start = || ServerOptions::for_s3(&corpus.s3).folder(folder.path()).start();
    let server = start();
    corpus.compare(|line| cached(&server, line));
    corpus.s3.take_log();
    corpus.compare(|line| cached(&server, line));
    server.stop();
    let server = start();
    corpus.compare(|line| cached(&server, line));
    // Besides the four bytes that tell Parquet from other objects without an ending.
    let data = |seen: &&forebay_tests::harness::seen::SeenRequest| seen.if_match.is_some() && seen.bytes > 4;
    assert_eq!(corpus.s3.take_log().iter().filter(data).count(), 0, "all of it was held");
    server.stop();
}

#[test]
fn real_tables_equal_pyarrows_on_three_nodes_and_by_flight() {
    let corpus = Corpus::upload();
    let nodes = three(&corpus.s3);
    corpus.compare(|line| cached(&nodes[1], line));
    corpus.compare_flight(&nodes[2]);
    // Shuffled: each row exactly once, where it belongs, on any node.
    for case in corpus.cases.iter().filter(|case| ["hive-encoded", "wider-int"].contains(&case.name.as_str()))
    {
        let line = corpus.line("epoch", case);
        let line: Vec<&str> = line.iter().map(String::as_str).chain(["--batch", "100"]).collect();
        let (shared, alone) = (json(cached(&nodes[0], &line)), json(direct(&corpus.s3, &line)));
        assert_eq!(digest(&shared, 0), digest(&alone, 0), "{}", case.name);
        assert_eq!(shared["digest"], alone["digest"], "{}", case.name);
        assert_eq!(shared["epochs"][0]["bytes"], alone["epochs"][0]["bytes"], "{}", case.name);
    }
    nodes.into_iter().for_each(Server::stop);
}

/// All files below a folder, whatever their names.
pub fn upload(s3: &S3Server, folder: &Path, prefix: &str) {
    for entry in std::fs::read_dir(folder).expect("list a table") {
        let path = entry.expect("list a table").path();
        let key = format!("{prefix}/{}", path.file_name().and_then(|name| name.to_str()).expect("a name"));
        match path.is_dir() {
            true => upload(s3, &path, &key),
            false => s3.put(&key, std::fs::read(&path).expect("read an object")),
        }
    }
}

/// A cluster of three nodes.
pub fn three(s3: &S3Server) -> Vec<Server> {
    let addresses = free_addresses(3).expect("free ports");
    let urls: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
    let start = |address: &String| {
        let options = ServerOptions::for_s3(s3).args(["--listen", address]);
        options.args(urls.iter().flat_map(|url| ["--cluster-node", url.as_str()])).start()
    };
    addresses.iter().map(start).collect()
}

#[test]
fn what_options_make_of_a_dataset_is_another_dataset() {
    let corpus = Corpus::upload();
    let server = ServerOptions::for_s3(&corpus.s3).start();
    let uri = corpus.uri("hive-int");
    let columns = |more: &[&str]| {
        let report = json(cached(&server, &[&["inspect", &uri], more].concat()));
        let names = report["columns"].as_array().expect("columns").iter().map(|c| c["name"].to_string());
        (names.collect::<Vec<_>>().join(","), report["digest"].to_string())
    };
    let (with, without) = (columns(&[]), columns(&["--no-partitions"]));
    let narrow = columns(&["--schema-of", "year=2024/month=01/a.parquet", "--no-partitions"]);
    assert_eq!(with.0, r#""id","new","year","month""#);
    assert_eq!((without.0.as_str(), narrow.0.as_str()), (r#""id","new""#, r#""id""#));
    assert!(with.1 != without.1 && without.1 != narrow.1);
    assert_eq!(columns(&[]), with, "opened again, from the node's own files");

    let conflict = corpus.uri("around-a-conflict");
    let says = ["'x' is Int64 in", "a.parquet but Utf8 in", "b.parquet", "--columns", "--schema-of"];
    for line in [&["cat", &conflict][..], &["epoch", &conflict, "--columns", "x"], &["load", &conflict]] {
        refused(cached(&server, line), &says);
    }
    refused(direct(&corpus.s3, &["cat", &conflict]), &says);
    refused(cached(&server, &["cat", &uri, "--schema-of", "none"]), &[&uri, "no object 'none'"]);

    let key = corpus.uri("key-is-column");
    let says = [
        &key,
        "'year' is a partition key and a column",
        "year=2024/a.parquet",
        "the directory says '2024', the column has values from '2024' to",
        "--no-partitions",
    ];
    for line in [&["cat", &key][..], &["epoch", &key, "--columns", "year"], &["load", &key]] {
        refused(cached(&server, line), &says);
    }
    refused(direct(&corpus.s3, &["cat", &key]), &says);
    cached(&server, &["cat", &key, "--columns", "id"]).end().expect_success();
    server.stop();
}

#[test]
fn notes_are_told_once_and_what_there_is_instead_too() {
    let corpus = Corpus::upload();
    let server = ServerOptions::for_s3(&corpus.s3).start();
    let uri = corpus.uri("empty-objects");
    for command in ["cat", "epoch", "inspect", "load"] {
        let ended = cached(&server, &[command, &uri]).end();
        let note = format!("forebay: note: {uri}: left out: 2 objects without bytes (b.parquet)");
        assert_eq!(
            ended.stderr.lines().filter(|line| *line == note).count(),
            1,
            "{command}: {}",
            ended.stderr
        );
    }
    corpus.s3.put("nothing/a.csv", "1,2");
    corpus.s3.put("nothing/_SUCCESS", "");
    let nothing = corpus.uri("nothing");
    let says =
        ["no Parquet objects", "1 object of other kinds (a.csv)", "1 object with hidden names (_SUCCESS)"];
    refused(cached(&server, &["cat", &nothing]), &[&[nothing.as_str()], &says[..]].concat());
    refused(cached(&server, &["cat", &format!("{uri}/x*")]), &["x*", "nothing lies there"]);
    server.stop();
}

#[test]
fn a_version_that_was_inspected_is_read_whatever_was_added() {
    let corpus = Corpus::upload();
    let server = ServerOptions::for_s3(&corpus.s3).start();
    let uri = corpus.uri("hive-depths");
    let report = cached(&server, &["inspect", &uri, "--json"]).end().expect_success();
    let version = corpus.folder.path().join("version.json");
    std::fs::write(&version, report).expect("write the version");
    let before = json(cached(&server, &["epoch", &uri, "--batch", "100"]));
    let object = std::fs::read(real_tables().join("hive-depths/c.parquet")).expect("an object");
    corpus.s3.put("hive-depths/d.parquet", object);
    let now = json(cached(&server, &["epoch", &uri, "--batch", "100"]));
    assert_ne!(now["digest"], before["digest"]);
    let pinned = format!("@{}", version.display());
    for run in [
        cached(&server, &["epoch", &pinned, "--batch", "100"]),
        direct(&corpus.s3, &["epoch", &pinned, "--batch", "100"]),
    ] {
        let then = json(run);
        assert_eq!(then["digest"], before["digest"]);
        assert_eq!(digest(&then, 0), digest(&before, 0));
    }
    corpus
        .s3
        .put("hive-depths/c.parquet", std::fs::read(real_tables().join("spark/_SUCCESS")).expect("a file"));
    refused(direct(&corpus.s3, &["cat", &pinned]), &["c.parquet", "overwritten"]);
    refused(cached(&server, &["cat", "@/nowhere/list"]), &["@/nowhere/list", "No such file"]);
    server.stop();
}

#[test]
fn bytes_are_those_of_the_values_whatever_the_batch() {
    let corpus = Corpus::upload();
    let server = ServerOptions::for_s3(&corpus.s3).start();
    let uri = corpus.uri("lists");
    // Rows of 64-bit elements, two on average, and an offset.
    let wanted: u64 = (0..600).map(|i| 4 + 8 * (i % 300 % 5)).sum();
    for batch in ["30", "60", "600"] {
        let line = ["epoch", &uri, "--batch", batch];
        for run in [cached(&server, &line), direct(&corpus.s3, &line)] {
            let bytes = json(run)["epochs"][0]["bytes"].as_u64().expect("a number");
            // A bit for each row and element that may be null.
            assert!(
                (wanted..wanted + wanted / 20).contains(&bytes),
                "{bytes} of {wanted} in batches of {batch}"
            );
        }
    }
    let load =
        |more: &[&str]| json(cached(&server, &[&["load", &corpus.uri("added-column")], more].concat()));
    let (all, ids) = (load(&[]), load(&["--columns", "id"]));
    let held = |load: &serde_json::Value| load["decoded_bytes_held"].as_u64().expect("a number");
    assert!((600 * 8..600 * 9).contains(&held(&ids)), "the columns that were loaded: {ids}");
    assert!(held(&all) > held(&ids) && all["segments_read"] == all["segments_held"], "{all}");
    server.stop();
}

#[test]
fn a_cache_larger_than_its_disk_is_warned_of_and_splits_are_told_apart() {
    let corpus = Corpus::upload();
    let server = ServerOptions::for_s3(&corpus.s3)
        .args(["--cache-bytes", "900000TB"])
        .allow_log("more than the whole disk")
        .start();
    assert!(server.log().contains("more than the whole disk"), "{}", server.log());
    let uri = corpus.uri("added-column");
    for split in ["0:600", "0:400", "400:600"] {
        cached(&server, &["epoch", &uri, "--split", split]).end().expect_success();
    }
    let status = cached(&server, &["status", &uri]).end().expect_success();
    let status = String::from_utf8(status).expect("text");
    for name in ["added-column, rows 0:400 ", "added-column, rows 400:600 ", "added-column  "] {
        assert!(status.contains(name), "{name}: {status}");
    }
    let elsewhere = cached(&server, &["status", &corpus.uri("lists")]).end().expect_success();
    assert!(!String::from_utf8(elsewhere).expect("text").contains("added-column"));
    server.stop();
}
