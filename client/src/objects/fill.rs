//! Has the nodes of a cache hold objects, each node the blocks that it owns.

use super::Objects;
use crate::node::Node;
use crate::routing::Cluster;
use forebay_proto::object::ObjectVersion;
use forebay_proto::{Error, Kind, Result, v1};
use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;

/// Requests to nodes at once: each fills some blocks of one object.
const AT_ONCE: usize = 16;

/// Blocks of a request at most.
const BLOCKS: usize = 256;

/// How often a request is made, at whichever node the blocks have then.
const TRIES: u32 = 4;

/// How far filling is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FilledObjects {
    /// Objects that were found.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
    /// Blocks of these objects.
    pub blocks: u64,
    /// Those of them that were read so far.
    pub blocks_read: u64,
    /// Those of them that nodes hold.
    pub blocks_held: u64,
    /// Bytes of the blocks that are held.
    pub bytes_held: u64,
    /// Bytes that this made the nodes read from the object store.
    pub s3_bytes: u64,
    /// Where not all blocks are held: cache directories whose disks are full. `None` where no node tells, as
    /// those of older releases.
    pub dirs_full: Option<u64>,
}

impl FilledObjects {
    /// `Full` unless all of what lies under `uri` is held.
    pub fn check(&self, uri: &str) -> Result<()> {
        if self.blocks_held >= self.blocks {
            return Ok(());
        }
        let held = format!("{uri}: the cache holds {} of {} blocks", self.blocks_held, self.blocks);
        let missing = self.bytes.saturating_sub(self.bytes_held).div_ceil(1_000_000);
        let share = "or raise the share of raw blocks ([objects] share)";
        Err(Error::full(match self.dirs_full {
            Some(0) => format!("{held}: give it {missing} MB more room (--cache-bytes), {share}"),
            Some(1) => format!("{held}: the disk of a cache directory is full: free {missing} MB there"),
            Some(n) => {
                format!("{held}: the disks of {n} cache directories are full: free {missing} MB there")
            }
            None => format!(
                "{held}: give it {missing} MB more room (--cache-bytes, and on its disks where those are full), {share}"
            ),
        }))
    }

    fn add(&mut self, more: &v1::FillObjectProgress) {
        self.blocks_read += more.blocks_read;
        self.blocks_held += more.blocks_held;
        self.bytes_held += more.bytes_held;
        self.s3_bytes += more.s3_bytes;
    }
}

/// Blocks of an object for one node.
struct NodeBlocks {
    object: Arc<ObjectVersion>,
    blocks: Vec<u64>,
    node: Node,
}

/// What nodes told of their disks, by their URLs. Those of older releases tell nothing.
#[derive(Debug, Default)]
struct DiskReports {
    /// Full directories, as last told.
    full: HashMap<String, u64>,
    /// Files evicted since the node started: the least and the most that it told.
    evicted: HashMap<String, (u64, u64)>,
}

impl DiskReports {
    fn add(&mut self, url: &str, told: &v1::FillObjectProgress) {
        if let Some(full) = told.dirs_full {
            self.full.insert(url.to_owned(), full);
        }
        if let Some(now) = told.evictions {
            let (least, most) = self.evicted.entry(url.to_owned()).or_insert((now, now));
            (*least, *most) = (now.min(*least), now.max(*most));
        }
    }

    /// Whether a node has evicted anything meanwhile, or was started again.
    fn have_evicted(&self) -> bool {
        self.evicted.values().any(|(least, most)| least < most)
    }

    /// Full directories of all nodes.
    fn dirs_full(&self) -> Option<u64> {
        (!self.full.is_empty()).then(|| self.full.values().sum())
    }
}

impl Objects {
    /// Fills the cache with all objects under a URI, and shows how far it is. `Invalid` without a cache.
    pub async fn fill(&self, uri: &str, mut show: impl FnMut(&FilledObjects)) -> Result<FilledObjects> {
        let Some(cluster) = &self.0.cluster else {
            return Err(Error::invalid("there is no cache to be filled: give --endpoint"));
        };
        cluster.ready().await;
        let mut disks = DiskReports::default();
        let mut filled = self.go_through(cluster, (uri, false), &mut disks, &mut show).await?;
        if disks.have_evicted() {
            // Objects that were filled first may have left for those that came after them.
            let show = &mut |_: &FilledObjects| ();
            let held = self.go_through(cluster, (uri, true), &mut disks, show).await?;
            filled = FilledObjects { blocks_read: filled.blocks_read, s3_bytes: filled.s3_bytes, ..held };
        }
        if filled.blocks_held < filled.blocks {
            filled.dirs_full = disks.dirs_full();
        }
        Ok(filled)
    }

    /// Has the nodes fill all objects under a URI or, where only those held are wanted, count their blocks.
    async fn go_through(
        &self,
        cluster: &Cluster,
        (uri, held_only): (&str, bool),
        disks: &mut DiskReports,
        show: &mut impl FnMut(&FilledObjects),
    ) -> Result<FilledObjects> {
        let (mut filled, mut token) = (FilledObjects::default(), String::new());
        loop {
            let request =
                v1::ListObjectsRequest { uri: uri.to_owned(), recursive: true, token, ..Default::default() };
            let page = self.list(&request).await?;
            let mut shares = Vec::new();
            for object in page.objects {
                let object = Arc::new(ObjectVersion::try_from(object)?);
                filled.objects += 1;
                filled.bytes += object.size;
                filled.blocks += object.blocks();
                shares.extend(divide(cluster, &object)?);
            }
            let mut done =
                stream::iter(shares.into_iter().map(|share| fill_share(cluster, share, held_only)))
                    .buffer_unordered(AT_ONCE);
            while let Some((node, [first, last])) = done.try_next().await? {
                disks.add(node.url(), &first);
                disks.add(node.url(), &last);
                filled.add(&last);
                show(&filled);
            }
            token = page.token;
            if token.is_empty() {
                return Ok(filled);
            }
        }
    }
}

