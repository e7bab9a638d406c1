//! Bad input: whatever is wrong is told in one line that names it, soon, with a status other than 0 and no
//! secret.

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_tests::harness::fault::Fault;
use forebay_tests::harness::process::{Run, ServerOptions};
use forebay_tests::harness::s3::{REGION, S3Server};

use crate::commands::{cached, direct, epoch, json, rows};
use crate::fixtures;
use crate::refused::{SECRET, check, misused, refused, server_refused};

/// A URL where nobody listens.
const NOBODY: &str = "http://127.0.0.1:1";

#[test]
fn what_does_not_exist_is_named() {
    let s3 = S3Server::start();
    let good = fixtures::upload(&s3, "good/one-row");
    s3.put("empty/", "");
    s3.put("empty/readme.txt", "no Parquet here");
    let server = ServerOptions::for_s3(&s3).args(["--allow", "s3://nowhere/", "--allow", "file:///nowhere/"]);
    let server = server.start();
    for (dataset, says) in [
        (&["s3://nowhere/data"][..], &["no such bucket 'nowhere'", "s3://nowhere/data"][..]),
        (&["s3://forebay/none"], &["s3://forebay/none", "no Parquet objects"]),
        (&["s3://forebay/none/x.parquet"], &["s3://forebay/none/x.parquet", "no Parquet objects"]),
        (&["s3://forebay/empty/"], &["s3://forebay/empty", "no Parquet objects"]),
        (&["file:///nowhere/at/all"], &["file:///nowhere/at/all", "no such file"]),
        (&[&good, "--columns", "id,colour"], &["'colour'", &good]),
    ] {
        for command in ["cat", "inspect", "epoch", "load"] {
            let line = [&[command], dataset].concat();
            refused(cached(&server, &line), says);
            if command != "load" {
                refused(direct(&s3, &line), says);
            }
        }
    }
    refused(cached(&server, &["cat", "http://host/x"]), &["http://host/x"]);
    refused(cached(&server, &["cat", "nonsense"]), &["nonsense"]);
    server.stop();
}

