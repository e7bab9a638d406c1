//! A tenant after the data of another one: cases 22 to 24.

use super::arena::{Arena, OTHERS, OWN};
use super::opened::{done, opened};
use super::trials::Trials;
use crate::harness::check::Check;
use crate::harness::question::{Answer, DENIED, NOT_FOUND, flight_ticket};
use crate::harness::table::{MIB_ROWS, Table};
use forebay_proto::hex;
use forebay_proto::manifest::Digest;
use forebay_proto::plan::{PlanKey, Shuffle};
use forebay_proto::v1;
use prost::Message as _;

const OPEN: &str = "/forebay.v1.Cache/Open";
const LOAD: &str = "/forebay.v1.Cache/Load";
const STATUS: &str = "/forebay.v1.Cache/Status";
const WATCH: &str = "/forebay.v1.Cache/WatchTopology";
const DO_GET: &str = "/arrow.flight.protocol.FlightService/DoGet";

/// INVALID_ARGUMENT of gRPC.
const INVALID: u32 = 3;

/// The very bytes that the other tenant has, so that the version is the same and its place decides.
const COPY: &str = "tenants/vision/copy";

/// What the other tenant alone has.
const SECOND: &str = "tenants/audio/zebra7-more";

/// A digest that no manifest has.
const NOBODYS: [u8; 16] = [9; 16];

/// In the names of all that is the other tenant's.
const MARK: &str = "zebra7";

/// Tickets of each kind for a version at a place; without one for the only place that there is.
fn tickets(digest: &[u8], uri: &str) -> anyhow::Result<Vec<(&'static str, Vec<u8>)>> {
    use v1::ticket::Kind;
    let manifest = || digest.to_vec().into();
    let key =
        PlanKey { manifest: Digest::from_bytes(digest)?, seed: 0, epoch: 0, shuffle: Shuffle::Window(2) };
    let plan = v1::PlanTicket {
        plan: Some(key.into()),
        global_batch: 64,
        world: 1,
        ending: v1::plan_ticket::Ending::Exact.into(),
        ..Default::default()
    };
    let scan = v1::ScanTicket { manifest: manifest(), limit: 3, ..Default::default() };
    let rows = v1::RowsTicket { manifest: manifest(), segment: vec![0], row: vec![0], ..Default::default() };
    let ticket =
        |kind| flight_ticket(&v1::Ticket { kind: Some(kind), uri: uri.into(), ..Default::default() });
    Ok(vec![
        ("plan", ticket(Kind::Plan(plan))),
        ("scan", ticket(Kind::Scan(scan))),
        ("rows", ticket(Kind::Rows(rows))),
    ])
}

/// 22: a digest of another's manifest, stolen from a log.
pub fn stolen_digest(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    Table::upload(arena.store, COPY, 1, MIB_ROWS)?;
    Table::upload(arena.store, SECOND, 2, MIB_ROWS)?;
    let [own, copy, other, second] = [OWN, COPY, OTHERS, SECOND].map(|key| arena.store.uri(key));
    let digest = |who: &str, uris: &[&str]| Ok::<_, anyhow::Error>(opened(arena, who, uris)?.digest.to_vec());
    let (theirs, mixed) = (digest("audio", &[&second])?, digest("root", &[&own, &second])?);
    let (shared, mine) = (digest("audio", &[&other])?, digest("vision", &[&copy])?);
    anyhow::ensure!(shared == mine, "the same objects are the same version");
    let mut refused = Trials::of("a stolen digest is NOT_FOUND, in the words for one that nobody has");
    for (digest, places) in [
        (&theirs, &[second.as_str(), own.as_str(), ""][..]),
        (&mixed, &[second.as_str(), own.as_str(), ""]),
        (&shared, &[other.as_str(), own.as_str()]),
    ] {
        for place in places {
            note_refusals(arena, digest, place, &mut refused)?;
        }
    }
    let load = |digest: &[u8]| {
        let dataset = Some(v1::DatasetSpec { uri: own.clone(), ..Default::default() });
        v1::LoadRequest { dataset, digest: digest.to_vec().into(), ..Default::default() }.encode_to_vec()
    };
    let unknown = arena.ask(Some("vision"), LOAD, &load(&NOBODYS))?;
    let stolen = arena.ask(Some("vision"), LOAD, &load(&theirs))?;
    refused.note(is_as_unknown(&stolen, &theirs, &unknown), || format!("load: {stolen:?}, {unknown:?}"));
    let mut read = Trials::of("those who may read it do");
    for (who, digest, place) in [
        ("audio", &theirs, second.as_str()),
        ("audio", &shared, &other),
        ("vision", &shared, &copy),
        ("vision", &shared, ""),
        ("root", &mixed, ""),
    ] {
        for (kind, ticket) in tickets(digest, place)? {
            let answer = arena.ask(Some(who), DO_GET, &ticket)?;
            let is_read = answer.code == 0 && !answer.body.is_empty();
            read.note(is_read, || format!("{kind} of {who} at {place}: {} {}", answer.code, answer.message));
        }
    }
    Ok(vec![refused.check(), read.check()])
}

