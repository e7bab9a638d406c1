//! `forebay.v1.Snapshots`: versions of datasets with names. A client froze what it saves: the node keeps it
//! in etcd and reads nothing for it.

use crate::cluster::membership::Membership;
use forebay_proto::Error;
use forebay_proto::object_list::RequestParts;
use forebay_proto::snapshot::check_name;
use forebay_proto::v1;
use forebay_proto::v1::snapshots_server::Snapshots;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status, Streaming};

/// Answers from etcd, as membership reaches it.
pub struct SnapshotService {
    membership: Arc<Membership>,
    /// Large ones that are received and saved at once.
    large: Semaphore,
}

/// Of [`SnapshotService::large`].
const LARGE_AT_ONCE: usize = 2;

/// How long the next part of a large one may take.
const PART_PATIENCE: Duration = Duration::from_secs(30);

impl SnapshotService {
    pub fn new(membership: Arc<Membership>) -> Self {
        Self { membership, large: Semaphore::new(LARGE_AT_ONCE) }
    }

    async fn kept(&self, snapshot: v1::Snapshot) -> Reply<v1::SaveSnapshotReply> {
        check_name(&snapshot.name)?;
        self.membership.snapshots()?.save(snapshot).await?;
        Ok(Response::new(v1::SaveSnapshotReply {}))
    }
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Snapshots for SnapshotService {
    async fn save(&self, request: Request<v1::Snapshot>) -> Reply<v1::SaveSnapshotReply> {
        self.kept(request.into_inner()).await
    }

    async fn save_parts(
        &self,
        request: Request<Streaming<v1::SnapshotPart>>,
    ) -> Reply<v1::SaveSnapshotReply> {
        let mut stream = request.into_inner();
        let _turn = self.large.acquire().await.map_err(|_| Error::closed("this node is shutting down"))?;
        let (mut snapshot, mut parts) = (None, RequestParts::default());
        loop {
            let part = tokio::time::timeout(PART_PATIENCE, stream.message()).await;
            match part.map_err(|_| Error::retry("save: the rest of the snapshot did not come"))?? {
                Some(part) => {
                    snapshot = snapshot.or(part.snapshot);
                    parts.add(part.part.unwrap_or_default())?;
                }
                None => break,
            }
        }
        let snapshot = snapshot.ok_or_else(|| Error::invalid("save: no snapshot given"))?;
        self.kept(v1::Snapshot { dataset: parts.request()?.dataset, ..snapshot }).await
    }

    async fn get(&self, request: Request<v1::SnapshotRequest>) -> Reply<v1::Snapshot> {
        Ok(Response::new(self.membership.snapshots()?.get(&request.into_inner().name).await?))
    }

    async fn list(&self, _: Request<v1::ListSnapshotsRequest>) -> Reply<v1::ListSnapshotsReply> {
        let snapshots = self.membership.snapshots()?.list().await?;
        Ok(Response::new(v1::ListSnapshotsReply { snapshots }))
    }

    async fn remove(&self, request: Request<v1::SnapshotRequest>) -> Reply<v1::RemoveSnapshotReply> {
        self.membership.snapshots()?.remove(&request.into_inner().name).await?;
        Ok(Response::new(v1::RemoveSnapshotReply {}))
    }
}
