//! Delta tables are read as the package `deltalake` reads them, or as their log says where that cannot:
//! versions, partitions, schemas that grow, deletion vectors, renamed columns.

use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::s3::{REGION, S3Server};
use serde::Deserialize;

use crate::commands::{cached, digest, digests, direct, json};
use crate::fixtures::{Comparison, delta_tables, script};
use crate::real::{three, upload};
use crate::refused::refused;

/// A table in a version, as `cases.json` has it.
#[derive(Deserialize)]
struct Case {
    uri: String,
    options: Vec<String>,
}

/// A bucket with all tables.
struct Tables {
    s3: S3Server,
    cases: Vec<Case>,
}

impl Tables {
    fn upload() -> Self {
        let (s3, root) = (S3Server::start(), delta_tables());
        let cases = std::fs::read(root.join("cases.json")).expect("read the cases");
        let cases: Vec<Case> = serde_json::from_slice(&cases).expect("JSON");
        assert!(cases.len() >= 56, "the tables are not all there");
        for entry in std::fs::read_dir(root).expect("list the tables") {
            let path = entry.expect("list the tables").path();
            if path.is_dir() {
                upload(&s3, &path, path.file_name().and_then(|name| name.to_str()).expect("a name"));
            }
        }
        Self { s3, cases }
    }

    fn uri(&self, name: &str) -> String {
        format!("delta+{}", self.s3.uri(name))
    }

    /// Compares what `cat` prints of all tables with what they hold.
    fn compare(&self, run: impl Fn(&[&str]) -> Run) {
        let mut comparison = Comparison::new();
        for case in &self.cases {
            let (uri, options) = (self.uri(&case.uri), case.options.iter().map(String::as_str));
            let line: Vec<&str> = ["cat", &uri, "--format", "arrow"].into_iter().chain(options).collect();
            let read = run(&line).end().expect_success();
            comparison.add(delta_tables().join(format!("{}.arrow", case.uri)), &read);
        }
        // A table has no order of its own.
        comparison.check(&["--any-order"]);
    }
}

#[test]
fn delta_tables_equal_deltalakes_without_a_cache() {
    let tables = Tables::upload();
    tables.compare(|line| direct(&tables.s3, line));
}

#[test]
fn delta_tables_equal_deltalakes_cold_warm_and_after_a_restart() {
    let tables = Tables::upload();
    let folder = tempfile::tempdir().expect("make a folder");
    let start = || ServerOptions::for_s3(&tables.s3).folder(folder.path()).start();
    let server = start();
    tables.compare(|line| cached(&server, line));
    tables.s3.take_log();
    tables.compare(|line| cached(&server, line));
    server.stop();
    let server = start();
    tables.compare(|line| cached(&server, line));
    let data = |seen: &&forebay_tests::harness::seen::SeenRequest| {
        seen.if_match.is_some() && seen.key.ends_with(".parquet") && !seen.key.contains("/_delta_log/")
    };
    assert_eq!(tables.s3.take_log().iter().filter(data).count(), 0, "all of it was held");
    server.stop();
}

#[test]
fn delta_tables_equal_deltalakes_on_three_nodes_and_by_flight() {
    let tables = Tables::upload();
    let nodes = three(&tables.s3);
    tables.compare(|line| cached(&nodes[1], line));
    // Shuffled: each row exactly once and with its values, on any node.
    for name in ["deleted-rows", "partitioned", "renamed@0"] {
        let uri = tables.uri(name);
        let line = ["epoch", &uri, "--batch", "100", "--verify"];
        let (shared, alone) = (json(cached(&nodes[0], &line)), json(direct(&tables.s3, &line)));
        assert_eq!(digests(&shared, 0), digests(&alone, 0), "{name}");
        assert_eq!(shared["digest"], alone["digest"], "{name}");
    }
    let folder = tempfile::tempdir().expect("make a folder");
    let mut read = script("flight_read.py").arg(nodes[2].endpoint.replace("http://", "grpc://"));
    let by_uri: Vec<&Case> = tables.cases.iter().filter(|case| case.options.is_empty()).collect();
    for case in &by_uri {
        read = read.arg(tables.uri(&case.uri)).arg(folder.path().join(&case.uri));
    }
    read.end().expect_success();
    let mut comparison = Comparison::new();
    for case in by_uri {
        let stream = std::fs::read(folder.path().join(&case.uri)).expect("a stream");
        comparison.add(delta_tables().join(format!("{}.arrow", case.uri)), &stream);
    }
    comparison.check(&["--any-order"]);
    nodes.into_iter().for_each(Server::stop);
}

