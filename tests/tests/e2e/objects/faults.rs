//! Slow object stores, killed nodes, and objects that change while they are read.

use super::*;
use forebay_tests::harness::s3_client::{S3Ask, S3Client};
use forebay_tests::harness::slow::{SlowProxy, Slowness};
use forebay_tests::harness::wait;

#[test]
fn readers_of_a_cold_block_get_bytes_as_they_come() {
    let s3 = S3Server::start();
    let wanted = put(&s3, "slow", 6, 4 * MIB);
    // The one block takes four seconds.
    let slow = SlowProxy::start(&s3.endpoint, Slowness { total_mb_s: 1.0, ..Slowness::none() });
    let server = ServerOptions::for_endpoint(&s3, &slow.endpoint).start();
    let uri = s3.uri("slow");
    let read = || async {
        let objects = Objects::new(&Access::endpoint(&server.endpoint)?);
        let version = objects.version(&uri).await?;
        let mut pieces = objects.read(&version, 0..version.size)?;
        let (mut got, mut first) = (Vec::new(), None);
        while let Some(piece) = pieces.next().await {
            first.get_or_insert_with(Instant::now);
            got.extend_from_slice(&piece?);
        }
        Ok::<_, Error>((got, first.expect("a piece").elapsed()))
    };
    let (one, two) = runtime().block_on(async { tokio::join!(read(), read()) });
    for reader in [one, two] {
        let (got, since_first) = reader.expect("read");
        check("as it comes", &got, &wanted);
        assert!(since_first > Duration::from_secs(1), "all bytes came within {since_first:?}");
    }
    assert_eq!(slow.passed().object_bytes, wanted.len() as u64, "one fill for both");
    // In the middle of another block: from there to its end first.
    let wanted = put(&s3, "deep", 7, 4 * MIB);
    slow.set(Slowness::none());
    s3.take_log();
    check("deep", &get(&server, &s3.uri("deep"), &["3145728-3145800"]), &wanted[3 * MIB..3 * MIB + 73]);
    wait_for_blocks(&server, 2);
    let ranges: Vec<_> = s3.take_log().iter().filter_map(SeenRequest::range_bytes).collect();
    assert_eq!(ranges, [3 * MIB as u64..4 * MIB as u64, 0..3 * MIB as u64]);
    server.stop();
}

#[test]
fn bytes_that_nobody_takes_yet_keep_no_others_from_coming() {
    let s3 = S3Server::start();
    let wanted = put(&s3, "long", 9, 64 * MIB);
    let server = ServerOptions::for_s3(&s3).env("FOREBAY_OBJECTS__BLOCK_BYTES", "262144").start();
    let uri = s3.uri("long");
    // A read in four stretches at once: those behind the first one wait with what has come.
    check("in one go", &get(&server, &uri, &[]), &wanted);
    // Readers that stand still after their first bytes, on the connection of one that goes on.
    let got = runtime().block_on(async {
        let objects = Objects::new(&Access::endpoint(&server.endpoint)?);
        let version = objects.version(&uri).await?;
        let mut idle = Vec::new();
        for _ in 0..4 {
            let mut pieces = objects.read(&version, 0..version.size)?;
            pieces.next().await.expect("a piece")?;
            idle.push(pieces);
        }
        // Time for what they were sent to pile up.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let pieces: Vec<Bytes> = objects.read(&version, 0..version.size)?.try_collect().await?;
        Ok::<_, Error>(pieces.concat())
    });
    check("beside four that stand still", &got.expect("read"), &wanted);
    server.stop();
}

