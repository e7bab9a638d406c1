//! Any object, byte for byte: its version, its bytes, what lies under a prefix.
//!
//! A read is of one version. Of a cluster each block is asked for at the node that owns it; when that fails,
//! another goes on at that very byte, and as the last resort the object store (`read`). [`fill`] has the
//! nodes hold objects.

mod context;
pub mod fill;
mod read;

pub use read::ByteStream;

use crate::access::Access;
use crate::direct::Direct;
use crate::endpoints::Endpoints;
use crate::routing::Cluster;
use crate::routing::policy::RetryPolicy;
use context::Context;
use forebay_proto::object::{BLOCK_BYTES, ObjectVersion};
use forebay_proto::{Result, v1};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How long a read goes on trying while nothing comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long no node may answer before the object store is read: 1 to 1.5 times that.
const FALLBACK_AFTER: Duration = Duration::from_secs(5);

/// Objects, through a cache or from the object store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Objects(Arc<Context>);

impl Objects {
    /// Must be called within a Tokio runtime.
    pub fn new(access: &Access) -> Self {
        let cluster = match access {
            Access::Endpoint(endpoints) => Some(Cluster::follow(endpoints, fastrand::u64(..))),
            Access::Direct(_) => None,
        };
        let fallback_after = FALLBACK_AFTER.mul_f64(1.0 + fastrand::f64() / 2.0);
        let policy = RetryPolicy { patience: PATIENCE, fallback_after };
        Self(Arc::new(Context { access: access.clone(), cluster, policy }))
    }

    /// The object in its version of now; how old the answer may be is the cache's setting for it.
    pub async fn version(&self, uri: &str) -> Result<Arc<ObjectVersion>> {
        let head = |endpoints: Endpoints, uri: String| async move {
            let request = &v1::HeadObjectRequest { uri };
            let told = endpoints
                .ask(|node| async move { node.reply(node.objects().head(request.clone())).await })
                .await?;
            ObjectVersion::try_from(told)
        };
        let direct = |direct: Direct, uri: String| async move {
            direct.source().objects().version(&uri, BLOCK_BYTES).await
        };
        self.0.ask(uri.to_owned(), head, direct).await.map(Arc::new)
    }

    /// A page of what lies under a prefix.
    pub async fn list(&self, request: &v1::ListObjectsRequest) -> Result<v1::ListObjectsReply> {
        let list = |endpoints: Endpoints, request: v1::ListObjectsRequest| async move {
            let request = &request;
            endpoints.ask(|node| async move { node.reply(node.objects().list(request.clone())).await }).await
        };
        let direct = |direct: Direct, request: v1::ListObjectsRequest| async move {
            direct.source().objects().list(&request, |_| BLOCK_BYTES).await
        };
        self.0.ask(request.clone(), list, direct).await
    }

    /// A range of a version, in order, as it comes. `Invalid` unless the version has it. An error is the last
    /// item.
    pub fn read(&self, version: &Arc<ObjectVersion>, range: Range<u64>) -> Result<ByteStream> {
        if !range.is_empty() {
            version.check_range(&range)?;
        }
        Ok(read::stream(self.0.clone(), version.clone(), range))
    }
}
