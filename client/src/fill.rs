//! Filling a cache with a dataset, each node with what it owns.

use crate::dataset::Dataset;
use crate::endpoints::Endpoints;
use crate::fan_out::FailedNode;
use crate::node::Node;
use crate::survey::{self, ask_each};
use forebay_proto::object_list::MESSAGE_BYTES_MAX;
use forebay_proto::ring::{Balance, Ring};
use forebay_proto::{Error, Manifest, Result, SegmentSet, v1};
use futures::stream::select_all;
use futures::{StreamExt, TryFutureExt, TryStreamExt};
use prost::Message as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;

/// How long a node of several may take to say that it serves; without an answer the others fill its share.
const ALIVE: Duration = Duration::from_secs(3);

/// Nodes that an error names at most.
const NAMED: usize = 5;

/// How filling a cache ended.
#[derive(Debug, Clone)]
pub struct Filled {
    /// What all nodes together hold.
    pub progress: v1::LoadProgress,
    /// How many nodes had a share of the dataset: none if it has no rows.
    pub nodes: usize,
    /// Nodes that did not fill their share, and why.
    pub failed: Vec<FailedNode>,
}

/// What one node is to fill.
struct Share {
    node: v1::Node,
    client: Node,
    segments: SegmentSet,
}

impl Filled {
    /// `Full` if the cache has no room for all of the dataset at `uri`, or the error of the nodes that
    /// failed.
    pub fn check(&self, uri: &str) -> Result<()> {
        crate::fan_out::check("loaded", self.nodes - self.failed.len(), &self.failed)?;
        match self.progress.segments_held < self.progress.segments_total {
            true => Err(no_room(uri, &self.progress)),
            false => Ok(()),
        }
    }
}

/// Has each node fill its share, all at once, and shows how far they are. A node that fails keeps no other
/// from filling its own. `Retry` if none can be reached, or none takes segments.
pub async fn fill(
    endpoints: &Endpoints,
    dataset: &Dataset,
    mut show: impl FnMut(&v1::LoadProgress),
) -> Result<Filled> {
    let shares = shares(endpoints, dataset).await?;
    let streams = shares.iter().enumerate().map(|(i, share)| {
        let (spec, columns) = (dataset.spec.to_wire(), dataset.spec.columns.clone().unwrap_or_default());
        let mut request = v1::LoadRequest {
            dataset: Some(spec),
            columns,
            segments: share.segments.to_wire().into(),
            ..Default::default()
        };
        let (node, manifest) = (share.client.clone(), dataset.manifest.clone());
        let opened = async move {
            if request.encoded_len() > MESSAGE_BYTES_MAX {
                // The list does not fit: the node is told of the dataset before.
                let uri = manifest.uri().to_owned();
                let (dataset, columns) = (request.dataset.take(), request.columns.clone());
                node.open(v1::OpenRequest { dataset, columns, ..Default::default() }).await?;
                request.dataset = Some(v1::DatasetSpec { uri, ..Default::default() });
                request.digest = manifest.digest().to_bytes().to_vec().into();
            }
            let stream = node.reply(node.client().load(request)).await?;
            Ok::<_, Error>(stream.map_err(move |s| node.error(s)))
        };
        opened.try_flatten_stream().map(move |progress| (i, progress)).boxed()
    });
    let mut all = select_all(streams);
    let (mut parts, mut failed) = (vec![v1::LoadProgress::default(); shares.len()], Vec::new());
    let mut silent = shares.len();
    while let Some((i, progress)) = all.next().await {
        match progress {
            Ok(progress) => {
                silent -= usize::from(parts[i].segments_total == 0);
                parts[i] = progress;
                // A part of the nodes would show as less than there is to do.
                if silent <= failed.len() {
                    show(&sum(&parts));
                }
            }
            Err(e) => failed.push(FailedNode::new(&shares[i].node, &e)),
        }
    }
    Ok(Filled { progress: sum(&parts), nodes: shares.len(), failed })
}

