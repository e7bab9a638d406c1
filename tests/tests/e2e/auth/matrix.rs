//! Two tenants, every call of every service, data of one's own, of another's, above and beside: nothing of
//! another's is told.
//!
//! The calls are those of the descriptors: one that is not known here fails the test.

use super::Guarded;
use forebay_proto::v1;
use forebay_tests::harness::etcd::Etcd;
use forebay_tests::harness::mnist;
use forebay_tests::harness::policy::ALL;
use forebay_tests::harness::question::{Answer, DENIED, NOT_FOUND, UNKNOWN, flight_ticket};
use forebay_tests::harness::s3_client::S3Ask;
use prost::Message as _;
use prost_types::FileDescriptorSet;

/// In the names of all that is not vision's.
const MARK: &str = "zebra7";

/// The services of Flight, for which there is no descriptor: `calls.rs` of the server holds them all.
const FLIGHT: [&str; 10] = [
    "Handshake",
    "ListFlights",
    "GetFlightInfo",
    "PollFlightInfo",
    "GetSchema",
    "DoGet",
    "DoPut",
    "DoExchange",
    "DoAction",
    "ListActions",
];

fn paths() -> Vec<String> {
    let set = FileDescriptorSet::decode(v1::DESCRIPTORS).expect("descriptors");
    let mut all = Vec::new();
    for file in &set.file {
        for service in &file.service {
            let path = |method: &str| format!("/{}.{}/{method}", file.package(), service.name());
            all.extend(service.method.iter().map(|method| path(method.name())));
        }
    }
    assert!(all.len() > 20);
    all.extend(FLIGHT.map(|method| format!("/arrow.flight.protocol.FlightService/{method}")));
    all
}

/// What a call does to a URI.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    /// It reads or changes what lies there.
    Uses,
    /// It needs no URI, and tells of what its caller may see.
    Tells,
    /// Readers and loaders may not make it at all.
    Never,
    /// It is not served.
    Unserved,
}

/// A request of a call about a URI.
fn message(path: &str, uri: &str, manifest: &[u8], snapshot: &str) -> (Kind, Vec<u8>) {
    let dataset = || Some(v1::DatasetSpec { uri: uri.into(), ..Default::default() });
    let object = || {
        let uri = format!("{uri}/part-00000.parquet");
        Some(v1::ObjectVersion { uri, etag: "e".into(), size: 9, block_bytes: 4 << 20, ..Default::default() })
    };
    let uses = |message: Vec<u8>| (Kind::Uses, message);
    let name = path.rsplit_once("forebay.v1.").map_or(path, |(_, name)| name);
    match name {
        "Cache/Open" | "Cache/OpenParts" => {
            uses(v1::OpenRequest { dataset: dataset(), ..Default::default() }.encode_to_vec())
        }
        "Cache/Load" => uses(v1::LoadRequest { dataset: dataset(), ..Default::default() }.encode_to_vec()),
        "Cache/Pin" | "Cache/Unpin" => uses(v1::PinRequest { uri: uri.into() }.encode_to_vec()),
        "Cache/Status" | "Cache/WatchTopology" | "Cache/SameHost" => (Kind::Tells, Vec::new()),
        "Cache/Free" => {
            (Kind::Never, v1::FreeRequest { uri: uri.into(), ..Default::default() }.encode_to_vec())
        }
        "Cache/Drain" => (Kind::Never, Vec::new()),
        "Cache/SetReplicas" => {
            (Kind::Never, v1::SetReplicasRequest { uri: uri.into(), replicas: 1 }.encode_to_vec())
        }
        "Objects/Head" => {
            let uri = format!("{uri}/part-00000.parquet");
            uses(v1::HeadObjectRequest { uri }.encode_to_vec())
        }
        "Objects/Read" => {
            let ranges = vec![v1::ByteRange { start: 0, end: 4 }];
            uses(v1::ReadObjectRequest { object: object(), ranges }.encode_to_vec())
        }
        "Objects/Fill" => uses(v1::FillObjectRequest { object: object(), blocks: vec![0] }.encode_to_vec()),
        "Objects/List" => uses(
            v1::ListObjectsRequest { uri: uri.into(), recursive: true, ..Default::default() }.encode_to_vec(),
        ),
        "Snapshots/Save" => {
            let name = format!("by-vision-{}", uri.len());
            uses(v1::Snapshot { name, dataset: dataset(), ..Default::default() }.encode_to_vec())
        }
        "Snapshots/SaveParts" => {
            let head = v1::Snapshot { name: format!("parts-{}", uri.len()), ..Default::default() };
            let part = v1::OpenRequest { dataset: dataset(), ..Default::default() };
            uses(v1::SnapshotPart { snapshot: Some(head), part: Some(part) }.encode_to_vec())
        }
        "Snapshots/Get" | "Snapshots/Remove" => {
            (Kind::Tells, v1::SnapshotRequest { name: snapshot.into() }.encode_to_vec())
        }
        "Snapshots/List" => (Kind::Tells, Vec::new()),
        "Peer/Holds" => (
            Kind::Never,
            v1::HoldsRequest { segments: vec![vec![7; 16].into()], ..Default::default() }.encode_to_vec(),
        ),
        "Peer/Fetch" => {
            let fill =
                v1::FillFrom { manifest: manifest.to_vec().into(), uri: uri.into(), ..Default::default() };
            let segment = vec![7; 16].into();
            (
                Kind::Never,
                v1::FetchRequest { segment, fill: Some(fill), ..Default::default() }.encode_to_vec(),
            )
        }
        "Peer/Copy" => (
            Kind::Never,
            v1::CopyRequest { from: "http://127.0.0.1:1".into(), ..Default::default() }.encode_to_vec(),
        ),
        "Peer/Version" => (Kind::Never, v1::HeadObjectRequest { uri: uri.into() }.encode_to_vec()),
        "Peer/Learn" | "Peer/Load" => (Kind::Never, Vec::new()),
        flight => flight_message(flight, uri, manifest),
    }
}

