//! `forebay.v1.Snapshots`: versions of datasets with names. A client froze what it saves: the node keeps it
//! in etcd and reads nothing for it.

use super::guard::caller;
use super::list_parts::ListTurns;
use super::{Reply, visible};
use crate::auth::caller::Caller;
use crate::cluster::membership::Membership;
use crate::runtime::blocking;
use forebay_proto::object_list::RequestParts;
use forebay_proto::snapshot::check_name;
use forebay_proto::v1;
use forebay_proto::v1::snapshots_server::Snapshots;
use forebay_proto::{Error, Kind, Result};
use std::sync::Arc;
use tonic::{Request, Response, Streaming};

/// Answers from etcd, as membership reaches it.
pub struct SnapshotService {
    membership: Arc<Membership>,
    /// Of `SaveParts`.
    lists: ListTurns,
}

impl SnapshotService {
    pub fn new(membership: Arc<Membership>) -> Self {
        Self { membership, lists: ListTurns::default() }
    }

    async fn kept(&self, caller: &Caller, snapshot: v1::Snapshot) -> Reply<v1::SaveSnapshotReply> {
        check_name(&snapshot.name)?;
        let (who, name) = (caller.clone(), snapshot.name.clone());
        let checked = move || {
            let spec = snapshot.dataset.as_ref();
            spec.map_or(Ok(()), |spec| visible::may_use_spec(&who, spec)).map(|()| snapshot)
        };
        let snapshot = if caller.session().is_some() { blocking(checked).await?? } else { checked()? };
        match self.membership.snapshots()?.save(snapshot).await {
            Ok(()) => Ok(Response::new(v1::SaveSnapshotReply {})),
            // The name is another's: of which dataset is not for this caller.
            Err(e) if e.kind == Kind::Invalid && self.is_hidden(caller, &name).await => {
                let why = format!("there is a snapshot `{name}` already: choose another name");
                Err(Error::invalid(why).into())
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Whether there is a snapshot that a caller may not know of.
    async fn is_hidden(&self, caller: &Caller, name: &str) -> bool {
        if caller.is_operator() {
            return false;
        }
        let Ok(snapshots) = self.membership.snapshots() else { return false };
        snapshots.get(name).await.is_ok_and(|snapshot| !sees(caller, &snapshot))
    }

    /// A snapshot that a caller may know of. `NotFound` in the same words if there is none, or it may not.
    async fn seen(&self, caller: &Caller, name: &str) -> Result<v1::Snapshot> {
        let snapshots = self.membership.snapshots()?;
        let snapshot = snapshots.get(name).await?;
        match sees(caller, &snapshot) {
            true => Ok(snapshot),
            false => {
                caller.deny("", format!("snapshot `{name}` is not for this caller"));
                Err(snapshots.missing(name))
            }
        }
    }
}

fn sees(caller: &Caller, snapshot: &v1::Snapshot) -> bool {
    caller.is_operator() || snapshot.dataset.as_ref().is_some_and(|spec| visible::sees_spec(caller, spec))
}

#[tonic::async_trait]
impl Snapshots for SnapshotService {
    async fn save(&self, request: Request<v1::Snapshot>) -> Reply<v1::SaveSnapshotReply> {
        let caller = caller(request.extensions())?;
        self.kept(&caller, request.into_inner()).await
    }

    async fn save_parts(
        &self,
        request: Request<Streaming<v1::SnapshotPart>>,
    ) -> Reply<v1::SaveSnapshotReply> {
        let caller = caller(request.extensions())?;
        let (mut snapshot, mut parts) = (None, RequestParts::default());
        let add = |part: v1::SnapshotPart| {
            snapshot = snapshot.take().or(part.snapshot);
            parts.add(part.part.unwrap_or_default())
        };
        let what = "save: the rest of the snapshot";
        let _turn = self.lists.receive(request.into_inner(), what, add).await?;
        let snapshot = snapshot.ok_or_else(|| Error::invalid("save: no snapshot given"))?;
        self.kept(&caller, v1::Snapshot { dataset: parts.request()?.dataset, ..snapshot }).await
    }

    async fn get(&self, request: Request<v1::SnapshotRequest>) -> Reply<v1::Snapshot> {
        let caller = caller(request.extensions())?;
        Ok(Response::new(self.seen(&caller, &request.into_inner().name).await?))
    }

    async fn list(&self, request: Request<v1::ListSnapshotsRequest>) -> Reply<v1::ListSnapshotsReply> {
        let caller = caller(request.extensions())?;
        let mut snapshots = self.membership.snapshots()?.list().await?;
        snapshots.retain(|snapshot| sees(&caller, snapshot));
        Ok(Response::new(v1::ListSnapshotsReply { snapshots }))
    }

    async fn remove(&self, request: Request<v1::SnapshotRequest>) -> Reply<v1::RemoveSnapshotReply> {
        let (caller, name) = (caller(request.extensions())?, request.into_inner().name);
        if caller.session().is_some() {
            self.seen(&caller, &name).await?;
        }
        self.membership.snapshots()?.remove(&name).await?;
        Ok(Response::new(v1::RemoveSnapshotReply {}))
    }
}