#[test]
fn what_was_begun_ahead_ends_with_its_reader() {
    let s3 = S3Server::start();
    let blocks = 400;
    put(&s3, "ahead", 8, blocks * 65_536);
    let slow = SlowProxy::start(&s3.endpoint, Slowness { total_mb_s: 1.0, ..Slowness::none() });
    let server = ServerOptions::for_endpoint(&s3, &slow.endpoint).env(SMALL.0, SMALL.1).start();
    let (runtime, uri) = (runtime(), s3.uri("ahead"));
    runtime.block_on(async {
        let mut client = ObjectsClient::connect(server.endpoint.clone()).await.expect("connect");
        let request = v1::HeadObjectRequest { uri };
        let object = client.head(request).await.expect("the object").into_inner();
        let ranges = vec![v1::ByteRange { start: 0, end: object.size }];
        let request = v1::ReadObjectRequest { object: Some(object), ranges };
        let mut pieces = client.read(request).await.expect("read").into_inner();
        pieces.message().await.expect("a piece");
    });
    drop(runtime);
    // Requests under way end; then nothing more is asked for.
    let (mut gets, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_secs(4) {
        let now = slow.passed().object_gets;
        if now != gets {
            (gets, since) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!((1..blocks as u64 / 2).contains(&gets), "{gets} blocks of {blocks} were fetched");
    server.stop();
}

#[test]
fn a_node_that_dies_in_mid_read_costs_no_byte() {
    let s3 = S3Server::start();
    let wanted = put(&s3, "big", 4, 8 * MIB);
    let mut all = nodes(&s3, 3, &[("FOREBAY_OBJECTS__BLOCK_BYTES", "262144")]);
    let (runtime, urls, uri) = (runtime(), urls(&all), s3.uri("big"));
    let got = runtime.block_on(async {
        let objects = Objects::new(&Access::endpoint(&urls)?);
        let version = objects.version(&uri).await?;
        let mut pieces = objects.read(&version, 0..version.size)?;
        let mut got = Vec::new();
        while let Some(piece) = pieces.next().await {
            got.extend_from_slice(&piece?);
            if got.len() > MIB && all.len() == 3 {
                all.remove(1).kill();
            }
        }
        Ok::<_, Error>(got)
    });
    check("with a dead node", &got.expect("read"), &wanted);
    all.into_iter().for_each(|mut node| node.kill());
    // With none left the object store stands in, if it may.
    let line = ["get", &uri, "--endpoint", &urls, "--fallback", "direct", "--s3-endpoint", &s3.endpoint];
    let run = Run::new("forebay").args(line).args(["--s3-region", REGION]).envs(s3.credentials());
    check("from the object store", &run.end().expect_success(), &wanted);
    let why = Run::new("forebay").args(["get", &uri, "--endpoint", &urls]).end().expect_failure();
    assert!(why.contains("cannot reach the cache"), "{why}");
}

#[test]
fn what_is_written_is_seen_when_what_was_known_is_too_old() {
    let s3 = S3Server::start();
    let old = put(&s3, "old", 1, 100_000);
    let server =
        ServerOptions::for_s3(&s3).env(SMALL.0, SMALL.1).env("FOREBAY_OBJECTS__METADATA_AGE", "5s").start();
    let (uri, asked_at) = (s3.uri("old"), Instant::now());
    check("old", &get(&server, &uri, &[]), &old);
    let new = put(&s3, "old", 2, 100_001);
    let still = get(&server, &uri, &[]);
    // A machine may stall.
    assert!(still == old || asked_at.elapsed() >= Duration::from_secs(5), "it is not old yet");
    std::thread::sleep(Duration::from_millis(5100));
    check("new", &get(&server, &uri, &[]), &new);
    server.stop();
}

/// Waits until something is so; soon, long before what a node knows is too old.
fn until(what: &str, is_so: impl FnMut() -> bool) {
    wait::until(what, Duration::from_secs(20), is_so);
}

#[test]
fn what_is_written_is_seen_as_soon_as_a_reader_finds_it_changed() {
    let s3 = S3Server::start();
    let all = nodes_with(&s3, 2, |options| {
        options
            .args(["--s3-listen", "127.0.0.1:0", "--s3-public", &s3.uri("")])
            .env(SMALL.0, SMALL.1)
            .env("FOREBAY_OBJECTS__METADATA_AGE", "60s")
    });
    let (runtime, uri) = (runtime(), s3.uri("written"));
    let ask = |node: &Server, at: usize| {
        let endpoint = node.s3.clone().expect("it serves S3");
        let client = S3Client { endpoint, key_id: String::new(), secret: String::new() };
        let ask = S3Ask::new("GET", format!("/{}/written", s3.bucket));
        let ask = ask.header("range", &format!("bytes={at}-{}", at + 9));
        runtime.block_on(client.send_unsigned(&ask)).expect("an answer")
    };
    let write = |n: usize| (100_000 * n, put(&s3, "written", n as u64, 500_000));
    let (_, old) = write(0);
    assert!(ask(&all[0], 0).body == old[..10]);
    // One node keeps the object's metadata, the other one asks it; no block that is asked for is held.
    for (n, node) in (1..).zip(&all) {
        let (at, new) = write(n);
        until("the new bytes by the endpoint", || {
            let reply = ask(node, at);
            reply.status == 206 && reply.body == new[at..at + 10]
        });
    }
    for (n, node) in (3..).zip(&all) {
        let (at, new) = write(n);
        let range = format!("{at}-{}", at + 9);
        until("the new bytes by the command", || {
            let ended = cached(node, &["get", &uri, "-r", &range]).end();
            let is_read = ended.code == Some(0);
            assert!(is_read || ended.stderr.contains("was overwritten while it was read"), "{ended:?}");
            is_read && ended.stdout == new[at..at + 10]
        });
    }
    let heads = asked(&s3.take_log()).0;
    assert!(heads <= 5, "{heads} HEADs for five versions");
    all.into_iter().for_each(Server::stop);
}

#[test]
fn what_is_written_is_seen_by_the_next_read() {
    let s3 = S3Server::start();
    let all = nodes(&s3, 2, &[SMALL]);
    for seed in 0..10 {
        let wanted = put(&s3, "again", seed, 100_000 + seed as usize);
        let run = Run::new("forebay").args(["get", &s3.uri("again"), "--endpoint", &urls(&all)]);
        check("the newest", &run.end().expect_success(), &wanted);
    }
    all.into_iter().for_each(Server::stop);
}
