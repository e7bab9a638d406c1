//! Has the nodes of a cache hold objects, each node the blocks that it owns.

use super::Objects;
use crate::node::Node;
use crate::routing::Cluster;
use forebay_proto::object::ObjectVersion;
use forebay_proto::{Error, Kind, Result, v1};
use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
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
}

impl FilledObjects {
    /// `Full` unless all of what lies under `uri` is held.
    pub fn check(&self, uri: &str) -> Result<()> {
        match self.blocks_held < self.blocks {
            true => Err(Error::full(format!(
                "{uri}: the cache holds {} of {} blocks: give it {} MB more room (--cache-bytes), or raise the share of \
                 raw blocks ([objects] share)",
                self.blocks_held,
                self.blocks,
                self.bytes.saturating_sub(self.bytes_held).div_ceil(1_000_000)
            ))),
            false => Ok(()),
        }
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
        let mut filled = FilledObjects::default();
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
            let mut done = stream::iter(shares.into_iter().map(|share| fill_share(cluster, share)))
                .buffer_unordered(AT_ONCE);
            while let Some(progress) = done.try_next().await? {
                filled.add(&progress);
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
