//! `forebay.v1.Cache`: open, load, free, status, topology, drain.

mod drain;
mod load;
mod status;

use super::guard::{caller, may_use};
use super::list_parts::ListTurns;
use super::{Reply, visible};
use crate::auth::caller::Caller;
use crate::datasets::OpenDataset;
use crate::node::Node;
use crate::runtime::blocking;
use forebay_dataset::source;
use forebay_proto::manifest::Digest;
use forebay_proto::object_list::RequestParts;
use forebay_proto::v1::cache_server::Cache as Service;
use forebay_proto::{Error, protocol, v1};
use futures::StreamExt;
use futures::stream::BoxStream;
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// Answers the calls of the service `Cache`.
pub struct Control {
    node: Arc<Node>,
    /// Ends open streams.
    stop: CancellationToken,
    /// Held while the node begins or ends to drain.
    draining: Arc<Mutex<()>>,
    /// Held while the node looks at itself for a status.
    looking: Arc<Mutex<()>>,
    /// Of `OpenParts`.
    lists: ListTurns,
}

impl Control {
    /// Answers for `node`; `stop` ends open streams.
    pub fn new(node: Arc<Node>, stop: CancellationToken) -> Self {
        Self { node, stop, draining: Arc::default(), looking: Arc::default(), lists: ListTurns::default() }
    }
}

/// Freezes the dataset of a request.
async fn opened(
    node: &Node,
    caller: &Caller,
    request: v1::OpenRequest,
) -> forebay_proto::Result<v1::OpenReply> {
    protocol::check_client(request.protocol.as_ref())?;
    let spec = request.dataset.ok_or_else(|| Error::invalid("open: no dataset given"))?;
    if let Some(limiter) = caller.limiter() {
        limiter.open().await?;
    }
    let OpenDataset { dataset, projected_bytes, notes } = match request.version_ids {
        true => node.datasets.freeze_with_ids(caller, spec, &request.columns).await?,
        false => node.datasets.freeze(caller, spec, &request.columns).await?,
    };
    // Millions of segments: not for an async thread.
    let manifest = blocking(move || (&*dataset.manifest).into()).await?;
    Ok(v1::OpenReply { manifest: Some(manifest), projected_bytes, notes, protocol: Some(protocol::ours()) })
}

#[tonic::async_trait]
impl Service for Control {
    type LoadStream = BoxStream<'static, Result<v1::LoadProgress, Status>>;
    type WatchTopologyStream = BoxStream<'static, Result<v1::Topology, Status>>;

    async fn open(&self, request: Request<v1::OpenRequest>) -> Reply<v1::OpenReply> {
        let caller = caller(request.extensions())?;
        Ok(Response::new(opened(&self.node, &caller, request.into_inner()).await?))
    }

    async fn open_parts(&self, request: Request<Streaming<v1::OpenRequest>>) -> Reply<v1::OpenReply> {
        let caller = caller(request.extensions())?;
        let mut parts = RequestParts::default();
        let what = "open: the rest of the list";
        let _turn = self.lists.receive(request.into_inner(), what, |part| parts.add(part)).await?;
        Ok(Response::new(opened(&self.node, &caller, parts.request()?).await?))
    }

    async fn load(&self, request: Request<v1::LoadRequest>) -> Reply<Self::LoadStream> {
        let caller = caller(request.extensions())?;
        let progress = load::load(self.node.clone(), &caller, request.into_inner(), self.stop.clone());
        Ok(Response::new(progress.await?.boxed()))
    }

    async fn free(&self, request: Request<v1::FreeRequest>) -> Reply<v1::FreeReply> {
        let caller = caller(request.extensions())?;
        let (node, v1::FreeRequest { uri, digest, superseded }) = (self.node.clone(), request.into_inner());
        may_use(&caller, &uri).await?;
        let digest = match (digest.is_empty(), superseded) {
            (true, _) => None,
            (false, false) => Some(Digest::from_bytes(&digest)?),
            (false, true) => return Err(Error::invalid("free: one version or the superseded ones").into()),
        };
        let free = move || match digest.is_some() || superseded {
            true => node.datasets.forget_versions(&uri, digest).map(|ids| node.cache.free_segments(&ids)),
            false => node.datasets.forget(&uri).map(|uri| {
                node.objects.forget(&uri);
                node.cache.free(&uri)
            }),
        };
        let (segments, bytes) = blocking(free).await??;
        Ok(Response::new(v1::FreeReply { segments, bytes }))
    }

    async fn pin(&self, request: Request<v1::PinRequest>) -> Reply<v1::PinReply> {
        let caller = caller(request.extensions())?;
        let (node, uri) = (self.node.clone(), request.into_inner().uri);
        may_use(&caller, &uri).await?;
        let pin = move || node.datasets.allowed(&uri).and_then(|uri| node.disk.pin(source::place_of(&uri)));
        let (files, bytes) = blocking(pin).await??;
        Ok(Response::new(v1::PinReply { files, bytes }))
    }

    async fn unpin(&self, request: Request<v1::PinRequest>) -> Reply<v1::PinReply> {
        let caller = caller(request.extensions())?;
        let (disk, uri) = (self.node.disk.clone(), request.into_inner().uri);
        may_use(&caller, &uri).await?;
        // A URI that is no longer allowed may still be pinned.
        let (files, bytes) =
            blocking(move || disk.unpin(source::place_of(&source::normalise(&uri)?))).await??;
        Ok(Response::new(v1::PinReply { files, bytes }))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Reply<v1::StatusReply> {
        let caller = caller(request.extensions())?;
        let whole = status::status(&self.node, &caller, &self.looking).await?;
        Ok(Response::new(visible::status(&caller, whole)))
    }

    async fn watch_topology(
        &self,
        request: Request<v1::WatchTopologyRequest>,
    ) -> Reply<Self::WatchTopologyStream> {
        let caller = caller(request.extensions())?;
        let changes = WatchStream::new(self.node.membership.topology());
        let changes = changes.map(move |topology| Ok(visible::topology(&caller, topology)));
        Ok(Response::new(changes.take_until(self.stop.clone().cancelled_owned()).boxed()))
    }

    async fn set_replicas(&self, request: Request<v1::SetReplicasRequest>) -> Reply<v1::SetReplicasReply> {
        let caller = caller(request.extensions())?;
        let (node, v1::SetReplicasRequest { uri, replicas }) = (self.node.clone(), request.into_inner());
        may_use(&caller, &uri).await?;
        let uri = blocking(move || node.datasets.allowed(&uri)).await??;
        self.node.membership.set_replicas(source::place_of(&uri), replicas).await?;
        Ok(Response::new(v1::SetReplicasReply {}))
    }

    async fn same_host(&self, request: Request<v1::SameHostRequest>) -> Reply<v1::SameHostReply> {
        let caller = caller(request.extensions())?;
        // Over the socket a certificate cannot be shown.
        if caller.has_certificate() {
            return Ok(Response::new(v1::SameHostReply::default()));
        }
        Ok(Response::new(self.node.shared.same_host(&caller, self.node.guard.authority.generation())?))
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Reply<v1::DrainReply> {
        let drained = drain::drain(&self.node, &self.draining, request.into_inner().undo);
        Ok(Response::new(drained.await?))
    }
}
