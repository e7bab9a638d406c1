//! Readers on the node's own host: over its Unix socket, and through shared memory. The values and their
//! order are those that come by TCP, and the node's counters say which way they came. Those in containers are
//! in [`containers`].

mod containers;
mod numbers;

use crate::commands::{cached, counter, digest, digests, direct, epoch, json, metric, until};
use crate::fixtures;
use arrow::array::RecordBatch;
use forebay_client::loader::{Ending, Event, Loader, LoaderSettings, Shuffle};
use forebay_client::{Access, Dataset, DatasetSpec};
use forebay_tests::harness::mnist;
use forebay_tests::harness::ports::free_address;
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use serde_json::Value;
use std::io::Write;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

/// MNIST's training images in an object store, and a node that reads them.
fn stage() -> (S3Server, String, Server) {
    let s3 = S3Server::start();
    mnist::upload(&s3).expect("read MNIST");
    let uri = s3.uri("mnist/train/");
    let server = start(ServerOptions::for_s3(&s3));
    (s3, uri, server)
}

/// Starts a node whose metrics are those of the moment: by default they may be a second old.
fn start(options: ServerOptions) -> Server {
    let mut config = tempfile::NamedTempFile::new().expect("a file");
    writeln!(config, "[limits]\nmetrics_age_s = 0").expect("write it");
    options.args(["--config", config.path().to_str().expect("a path")]).start()
}

/// All batches of an epoch, rank by rank.
fn read(endpoint: &str, uri: &str, segment_bytes: u64, settings: &LoaderSettings) -> Vec<RecordBatch> {
    let runtime = Runtime::new().expect("threads");
    runtime.block_on(async {
        let access = Access::endpoint(endpoint).expect("an endpoint");
        let spec = DatasetSpec { segment_bytes: Some(segment_bytes), ..DatasetSpec::new(uri) };
        let dataset = Dataset::open(&access, &spec).await.expect("open");
        let mut batches = Vec::new();
        for rank in 0..settings.world {
            let settings = LoaderSettings { rank, epochs: Some(1), ..settings.clone() };
            let mut loader = Loader::start(&dataset, settings).expect("start");
            while let Some(Event::Batch(batch)) = loader.next().await.expect("a batch") {
                batches.push(batch.columns);
            }
        }
        batches
    })
}

#[test]
fn shared_memory_brings_what_tcp_brings() {
    let (s3, uri, server) = stage();
    let mut datasets: Vec<(String, u64)> =
        fixtures::upload_good(&s3).into_iter().map(|(_, uri)| (uri, 30_000)).collect();
    // A loader refuses datasets without rows.
    datasets.retain(|(uri, _)| !uri.contains("/no-row") && !uri.contains("/zero-row"));
    datasets.push((uri, 1 << 20));
    for (shuffle, world) in [(Shuffle::None, 1), (Shuffle::Window(4), 2), (Shuffle::Full, 1)] {
        // Every type of column in one order, large messages in all.
        let all = if world == 2 { &datasets[..] } else { &datasets[datasets.len() - 1..] };
        for (uri, segment_bytes) in all {
            let ending = Ending::Pad;
            let settings =
                LoaderSettings { seed: 5, shuffle, ending, world, global_batch: 132, ..Default::default() };
            let (shared, readers) =
                (counter(&server, "shared_bytes"), metric(&server, "shared_readers_total"));
            let lent = metric(&server, "lent_bytes_total");
            let bytes = LoaderSettings { same_host: false, ..settings.clone() };
            let by_tcp = read(&server.endpoint, uri, *segment_bytes, &bytes);
            assert_eq!(counter(&server, "shared_bytes"), shared, "{uri}: it was switched off");
            assert!(by_tcp == read(&server.endpoint, uri, *segment_bytes, &settings), "{uri} differs");
            assert_eq!(metric(&server, "shared_readers_total"), readers + u64::from(world));
            if uri.contains("mnist") {
                let taken = counter(&server, "shared_bytes") - shared;
                assert!(taken > 5_000_000, "{taken} bytes came through shared memory");
                let copied = metric(&server, "lent_bytes_total") - lent;
                assert!(copied > 5_000_000, "{copied} bytes were copied out of files");
            }
        }
    }
    until("the end of all readers", || metric(&server, "memory_shared_bytes") == 0);
    assert_eq!(metric(&server, "shared_refused_total"), 0);
    server.stop();
}