#[test]
fn a_version_of_a_table_stays_what_it_is() {
    let tables = Tables::upload();
    let server = ServerOptions::for_s3(&tables.s3).start();
    let folder = tempfile::tempdir().expect("make a folder");
    let uri = tables.uri("deleted-rows");
    let read = |uri: &str| json(cached(&server, &["epoch", uri, "--batch", "100"]));
    let version = folder.path().join("version.json");
    let report = cached(&server, &["inspect", &uri, "--json"]).end().expect_success();
    assert!(String::from_utf8_lossy(&report).contains(&format!("{uri}@2\"")));
    std::fs::write(&version, report).expect("write the version");
    let dir = folder.path().to_str().expect("a path");
    cached(&server, &["snapshot", "save", "then", &uri, "--dir", dir]).end().expect_success();
    let (latest, first) = (read(&uri), read(&format!("{uri}@0")));
    assert_eq!((latest["rows"].as_u64(), first["rows"].as_u64()), (Some(491), Some(400)));
    // Another version, without the rows of an object.
    let log = "deleted-rows/_delta_log/0000000000000000000";
    tables.s3.put(
        &format!("{log}3.json"),
        r#"{"remove":{"path":"c.parquet","deletionTimestamp":0,"dataChange":true}}"#,
    );
    let now = read(&uri);
    assert_ne!(now["digest"], latest["digest"]);
    for pinned in [format!("@{}", version.display()), format!("snapshot:{dir}/then"), format!("{uri}@2")] {
        let then = read(&pinned);
        assert_eq!((&then["digest"], digest(&then, 0)), (&latest["digest"], digest(&latest, 0)), "{pinned}");
    }
    // What names no version is superseded; where it lies is what the other commands ask for.
    let place = uri.trim_start_matches("delta+");
    for of in [&uri, place] {
        let status = cached(&server, &["status", of]).end().expect_success();
        assert!(String::from_utf8_lossy(&status).contains("deleted-rows"), "{of}");
    }
    cached(&server, &["free", &uri]).end().expect_success();
    let status = cached(&server, &["status", &uri]).end().expect_success();
    assert!(!String::from_utf8_lossy(&status).contains("deleted-rows"), "freed");
    server.stop();
}

#[test]
fn a_table_that_cannot_be_read_says_why() {
    let tables = Tables::upload();
    let server = ServerOptions::for_s3(&tables.s3).start();
    let says = |name: &str, says: &[&str]| {
        let uri = tables.uri(name);
        let says: Vec<&str> = says.iter().copied().chain([name]).collect();
        refused(cached(&server, &["cat", &uri]), &says);
        refused(direct(&tables.s3, &["cat", &uri]), &says);
    };
    says("bad-feature", &["timeMachine", "DROP FEATURE"]);
    says("bad-ids", &["a.parquet", "columnMapping.mode = id", "'x' has no id", "rewrite the object"]);
    says(
        "bad-id-name",
        &["a.parquet", "'col-1' of the log has the id 1, there 'other'", "rewrite the object"],
    );
    says("bad-gone", &["a.parquet", "is gone", "version 0", "name another version"]);
    says("bad-elsewhere", &["s3://elsewhere/a.parquet", "outside"]);
    says("bad-json", &["log cannot be read"]);
    says("bad-type", &["'x' is Utf8", "Int64", "a.parquet", "--columns"]);
    says("bad-vector", &["a.parquet", "does not have 3 rows"]);
    says("appended@9", &["version", "name another version"]);
    says("nothing-there", &["no Delta table", "_delta_log"]);
    let uri = tables.uri("appended");
    for (option, what) in
        [(&["--no-partitions"][..], "--no-partitions"), (&["--schema-of", "x"], "--schema-of")]
    {
        refused(cached(&server, &[&["cat", &uri], option].concat()), &[&uri, "log of a Delta table", what]);
    }
    // The columns that fit are read nevertheless.
    cached(&server, &["cat", &tables.uri("bad-type"), "--columns", "id"]).end().expect_success();
    server.stop();
}

