//! The table of a cluster's nodes, and what they do per second: differences of two surveys.

use crate::figures;
use forebay_client::survey::Surveyed;
use forebay_proto::v1;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Instant;

/// In place of a figure that a node does not tell: for figures a caller needs the role `metrics`, and zeros
/// would look like some.
pub(crate) const UNTOLD: &str = "-";

/// What each node did per second between the last two surveys.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    last: HashMap<String, (Instant, v1::Counters)>,
    /// By name: bytes served, bytes from the object store.
    rates: HashMap<String, (f64, f64)>,
}

impl Rates {
    /// Takes a survey.
    pub(crate) fn add(&mut self, nodes: &[Surveyed]) {
        let now = Instant::now();
        self.rates.clear();
        for n in nodes {
            let Some(c) = n.status.as_ref().ok().and_then(|s| s.counters) else {
                self.last.remove(&n.node.name);
                continue;
            };
            if let Some((at, before)) = self.last.insert(n.node.name.clone(), (now, c)) {
                let seconds = now.duration_since(at).as_secs_f64();
                // A node that was restarted counts from 0.
                let rate = |a: u64, b: u64| figures::rate(b.checked_sub(a).unwrap_or(b) as f64, seconds);
                let rates = (rate(before.bytes_served, c.bytes_served), rate(before.s3_bytes, c.s3_bytes));
                self.rates.insert(n.node.name.clone(), rates);
            }
        }
    }

    /// Of one node: bytes served and bytes from the object store.
    fn of(&self, name: &str) -> (f64, f64) {
        self.rates.get(name).copied().unwrap_or_default()
    }

    /// Of all nodes.
    pub(crate) fn total(&self) -> (f64, f64) {
        self.rates.values().fold((0.0, 0.0), |sum, rate| (sum.0 + rate.0, sum.1 + rate.1))
    }
}

