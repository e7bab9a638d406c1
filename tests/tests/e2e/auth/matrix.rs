//! Two tenants, every call of every service, data of one's own, of another's, above and beside: nothing of
//! another's is told.
//!
//! The calls are those of the descriptors, and of Flight.

use super::Guarded;
use forebay_proto::{hex, v1};
use forebay_tests::harness::etcd::Etcd;
use forebay_tests::harness::mnist;
use forebay_tests::harness::policy::ALL;
use forebay_tests::harness::question::{Answer, DENIED, NOT_FOUND, UNKNOWN};
use forebay_tests::harness::requests::{UriUse, paths, request_about};
use forebay_tests::harness::s3_client::S3Ask;
use prost::Message as _;

/// In the names of all that is not vision's.
const MARK: &str = "zebra7";

/// A node where audio has opened, loaded, pinned and saved, and root has set replicas.
fn used(etcd: &Etcd) -> (Guarded, Vec<u8>) {
    let world = Guarded::start(&ALL, |options| {
        let options = options.args(etcd.arguments()).allow_log("etcd does not answer");
        // It is alone, and knows no other.
        options.allow_log("no --peer-token-file")
    });
    // Else both tenants' versions would be the same.
    let more = std::fs::read(mnist::folder().join("train/part-00000.parquet")).expect("read MNIST");
    world.s3.put("tenants/audio/zebra7/part-00009.parquet", more);
    let uri = world.s3.uri("tenants/audio/zebra7");
    let manifest = |who: &str, uri: &str| {
        let request = request_about("/forebay.v1.Cache/Open", uri, &[], "").1;
        let answer = world.ask(who, "/forebay.v1.Cache/Open", &request);
        assert_eq!(answer.code, 0, "{}", answer.message);
        let manifest = answer.first::<v1::OpenReply>().expect("a message").manifest.expect("a manifest");
        manifest.digest.to_vec()
    };
    let digest = manifest("audio", &uri);
    manifest("vision", &world.s3.uri("tenants/vision/set"));
    let does = |who: &str, path: &str, message: Vec<u8>| {
        let answer = world.ask(who, path, &message);
        assert_eq!(answer.code, 0, "{path}: {}", answer.message);
    };
    for path in ["Load", "Pin"].map(|method| format!("/forebay.v1.Cache/{method}")) {
        does("audio", &path, request_about(&path, &uri, &[], "").1);
    }
    let dataset = Some(v1::DatasetSpec { uri: uri.clone(), ..Default::default() });
    let snapshot = v1::Snapshot { name: "zebra7-july".into(), dataset, ..Default::default() };
    does("audio", "/forebay.v1.Snapshots/Save", snapshot.encode_to_vec());
    does(
        "root",
        "/forebay.v1.Cache/SetReplicas",
        v1::SetReplicasRequest { uri, replicas: 2 }.encode_to_vec(),
    );
    (world, digest)
}

/// Whether an answer tells of another's data.
fn leaks(answer: &Answer, asked: &str, digest: &[u8]) -> bool {
    let hex = hex::encode(digest);
    answer.has(MARK.as_bytes(), asked) || answer.has(digest, "") || answer.has(hex.as_bytes(), &hex)
}

