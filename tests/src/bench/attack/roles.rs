//! Callers who are known, and make calls that are for others: cases 25 and 26.

use super::arena::{Arena, OTHERS, OWN};
use super::opened::{done, opened};
use super::trials::Trials;
use crate::harness::check::Check;
use crate::harness::question::{DENIED, UNKNOWN};
use crate::harness::requests::request_about;
use forebay_proto::{Manifest, v1};
use prost::Message as _;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// INVALID_ARGUMENT of gRPC.
const INVALID: u32 = 3;

/// How long a line of the audit log may take until it is in the file.
const WRITTEN: Duration = Duration::from_secs(10);

/// When lines that are too many would be there.
const SETTLED: Duration = Duration::from_millis(300);

/// A call of somebody, and what must become of it.
struct AuditedCall {
    who: Option<&'static str>,
    method: &'static str,
    /// The key of the data that it names.
    key: &'static str,
    code: u32,
    outcome: &'static str,
    /// Whether the audit log names the data: it is refused for them, not for the role.
    names_data: bool,
}

impl AuditedCall {
    fn path(&self) -> String {
        format!("/forebay.v1.{}", self.method)
    }
}

/// What readers, loaders, scrapers and nobody may not do, and what an operator may.
fn audited_calls() -> Vec<AuditedCall> {
    let denied = |who, method, key, names_data| AuditedCall {
        who: Some(who),
        method,
        key,
        code: DENIED,
        outcome: "denied",
        names_data,
    };
    let mut calls = Vec::new();
    for method in ["Cache/Drain", "Cache/Free", "Cache/SetReplicas"] {
        let stranger = AuditedCall { who: None, code: UNKNOWN, ..denied("", method, OWN, false) };
        calls.push(stranger);
        calls.extend(["guest", "vision", "scraper", "peers"].map(|who| denied(who, method, OWN, false)));
    }
    for method in ["Cache/Pin", "Cache/Unpin", "Cache/Load", "Objects/Fill"] {
        calls.extend(["guest", "scraper"].map(|who| denied(who, method, OWN, false)));
        calls.push(denied("vision", method, OTHERS, true));
    }
    calls.push(denied("vision", "Cache/Open", OTHERS, true));
    calls.push(denied("scraper", "Cache/Open", OWN, false));
    let operator =
        |method, code, outcome| AuditedCall { code, outcome, ..denied("root", method, OTHERS, false) };
    calls.push(operator("Cache/Free", 0, "ok"));
    // A cluster of one has nowhere to send its readers.
    calls.push(operator("Cache/Drain", INVALID, "InvalidArgument"));
    calls
}

/// 25: a reader drains, frees, pins and so on; each attempt is written down, once.
pub fn calls_of_operators(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let audit = arena.policy()?.path("audit");
    // What went before is written.
    std::thread::sleep(SETTLED);
    let before = std::fs::read_to_string(&audit)?.len();
    let calls = audited_calls();
    let mut codes =
        Trials::of("calls that need another role, or are about another's data, are PERMISSION_DENIED");
    let mut messages = Vec::new();
    for call in &calls {
        let message = request_about(&call.path(), &arena.store.uri(call.key), &[], "").1;
        let answer = arena.ask(call.who, &call.path(), &message)?;
        codes.note(answer.code == call.code, || {
            format!("{} of {:?}: {} {}", call.method, call.who, answer.code, answer.message)
        });
        messages.push(answer.message);
        // What reads is not written down.
        done(arena, "vision", "/forebay.v1.Cache/Status", &[])?;
    }
    // A loader may pin its own data, which is not written down either.
    for method in ["Cache/Pin", "Cache/Unpin"] {
        let path = format!("/forebay.v1.{method}");
        done(arena, "vision", &path, &request_about(&path, &arena.store.uri(OWN), &[], "").1)?;
    }
    let lines = || -> anyhow::Result<Vec<Value>> {
        let text = std::fs::read_to_string(&audit)?;
        text[before..].lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    };
    let end = Instant::now() + WRITTEN;
    while lines().map_or(0, |lines| lines.len()) < calls.len() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(SETTLED);
    let lines = lines()?;
    let ids: BTreeSet<&str> = lines.iter().filter_map(|line| line["request"].as_str()).collect();
    let mut written = Trials::of("each is in the audit log: who, how known, from where, what, of which data");
    for ((line, call), message) in lines.iter().zip(&calls).zip(&messages) {
        written.note(is_of(line, call, &arena.store.uri(call.key), message), || line.to_string());
    }
    let text = std::fs::read_to_string(&audit)?;
    let tokens = &arena.policy()?.tokens;
    Ok(vec![
        codes.check(),
        written.check(),
        Check::of(
            "each once, and nothing else",
            format!("{} calls, {} lines, {} requests", calls.len(), lines.len(), ids.len()),
            lines.len() == calls.len() && ids.len() == calls.len(),
        ),
        Check::of(
            "no token is in it",
            format!("{} tokens", tokens.len()),
            tokens.values().all(|token| !text.contains(token.text())),
        ),
    ])
}