/// The same of Flight.
fn flight_message(path: &str, uri: &str, manifest: &[u8]) -> (Kind, Vec<u8>) {
    match path.rsplit('/').next().unwrap_or_default() {
        "GetFlightInfo" | "GetSchema" => {
            // FlightDescriptor { type: PATH, path: [uri] }
            let mut bytes = vec![0x08, 1, 0x1a, uri.len() as u8];
            bytes.extend(uri.as_bytes());
            (Kind::Uses, bytes)
        }
        "DoGet" => {
            let scan = v1::ScanTicket { manifest: manifest.to_vec().into(), ..Default::default() };
            let kind = Some(v1::ticket::Kind::Scan(scan));
            (Kind::Tells, flight_ticket(&v1::Ticket { kind, uri: uri.into(), ..Default::default() }))
        }
        other if FLIGHT.contains(&other) => (Kind::Unserved, Vec::new()),
        other => panic!("{other} of {path}: say here how it is asked, and in calls.rs who may"),
    }
}

/// A node where audio has opened, loaded, pinned and saved, and root has set replicas.
fn used(etcd: &Etcd) -> (Guarded, Vec<u8>) {
    let world =
        Guarded::start(&ALL, |options| options.args(etcd.arguments()).allow_log("etcd does not answer"));
    // Else both tenants' versions would be the same.
    let more = std::fs::read(mnist::folder().join("train/part-00000.parquet")).expect("read MNIST");
    world.s3.put("tenants/audio/zebra7/part-00009.parquet", more);
    let uri = world.s3.uri("tenants/audio/zebra7");
    let manifest = |who: &str, uri: &str| {
        let request = message("/forebay.v1.Cache/Open", uri, &[], "").1;
        let answer = world.ask(Some(who), "/forebay.v1.Cache/Open", &request);
        assert_eq!(answer.code, 0, "{}", answer.message);
        let manifest = answer.first::<v1::OpenReply>().expect("a message").manifest.expect("a manifest");
        manifest.digest.to_vec()
    };
    let digest = manifest("audio", &uri);
    manifest("vision", &world.s3.uri("tenants/vision/set"));
    let does = |who: &str, path: &str, message: Vec<u8>| {
        let answer = world.ask(Some(who), path, &message);
        assert_eq!(answer.code, 0, "{path}: {}", answer.message);
    };
    for path in ["Load", "Pin"].map(|method| format!("/forebay.v1.Cache/{method}")) {
        does("audio", &path, message(&path, &uri, &[], "").1);
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
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
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
        let ask = |who, uri: &str| {
            let (kind, message) = message(&path, uri, &digest, "zebra7-july");
            (kind, world.ask(who, &path, &message))
        };
        let (kind, stranger) = ask(None, &own);
        assert_eq!(stranger.code, UNKNOWN, "{path} of a stranger: {}", stranger.message);
        assert!(!leaks(&stranger, "", &digest), "{path} tells a stranger");
        for key in foreign {
            let asked = uri(key);
            let (kind, answer) = ask(Some("vision"), &asked);
            let expected = match kind {
                Kind::Uses | Kind::Never => answer.code == DENIED,
                // A name of another's is as one that there is not.
                Kind::Tells => [0, NOT_FOUND].contains(&answer.code),
                Kind::Unserved => answer.code == 12,
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
        let (_, answer) = ask(Some("vision"), &own);
        match kind {
            Kind::Never => assert_eq!(answer.code, DENIED, "{path}"),
            Kind::Unserved => assert_eq!(answer.code, 12, "{path}"),
            _ => {
                assert!(![DENIED, UNKNOWN].contains(&answer.code), "{path} of one's own: {}", answer.message);
                served += 1;
            }
        }
    }
    assert!(calls > 200 && served > 15, "{calls} calls, {served} served");
    s3_tells_nothing(&world);
    each_sees_its_own(&world, &own);
}

/// Those who may see all of it do.
fn each_sees_its_own(world: &Guarded, own: &str) {
    let answer = world.ask(Some("root"), "/forebay.v1.Cache/Status", &[]);
    let status: v1::StatusReply = answer.first().expect("a message");
    assert!(status.datasets.len() >= 2 && status.pins.len() == 1 && status.counters.is_some());
    let status: v1::StatusReply =
        world.ask(Some("vision"), "/forebay.v1.Cache/Status", &[]).first().expect("a message");
    assert!(status.datasets.iter().all(|dataset| dataset.uri == own) && !status.datasets.is_empty());
    assert_eq!((status.counters, status.pins.len(), status.cache_bytes_used), (None, 0, 0));
    let snapshots: v1::ListSnapshotsReply =
        world.ask(Some("audio"), "/forebay.v1.Snapshots/List", &[]).first().expect("a message");
    assert!(
        snapshots.snapshots.iter().any(|snapshot| snapshot.name == "zebra7-july"),
        "and it is there still"
    );
    let topology: v1::Topology =
        world.ask(Some("audio"), "/forebay.v1.Cache/WatchTopology", &[]).first().expect("a message");
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
