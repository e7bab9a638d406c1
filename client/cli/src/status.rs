//! `forebay status`: what the cache holds and has done: of one node all, of several a table and what they
//! hold together.

use crate::copies::{self, Copies};
use crate::failure::{Failure, usage};
use crate::figures::{self, bytes, count, of, plural};
use crate::nodes::{Rates, UNTOLD};
use crate::output::{Out, write_json};
use clap::{Args, ValueEnum};
use forebay_client::args::EndpointArgs;
use forebay_client::survey::{self, Surveyed};
use forebay_dataset::source;
use forebay_proto::v1;
use forebay_proto::v1::membership_status::Kind;
use forebay_proto::v1::{DatasetStatus, StatusReply, Topology};
use serde::Serialize;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::time::Duration;
use tokio::time::sleep;

/// Between the two looks that tell what nodes do per second.
const SAMPLE: Duration = Duration::from_millis(500);

/// The figures of a whole node in JSON, which come with its counters or not at all.
const FIGURES: [&str; 7] = [
    "cache_bytes_used",
    "cache_bytes_limit",
    "segments_held",
    "pinned_bytes",
    "segments_hot",
    "load",
    "object_store_silent_s",
];

/// Says what a node holds and has done.
const WORK: [&str; 7] = ["holds", "from S3", "decoded", "segments", "plans", "memory", "served"];

#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Only datasets under this URI
    uri: Option<String>,
    /// Sort datasets by URI or, the largest first, by their rows, segments, or segments held
    #[arg(long, value_enum, value_name = "BY", default_value = "uri", conflicts_with = "json")]
    sort: StatusSort,
    /// Show this many datasets at most
    #[arg(long, value_name = "N", conflicts_with = "json")]
    limit: Option<usize>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// What datasets are sorted by for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StatusSort {
    Uri,
    Rows,
    Segments,
    Held,
}

#[derive(Serialize)]
struct StatusReport<'a> {
    endpoint: &'a str,
    /// Of the node that was asked.
    #[serde(flatten)]
    status: &'a StatusReply,
    /// Every node of the topology.
    nodes: Vec<Value>,
    /// Of each dataset, what all nodes together hold.
    copies: Vec<Copies>,
}

impl Status {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let endpoints = self.endpoint.endpoints().map_err(usage)?;
        let (topology, mut nodes) = survey::survey(&endpoints).await?;
        let mut rates = Rates::default();
        if topology.nodes.len() > 1 {
            rates.add(&nodes);
            sleep(SAMPLE).await;
            nodes = survey::each(&topology).await;
            rates.add(&nodes);
        }
        if let Some(uri) = &self.uri {
            let uri = source::normalise(uri)?;
            for status in nodes.iter_mut().filter_map(|n| n.status.as_mut().ok()) {
                status.datasets.retain(|d| source::is_under(&d.uri, source::place_of(&uri)));
            }
        }
        // Of several nodes, the figures at the top are those of the one that was asked, or of one that
        // answers.
        let answering = || nodes.iter().filter(|n| n.status.is_ok());
        let named = answering().find(|n| n.node.address == endpoints.url());
        let asked = named.or(answering().next()).or(nodes.first());
        let reply = asked.ok_or_else(|| survey::all_drained(&topology, endpoints.url()))?;
        let reply = reply.status.clone()?;
        match self.json {
            true => write_json(out, &answer(endpoints.url(), &reply, &nodes, &rates)),
            false if nodes.len() > 1 => {
                let mut all = copies::of(&nodes);
                let more = self.choose(&mut all, |copies| &copies.dataset);
                let text = several(&topology, &nodes, &rates, &all) + &more;
                Ok(out.write_all(text.as_bytes())?)
            }
            false => {
                let mut reply = reply;
                let more = self.choose(&mut reply.datasets, |dataset| dataset);
                let text = text(endpoints.url(), &reply) + &more + &leaving(&topology);
                Ok(out.write_all(text.as_bytes())?)
            }
        }
    }

    /// Sorts datasets as was asked for and keeps as many; a line that says how many were left out.
    fn choose<T>(&self, all: &mut Vec<T>, dataset: impl Fn(&T) -> &DatasetStatus) -> String {
        match self.sort {
            StatusSort::Uri => all.sort_by(|a, b| dataset(a).uri.cmp(&dataset(b).uri)),
            StatusSort::Rows => all.sort_by_key(|one| Reverse(dataset(one).rows)),
            StatusSort::Segments => all.sort_by_key(|one| Reverse(dataset(one).segments)),
            StatusSort::Held => all.sort_by_key(|one| Reverse(dataset(one).segments_held)),
        }
        let more = self.limit.map_or(0, |limit| all.len().saturating_sub(limit));
        all.truncate(all.len() - more);
        match more {
            0 => String::new(),
            _ => format!("and {}\n", figures::of(more as u64, "further dataset")),
        }
    }
}