/// One loader after the other has the region of the one before, until the node is another process.
#[test]
fn the_next_stream_has_the_memory_of_the_last_one() {
    let s3 = S3Server::start();
    mnist::upload(&s3).expect("read MNIST");
    let address = free_address().expect("a free port");
    let folder = tempfile::tempdir().expect("a folder");
    let node = || start(ServerOptions::for_s3(&s3).args(["--listen", &address]).folder(folder.path()));
    let mut server = node();
    let runtime = Runtime::new().expect("threads");
    let access = Access::endpoint(&server.endpoint).expect("an endpoint");
    let spec = DatasetSpec::new(s3.uri("mnist/train/"));
    let dataset = runtime.block_on(Dataset::open(&access, &spec)).expect("open");
    let epoch = |first_epoch, same_host| {
        let (seed, global_batch, epochs) = (5, 100, Some(1));
        let settings =
            LoaderSettings { seed, global_batch, first_epoch, epochs, same_host, ..Default::default() };
        runtime.block_on(async {
            let mut loader = Loader::start(&dataset, settings).expect("start");
            let mut batches = Vec::new();
            while let Some(Event::Batch(batch)) = loader.next().await.expect("a batch") {
                batches.push(batch.columns);
            }
            batches
        })
    };
    let check = |number| assert!(epoch(number, true) == epoch(number, false), "epoch {number} differs");
    check(0);
    let readers = |server: &Server, name: &str| metric(server, &format!("shared_readers_{name}"));
    assert_eq!((readers(&server, "open"), readers(&server, "total")), (1, 1), "the region is kept");
    check(1);
    assert_eq!((readers(&server, "open"), readers(&server, "total")), (1, 2), "and used again");
    until("the end of its time", || readers(&server, "open") == 0);
    check(2);
    // The process of before is gone, and its region with it.
    server.kill();
    let server = node();
    check(3);
    assert!(counter(&server, "shared_bytes") > 0, "the new one shares memory too");
    server.stop();
}

#[test]
fn a_node_may_listen_on_a_socket_alone() {
    let (s3, uri, server) = stage();
    let wanted = digest(&json(cached(&server, &["epoch", &uri, "--same-host", "off"])), 0);
    assert_eq!(counter(&server, "shared_bytes"), 0);
    // The same node by its socket.
    let socket = server.folder.join("cache/forebay.sock");
    let endpoint = format!("unix:{}", socket.display());
    let over = json(Run::new("forebay").args(["epoch", &uri, "--endpoint", &endpoint]));
    assert_eq!(digest(&over, 0), wanted);
    assert!(counter(&server, "shared_bytes") > 0);
    server.stop();
    assert!(!socket.exists(), "it is removed at the end");

    let folder = tempfile::tempdir().expect("a folder");
    let listen = format!("unix:{}", folder.path().join("f.sock").display());
    let alone = ServerOptions::for_s3(&s3).args(["--listen", &listen]).start();
    assert_eq!(alone.endpoint, listen);
    let answer = json(cached(&alone, &["epoch", &uri, "--world", "2"]));
    assert_eq!(epoch(&answer, 0, "samples"), mnist::TRAIN_SAMPLES);
    assert!(counter(&alone, "shared_bytes") > 0);
    alone.stop();
}

#[test]
fn a_reader_that_is_killed_leaves_no_memory_taken() {
    let (_s3, uri, server) = stage();
    let run = cached(&server, &["epoch", &uri, "--epochs", "1000000"]).start();
    until("the reader's memory", || counter(&server, "shared_bytes") > 0);
    until("a stream", || metric(&server, "shared_readers_open") == 1);
    // kill -9: a running command that is dropped.
    drop(run);
    until("the reader's end", || metric(&server, "shared_readers_open") == 0);
    until("its memory's", || metric(&server, "memory_shared_bytes") == 0);
    server.stop();
}