/// The nodes that answer, and the segments that each is to fill: those that it owns when the others are
/// left out. `Retry` if there are none for a dataset that has some.
async fn shares(endpoints: &Endpoints, dataset: &Dataset) -> Result<Vec<Share>> {
    let mut topology = survey::topology(endpoints).await?;
    if topology.nodes.len() < 2 {
        let node = topology.nodes.pop().unwrap_or_default();
        let client = endpoints.answering().await?;
        return Ok(vec![Share { node, client, segments: SegmentSet::all(0) }]);
    }
    let is_alive = |node: Node| async move { Ok(node.is_serving(ALIVE).await.then_some(node)) };
    let alive = ask_each(&topology, Duration::MAX, is_alive).await;
    let (mut nodes, mut clients, mut silent) = (Vec::new(), Vec::new(), Vec::new());
    for (node, client) in alive {
        match client? {
            Some(client) => {
                nodes.push(node);
                clients.push(client);
            }
            None => silent.push(node),
        }
    }
    let manifest = &dataset.manifest;
    let (nodes, owned) = divided(nodes, manifest.clone()).await?;
    if !manifest.segments().is_empty() && owned.iter().all(SegmentSet::is_empty) {
        return Err(nobody(manifest.uri(), &silent, &nodes));
    }
    let shares = nodes.into_iter().zip(clients).zip(owned);
    let shares = shares.map(|((node, client), segments)| Share { node, client, segments });
    Ok(shares.filter(|share| !share.segments.is_empty()).collect())
}

/// The nodes again, and what each of them owns of a dataset. Computed apart from the async threads: it takes
/// seconds for a hundred thousand segments on a thousand nodes.
async fn divided(nodes: Vec<v1::Node>, manifest: Arc<Manifest>) -> Result<(Vec<v1::Node>, Vec<SegmentSet>)> {
    let divide = move || {
        let count = manifest.segments().len() as u32;
        let mut owned = vec![SegmentSet::new(count); nodes.len()];
        let (ring, balance) = (Ring::new(&nodes), Balance::of(&nodes, [&*manifest]));
        for segment in 0..count {
            if let Some(owner) = balance.owner(&ring, manifest.segment_id(segment)?) {
                owned[owner].insert(segment);
            }
        }
        Ok::<_, Error>((nodes, owned))
    };
    let broke_off = |e| Error::corrupt(format!("dividing segments among nodes broke off: {e}"));
    spawn_blocking(divide).await.map_err(broke_off)?
}

/// The error of a load of which no node has a share: some do not answer, all others take no segments.
fn nobody(uri: &str, silent: &[v1::Node], idle: &[v1::Node]) -> Error {
    let named = |nodes: &[v1::Node]| {
        let some = nodes.iter().take(NAMED).map(|node| format!("{} at {}", node.name, node.address));
        let more = nodes.len().checked_sub(NAMED + 1).map(|more| format!("{} more", more + 1));
        some.chain(more).collect::<Vec<_>>().join(", ")
    };
    let (mut why, mut advice) = (Vec::new(), Vec::new());
    if !silent.is_empty() {
        let seconds = ALIVE.as_secs();
        why.push(format!("no answer within {seconds} s from {}", named(silent)));
        advice.push("see that this machine reaches these addresses (forebay-server --advertise)");
    }
    if !idle.is_empty() {
        why.push(format!("no segments are taken by {}", named(idle)));
        advice.push("give nodes a --weight above 0, or bring drained ones back (forebay undrain)");
    }
    let (why, advice) = (why.join("; "), advice.join("; "));
    Error::retry(format!("{uri}: no node can be filled: {why}: {advice}"))
}

/// The error of a load that found no room for all segments.
fn no_room(uri: &str, p: &v1::LoadProgress) -> Error {
    let held = format!("{uri}: the cache holds {} of {} segments", p.segments_held, p.segments_total);
    let missing = p.decoded_bytes_total.saturating_sub(p.decoded_bytes_held).div_ceil(1_000_000);
    Error::full(match p.dirs_full {
        0 => format!("{held}: give it {missing} MB more room (--cache-bytes), or load fewer columns"),
        1 => format!(
            "{held}: the disk of a cache directory is full: free {missing} MB there, or load fewer columns"
        ),
        n => format!(
            "{held}: the disks of {n} cache directories are full: free {missing} MB there, or load fewer columns"
        ),
    })
}

