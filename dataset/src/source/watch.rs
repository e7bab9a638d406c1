//! The HTTP client under an S3 store, watched for what `object_store` drops: the region that a server says a
//! bucket is in, and the checksums that it keeps of objects.

use super::checksum::Offered;
use async_trait::async_trait;
use http::HeaderMap;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use parking_lot::Mutex;
use std::sync::Arc;

/// Makes watched clients.
#[derive(Debug, Default, Clone)]
pub(super) struct Watch {
    region: Arc<Mutex<Option<String>>>,
}

impl Watch {
    /// The region that the server named last, if any.
    pub(super) fn region(&self) -> Option<String> {
        self.region.lock().clone()
    }
}

impl HttpConnector for Watch {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // `object_store` puts the default headers into requests for objects itself, and signs them. What the
        // client added to the others would not be signed, which S3 refuses of `x-amz-*`.
        let options = options.clone().with_default_headers(HeaderMap::new());
        let inner = ReqwestConnector::default().connect(&options)?;
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
        let mut answer = self.inner.execute(request).await;
        if let Ok(r) = &mut answer
            && let Some(offered) = Offered::new(r.headers())
        {
            r.extensions_mut().insert(offered);
        }
        if let Ok(r) = &answer
            && !r.status().is_success()
            && let Some(region) = r.headers().get("x-amz-bucket-region").and_then(|v| v.to_str().ok())
        {
            *self.watch.region.lock() = Some(region.to_owned());
        }
        answer
    }
}
