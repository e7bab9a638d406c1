//! Of each dataset, how many copies of its segments a cluster is to hold, and how many it holds.

use crate::figures;
use forebay_client::survey::Surveyed;
use forebay_proto::v1::DatasetStatus;
use serde::Serialize;
use std::collections::BTreeMap;

/// What all nodes that answer hold of one dataset version together.
#[derive(Debug, Serialize)]
pub(crate) struct Copies {
    #[serde(flatten)]
    pub(crate) dataset: DatasetStatus,
    copies_wanted: u64,
    copies_held: u64,
}

/// Of each dataset that a node knows, by URI and digest.
pub(crate) fn of(nodes: &[Surveyed]) -> Vec<Copies> {
    let mut all: BTreeMap<(&str, &[u8]), DatasetStatus> = BTreeMap::new();
    for d in nodes.iter().flat_map(|n| &n.status).flat_map(|s| &s.datasets) {
        let none = || DatasetStatus { replicas: 1, segments_held: 0, segments_owned: 0, ..d.clone() };
        let sum = all.entry((&d.uri, &d.digest)).or_insert_with(none);
        // A node may not have heard of a change yet.
        sum.replicas = sum.replicas.max(d.replicas);
        // A node that has just heard of a snapshot cannot tell it from a new version.
        sum.superseded &= d.superseded;
        sum.segments_held += d.segments_held;
        sum.segments_owned += d.segments_owned;
    }
    let takers = nodes.iter().filter(|n| n.node.weight > 0.0).count() as u64;
    let copies = |dataset: DatasetStatus| Copies {
        copies_wanted: dataset.segments * u64::from(dataset.replicas).min(takers),
        copies_held: dataset.segments_held,
        dataset,
    };
    all.into_values().map(copies).collect()
}

/// A dataset for people: its URI, and what tells it apart from others of the same.
pub(crate) fn name(d: &DatasetStatus) -> String {
    let part = match d.part.as_str() {
        "" => String::new(),
        "?" => ", a part of its rows".to_owned(),
        rows => format!(", rows {rows}"),
    };
    let age = if d.superseded { ", an older version" } else { "" };
    let filter = if d.filter.is_empty() { String::new() } else { format!(" where {}", d.filter) };
    format!("{}{filter}{part}{age}", d.uri)
}

/// A line for each dataset; nothing without any.
pub(crate) fn table(copies: &[Copies]) -> String {
    if copies.is_empty() {
        return String::new();
    }
    let header = ["dataset", "rows", "segments", "replicas", "copies held", "digest"];
    let mut table = figures::table(&header, &[1, 2, 3, 4]);
    for Copies { dataset: d, copies_wanted, copies_held } in copies {
        let [rows, segments, held, wanted] =
            [d.rows, d.segments, *copies_held.min(copies_wanted), *copies_wanted].map(figures::count);
        let more = match copies_held.saturating_sub(*copies_wanted) {
            0 => String::new(),
            more => format!(" ({} more than wanted)", figures::count(more)),
        };
        let (held, digest) = (format!("{held} of {wanted}{more}"), figures::digest(&d.digest));
        table.add_row([name(d), rows, segments, d.replicas.to_string(), held, digest]);
    }
    format!("\n{}\n", table.trim_fmt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::v1::{Node, StatusReply};

    #[test]
    fn copies_of_all_nodes_together() {
        let node = |replicas, segments_held| Surveyed {
            node: Node { weight: 1.0, ..Default::default() },
            status: Ok(StatusReply {
                datasets: vec![DatasetStatus {
                    uri: "s3://b/d".into(),
                    digest: vec![0xab; 16].into(),
                    rows: 60_000,
                    segments: 40,
                    segments_held,
                    replicas,
                    segments_owned: 13,
                    ..Default::default()
                }],
                ..Default::default()
            }),
        };
        let text = table(&of(&[node(2, 30), node(1, 25), node(2, 20)]));
        assert!(text.contains("s3://b/d  60,000        40         2     75 of 80"), "{text}");
        let json = serde_json::to_value(of(&[node(7, 30), node(7, 25)])).unwrap();
        assert_eq!((&json[0]["copies_wanted"], &json[0]["segments_owned"]), (&80.into(), &26.into()));
        let text = table(&of(&[node(1, 40), node(1, 20)]));
        assert!(text.contains("40 of 40 (20 more than wanted)"), "{text}");
        assert_eq!(table(&[]), "");
    }
}