/// Whether a line of the audit log is about a call that was answered so.
fn is_of(line: &Value, call: &AuditedCall, uri: &str, message: &str) -> bool {
    let text = |name: &str| line[name].as_str().unwrap_or_default();
    let by = if call.who.is_some() { "token " } else { "" };
    let names = if call.names_data {
        text("uri").starts_with(uri.trim_end_matches('/'))
    } else {
        text("uri").is_empty()
    };
    let tells_request = message.split_once("(request ").is_none_or(|(_, id)| id.starts_with(text("request")));
    text("principal") == call.who.unwrap_or_default()
        && text("call") == call.path()
        && text("outcome") == call.outcome
        && text("address") == "127.0.0.1"
        && text("request").len() == 16
        && text("by").starts_with(by)
        && text("by").is_empty() == by.is_empty()
        && names
        && tells_request
}

/// Ids in one request of a caller who guesses.
const GUESSES: usize = 1_000_000;

/// 26: callers who are no nodes ask what nodes ask each other.
pub fn calls_of_nodes(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let uri = arena.store.uri(OWN);
    let dataset = Some(v1::DatasetSpec { uri: uri.clone(), segment_bytes: 1 << 20, ..Default::default() });
    let open = v1::OpenRequest { dataset: dataset.clone(), ..Default::default() };
    let answer = arena.ask(Some("vision"), "/forebay.v1.Cache/Open", &open.encode_to_vec())?;
    let told = answer.first::<v1::OpenReply>()?.manifest.unwrap_or_default();
    let others = opened(arena, "audio", &[&arena.store.uri(OTHERS)])?;
    let load = v1::LoadRequest { dataset, ..Default::default() };
    done(arena, "vision", "/forebay.v1.Cache/Load", &load.encode_to_vec())?;
    let segment = |manifest: v1::Manifest| -> anyhow::Result<prost::bytes::Bytes> {
        Ok(Manifest::try_from(manifest)?.segment_id(0)?.0.to_bytes().to_vec().into())
    };
    let (known, foreign) = (segment(told.clone())?, segment(others)?);
    let columns = || vec!["id".to_owned()];
    let fetch = |segment: &prost::bytes::Bytes| {
        v1::FetchRequest { segment: segment.clone(), columns: columns(), ..Default::default() }
            .encode_to_vec()
    };
    let holds = |segments: Vec<prost::bytes::Bytes>| {
        v1::HoldsRequest { segments, columns: columns() }.encode_to_vec()
    };
    let item = v1::CopyItem { segment: known.clone(), columns: columns(), bytes: 1 << 20 };
    let from = arena.server.endpoint.clone();
    let copy = v1::CopyRequest { from, items: vec![item], hot: false }.encode_to_vec();
    let guesses = (0..GUESSES).map(|n| [&known[..8], &n.to_be_bytes()].concat().into()).collect();
    let requests = [
        ("Fetch", "a segment of one's own", fetch(&known)),
        ("Fetch", "a segment of another's", fetch(&foreign)),
        ("Holds", "a segment", holds(vec![known.clone()])),
        ("Holds", "a million segments", holds(guesses)),
        ("Copy", "from the node itself", copy),
        ("Learn", "a manifest", told.encode_to_vec()),
        ("Version", "an object", v1::VersionRequest { uri, ..Default::default() }.encode_to_vec()),
        ("Load", "nothing", Vec::new()),
    ];
    let mut denied = Trials::of("who is no node may not ask what nodes ask");
    for (method, what, message) in &requests {
        for who in ["vision", "guest", "audio", "scraper", "root"] {
            let answer = arena.ask(Some(who), &format!("/forebay.v1.Peer/{method}"), message)?;
            let is_denied = answer.code == DENIED && answer.body.is_empty();
            denied.note(is_denied, || {
                format!("{method} of {what} by {who}: {} {}", answer.code, answer.message)
            });
        }
    }
    let peer = |method: &str, message: &[u8]| {
        arena.ask(Some("peers"), &format!("/forebay.v1.Peer/{method}"), message)
    };
    let held = peer("Holds", &holds(vec![known.clone()]))?.first::<v1::HoldsReply>()?.held;
    let fetched = peer("Fetch", &fetch(&known))?;
    Ok(vec![
        denied.check(),
        Check::of("a node is told that the segment is held", format!("{held:?}"), held == [true]),
        Check::of(
            "and gets it",
            format!("code {}, {} bytes", fetched.code, fetched.body.len()),
            fetched.code == 0 && fetched.body.len() > 1000,
        ),
        arena.memory_check()?,
    ])
}