#[test]
fn without_memory_to_share_bytes_are_sent() {
    let s3 = S3Server::start();
    mnist::upload(&s3).expect("read MNIST");
    let uri = s3.uri("mnist/test/");
    // A sixteenth of it is less than the smallest region.
    let server = ServerOptions::for_s3(&s3).args(["--memory-bytes", "12MiB"]).start();
    let answer = json(cached(&server, &["epoch", &uri]));
    assert_eq!(epoch(&answer, 0, "samples"), mnist::TEST_SAMPLES);
    assert_eq!(counter(&server, "shared_bytes"), 0);
    assert_eq!(metric(&server, "shared_refused_total"), 1);
    server.stop();
    let off = ServerOptions::for_s3(&s3).args(["--unix-socket", "off"]).start();
    let answer = json(cached(&off, &["epoch", &uri]));
    assert_eq!(epoch(&answer, 0, "samples"), mnist::TEST_SAMPLES);
    assert!(!off.folder.join("cache/forebay.sock").exists());
    assert_eq!((counter(&off, "shared_bytes"), metric(&off, "shared_refused_total")), (0, 0));
    off.stop();
}

#[test]
fn a_node_that_is_killed_under_its_readers_is_no_error() {
    let s3 = S3Server::start();
    mnist::upload(&s3).expect("read MNIST");
    let uri = s3.uri("mnist/train/");
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address().expect("a free port");
    let start = || ServerOptions::for_s3(&s3).folder(folder.path()).args(["--listen", &address]).start();
    let mut server = start();
    let line = ["epoch", uri.as_str(), "--verify", "--epochs", "30"];
    let wanted = json(cached(&server, &[&line[..], &["--same-host", "off"]].concat()));
    let first = json(direct(&s3, &line[..line.len() - 2]));
    assert_eq!(digests(&first, 0), digests(&wanted, 0), "the values are those in S3");
    let run = cached(&server, &[&line[..], &["--world", "2", "--json"]].concat()).start();
    for _ in 0..2 {
        until("bytes through shared memory", || counter(&server, "shared_bytes") > 20_000_000);
        server.kill();
        // The socket that it left behind is replaced.
        server = start();
    }
    let answer = run.end().expect_success();
    let answer: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
    for number in 0..30 {
        assert_eq!(digests(&answer, number), digests(&wanted, number), "epoch {number}");
    }
    server.stop();
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(folder).expect("a folder").filter_map(Result::ok).map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn files_that_are_changed_under_their_readers_are_found_out() {
    let s3 = S3Server::start();
    mnist::upload(&s3).expect("read MNIST");
    let uri = s3.uri("mnist/test/");
    change_files_under_readers(&s3, &uri, "lent_bytes_total");
}

/// Segment files are cut and written to while epochs are read; the bytes of this metric come out of them.
fn change_files_under_readers(s3: &S3Server, uri: &str, out_of_files: &str) {
    let options = ServerOptions::for_s3(s3).allow_log("a segment file is damaged");
    let server = options.allow_log("damaged again and again").start();
    let line = ["epoch", uri, "--verify", "--shuffle", "window(4)", "--segment-bytes", "1MiB"];
    let line = [&line[..], &["--epochs", "40"]].concat();
    let wanted = json(cached(&server, &[&line[..], &["--same-host", "off"]].concat()));
    let first = json(direct(s3, &line[..line.len() - 2]));
    assert_eq!(epoch(&first, 0, "content_digest"), epoch(&wanted, 0, "content_digest"));
    let run = cached(&server, &line).arg("--json").start();
    let segments = server.folder.join("cache/v1/segments");
    for number in 0..12 {
        let before = metric(&server, out_of_files);
        until("rows out of files", || metric(&server, out_of_files) > before + 5_000_000);
        for (at, path) in files(&segments).into_iter().enumerate().filter(|(at, _)| at % 3 == number % 3) {
            // The node may have removed it.
            let Ok(file) = std::fs::File::options().read(true).write(true).open(path) else { continue };
            let half = file.metadata().expect("a length").len() / 2;
            if at % 2 == 0 {
                file.set_len(half).expect("cut it");
            } else {
                let mut byte = [0];
                if file.read_exact_at(&mut byte, half).is_ok() {
                    file.write_all_at(&[!byte[0]], half).expect("write");
                }
            }
        }
    }
    let answer: Value = serde_json::from_slice(&run.end().expect_success()).expect("JSON");
    for number in 0..40 {
        let digest = |answer| epoch(answer, number, "content_digest").clone();
        assert_eq!(digest(&answer), digest(&wanted), "epoch {number}");
    }
    assert!(counter(&server, "corrupt_segments") > 0);
    server.stop();
}