/// Features that cannot be read: the table, what its error names beside the table, and a column that can be
/// read nevertheless.
const REFUSED: [(&str, &[&str], Option<&str>); 11] = [
    ("refused-catalogManaged", &["catalog", "another table"], None),
    ("refused-catalogOwned-preview", &["catalog", "another table"], None),
    ("refused-geospatial", &["geometry", "write the rows to a table without it"], None),
    ("refused-adaptiveMetadata-preview", &["adaptiveMetadata-preview", "DROP FEATURE"], None),
    ("refused-reader-version", &["reader version", "without it"], None),
    ("refused-type", &["quaternion", "write the rows to a table without it"], None),
    ("refused-nested-mapping", &["column 's'", "columnMapping", "--columns"], Some("x")),
    ("refused-variantType", &["column 'v'", "variantType", "to_json"], Some("x")),
    ("refused-variantType-preview", &["column 'v'", "variantType", "to_json"], Some("x")),
    ("refused-variantShredding-preview", &["column 'v'", "variantType", "to_json"], Some("x")),
    ("bad-feature", &["timeMachine", "DROP FEATURE"], None),
];

#[test]
fn each_feature_that_cannot_be_read_is_named_with_its_remedy() {
    let tables = Tables::upload();
    let server = ServerOptions::for_s3(&tables.s3).start();
    for (table, says, column) in REFUSED {
        let uri = tables.uri(table);
        let says: Vec<&str> = says.iter().copied().chain([table]).collect();
        refused(cached(&server, &["cat", &uri]), &says);
        refused(direct(&tables.s3, &["cat", &uri]), &says);
        if let Some(column) = column {
            let read = cached(&server, &["cat", &uri, "--columns", column]).end().expect_success();
            assert_eq!(String::from_utf8_lossy(&read).lines().count(), 200, "{table}");
        }
    }
    server.stop();
}

#[test]
fn a_shallow_clone_is_read_as_far_as_its_objects_may_be() {
    let tables = Tables::upload();
    let uri = tables.uri("clone-s3");
    let only = |roots: &[&str]| {
        let options = roots
            .iter()
            .fold(ServerOptions::bare(), |options, root| options.args(["--allow", &tables.s3.uri(root)]));
        let options = options.args(["--s3-endpoint", &tables.s3.endpoint, "--s3-region", REGION]);
        let keys = tables.s3.credentials();
        keys.iter().fold(options, |options, (name, value)| options.env(name, value)).start()
    };
    // The node may read the clone, but not what it is a clone of.
    let server = only(&["clone-s3"]);
    refused(cached(&server, &["cat", &uri]), &["clone-s3", "forebay/cloned/", "--allow"]);
    server.stop();
    let server = only(&["clone-s3", "cloned"]);
    cached(&server, &["cat", &uri]).end().expect_success();
    let gone = "cloned/x=1 2/a b.parquet";
    tables.s3.objects().delete(&tables.s3.bucket, gone);
    cached(&server, &["cat", &uri]).end().expect_success();
    cached(&server, &["free", &uri]).end().expect_success();
    refused(cached(&server, &["cat", &uri]), &[gone, "is gone", "version 1"]);
    server.stop();
}
