//! Has the nodes of a cache hold objects, each node the blocks that it owns.

use super::Objects;
use crate::node::Node;
use crate::routing::Cluster;
use forebay_proto::object::ObjectVersion;
use forebay_proto::{Error, Kind, Result, v1};
use futures::future::join_all;
use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Requests to nodes at once: each fills some blocks of one object.
const AT_ONCE: usize = 16;

/// Blocks of a request at most.
const BLOCKS: usize = 256;

/// How long a node may take to tell of its disks.
const ANSWER: Duration = Duration::from_secs(3);

/// How often a request is made, at whichever node the blocks have then.
const TRIES: u32 = 4;

/// How far filling is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FilledObjects {
    /// Objects that were found, and their bytes.
    pub objects: u64,
    /// See `objects`.
    pub bytes: u64,
    /// Blocks of those, blocks read so far, and blocks held.
    pub blocks: u64,
    /// See `blocks`.
    pub blocks_read: u64,
    /// See `blocks`.
    pub blocks_held: u64,
    /// Bytes of the blocks that are held.
    pub bytes_held: u64,
    /// Bytes that this made the nodes read from the object store.
    pub s3_bytes: u64,
    /// Where not all blocks are held: cache directories whose disks are full. Nodes tell it to operators.
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

impl Objects {
    /// Fills the cache with all objects under a URI, and shows how far it is. `Invalid` without a cache.
    pub async fn fill(&self, uri: &str, mut show: impl FnMut(&FilledObjects)) -> Result<FilledObjects> {
        let Some(cluster) = &self.0.cluster else {
            return Err(Error::invalid("there is no cache to be filled: give --endpoint"));
        };
        cluster.ready().await;
        let (mut filled, mut nodes) = (FilledObjects::default(), Vec::new());
        let mut token = String::new();
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
            for share in &shares {
                if !nodes.contains(&share.node) {
                    nodes.push(share.node.clone());
                }
            }
            let mut done = stream::iter(shares.into_iter().map(|share| fill_share(cluster, share)))
                .buffer_unordered(AT_ONCE);
            while let Some(progress) = done.try_next().await? {
                filled.add(&progress);
                show(&filled);
            }
            token = page.token;
            if token.is_empty() {
                break;
            }
        }
        if filled.blocks_held < filled.blocks {
            filled.dirs_full = dirs_full(&nodes).await;
        }
        Ok(filled)
    }
}

/// How many cache directories of these nodes have disks that are full; `None` where no node tells.
async fn dirs_full(nodes: &[Node]) -> Option<u64> {
    let told = join_all(nodes.iter().map(|node| timeout(ANSWER, node.status()))).await;
    let told = told.into_iter().flatten().flatten().map(|status| status.dirs);
    let full = |dirs: Vec<v1::DirStatus>| dirs.iter().filter(|dir| dir.health == "full").count() as u64;
    told.filter(|dirs| !dirs.is_empty()).map(full).reduce(|sum, more| sum + more)
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

/// Has a node fill its share; when that fails, those that have the blocks then.
async fn fill_share(cluster: &Cluster, share: NodeBlocks) -> Result<v1::FillObjectProgress> {
    let mut node = share.node;
    for tries in 1.. {
        match fill_at(&node, &share.object, &share.blocks).await {
            Ok(progress) => {
                cluster.works(&node);
                return Ok(progress);
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

async fn fill_at(node: &Node, object: &ObjectVersion, blocks: &[u64]) -> Result<v1::FillObjectProgress> {
    let blocks = blocks.iter().map(|block| *block as u32).collect();
    let request = v1::FillObjectRequest { object: Some(object.into()), blocks };
    let mut progress = node.reply(node.objects().fill(request)).await?;
    let mut last = v1::FillObjectProgress::default();
    while let Some(told) = progress.message().await.map_err(|status| node.error(status))? {
        last = told;
    }
    Ok(last)
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
}
