//! What the commands and a node answer, and what they refuse.

use super::*;
use forebay_proto::object::ObjectVersion;
use forebay_proto::v1::peer_client::PeerClient;
use serde_json::Value;

#[test]
fn files_are_objects_too() {
    let folder = tempfile::tempdir().expect("make a folder");
    let root = folder.path().canonicalize().expect("a path");
    let wanted = bytes_of(9, 200_000);
    std::fs::create_dir(root.join("in")).expect("make a folder");
    std::fs::write(root.join("in/some.bin"), &wanted).expect("write");
    std::os::unix::fs::symlink("/etc/hostname", root.join("out")).expect("a link");
    let uri = |name: &str| format!("file://{}/{name}", root.display());
    let server = ServerOptions::bare().args(["--allow", &uri("")]).env(SMALL.0, SMALL.1).start();
    check("a file", &get(&server, &uri("in/some.bin"), &[]), &wanted);
    check("a range", &get(&server, &uri("in/some.bin"), &["65530-65540"]), &wanted[65_530..65_541]);
    for (line, entry) in [(&["ls", &uri(""), "-r"][..], uri("in/some.bin")), (&["ls", &uri("")], uri("in/"))]
    {
        let listed = cached(&server, line).end().expect_success();
        let listed = String::from_utf8(listed).expect("text");
        assert!(
            listed.lines().any(|line| line.split_whitespace().last() == Some(&entry)),
            "{entry}: {listed}"
        );
    }
    let why = cached(&server, &["get", &uri("out")]).end().expect_failure();
    assert!(why.contains("this server may not read it"), "a link leads out: {why}");
    // Written again, it is another version.
    let again = bytes_of(10, 200_001);
    std::fs::write(root.join("in/some.bin"), &again).expect("write");
    check("another version", &get(&server, &uri("in/some.bin"), &[]), &again);
    server.stop();
}