/// Tries tickets of all kinds for a stolen digest.
fn note_refusals(arena: &Arena<'_>, digest: &[u8], place: &str, refused: &mut Trials) -> anyhow::Result<()> {
    for ((kind, stolen), (_, unknown)) in tickets(digest, place)?.into_iter().zip(tickets(&NOBODYS, place)?) {
        let unknown = arena.ask(Some("vision"), DO_GET, &unknown)?;
        let stolen = arena.ask(Some("vision"), DO_GET, &stolen)?;
        refused.note(is_as_unknown(&stolen, digest, &unknown), || {
            format!("{kind} at {place}: {} {}", stolen.code, stolen.message)
        });
    }
    Ok(())
}

/// Whether an answer about a digest is the one about a digest that nobody has.
fn is_as_unknown(stolen: &Answer, digest: &[u8], unknown: &Answer) -> bool {
    let expected = unknown.message.replace(&hex::encode(&NOBODYS), &hex::encode(digest));
    (stolen.code, unknown.code) == (NOT_FOUND, NOT_FOUND)
        && stolen.message == expected
        && stolen.body.is_empty()
}

/// 23: datasets that are another's in part, spelled in all ways.
pub fn foreign_parts(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let [own, other] = [OWN, OTHERS].map(|key| arena.store.uri(key));
    let uri = |key: &str| arena.store.uri(key).trim_end_matches('/').to_owned();
    let part = format!("{other}/part-00000.parquet");
    let spec = |uri: &str| v1::DatasetSpec { uri: uri.into(), ..Default::default() };
    let mix = |uris: &[&str]| v1::DatasetSpec {
        mix: uris
            .iter()
            .map(|uri| v1::MixPart { uri: (*uri).into(), share: 1.0, ..Default::default() })
            .collect(),
        ..Default::default()
    };
    let rows = v1::split::By::Rows(v1::split::Rows { from: 0, to: 9 });
    let split = Some(v1::Split { by: Some(rows) });
    let object = |key: &str| v1::Object { key: key.into(), ..Default::default() };
    let mut split_mix = mix(&[&own, &other]);
    split_mix.mix[1].split = split;
    let mut denied = vec![
        ("a mix with another's", mix(&[&own, &other])),
        ("another's first", mix(&[&other, &own])),
        ("another's alone", mix(&[&other])),
        ("a mix with a split of another's", split_mix),
        ("a split of another's", v1::DatasetSpec { split, ..spec(&other) }),
        ("another's schema", v1::DatasetSpec { schema_of: part.clone(), ..spec(&own) }),
        ("another's object in a list", v1::DatasetSpec { objects: vec![object(&part)], ..spec(&own) }),
        ("a pattern", spec(&uri("tenants/*"))),
    ];
    for key in
        ["tenants/visionX", "tenants/visionX/zebra7", "tenants/vision*", "tenants/audio", "tenants", ""]
    {
        denied.push(("beside and above", spec(&uri(key))));
    }
    for uri in ["file:///proc/self/environ", "s3://other-bucket/x", "gs://x/y"] {
        denied.push(("another object store", spec(uri)));
    }
    let invalid = ["/../../audio", "/./x", "//x"].map(|end| ("dots", spec(&format!("{own}{end}"))));
    let good = [
        ("its own", spec(&own)),
        ("a split", v1::DatasetSpec { split, ..spec(&own) }),
        ("a mix", mix(&[&own, &own])),
        ("a list", v1::DatasetSpec { objects: vec![object("part-00000.parquet")], ..spec(&own) }),
    ];
    let mut checks = Vec::new();
    for (claim, specs, code) in [
        ("data that are another's in any part are PERMISSION_DENIED", denied, DENIED),
        ("paths with dots and empty parts are INVALID_ARGUMENT", invalid.to_vec(), INVALID),
        ("a tenant opens its own, whole and in parts", good.to_vec(), 0),
    ] {
        let mut trials = Trials::of(claim);
        for (name, spec) in specs {
            let request = v1::OpenRequest { dataset: Some(spec.clone()), ..Default::default() };
            let answer = arena.ask(Some("vision"), OPEN, &request.encode_to_vec())?;
            let is_as_said = answer.code == code && answer.body.is_empty() == (code != 0);
            trials.note(is_as_said, || format!("{name} {}: {} {}", spec.uri, answer.code, answer.message));
        }
        checks.push(trials.check());
    }
    Ok(checks)
}