/// A line for each node.
pub(crate) fn table(nodes: &[Surveyed], rates: &Rates) -> String {
    let header = [
        "node",
        "zone",
        "weight",
        "load",
        "segments",
        "hot",
        "used",
        "limit",
        "served/s",
        "S3/s",
        "from S3",
        "from peers",
        "streams",
        "state",
    ];
    let mut table = figures::table(&header, &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    for n in nodes {
        let (served, fetched) = rates.of(&n.node.name);
        let mut row = vec![n.node.name.clone(), n.node.zone.clone(), n.node.weight.to_string()];
        match &n.status {
            Ok(s) => {
                let figures = s.counters.map(|c| {
                    [
                        format!("{:.0} %", 100.0 * s.load),
                        figures::count(s.segments_held),
                        figures::count(s.segments_hot),
                        figures::bytes(s.cache_bytes_used),
                        figures::bytes(s.cache_bytes_limit),
                        figures::bytes(served as u64),
                        figures::bytes(fetched as u64),
                        figures::bytes(c.s3_bytes),
                        figures::bytes(c.peer_bytes),
                        figures::count(c.streams),
                    ]
                });
                row.extend(figures.into_iter().flatten());
                row.resize(header.len() - 1, UNTOLD.to_owned());
                row.push(state(s.membership.as_ref()));
            }
            Err(_) => {
                row.resize(header.len() - 1, UNTOLD.to_owned());
                row.push("does not answer".to_owned());
            }
        }
        table.add_row(row);
    }
    table.trim_fmt() + "\n"
}

/// How a node stands to its cluster, in a few words.
pub(crate) fn state(membership: Option<&v1::MembershipStatus>) -> String {
    match membership {
        Some(m) if m.draining => "draining".to_owned(),
        Some(m) if !m.connected => format!("etcd silent for {}", figures::duration(m.silent_s as u64)),
        Some(m) if !m.registered => "not registered yet".to_owned(),
        _ => "up".to_owned(),
    }
}

/// One node for programs. Figures that an answer leaves out are null, and all of a node that does not answer.
pub(crate) fn report(n: &Surveyed, rates: &Rates) -> Value {
    let status = n.status.clone().unwrap_or_default();
    let c = status.counters;
    let (s, rates) = (c.map(|_| &status), c.map(|_| rates.of(&n.node.name)));
    json!({
        "node": n.node.name,
        "address": n.node.address,
        "zone": n.node.zone,
        "weight": n.node.weight,
        "answers": n.status.is_ok(),
        "error": n.status.as_ref().err().map(|e| &e.message),
        "segments_held": s.map(|s| s.segments_held),
        "cache_bytes_used": s.map(|s| s.cache_bytes_used),
        "cache_bytes_limit": s.map(|s| s.cache_bytes_limit),
        "served_bytes_per_s": rates.map(|(served, _)| served),
        "s3_bytes_per_s": rates.map(|(_, fetched)| fetched),
        "s3_bytes": c.map(|c| c.s3_bytes),
        "bytes_served": c.map(|c| c.bytes_served),
        "load": s.map(|s| s.load),
        "segments_hot": s.map(|s| s.segments_hot),
        "peer_bytes": c.map(|c| c.peer_bytes),
        "peer_bytes_served": c.map(|c| c.peer_bytes_served),
        "membership": status.membership,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Error;

    #[test]
    fn nodes_that_answer_and_one_that_does_not() {
        let node =
            |name: &str| v1::Node { name: name.into(), weight: 2.0, zone: "z".into(), ..Default::default() };
        let status = |bytes_served| v1::StatusReply {
            segments_held: 1234,
            load: 0.42,
            segments_hot: 17,
            counters: Some(v1::Counters {
                bytes_served,
                s3_bytes: 5_000_000,
                peer_bytes: 7_000_000,
                ..Default::default()
            }),
            ..Default::default()
        };
        let up = |bytes| Surveyed { node: node("a"), status: Ok(status(bytes)) };
        let down = Surveyed { node: node("b"), status: Err(Error::retry("gone")) };
        let mut rates = Rates::default();
        rates.add(&[up(100)]);
        rates.add(&[up(100), down.clone()]);
        let text = table(&[up(100), down.clone()], &rates);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(
            lines[1].starts_with("a     z") && lines[1].contains("1,234") && lines[1].ends_with("up"),
            "{text}"
        );
        for figure in [" 42 % ", " 17 ", " 7.00 MB "] {
            assert!(lines[1].contains(figure), "{text}");
        }
        assert!(lines[2].ends_with("does not answer"), "{text}");
        let json = report(&down, &rates);
        assert_eq!((&json["answers"], &json["error"]), (&false.into(), &"gone".into()));
        let told = ["node", "address", "zone", "weight", "answers", "error"];
        for (name, figure) in json.as_object().expect("an object") {
            assert_eq!(figure.is_null(), !told.contains(&name.as_str()), "{name}: {json}");
        }
        assert_eq!(report(&up(100), &rates)["bytes_served"], 100);
        let silent = v1::MembershipStatus { silent_s: 61.5, ..Default::default() };
        assert_eq!(state(Some(&silent)), "etcd silent for 1 min 1 s");
    }

    #[test]
    fn figures_that_are_not_told_are_no_zeros() {
        let node = v1::Node { name: "a".into(), weight: 1.0, zone: "z".into(), ..Default::default() };
        let untold = Surveyed { node, status: Ok(v1::StatusReply::default()) };
        let mut rates = Rates::default();
        rates.add(std::slice::from_ref(&untold));
        let text = table(std::slice::from_ref(&untold), &rates);
        let cells: Vec<&str> = text.lines().nth(1).expect("a line").split_whitespace().collect();
        let wanted = [&["a", "z", "1"][..], &[UNTOLD; 10], &["up"]].concat();
        assert_eq!(cells, wanted, "{text}");
        let json = report(&untold, &rates);
        for name in ["segments_held", "cache_bytes_limit", "s3_bytes_per_s", "bytes_served", "load"] {
            assert!(json[name].is_null(), "{name}: {json}");
        }
        assert_eq!(json["answers"], true);
    }
}
