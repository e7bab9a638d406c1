//! What of an answer about the whole node its caller may see: nothing that tells of others' data.

use crate::auth::caller::Caller;
use forebay_dataset::source;
use forebay_proto::{Result, v1};

/// The node's figures are for those who may see them; pins are left out that lie elsewhere. The datasets are
/// the caller's already.
pub fn status(caller: &Caller, whole: v1::StatusReply) -> v1::StatusReply {
    if caller.is_operator() {
        return whole;
    }
    let v1::StatusReply { node, version, uptime_s, datasets, mut pins, membership, .. } = whole.clone();
    let membership = membership.map(|membership| v1::MembershipStatus { error: String::new(), ..membership });
    pins.retain(|uri| caller.covers(uri));
    let rest = match caller.sees_figures() {
        true => v1::StatusReply { object_store_error: String::new(), dirs: Vec::new(), ..whole },
        false => v1::StatusReply::default(),
    };
    v1::StatusReply { node, version, uptime_s, datasets, pins, membership, ..rest }
}

/// Rules and hot segments are left out that are of others' data. Nodes are everybody's.
pub fn topology(caller: &Caller, mut topology: v1::Topology) -> v1::Topology {
    if !caller.is_operator() {
        topology.datasets.retain(|rule| caller.sees_rule(&rule.uri));
        // Nodes of before do not say of which object a segment is.
        topology.hot.retain(|hot| !hot.uri.is_empty() && caller.covers(&hot.uri));
    }
    // No reader needs them, and they may be long.
    topology.hot.iter_mut().for_each(|hot| hot.uri = String::new());
    topology
}

/// Whether a caller may know of a dataset as a request names it. Follows links: not for an async thread.
pub fn sees_spec(caller: &Caller, spec: &v1::DatasetSpec) -> bool {
    let uris = std::iter::once(&spec.uri).chain(spec.mix.iter().map(|part| &part.uri));
    uris.filter(|uri| !uri.is_empty()).all(|uri| source::normalise(uri).is_ok_and(|uri| caller.sees(&uri)))
}

/// Whether it may read all of it.
pub fn may_use_spec(caller: &Caller, spec: &v1::DatasetSpec) -> Result<()> {
    forebay_dataset::view::selections(spec)?
        .iter()
        .try_for_each(|selection| caller.may_use_selection(selection))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::caller::tests::{operator, reader};

    #[test]
    fn hot_segments_are_told_to_those_who_may_read_their_objects() {
        let hot = |n: u8, uri: &str| {
            let (segment, nodes, uri) = (vec![n; 16].into(), vec!["b".into()], uri.into());
            v1::HotSegment { segment, nodes, uri }
        };
        // Raw blocks, say, which no dataset has; one of a node of before.
        let uris = ["s3://data/vision/raw", "s3://data/visionX/raw", "s3://data/audio/a.parquet", ""];
        let hot = (1..).zip(uris).map(|(n, uri)| hot(n, uri)).collect();
        let all = v1::Topology { hot, ..Default::default() };
        let told = |caller: &Caller| {
            let told = topology(caller, all.clone()).hot;
            assert!(told.iter().all(|hot| hot.uri.is_empty() && hot.nodes == ["b"]));
            told.iter().map(|hot| hot.segment[0]).collect::<Vec<_>>()
        };
        assert_eq!(told(&reader("s3://data/vision")), [1]);
        assert_eq!(told(&reader("s3://data")), [1, 2, 3]);
        assert_eq!(told(&operator()), [1, 2, 3, 4]);
        assert_eq!(told(&Caller::everyone()), [1, 2, 3, 4]);
    }
}