fn sum(parts: &[v1::LoadProgress]) -> v1::LoadProgress {
    parts.iter().fold(v1::LoadProgress::default(), |a, b| v1::LoadProgress {
        segments_total: a.segments_total + b.segments_total,
        segments_held: a.segments_held + b.segments_held,
        decoded_bytes_total: a.decoded_bytes_total + b.decoded_bytes_total,
        decoded_bytes_held: a.decoded_bytes_held + b.decoded_bytes_held,
        s3_bytes: a.s3_bytes + b.s3_bytes,
        segments_read: a.segments_read + b.segments_read,
        dirs_full: a.dirs_full + b.dirs_full,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Kind;
    use forebay_proto::manifest::{Object, SegmentSize};
    use futures::FutureExt;
    use std::pin::pin;

    #[tokio::test]
    async fn segments_are_divided_apart_from_the_async_threads() {
        let object = Object { key: "o".into(), etag: "e".into(), size: 1, ..Default::default() };
        let size = SegmentSize { object: 0, row_groups: 1, rows: 1, decoded_bytes: 8 };
        let manifest = Manifest::new("s3://b/d", 1, vec![], vec![object], &vec![size; 20_000]).unwrap();
        let node = |n: usize| v1::Node { name: format!("n{n}"), weight: 1.0, ..Default::default() };
        let mut dividing = pin!(divided((0..8).map(node).collect(), Arc::new(manifest)));
        assert!(dividing.as_mut().now_or_never().is_none(), "this thread did the work");
        let (nodes, owned) = dividing.await.unwrap();
        assert_eq!((nodes.len(), owned.len()), (8, 8));
        let shares: Vec<u32> = owned.iter().map(SegmentSet::len).collect();
        assert!(shares.iter().sum::<u32>() == 20_000 && shares.iter().all(|n| *n > 2_000), "{shares:?}");
    }

    #[test]
    fn nodes_that_cannot_be_filled_are_named_with_the_way_out() {
        let node = |n: usize| v1::Node {
            name: format!("n{n}"),
            address: format!("http://n{n}:7"),
            ..Default::default()
        };
        let seven: Vec<_> = (0..7).map(node).collect();
        let e = nobody("s3://b/d", &seven, &[node(8)]);
        assert_eq!(e.kind, Kind::Retry);
        let start = "s3://b/d: no node can be filled: no answer within 3 s from n0 at http://n0:7, n1 at";
        assert!(e.message.starts_with(start), "{e}");
        assert!(e.message.contains("n4 at http://n4:7, 2 more; no segments are taken by n8 at"), "{e}");
        assert!(e.message.contains("--advertise") && e.message.contains("forebay undrain"), "{e}");
        let e = nobody("s3://b/d", &[], &seven[..5]);
        assert!(e.message.contains("n4 at http://n4:7: give nodes a --weight"), "{e}");
        assert!(!e.message.contains("no answer") && !e.message.contains("--advertise"), "{e}");
    }

    #[test]
    fn missing_room_is_told_in_megabytes() {
        let mut p = v1::LoadProgress {
            segments_total: 20,
            segments_held: 4,
            decoded_bytes_total: 424_000_000,
            decoded_bytes_held: 85_000_000,
            ..Default::default()
        };
        let why = no_room("s3://b/d", &p).message;
        assert!(why.contains("holds 4 of 20") && why.contains("339 MB more room (--cache-bytes)"), "{why}");
        for (dirs_full, says) in [
            (1, "the disk of a cache directory is full: free 339 MB"),
            (2, "the disks of 2 cache directories are full: free 339 MB"),
        ] {
            p.dirs_full = dirs_full;
            let why = no_room("s3://b/d", &p).message;
            assert!(why.contains(says), "{why}");
        }
    }
}