#[test]
fn listings_are_those_of_the_store() {
    let s3 = S3Server::start();
    let server = ServerOptions::for_s3(&s3).start();
    for key in ["l/a/1", "l/a/2", "l/b", "l/c/d/e", "other"] {
        put(&s3, key, 0, key.len());
    }
    let list = |line: &[&str]| {
        let text = cached(&server, &[&["ls", "--json"], line].concat()).end().expect_success();
        let lines = String::from_utf8(text).expect("text");
        let line = |line: &str| {
            let entry: Value = serde_json::from_str(line).expect("JSON");
            match entry["prefix"].as_str() {
                Some(prefix) => format!("{prefix}/"),
                None => format!("{} {}", entry["uri"].as_str().expect("a URI"), entry["size"]),
            }
        };
        let mut lines: Vec<String> = lines.lines().map(line).collect();
        lines.sort();
        lines.iter().map(|line| line.replace(&s3.uri(""), "")).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(list(&[&s3.uri("l")]), "l/a/, l/b 3, l/c/");
    assert_eq!(list(&[&s3.uri("l"), "-r"]), "l/a/1 5, l/a/2 5, l/b 3, l/c/d/e 7");
    assert_eq!(list(&[&s3.uri("l/b")]), "l/b 3", "an object lists itself");
    assert_eq!(list(&[&format!("s3://{}", s3.bucket)]), "l/, other 5");
    let why = cached(&server, &["ls", &s3.uri("none")]).end().expect_failure();
    assert!(why.contains("no object is there"), "{why}");
    let text =
        String::from_utf8(cached(&server, &["ls", &s3.uri("l")]).end().expect_success()).expect("text");
    assert!(text.contains("3 B  s3://") && text.contains("/l/a/\n"), "{text}");
    let pages = runtime().block_on(async {
        let mut client = ObjectsClient::connect(server.endpoint.clone()).await.expect("connect");
        let (mut token, mut all) = (String::new(), Vec::new());
        loop {
            let request = v1::ListObjectsRequest { uri: s3.uri("l"), recursive: true, token, limit: 2 };
            let page = client.list(request).await.expect("a page").into_inner();
            all.push(page.objects.len());
            token = page.token;
            if token.is_empty() {
                return all;
            }
        }
    });
    assert_eq!(pages, [2, 2]);
    server.stop();
}

#[test]
fn raw_data_is_loaded_pinned_shown_and_freed() {
    let s3 = S3Server::start();
    let sizes = [200_000usize, 0, 65_536, 1];
    (0..).zip(sizes).for_each(|(n, size)| drop(put(&s3, &format!("set/{n}"), n, size)));
    let all = nodes(&s3, 2, &[SMALL, ("FOREBAY_OBJECTS__METADATA_AGE", "immutable")]);
    let of_all = |line: &[&str]| Run::new("forebay").args(line).args(["--endpoint", &urls(&all)]);
    let uri = s3.uri("set");
    let ended = of_all(&["load", "--raw", &uri, "--json"]).end();
    let told = |line: &str| line.contains(" blocks held, ") && line.ends_with(" from S3");
    assert!(ended.stderr.lines().any(told), "how far it is: {}", ended.stderr);
    let loaded: Value = serde_json::from_slice(&ended.expect_success()).expect("JSON");
    let total: usize = sizes.iter().sum();
    assert_eq!((&loaded["objects"], &loaded["bytes"]), (&4.into(), &total.into()), "{loaded}");
    assert_eq!((&loaded["blocks"], &loaded["blocks_held"]), (&6.into(), &6.into()), "{loaded}");
    assert_eq!(loaded["s3_bytes"], total, "{loaded}");
    let fetched = asked(&s3.take_log()).2;
    assert_eq!(fetched, total as u64);
    let again = json(of_all(&["load", "--raw", &uri]));
    assert_eq!((&again["blocks_held"], &again["s3_bytes"]), (&6.into(), &0.into()), "{again}");
    let held = |field: &str| {
        let of = |node: &Server| json(cached(node, &["status"]))["raw"][field].as_u64().expect("a number");
        all.iter().map(of).sum::<u64>()
    };
    assert_eq!(held("files"), 6);
    assert!(held("bytes") >= total as u64 && held("guaranteed_bytes") > 0);
    let pinned = json(of_all(&["pin", &uri]));
    assert_eq!(pinned["files"], 6, "{pinned}");
    let freed = json(of_all(&["free", &uri]));
    assert_eq!((&freed["segments"], held("files")), (&6.into(), 0), "{freed}");
}

/// What another node asks of a node: to fill a block, as it says.
struct Fill {
    object: v1::ObjectVersion,
    index: u64,
    /// The block that is named, if that is another one.
    named: Option<u64>,
}

impl Fill {
    fn request(&self) -> v1::FetchRequest {
        let name =
            |object| ObjectVersion::try_from(object).map(|o| o.block_id(self.named.unwrap_or(self.index)));
        let id = name(self.object.clone()).map(|id| id.0.to_bytes().to_vec()).unwrap_or_else(|_| vec![1; 16]);
        v1::FetchRequest {
            segment: id.into(),
            columns: vec!["\u{0}raw".into()],
            block: Some(v1::FillBlock { object: Some(self.object.clone()), index: self.index }),
            ..Default::default()
        }
    }
}

#[test]
fn a_node_fills_for_others_only_blocks_that_there_are() {
    let s3 = S3Server::start();
    put(&s3, "o", 1, 100_000);
    let server = ServerOptions::for_s3(&s3).env(SMALL.0, SMALL.1).start();
    runtime().block_on(async {
        let mut objects = ObjectsClient::connect(server.endpoint.clone()).await.expect("connect");
        let head = v1::HeadObjectRequest { uri: s3.uri("o") };
        let object = objects.head(head).await.expect("the object").into_inner();
        let fill = |change: &dyn Fn(&mut v1::ObjectVersion)| {
            let mut object = object.clone();
            change(&mut object);
            Fill { object, index: 0, named: None }
        };
        let as_told = || fill(&|_| ());
        let cases = [
            ("as it is", as_told(), None),
            ("the last block", Fill { index: 1, ..as_told() }, None),
            ("a URI outside", fill(&|o| o.uri = "s3://elsewhere/o".into()), Some("PermissionDenied")),
            ("blocks of no bytes", fill(&|o| o.block_bytes = 0), Some("InvalidArgument")),
            ("blocks of 3 bytes", fill(&|o| o.block_bytes = 3), Some("InvalidArgument")),
            ("blocks of 2^63 bytes", fill(&|o| o.block_bytes = 1 << 63), Some("InvalidArgument")),
            ("beyond the end", Fill { index: 2, ..as_told() }, Some("InvalidArgument")),
            ("far beyond the end", Fill { index: u64::MAX, ..as_told() }, Some("InvalidArgument")),
            ("another's name", Fill { named: Some(1), ..as_told() }, Some("InvalidArgument")),
            ("more than any object", fill(&|o| o.size = u64::MAX), Some("InvalidArgument")),
            ("an ETag of 10 kB", fill(&|o| o.etag = "e".repeat(10_000)), Some("InvalidArgument")),
            ("5 TiB", fill(&|o| o.size = 5 << 40), Some("FailedPrecondition")),
            ("another version", fill(&|o| o.etag = "another".into()), Some("FailedPrecondition")),
        ];
        let mut peer = PeerClient::connect(server.endpoint.clone()).await.expect("connect");
        for (what, fill, wanted) in cases {
            let failed = match peer.fetch(fill.request()).await {
                Err(status) => Some(status),
                Ok(file) => file.into_inner().try_collect::<Vec<_>>().await.err(),
            };
            let code = failed.map(|status| format!("{:?}", status.code()));
            assert_eq!(code.as_deref(), wanted, "{what}");
        }
        // A count of the blocks that are held reads nothing.
        for (held_only, read) in [(false, 2), (true, 0)] {
            let object = Some(object.clone());
            let request = v1::FillObjectRequest { object, blocks: vec![0, 1], held_only };
            let reports = objects.fill(request).await.expect("fill").into_inner();
            let reports: Vec<_> = reports.try_collect().await.expect("reports");
            let last = reports.last().expect("a report");
            let held = (last.blocks_read, last.blocks_held, last.bytes_held);
            assert_eq!(held, (read, 2, 100_000), "{reports:?}");
            assert_eq!((last.dirs_full, last.evictions), (Some(0), Some(0)), "{reports:?}");
        }
    });
    wait_for_blocks(&server, 2);
    server.stop();
}

#[test]
fn wrong_requests_are_errors_of_one_line() {
    let s3 = S3Server::start();
    put(&s3, "o", 1, 1000);
    let server = ServerOptions::for_s3(&s3).env(SMALL.0, SMALL.1).start();
    let fails = |line: &[&str], says: &str| {
        let why = cached(&server, line).end().expect_failure();
        assert!(why.contains(says) && why.lines().count() == 1, "{line:?}: {why}");
    };
    let uri = s3.uri("o");
    fails(&["get", &s3.uri("none")], "no such object");
    fails(&["get", "s3://elsewhere/o"], "this server may not read it");
    fails(&["get", &format!("{uri}/")], "names no object");
    fails(&["get", &s3.uri("../o")], "'.' and '..' are not allowed");
    fails(&["get", &uri, "-r", "1000-"], "no byte of an object of 1000 bytes");
    fails(&["get", &uri, "-r", "-0"], "no byte");
    fails(&["load", "--raw", &uri, "--columns", "a"], "load --raw takes a URI");
    runtime().block_on(async {
        let mut client = ObjectsClient::connect(server.endpoint.clone()).await.expect("connect");
        let head = v1::HeadObjectRequest { uri: uri.clone() };
        let object = client.head(head).await.expect("the object").into_inner();
        let version = |change: &dyn Fn(&mut v1::ObjectVersion)| {
            let mut object = object.clone();
            change(&mut object);
            Some(object)
        };
        let range = |start, end| v1::ByteRange { start, end };
        let requests = [
            (None, vec![range(0, 1)]),
            (version(&|_| ()), vec![range(5, 5)]),
            (version(&|_| ()), vec![range(0, 1001)]),
            (version(&|_| ()), vec![range(7, 3)]),
            (version(&|_| ()), vec![range(0, u64::MAX)]),
            (version(&|_| ()), vec![range(0, 1); 1025]),
            (version(&|o| o.uri = "s3://elsewhere/o".into()), vec![range(0, 1)]),
            (version(&|o| o.uri = "x".repeat(5000)), vec![range(0, 1)]),
            (version(&|o| o.etag = "other".into()), vec![range(0, 1)]),
            (version(&|o| o.etag.clear()), vec![range(0, 1)]),
            (version(&|o| o.size = 999), vec![range(0, 999)]),
            (version(&|o| o.size = u64::MAX), vec![range(0, 1)]),
            (version(&|o| o.block_bytes = 3), vec![range(0, 1)]),
        ];
        for (number, (object, ranges)) in requests.into_iter().enumerate() {
            let request = v1::ReadObjectRequest { object, ranges };
            let failed = match client.read(request).await {
                Err(_) => true,
                Ok(pieces) => pieces.into_inner().try_collect::<Vec<_>>().await.is_err(),
            };
            assert!(failed, "request {number} was answered");
        }
        // Another size of blocks is not kept beside the node's own.
        let request = v1::ReadObjectRequest {
            object: version(&|o| o.block_bytes = 1 << 20),
            ranges: vec![range(0, 9)],
        };
        let pieces: Vec<_> =
            client.read(request).await.expect("read").into_inner().try_collect().await.expect("read");
        assert_eq!(pieces.iter().map(|piece| piece.data.len()).sum::<usize>(), 9);
        let request =
            v1::FillObjectRequest { object: version(&|_| ()), blocks: vec![1], ..Default::default() };
        assert!(client.fill(request).await.is_err(), "there is no block 1");
    });
    // What was refused left nothing behind.
    wait_for_blocks(&server, 1);
    server.stop();
}
