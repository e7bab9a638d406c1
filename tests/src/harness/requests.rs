//! Every method of a node, and a request of each about a URI.
//!
//! The methods are those of the descriptors: one that is not known here fails the test that asks for it.

use super::question::flight_ticket;
use forebay_proto::v1;
use prost::Message as _;
use prost_types::FileDescriptorSet;

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

/// The paths of all methods of Forebay's services and of Flight.
///
/// # Panics
/// If the descriptors cannot be read.
pub fn paths() -> Vec<String> {
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UriUse {
    /// It reads or changes what lies there.
    Uses,
    /// It needs no URI, and tells of what its caller may see.
    Tells,
    /// Readers and loaders may not make it at all.
    Never,
    /// It is not served.
    Unserved,
}

/// A request of a method about a URI, a digest of a manifest, and the name of a snapshot.
///
/// # Panics
/// If the method is not known here.
pub fn request_about(path: &str, uri: &str, manifest: &[u8], snapshot: &str) -> (UriUse, Vec<u8>) {
    let dataset = || Some(v1::DatasetSpec { uri: uri.into(), ..Default::default() });
    let object = || {
        let uri = format!("{uri}/part-00000.parquet");
        Some(v1::ObjectVersion { uri, etag: "e".into(), size: 9, block_bytes: 4 << 20, ..Default::default() })
    };
    let uses = |message: Vec<u8>| (UriUse::Uses, message);
    let name = path.rsplit_once("forebay.v1.").map_or(path, |(_, name)| name);
    match name {
        "Cache/Open" | "Cache/OpenParts" => {
            uses(v1::OpenRequest { dataset: dataset(), ..Default::default() }.encode_to_vec())
        }
        "Cache/Load" => uses(v1::LoadRequest { dataset: dataset(), ..Default::default() }.encode_to_vec()),
        "Cache/Pin" | "Cache/Unpin" => uses(v1::PinRequest { uri: uri.into() }.encode_to_vec()),
        "Cache/Status" | "Cache/WatchTopology" | "Cache/SameHost" => (UriUse::Tells, Vec::new()),
        "Cache/Free" => {
            (UriUse::Never, v1::FreeRequest { uri: uri.into(), ..Default::default() }.encode_to_vec())
        }
        "Cache/Drain" => (UriUse::Never, Vec::new()),
        "Cache/SetReplicas" => {
            (UriUse::Never, v1::SetReplicasRequest { uri: uri.into(), replicas: 1 }.encode_to_vec())
        }
        "Objects/Head" => {
            let uri = format!("{uri}/part-00000.parquet");
            uses(v1::HeadObjectRequest { uri }.encode_to_vec())
        }
        "Objects/Read" => {
            let ranges = vec![v1::ByteRange { start: 0, end: 4 }];
            uses(v1::ReadObjectRequest { object: object(), ranges }.encode_to_vec())
        }
        "Objects/Fill" => uses(
            v1::FillObjectRequest { object: object(), blocks: vec![0], ..Default::default() }.encode_to_vec(),
        ),
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
            (UriUse::Tells, v1::SnapshotRequest { name: snapshot.into() }.encode_to_vec())
        }
        "Snapshots/List" => (UriUse::Tells, Vec::new()),
        _ if name.starts_with("Peer/") => peer_message(name, uri, manifest),
        flight => flight_message(flight, uri, manifest),
    }
}

/// The same of nodes among themselves.
fn peer_message(name: &str, uri: &str, manifest: &[u8]) -> (UriUse, Vec<u8>) {
    match name {
        "Peer/Holds" => (
            UriUse::Never,
            v1::HoldsRequest { segments: vec![vec![7; 16].into()], ..Default::default() }.encode_to_vec(),
        ),
        "Peer/Fetch" => {
            let fill =
                v1::FillFrom { manifest: manifest.to_vec().into(), uri: uri.into(), ..Default::default() };
            let segment = vec![7; 16].into();
            (
                UriUse::Never,
                v1::FetchRequest { segment, fill: Some(fill), ..Default::default() }.encode_to_vec(),
            )
        }
        "Peer/Copy" => (
            UriUse::Never,
            v1::CopyRequest { from: "http://127.0.0.1:1".into(), ..Default::default() }.encode_to_vec(),
        ),
        "Peer/Version" => {
            let request = v1::VersionRequest { uri: uri.into(), ..Default::default() };
            (UriUse::Never, request.encode_to_vec())
        }
        // Learn, Load.
        _ => (UriUse::Never, Vec::new()),
    }
}

/// The same of Flight.
fn flight_message(path: &str, uri: &str, manifest: &[u8]) -> (UriUse, Vec<u8>) {
    match path.rsplit('/').next().unwrap_or_default() {
        "GetFlightInfo" | "GetSchema" => {
            // FlightDescriptor { type: PATH, path: [uri] }
            let mut bytes = vec![0x08, 1, 0x1a, uri.len() as u8];
            bytes.extend(uri.as_bytes());
            (UriUse::Uses, bytes)
        }
        "DoGet" => {
            let scan = v1::ScanTicket { manifest: manifest.to_vec().into(), ..Default::default() };
            let kind = Some(v1::ticket::Kind::Scan(scan));
            (UriUse::Tells, flight_ticket(&v1::Ticket { kind, uri: uri.into(), ..Default::default() }))
        }
        other if FLIGHT.contains(&other) => (UriUse::Unserved, Vec::new()),
        other => panic!("{other} of {path}: say here how it is asked, and in calls.rs who may"),
    }
}
