//! Of each dataset, how many copies of its segments a cluster is to hold, and how many it holds.

use crate::figures;
use forebay_client::survey::Surveyed;
use forebay_proto::manifest::Digest;
use serde::Serialize;
use std::collections::BTreeMap;

/// What all nodes that answer hold of one dataset version together.
#[derive(Debug, Serialize)]
pub(crate) struct Copies<'a> {
    uri: &'a str,
    digest: String,
    rows: u64,
    segments: u64,
    /// Of each segment.
    replicas: u32,
    copies_wanted: u64,
    copies_held: u64,
    /// Segments that their owners hold.
    segments_owned: u64,
}

/// Of each dataset that a node knows, by URI and digest.
pub(crate) fn of(nodes: &[Surveyed]) -> Vec<Copies<'_>> {
    let mut all: BTreeMap<(&str, &[u8]), Copies<'_>> = BTreeMap::new();
    for d in nodes.iter().flat_map(|n| &n.status).flat_map(|s| &s.datasets) {
        let entry = all.entry((&d.uri, &d.digest)).or_insert_with(|| Copies {
            uri: &d.uri,
            digest: Digest::from_bytes(&d.digest).map(|d| d.to_string()).unwrap_or_default(),
            rows: d.rows,
            segments: d.segments,
            replicas: 1,
            copies_wanted: 0,
            copies_held: 0,
            segments_owned: 0,
        });
        // A node may not have heard of a change yet.
        entry.replicas = entry.replicas.max(d.replicas);
        entry.copies_held += d.segments_held;
        entry.segments_owned += d.segments_owned;
    }
    let takers = nodes.iter().filter(|n| n.node.weight > 0.0).count() as u64;
    let mut all: Vec<_> = all.into_values().collect();
    all.iter_mut().for_each(|c| c.copies_wanted = c.segments * u64::from(c.replicas).min(takers));
    all
}

/// A line for each dataset; nothing without any.
pub(crate) fn table(copies: &[Copies<'_>]) -> String {
    if copies.is_empty() {
        return String::new();
    }
    let header = ["dataset", "rows", "segments", "replicas", "copies held", "digest"];
    let mut table = figures::table(&header, &[1, 2, 3, 4]);
    for c in copies {
        let [rows, segments, held, wanted] =
            [c.rows, c.segments, c.copies_held, c.copies_wanted].map(figures::count);
        let held = format!("{held} of {wanted}");
        table.add_row([c.uri.to_owned(), rows, segments, c.replicas.to_string(), held, c.digest.clone()]);
    }
    table.to_string().lines().fold("\n".to_owned(), |text, line| text + line.trim_end() + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::v1::{DatasetStatus, Node, StatusReply};

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
                }],
                ..Default::default()
            }),
        };
        let text = table(&of(&[node(2, 30), node(1, 25), node(2, 20)]));
        assert!(text.contains("s3://b/d  60,000        40         2     75 of 80"), "{text}");
        let json = serde_json::to_value(of(&[node(7, 30), node(7, 25)])).unwrap();
        assert_eq!((&json[0]["copies_wanted"], &json[0]["segments_owned"]), (&80.into(), &26.into()));
        assert_eq!(table(&[]), "");
    }
}