/// 24: what a node tells of itself.
pub fn status_of_others(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    // Not what both tenants have: the digest is another's alone.
    Table::upload(arena.store, SECOND, 2, MIB_ROWS)?;
    let [own, other] = [OWN, SECOND].map(|key| arena.store.uri(key));
    let digest = opened(arena, "audio", &[&other])?.digest.to_vec();
    opened(arena, "vision", &[&own])?;
    let dataset = Some(v1::DatasetSpec { uri: other.clone(), ..Default::default() });
    done(arena, "audio", LOAD, &v1::LoadRequest { dataset, ..Default::default() }.encode_to_vec())?;
    let pin = v1::PinRequest { uri: other.clone() }.encode_to_vec();
    done(arena, "audio", "/forebay.v1.Cache/Pin", &pin)?;
    let asked = told_to(arena, &digest);
    // The node is as it was before, whatever it said.
    done(arena, "audio", "/forebay.v1.Cache/Unpin", &pin)?;
    asked
}

fn told_to(arena: &Arena<'_>, digest: &[u8]) -> anyhow::Result<Vec<Check>> {
    let own = arena.store.uri("tenants/vision/");
    let mut silent = Trials::of("a tenant is told no URI, digest or pin of another's");
    for who in ["vision", "guest"] {
        for path in [STATUS, WATCH] {
            let answer = arena.ask(Some(who), path, &[])?;
            let words = [MARK.as_bytes(), b"tenants/audio", digest];
            let leaks = words.iter().any(|word| answer.has(word, ""))
                || answer.has(hex::encode(digest).as_bytes(), "");
            let is_silent = answer.code == 0 && !answer.body.is_empty() && !leaks;
            silent.note(is_silent, || format!("{path} of {who}: {} {}", answer.code, answer.message));
        }
    }
    let status = |who: &str| arena.ask(Some(who), STATUS, &[])?.first::<v1::StatusReply>();
    let (vision, root, audio) = (status("vision")?, status("root")?, status("audio")?);
    let topology = arena.ask(Some("vision"), WATCH, &[])?.first::<v1::Topology>()?;
    let has_it = |status: &v1::StatusReply| {
        status.datasets.iter().any(|dataset| dataset.digest == digest) && status.pins.len() == 1
    };
    // Of a mix, whose name has those of its parts, each of them.
    let is_own = |uri: &str| {
        let mut names = uri.match_indices("s3://").map(|(at, _)| &uri[at..]).peekable();
        names.peek().is_some() && names.all(|name| name.starts_with(&own))
    };
    let listed: Vec<&str> = vision.datasets.iter().map(|dataset| dataset.uri.as_str()).collect();
    Ok(vec![
        silent.check(),
        Check::of(
            "a tenant's status lists its own datasets alone",
            format!("{}; {} pins", listed.join(", "), vision.pins.len()),
            !listed.is_empty() && listed.iter().all(|uri| is_own(uri)) && vision.pins.is_empty(),
        ),
        Check::of(
            "nor does it tell the figures of the node",
            format!("{} bytes used", vision.cache_bytes_used),
            vision.counters.is_none() && vision.cache_bytes_used == 0,
        ),
        Check::of(
            "its topology has no rule and no hot segment of another's",
            format!("{} rules, {} hot", topology.datasets.len(), topology.hot.len()),
            topology.datasets.iter().all(|rule| is_own(&rule.uri)) && topology.hot.is_empty(),
        ),
        Check::of(
            "the other tenant and the operator see the dataset and its pin",
            format!("{} datasets, {} pins", root.datasets.len(), root.pins.len()),
            has_it(&root) && has_it(&audio) && root.counters.is_some(),
        ),
    ])
}
