//! The HTTP client under an S3 store, watched: counts failed attempts and remembers the region that a server says a
//! bucket is in, which `object_store` drops.

use super::SourceCounters;
use async_trait::async_trait;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

/// Makes watched clients.
#[derive(Debug, Default, Clone)]
pub(super) struct Watch {
    counters: Arc<SourceCounters>,
    region: Arc<Mutex<Option<String>>>,
}

impl Watch {
    pub(super) fn new(counters: Arc<SourceCounters>) -> Self {
        Self { counters, region: Arc::default() }
    }

    /// The region that the server named last, if any.
    pub(super) fn region(&self) -> Option<String> {
        self.region.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl HttpConnector for Watch {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Watched { inner, watch: self.clone() }))
    }
}

#[derive(Debug)]
struct Watched {
    inner: HttpClient,
    watch: Watch,
}

#[async_trait]
impl HttpService for Watched {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.inner.execute(request).await;
        let transient = match &answer {
            Err(_) => true,
            Ok(r) => r.status().is_server_error() || matches!(r.status().as_u16(), 408 | 429),
        };
        if transient {
            self.watch.counters.retries.fetch_add(1, Relaxed);
        }
        if let Ok(r) = &answer
            && !r.status().is_success()
            && let Some(region) = r.headers().get("x-amz-bucket-region").and_then(|v| v.to_str().ok())
        {
            *self.watch.region.lock().unwrap_or_else(PoisonError::into_inner) = Some(region.to_owned());
        }
        answer
    }
}