#[test]
fn credentials_and_regions_that_are_refused_are_named_and_secrets_are_not() {
    let s3 = S3Server::start();
    let uri = fixtures::upload(&s3, "good/one-row");
    let at = |more: &[&str], id: &str, secret: &str| {
        let line = [&["cat", &uri, "--direct", "--s3-endpoint", &s3.endpoint], more].concat();
        Run::new("forebay")
            .args(line)
            .envs([("AWS_ACCESS_KEY_ID", id), ("AWS_SECRET_ACCESS_KEY", secret), ("HOME", "/nowhere")])
            .envs([("RUST_LOG", "trace")])
    };
    let secret_is_wrong = at(&[], &s3.access_key, SECRET).end();
    assert!(!secret_is_wrong.stderr.contains(SECRET), "not even in the finest log");
    // Threads that are being ended may still log after it.
    let mut errors = secret_is_wrong.stderr.lines().filter(|line| line.starts_with("forebay: error: "));
    assert!(errors.next().is_some_and(|line| line.contains("SignatureDoesNotMatch")));
    assert_eq!(secret_is_wrong.code, Some(1));
    let quiet = |run: Run| run.envs([("RUST_LOG", "off")]);
    refused(quiet(at(&[], &s3.access_key, SECRET)), &[&uri, &s3.endpoint, "access key test-access"]);
    refused(quiet(at(&[], "AKIASTRANGER", SECRET)), &[&uri, "access key AKIASTRANGER"]);
    refused(quiet(at(&["--s3-region", "eu-west-9"], &s3.access_key, &s3.secret_key)), &["eu-west-9", REGION]);
    refused(quiet(at(&[], "", "")), &["s3://forebay", "no credentials"]);
    refused(quiet(at(&[], "ONLY-THE-ID", "")), &["AWS_SECRET_ACCESS_KEY", "only one of them"]);
    refused(quiet(at(&["--s3-profile", "ghost"], "", "")), &["no profile 'ghost'"]);
    refused(quiet(at(&["--s3-anonymous"], "", "")), &[&uri, "without keys"]);

    for (region, secret, says) in
        [(REGION, SECRET, "access key test-access"), ("eu-west-9", &s3.secret_key, "'us-east-1'")]
    {
        let server = ServerOptions::bare()
            .args(["--allow", "s3://forebay/", "--s3-endpoint", &s3.endpoint, "--s3-region", region])
            .env("AWS_ACCESS_KEY_ID", &s3.access_key)
            .env("AWS_SECRET_ACCESS_KEY", secret)
            .env("FOREBAY_LOG", "trace")
            .env("FOREBAY_CHECK_AT_START", "true")
            .allow_log("readers of what --allow names will fail")
            .start();
        let told = |line: &str| line.contains("--allow names will fail") && line.contains(says);
        let deadline = Instant::now() + Duration::from_secs(30);
        while !server.log().lines().any(told) {
            assert!(Instant::now() < deadline, "nobody has asked yet: {}", server.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        refused(cached(&server, &["cat", &uri]), &[&uri, says]);
        assert!(!server.log().contains(secret), "the server's log shows the secret");
        server.stop();
    }
}

#[test]
fn nobody_at_the_other_end_is_said_after_bounded_patience() {
    let s3 = S3Server::start();
    let uri = fixtures::upload(&s3, "good/one-row");
    let server = ServerOptions::for_endpoint(&s3, NOBODY).args(["--patience-s", "1"]).start();
    refused(cached(&server, &["cat", &uri]), &[&uri, NOBODY, "tried for"]);
    server.stop();

    // One that accepts connections and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").expect("bind");
    let endpoint = format!("http://{}", silent.local_addr().expect("an address"));
    let file = tempfile::NamedTempFile::new().expect("make a file");
    std::fs::write(file.path(), "[source]\nrequest_timeout_s = 1.0\npatience_s = 2.0\n").expect("write");
    let server = ServerOptions::for_endpoint(&s3, &endpoint);
    let server = server.args(["--config", &file.path().to_string_lossy()]).start();
    refused(cached(&server, &["cat", &uri]), &[&uri, &endpoint]);
    server.stop();

    // One that keeps saying that it is busy.
    let server = ServerOptions::for_s3(&s3).args(["--patience-s", "1"]).start();
    s3.inject(Box::new(|_| Some(Fault::SlowDown)));
    refused(cached(&server, &["cat", &uri]), &[&uri, "503", "SlowDown"]);
    s3.heal();
    rows(&server, &uri);
    server.stop();

    for command in ["cat", "epoch", "inspect", "load", "free"] {
        refused(Run::new("forebay").args([command, &uri, "--endpoint", NOBODY]), &[NOBODY]);
    }
    refused(Run::new("forebay").args(["status", "--endpoint", NOBODY]), &[NOBODY]);
}

#[test]
fn broken_objects_are_named_with_what_is_wrong() {
    let s3 = S3Server::start();
    let server = ServerOptions::for_s3(&s3).start();
    for name in fixtures::bad() {
        let uri = fixtures::upload(&s3, &name);
        let object = format!("{uri}/part-0000{}.parquet", usize::from(name.contains("then") || two(&name)));
        let says: &[&str] = match name.trim_start_matches("bad/") {
            // The schemas are put together: nulls where the second object lacks the column.
            "column-missing" => {
                rows(&server, &uri);
                continue;
            }
            "schema-differs" => &["column 'id' is", "Utf8", "--schema-of"],
            "empty-file" => {
                refused(cached(&server, &["cat", &uri]), &[&uri, "1 object without bytes"]);
                continue;
            }
            "encrypted-magic" => &["encrypted"],
            "too-short" => &["4 bytes"],
            "page-checksum-wrong" => &["CRC"],
            "page-corrupt" => &[],
            "footer-too-long" | "truncated" | "not-parquet" | "truncated-tail" => &["not sound Parquet"],
            _ => &["not sound Parquet"],
        };
        let says = [&[object.as_str()], says].concat();
        for line in [&["cat", &uri][..], &["epoch", &uri, "--batch", "50"]] {
            refused(cached(&server, line), &says);
            refused(direct(&s3, line), &says);
        }
    }
    let status = json(cached(&server, &["status"]));
    assert_eq!(status["counters"]["corrupt_segments"], 0, "nothing broken was ever stored: {status}");
    // Good datasets beside it are still served.
    let good = fixtures::upload(&s3, "good/one-row");
    rows(&server, &good);
    server.stop();
}

/// Datasets whose second object is the one that does not fit.
fn two(name: &str) -> bool {
    name == "bad/schema-differs"
}

#[test]
fn row_groups_without_rows_are_fine_and_datasets_without_rows_have_no_epochs() {
    let s3 = S3Server::start();
    let server = ServerOptions::for_s3(&s3).start();
    let uri = fixtures::upload(&s3, "good/zero-row-groups");
    let answer = json(cached(&server, &["epoch", &uri, "--batch", "4", "--epochs", "2"]));
    assert_eq!((epoch(&answer, 0, "samples"), epoch(&answer, 1, "samples")), (&15.into(), &15.into()));
    for name in ["good/zero-rows", "good/no-row-groups"] {
        let uri = fixtures::upload(&s3, name);
        refused(cached(&server, &["epoch", &uri]), &[&uri, "has no rows"]);
        assert!(cached(&server, &["cat", &uri]).end().expect_success().is_empty());
    }
    server.stop();
}

#[test]
fn an_object_overwritten_during_a_run_is_changed() {
    let s3 = S3Server::start();
    let uri = fixtures::upload(&s3, "good/row-group-huge");
    let key = "good/row-group-huge/part-00000.parquet";
    let other = std::fs::read(fixtures::folder("good/many-files").join("part-00003.parquet")).expect("read");
    let line = ["epoch", &uri, "--columns", "id"];
    for cache in [true, false] {
        let server = ServerOptions::for_s3(&s3).start();
        fixtures::upload(&s3, "good/row-group-huge");
        // The first read finds the footer, the second is for column data.
        s3.overwrite_before_get(2, key, other.clone());
        let run = if cache { cached(&server, &line) } else { direct(&s3, &line) };
        refused(run, &[key, "overwritten"]);
        s3.heal();
        // Opening it again gives the new version.
        let now = json(cached(&server, &["epoch", &uri]));
        assert_eq!(epoch(&now, 0, "samples"), 500);
        server.stop();
    }
}

#[test]
fn servers_that_cannot_start_say_why() {
    let bare = || ServerOptions::bare().args(["--allow", "s3://forebay/"]);
    let taken = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = taken.local_addr().expect("an address").to_string();
    server_refused(bare().args(["--listen", &address]), &[&address, "in use", "--listen"]);
    server_refused(bare().args(["--metrics-listen", &address]), &[&address, "in use", "--metrics-listen"]);
    let port = "127.0.0.1:7979";
    server_refused(bare().args(["--listen", port, "--metrics-listen", port]), &[port, "own port"]);
    server_refused(bare().args(["--listen", "203.0.113.1:7979"]), &["203.0.113.1:7979", "--listen"]);

    let folder = tempfile::tempdir().expect("make a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "not a folder").expect("write");
    for dir in [file.join("cache"), Path::new("/proc/forebay").to_owned()] {
        let dir = dir.to_string_lossy();
        server_refused(bare().args(["--cache-dir", &dir]), &[&dir, "cannot be made", "--cache-dir"]);
    }
    let running = bare().folder(folder.path()).start();
    let dir = folder.path().join("cache");
    let again = bare().args(["--cache-dir", &dir.to_string_lossy()]);
    server_refused(again, &["another server", &dir.to_string_lossy()]);
    running.stop();

    server_refused(ServerOptions::bare(), &["--allow"]);
    server_refused(bare().args(["--allow", "ftp://host/x"]), &["--allow", "ftp://host/x"]);
    server_refused(bare().args(["--cache-bytes", "10"]), &["cache_bytes"]);
    server_refused(bare().args(["--patience-s", "0"]), &["patience_s"]);
    server_refused(bare().args(["--s3-endpoint", "localhost:9000"]), &["localhost:9000", "http://"]);
    server_refused(bare().env("AWS_ACCESS_KEY_ID", "ID"), &["AWS_SECRET_ACCESS_KEY", "only one of them"]);
    let both = bare().args(["--s3-anonymous", "--s3-access-key-id", "ID"]);
    server_refused(both.env("FOREBAY_SOURCE__S3_SECRET_ACCESS_KEY", SECRET), &["contradict"]);
}

#[test]
fn settings_that_make_no_sense_are_named() {
    let file = tempfile::NamedTempFile::new().expect("make a file");
    let path = file.path().to_string_lossy().into_owned();
    for (text, says) in [
        ("cache_bites = 1\n", &["cache_bites"][..]),
        ("[source]\ns3_regoin = 'x'\n", &["s3_regoin"]),
        ("cache_bytes = 'much'\n", &["cache_bytes"]),
        ("cache_bytes = \n", &[path.as_str()]),
        ("drain_s = 'long'\n", &["drain_s"]),
    ] {
        std::fs::write(&path, text).expect("write");
        let options = ServerOptions::bare().args(["--allow", "s3://forebay/", "--config", &path]);
        server_refused(options, says);
    }
    let nowhere = ServerOptions::bare().args(["--allow", "s3://forebay/", "--config", "/nowhere.toml"]);
    server_refused(nowhere, &["/nowhere.toml", "does not exist"]);
    let unknown = ServerOptions::bare().args(["--allow", "s3://forebay/"]).env("FOREBAY_CACHE_BITES", "1");
    server_refused(unknown, &["cache_bites"]);
    // Those of other programs are no mistake.
    let readers = [("FOREBAY_ZONE", "a"), ("FOREBAY_ENDPOINT", NOBODY), ("FOREBAY_NCCL_PLUGIN", "x.so")];
    let options = ServerOptions::bare().args(["--allow", "s3://forebay/"]);
    readers.iter().fold(options, |options, (name, value)| options.env(name, value)).start().stop();
    let elsewhere = ["--allow", "s3://forebay/", "--cluster-node", "http://cache-1:7070"];
    server_refused(ServerOptions::bare().args(elsewhere), &["cache-1:7070", "--advertise"]);

    misused(Run::new("forebay-server").args(["--cache-bites", "1"]), &["--cache-bites"]);
    misused(Run::new("forebay-server").args(["--cache-bytes", "3 parsecs"]), &["--cache-bytes", "parsecs"]);
    misused(Run::new("forebay-server").args(["--listen", "everywhere"]), &["--listen", "everywhere"]);
    let forebay = |line: &[&str]| Run::new("forebay").args(line);
    misused(forebay(&["epoch", "s3://b/k", "--bach", "3"]), &["--bach"]);
    misused(
        forebay(&["epoch", "s3://b/k", "--shuffle", "none", "--window", "3"]),
        &["--shuffle", "--window"],
    );
    misused(forebay(&["epoch", "s3://b/k", "--shuffle", "wild"]), &["wild"]);
    refused(forebay(&["cat", "s3://b/k"]), &["--endpoint", "FOREBAY_ENDPOINT", "--direct"]);
    refused(forebay(&["cat", "s3://b/k", "--direct", "--endpoint", NOBODY]), &["contradict"]);
    refused(
        forebay(&["cat", "s3://b/k", "--endpoint", NOBODY, "--s3-region", "x"]),
        &["--s3-region", "--direct"],
    );
    let no_ca = ["cat", "s3://b/k", "--endpoint", "https://h:1", "--ca", "/nowhere/ca.pem"];
    refused(forebay(&no_ca), &["/nowhere/ca.pem", "cannot be read"]);
    refused(forebay(&["cat", "s3://b/k", "--endpoint", "host"]), &["`host`", "http://host:port"]);
    for (line, says) in [
        (&["--world", "0"][..], "world size 0"),
        (&["--batch", "0"], "global batch 0"),
        (&["--batch", "2000000000"], "use a smaller one"),
        (&["--batch", "7", "--world", "2"], "6 or 8"),
        (&["--rank", "2", "--world", "2"], "rank 2 of 2"),
    ] {
        refused(forebay(&[&["epoch", "s3://b/k", "--endpoint", NOBODY], line].concat()), &[says]);
    }
}

#[test]
fn a_client_reads_nothing_that_the_settings_do_not_allow() {
    let s3 = S3Server::start();
    for name in ["good/one-row", "good/many-files"] {
        fixtures::upload(&s3, name);
    }
    let server = ServerOptions::bare()
        .args(["--allow", "s3://forebay/good/one-row", "--s3-endpoint", &s3.endpoint, "--s3-region", REGION])
        .env("AWS_ACCESS_KEY_ID", &s3.access_key)
        .env("AWS_SECRET_ACCESS_KEY", &s3.secret_key)
        .start();
    rows(&server, "s3://forebay/good/one-row");
    s3.take_log();
    for uri in [
        "s3://forebay/good/many-files",
        "s3://forebay/good",
        "s3://forebay/good/one-row-more",
        "s3://forebay/good/one-row/../many-files",
        "s3://other/good/one-row",
        "file:///etc/passwd",
        "file:///etc",
    ] {
        for command in ["cat", "inspect", "epoch", "load"] {
            let line = refused(cached(&server, &[command, uri]), &[uri]);
            let denied = line.contains("may not read it") && line.contains("--allow");
            assert!(denied || uri.contains("one-row/"), "{command}: {line}");
        }
        let location = server.endpoint.replace("http://", "grpc://");
        let ended = fixtures::script("flight_read.py").args([&location, uri]).end();
        assert!(ended.code != Some(0) && ended.stdout.is_empty(), "Flight reads {uri}: {}", ended.stderr);
    }
    assert!(s3.log().is_empty(), "the object store was not even asked: {:?}", s3.log());
    // No way up: just an odd name below the root, where there is nothing.
    let odd = "s3://forebay/good/one-row/%2e%2e/many-files";
    refused(cached(&server, &["cat", odd]), &[odd, "no Parquet objects"]);
    refused(cached(&server, &["free", "s3://forebay/good"]), &["may not read it"]);
    server.stop();
}

#[test]
fn a_pipe_that_closes_is_no_error() {
    let s3 = S3Server::start();
    let uri = fixtures::upload(&s3, "good/row-group-huge");
    let forebay = forebay_tests::harness::process::binary("forebay");
    let line = format!(
        "set -o pipefail; {} cat {uri} --direct --s3-endpoint {} | head -n 2",
        forebay.display(),
        s3.endpoint
    );
    let ended = Run::program("bash", "bash").args(["-c", &line]).envs(s3.credentials()).end();
    assert!(ended.stderr.is_empty(), "{}", ended.stderr);
    assert_eq!(ended.expect_success().iter().filter(|byte| **byte == b'\n').count(), 2);
    let full = format!("{} cat {uri} --direct --s3-endpoint {} > /dev/full", forebay.display(), s3.endpoint);
    let ended = Run::program("bash", "bash").args(["-c", &full]).envs(s3.credentials()).end();
    check(ended, &["standard output", "No space left"]);
}