/// The blocks of an object by node.
fn divide(cluster: &Cluster, object: &Arc<ObjectVersion>) -> Result<Vec<NodeBlocks>> {
    let mut shares: Vec<NodeBlocks> = Vec::new();
    let all: Vec<u64> = (0..object.blocks()).collect();
    for some in all.chunks(BLOCKS) {
        let first = shares.len();
        for (&block, node) in some.iter().zip(cluster.object_nodes(object, some)?) {
            match shares[first..].iter_mut().find(|share| share.node == node) {
                Some(share) => share.blocks.push(block),
                None => shares.push(NodeBlocks { object: object.clone(), blocks: vec![block], node }),
            }
        }
    }
    Ok(shares)
}

/// A node's first report of a share, and its last.
type ShareReports = (Node, [v1::FillObjectProgress; 2]);

/// Has a node fill its share, or count what it holds of it; when that fails, those that have the blocks then.
async fn fill_share(cluster: &Cluster, share: NodeBlocks, held_only: bool) -> Result<ShareReports> {
    let mut node = share.node;
    for tries in 1.. {
        match fill_at(&node, &share.object, &share.blocks, held_only).await {
            Ok(reports) => {
                cluster.works(&node);
                return Ok((node, reports));
            }
            Err(e) if tries < TRIES && matches!(e.kind, Kind::Retry | Kind::Closed) => {
                tracing::debug!(error = %e, "a node did not fill its share of an object");
                cluster.failed(&node);
                cluster.may_try_again().await;
            }
            Err(e) => return Err(e),
        }
        // All of them from one: it asks the owners of those that it does not own.
        node = cluster.object_nodes(&share.object, &share.blocks[..1])?.remove(0);
    }
    Err(Error::retry("no node filled it"))
}

async fn fill_at(
    node: &Node,
    object: &ObjectVersion,
    blocks: &[u64],
    held_only: bool,
) -> Result<[v1::FillObjectProgress; 2]> {
    let blocks = blocks.iter().map(|block| *block as u32).collect();
    let request = v1::FillObjectRequest { object: Some(object.into()), blocks, held_only };
    let mut progress = node.reply(node.objects().fill(request)).await?;
    let (mut first, mut last) = (None, v1::FillObjectProgress::default());
    while let Some(told) = progress.message().await.map_err(|status| node.error(status))? {
        first = first.or(Some(told));
        last = told;
    }
    Ok([first.unwrap_or_default(), last])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_room_is_told_with_the_way_to_get_it() {
        let filled = FilledObjects {
            bytes: 20_000_000,
            bytes_held: 11_600_000,
            blocks: 5,
            blocks_held: 2,
            ..FilledObjects::default()
        };
        let why = |dirs_full| FilledObjects { dirs_full, ..filled }.check("s3://b/d").unwrap_err();
        let start = "s3://b/d: the cache holds 2 of 5 blocks: ";
        for (dirs_full, says) in [
            (Some(0), "give it 9 MB more room (--cache-bytes), or raise the share"),
            (Some(1), "the disk of a cache directory is full: free 9 MB there"),
            (Some(2), "the disks of 2 cache directories are full: free 9 MB there"),
            (None, "(--cache-bytes, and on its disks where those are full), or raise the share"),
        ] {
            let e = why(dirs_full);
            assert!(e.message.starts_with(start) && e.message.contains(says), "{dirs_full:?}: {e}");
            assert_eq!(e.kind, Kind::Full);
        }
        FilledObjects { blocks_held: 5, ..filled }.check("s3://b/d").unwrap();
    }

    #[test]
    fn what_was_filled_is_counted_again_once_a_node_evicts() {
        let told = |evictions, dirs_full| v1::FillObjectProgress {
            evictions,
            dirs_full,
            ..v1::FillObjectProgress::default()
        };
        let mut disks = DiskReports::default();
        disks.add("http://old:7", &told(None, None));
        assert_eq!((disks.have_evicted(), disks.dirs_full()), (false, None), "it tells nothing");
        for (url, evictions, dirs_full, have_evicted, full) in [
            ("http://a:7", 40, 0, false, 0),
            ("http://b:7", 90, 0, false, 0),
            ("http://a:7", 40, 0, false, 0),
            ("http://b:7", 91, 1, true, 1),
            ("http://a:7", 40, 2, true, 3),
            ("http://b:7", 91, 0, true, 2),
        ] {
            disks.add(url, &told(Some(evictions), Some(dirs_full)));
            assert_eq!((disks.have_evicted(), disks.dirs_full()), (have_evicted, Some(full)), "{url}");
        }
        let mut started_again = DiskReports::default();
        for evictions in [9, 0] {
            started_again.add("http://a:7", &told(Some(evictions), Some(0)));
        }
        assert!(started_again.have_evicted());
    }
}
