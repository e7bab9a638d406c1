//! What of an answer about the whole node its caller may see: nothing that tells of others' data.

use crate::auth::caller::Caller;
use crate::datasets::{Dataset, Datasets};
use crate::runtime::blocking;
use bytes::Bytes;
use forebay_dataset::source;
use forebay_proto::manifest::DatasetId;
use forebay_proto::{Result, v1};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The datasets of segments that are hot; found once for all who ask.
#[derive(Debug, Default)]
pub struct HotOwners(Mutex<FoundOwners>);

#[derive(Debug, Default)]
struct FoundOwners {
    /// For which segments and datasets that was found.
    segments: Vec<Bytes>,
    datasets: Vec<DatasetId>,
    owners: Arc<SegmentOwners>,
}

/// Datasets by segments.
type SegmentOwners = HashMap<Bytes, Vec<Dataset>>;

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
        true => v1::StatusReply { store_error: String::new(), dirs: Vec::new(), ..whole },
        false => v1::StatusReply::default(),
    };
    v1::StatusReply { node, version, uptime_s, datasets, pins, membership, ..rest }
}

/// Rules and hot segments are left out that are of others' data. Nodes are everybody's.
pub async fn topology(
    caller: Caller,
    datasets: Arc<Datasets>,
    owners: Arc<HotOwners>,
    mut topology: v1::Topology,
) -> Result<v1::Topology> {
    if caller.is_operator() {
        return Ok(topology);
    }
    topology.datasets.retain(|rule| caller.sees_rule(&rule.uri));
    if topology.hot.is_empty() {
        return Ok(topology);
    }
    // A look at every segment of every dataset: not for an async thread.
    blocking(move || {
        let owners = owners.of(&datasets.list(), &topology.hot);
        topology.hot.retain(|hot| {
            let of = owners.get(&hot.segment);
            of.is_some_and(|of| of.iter().any(|dataset| caller.reads(&dataset.manifest)))
        });
        topology
    })
    .await
}

impl HotOwners {
    fn of(&self, datasets: &[Dataset], hot: &[v1::HotSegment]) -> Arc<SegmentOwners> {
        let ids: Vec<DatasetId> = datasets.iter().map(|dataset| dataset.manifest.id()).collect();
        let segments: Vec<Bytes> = hot.iter().map(|hot| hot.segment.clone()).collect();
        let mut found = self.0.lock();
        if found.segments != segments || found.datasets != ids {
            let wanted: HashSet<&Bytes> = segments.iter().collect();
            let mut owners = SegmentOwners::new();
            for dataset in datasets {
                for id in dataset.segment_ids() {
                    let id = Bytes::copy_from_slice(&id.0.to_bytes());
                    if wanted.contains(&id) {
                        owners.entry(id).or_default().push(dataset.clone());
                    }
                }
            }
            *found = FoundOwners { segments, datasets: ids, owners: Arc::new(owners) };
        }
        found.owners.clone()
    }
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