/// The table of the nodes, and of each dataset how many copies of its segments they hold.
fn several(topology: &Topology, nodes: &[Surveyed], rates: &Rates, copies: &[Copies]) -> String {
    format!(
        "{}, topology revision {}\n\n{}{}{}",
        figures::of(topology.nodes.len() as u64, "node"),
        topology.revision,
        crate::nodes::table(nodes, rates),
        leaving(topology),
        copies::table(copies)
    )
}

/// Nodes that are out of the topology and still answer; nothing without any.
fn leaving(topology: &Topology) -> String {
    let line = |node: &v1::Node| {
        format!(
            "{}: out of the topology, at {} (`forebay undrain {}` brings it back)\n",
            node.name, node.address, node.name
        )
    };
    match topology.leaving.iter().map(line).collect::<String>() {
        none if none.is_empty() => none,
        lines => format!("\n{lines}"),
    }
}

/// For programs. Figures that the node leaves out are null.
fn answer(endpoint: &str, status: &StatusReply, nodes: &[Surveyed], rates: &Rates) -> Value {
    let of_each = nodes.iter().map(|n| crate::nodes::report(n, rates)).collect();
    let mut report = json!(StatusReport { endpoint, status, nodes: of_each, copies: copies::of(nodes) });
    if status.counters.is_none() {
        FIGURES.into_iter().for_each(|name| report[name] = Value::Null);
    }
    report
}

/// One node for people: a line for each kind of figure, then its datasets.
fn text(endpoint: &str, s: &StatusReply) -> String {
    let up = figures::duration(s.uptime_s);
    let mut text = format!("{endpoint}: node {}, version {}, up {up}\n", s.node, s.version);
    for (label, value) in work_rows(s).into_iter().chain(state_rows(s)) {
        text += &format!("{label:<10}{value}\n");
    }
    if !s.datasets.is_empty() {
        let mut table = figures::table(&["dataset", "rows", "segments", "held", "digest"], &[1, 2, 3]);
        for d in &s.datasets {
            let [rows, segments, held] = [d.rows, d.segments, d.segments_held].map(count);
            table.add_row([copies::name(d), rows, segments, held, figures::digest(&d.digest)]);
        }
        text += &format!("\n{}\n", table.trim_fmt());
    }
    text
}

/// What the node holds and has done since it was started.
fn work_rows(s: &StatusReply) -> Vec<(&'static str, String)> {
    let Some(c) = s.counters else { return WORK.map(|label| (label, UNTOLD.to_owned())).into() };
    let m = s.memory.unwrap_or_default();
    let [used, limit] = [s.cache_bytes_used, s.cache_bytes_limit].map(bytes);
    let [from_s3, footers] = [c.s3_bytes, c.s3_footer_bytes].map(bytes);
    let [requests, footer_requests] = [c.s3_requests, c.s3_footer_requests].map(|n| of(n, "request"));
    let retries = plural(c.s3_retries, "retry", "retries");
    let [parquet, arrow, written, served] =
        [c.parquet_bytes_decoded, c.arrow_bytes_decoded, c.disk_bytes_written, c.bytes_served].map(bytes);
    let (hits, misses) = (of(c.hits, "hit"), plural(c.misses, "miss", "misses"));
    let (evictions, rows, streams) =
        (of(c.evictions, "eviction"), of(c.rows_served, "row"), of(c.streams, "stream"));
    let [joins, corrupt, plans, bypassed] =
        [c.joins, c.corrupt_segments, c.plans_announced, c.bypassed].map(count);
    let [fills, tier, messages, memory, resident] =
        [m.fills_bytes, m.transit_bytes, m.streams_bytes, m.limit_bytes, m.resident_bytes].map(bytes);
    vec![
        ("holds", format!("{used} of {limit} in {}", of(s.segments_held, "segment"))),
        (
            "from S3",
            format!(
                "{from_s3} in {requests}, footers and listings {footers} in {footer_requests}, {retries}"
            ),
        ),
        ("decoded", format!("{parquet} of Parquet into {arrow} of Arrow")),
        (
            "segments",
            format!(
                "{hits}, {joins} waited for a fill, {misses}, {evictions}, {corrupt} corrupt, {written} written"
            ),
        ),
        (
            "plans",
            format!("{plans} announced, {} prefetched, {bypassed} not stored", of(c.prefetched, "segment")),
        ),
        (
            "memory",
            format!(
                "fills {fills}, memory tier {tier}, messages {messages} of {memory}; resident {resident}"
            ),
        ),
        ("served", format!("{rows}, {served}, {streams}")),
    ]
}