#[test]
fn no_call_tells_a_tenant_of_anothers_data() {
    let etcd = Etcd::start(1);
    let (world, digest) = used(&etcd);
    let uri = |key: &str| world.s3.uri(key).trim_end_matches('/').to_owned();
    let foreign = [
        "tenants/audio/zebra7",
        "tenants/audio",
        "tenants/visionX/zebra7",
        "tenants/visionX",
        "tenants",
        "",
        "tenants/*",
    ];
    let own = uri("tenants/vision/set");
    let (mut calls, mut served) = (0, 0);
    for path in paths() {
        let ask = |uri: &str| {
            let (kind, message) = request_about(&path, uri, &digest, "zebra7-july");
            (kind, world.ask("vision", &path, &message))
        };
        for key in foreign {
            let asked = uri(key);
            let (kind, answer) = ask(&asked);
            let expected = match kind {
                UriUse::Uses | UriUse::Never => answer.code == DENIED,
                // A name of another's is as one that there is not.
                UriUse::Tells => [0, NOT_FOUND].contains(&answer.code),
                UriUse::Unserved => answer.code == 12,
            };
            assert!(expected, "{path} of {asked}: {} {}", answer.code, answer.message);
            let asked =
                if ["Get", "Remove"].iter().any(|method| path.ends_with(&format!("Snapshots/{method}"))) {
                    "zebra7-july"
                } else {
                    &asked
                };
            assert!(!leaks(&answer, asked, &digest), "{path} of {asked} tells vision: {answer:?}");
            calls += 1;
        }
        let (kind, answer) = ask(&own);
        match kind {
            UriUse::Never => assert_eq!(answer.code, DENIED, "{path}"),
            UriUse::Unserved => assert_eq!(answer.code, 12, "{path}"),
            _ => {
                assert!(![DENIED, UNKNOWN].contains(&answer.code), "{path} of one's own: {}", answer.message);
                served += 1;
            }
        }
    }
    assert!(calls > 200 && served > 15, "{calls} calls, {served} served");
    s3_tells_nothing(&world);
    let snapshots: v1::ListSnapshotsReply =
        world.ask("audio", "/forebay.v1.Snapshots/List", &[]).first().expect("a message");
    assert!(
        snapshots.snapshots.iter().any(|snapshot| snapshot.name == "zebra7-july"),
        "and it is there still"
    );
    let topology: v1::Topology =
        world.ask("audio", "/forebay.v1.Cache/WatchTopology", &[]).first().expect("a message");
    assert_eq!(topology.datasets.len(), 1, "its own rule");
}

/// The same by S3.
fn s3_tells_nothing(world: &Guarded) {
    let (client, bucket) = (world.s3_client("VISION"), &world.s3.bucket);
    let get = |method, target: &str| {
        let answer = world.runtime.block_on(client.send(&S3Ask::new(method, target))).expect("an answer");
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        (answer.status, text)
    };
    for (target, status) in [
        ("/".to_owned(), 200),
        (format!("/{bucket}?list-type=2&prefix=tenants/vision/"), 200),
        (format!("/{bucket}?location"), 200),
        (format!("/{bucket}/tenants/vision/set/part-00000.parquet"), 200),
    ] {
        let (got, text) = get("GET", &target);
        assert!(got == status && !text.contains(MARK), "{target}: {got} {text}");
    }
    for prefix in
        ["", "tenants", "tenants/", "tenants/vision", "tenants/visionX", "tenants/visionX/", "tenants/audio/"]
    {
        for version in ["?list-type=2&", "?"] {
            let (status, text) = get("GET", &format!("/{bucket}{version}prefix={prefix}"));
            assert!(status == 403 && !text.contains(MARK), "LIST {prefix}: {status} {text}");
        }
    }
    let object = "part-00000.parquet";
    for key in ["tenants/audio/zebra7", "tenants/visionX/zebra7", "tenants", "tenants/visionX"] {
        for method in ["GET", "HEAD"] {
            assert_eq!(get(method, &format!("/{bucket}/{key}/{object}")).0, 403, "{method} {key}");
        }
        assert_eq!(get("GET", &format!("/{bucket}/{key}/{object}?attributes")).0, 403, "{key}");
    }
    for key_id in ["NOBODY", "OTHER"] {
        let stranger = world.s3_client(key_id);
        for target in ["/".to_owned(), format!("/{bucket}"), format!("/{bucket}/tenants/vision/set/{object}")]
        {
            let answer =
                world.runtime.block_on(stranger.send(&S3Ask::new("GET", target))).expect("an answer");
            assert_eq!(answer.status, 403, "a key that the policy does not know");
        }
    }
    let answer =
        world.runtime.block_on(client.send(&S3Ask::new("HEAD", format!("/{bucket}")))).expect("an answer");
    assert_eq!(answer.status, 200);
}
