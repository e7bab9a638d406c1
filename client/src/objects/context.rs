//! What all reads of objects share.

use crate::access::Access;
use crate::direct::Direct;
use crate::endpoints::Endpoints;
use crate::routing::Cluster;
use crate::routing::policy::RetryPolicy;
use forebay_proto::{Error, Kind, Result};

/// Where objects are read, and how long that is tried.
#[derive(Debug)]
pub(super) struct Context {
    pub access: Access,
    /// The cache; `None` where the object store is read without one.
    pub cluster: Option<Cluster>,
    pub policy: RetryPolicy,
}

impl Context {
    /// What a node answers; if none does and there is one, the object store.
    pub async fn ask<R: Clone, T, N, D>(
        &self,
        request: R,
        node: impl FnOnce(Endpoints, R) -> N,
        direct: impl FnOnce(Direct, R) -> D,
    ) -> Result<T>
    where
        N: Future<Output = Result<T>>,
        D: Future<Output = Result<T>>,
    {
        let fallback = self.access.direct_source().cloned();
        if let Access::Endpoint(endpoints) = &self.access {
            match (node(endpoints.clone(), request.clone()).await, &fallback) {
                (Err(e), Some(_)) if e.kind == Kind::Retry => {
                    tracing::warn!(error = %e, "no node of the cache answers: asking the object store");
                }
                (answer, _) => return answer,
            }
        }
        match fallback {
            Some(source) => direct(source, request).await,
            None => Err(Error::retry("no node of the cache answers")),
        }
    }
}