/// Figures that are shown only where they differ from the usual.
fn state_rows(s: &StatusReply) -> Vec<(&'static str, String)> {
    let c = s.counters.unwrap_or_default();
    let mut rows = Vec::new();
    if c.peer_fills > 0 || c.peer_bytes_served > 0 {
        let (taken, given) = (bytes(c.peer_bytes), bytes(c.peer_bytes_served));
        rows.push(("peers", format!("{taken} in {} taken, {given} given", of(c.peer_fills, "segment"))));
    }
    if let Some(raw) = s.raw.filter(|raw| raw.files > 0) {
        let [held, kept] = [raw.bytes, raw.guaranteed_bytes].map(bytes);
        rows.push(("raw", format!("{held} in {} of objects, {kept} guaranteed", of(raw.files, "block"))));
    }
    if !s.pins.is_empty() {
        let held = s.counters.map_or_else(|| UNTOLD.to_owned(), |_| bytes(s.pinned_bytes));
        rows.push(("pinned", format!("{held}: {}", s.pins.join(", "))));
    }
    for d in s.dirs.iter().filter(|d| d.health != "up") {
        let state = match d.health.as_str() {
            "full" => "its disk is full below the limit: older segments leave for new ones",
            _ => "it failed and is set aside: the server's log says why",
        };
        rows.push(("directory", format!("{}: {state}", d.path)));
    }
    if s.membership.as_ref().is_some_and(|m| m.kind() == Kind::Etcd || m.draining) {
        rows.push(("cluster", crate::nodes::state(s.membership.as_ref())));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::v1::{Counters, DirStatus, Memory};

    #[test]
    fn for_people_and_for_programs() {
        let reply = StatusReply {
            node: "a".into(),
            version: "0.1.0".into(),
            uptime_s: 61,
            cache_bytes_used: 1_500_000,
            cache_bytes_limit: 10_000_000_000,
            segments_held: 1,
            counters: Some(Counters {
                s3_requests: 12,
                s3_bytes: 3_000,
                hits: 7,
                peer_fills: 2,
                peer_bytes: 5_000,
                ..Default::default()
            }),
            datasets: vec![DatasetStatus {
                uri: "s3://b/d".into(),
                digest: vec![0xab; 16].into(),
                rows: 60_000,
                segments: 2,
                segments_held: 1,
                replicas: 2,
                segments_owned: 1,
                part: "0:60000".into(),
                superseded: true,
                filter: "x > 3".into(),
            }],
            segments_hot: 0,
            load: 0.5,
            pins: vec!["s3://b/d".into(), "s3://b/e".into()],
            pinned_bytes: 2_500,
            dirs: ["up", "away"]
                .map(|health| DirStatus {
                    path: format!("/disk/{health}"),
                    health: health.into(),
                    ..Default::default()
                })
                .into(),
            membership: None,
            raw: Some(v1::RawStatus { files: 3, bytes: 12_000_000, guaranteed_bytes: 2_000_000 }),
            memory: Some(Memory { limit_bytes: 8_000_000, transit_bytes: 1_000_000, ..Default::default() }),
            ..Default::default()
        };
        let text = text("http://h:1", &reply);
        assert!(text.starts_with("http://h:1: node a, version 0.1.0, up 1 min 1 s\n"), "{text}");
        assert!(text.contains("holds     1.50 MB of 10.0 GB in 1 segment\n"), "{text}");
        assert!(text.contains("s3://b/d where x > 3, rows 0:60000, an older version  60,000"), "{text}");
        assert!(text.contains("pinned    2.50 kB: s3://b/d, s3://b/e\n"), "{text}");
        assert!(text.contains("directory /disk/away: it failed") && !text.contains("/disk/up"), "{text}");
        assert!(text.contains("raw       12.0 MB in 3 blocks of objects, 2.00 MB guaranteed\n"), "{text}");
        let left = v1::Node { name: "b".into(), address: "http://b:1".into(), ..Default::default() };
        let topology = Topology { leaving: vec![left], ..Default::default() };
        assert!(leaving(&topology).contains("b: out of the topology, at http://b:1 (`forebay undrain b`"));
        assert_eq!(leaving(&Topology::default()), "");
        let json = answer("http://h:1", &reply, &[], &Rates::default());
        assert_eq!(json["counters"]["s3_bytes"], 3_000);
        assert_eq!(json["counters"].as_object().unwrap().len(), 23);
        assert!(text.contains("peers     5.00 kB in 2 segments taken, 0 B given\n"), "{text}");
        assert_eq!(json["datasets"][0]["replicas"], 2);
        assert!(text.contains("memory tier 1.00 MB, messages 0 B of 8.00 MB"), "{text}");
        assert_eq!(json["memory"]["transit_bytes"], 1_000_000);
        assert_eq!(json["datasets"][0]["digest"], "ab".repeat(16));
    }

    #[test]
    fn figures_that_are_not_told_are_no_zeros() {
        let pins = vec!["s3://b/d".to_owned()];
        let reply = StatusReply { node: "a".into(), pins, ..Default::default() };
        let text = text("http://h:1", &reply);
        for line in ["holds     -\n", "from S3   -\n", "served    -\n", "pinned    -: s3://b/d\n"] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("0 B"), "{text}");
        let json = answer("http://h:1", &reply, &[], &Rates::default());
        for name in FIGURES.into_iter().chain(["counters", "memory"]) {
            assert!(json[name].is_null(), "{name}: {json}");
        }
        assert_eq!((&json["node"], &json["pins"][0]), (&"a".into(), &"s3://b/d".into()));
    }
}
