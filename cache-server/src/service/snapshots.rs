//! `forebay.v1.Snapshots`: versions of datasets with names. A client froze what it saves: the node keeps it
//! in etcd and reads nothing for it.

use crate::cluster::membership::Membership;
use forebay_proto::snapshot::check_name;
use forebay_proto::v1;
use forebay_proto::v1::snapshots_server::Snapshots;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// Answers from etcd, as membership reaches it.
pub struct SnapshotService(pub Arc<Membership>);

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Snapshots for SnapshotService {
    async fn save(&self, request: Request<v1::Snapshot>) -> Reply<v1::SaveSnapshotReply> {
        let snapshot = request.into_inner();
        check_name(&snapshot.name)?;
        self.0.snapshots()?.save(snapshot).await?;
        Ok(Response::new(v1::SaveSnapshotReply {}))
    }

    async fn get(&self, request: Request<v1::SnapshotRequest>) -> Reply<v1::Snapshot> {
        Ok(Response::new(self.0.snapshots()?.get(&request.into_inner().name).await?))
    }

    async fn list(&self, _: Request<v1::ListSnapshotsRequest>) -> Reply<v1::ListSnapshotsReply> {
        let snapshots = self.0.snapshots()?.list().await?;
        Ok(Response::new(v1::ListSnapshotsReply { snapshots }))
    }

    async fn remove(&self, request: Request<v1::SnapshotRequest>) -> Reply<v1::RemoveSnapshotReply> {
        self.0.snapshots()?.remove(&request.into_inner().name).await?;
        Ok(Response::new(v1::RemoveSnapshotReply {}))
    }
}
