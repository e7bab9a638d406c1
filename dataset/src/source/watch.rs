//! The HTTP client to an object store (S3), watched for what the crate `object_store` drops: the region that
//! a server says a bucket is in, the checksums and headers that it keeps of objects, and its clock.

use super::checksum::Offered;
use super::described::Described;
use async_trait::async_trait;
use chrono::{DateTime, Utc};
use http::header::DATE;
use http::{HeaderMap, Method};
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::SystemTime;

/// Minutes by which this machine's clock may be off before that is worth a warning; S3 refuses requests from
/// 15 on.
const OFF_MINUTES: i64 = 5;

/// Makes HTTP clients whose answers are looked at, and keeps what they have told.
#[derive(Debug, Default, Clone)]
pub(super) struct Watch {
    region: Arc<Mutex<Option<String>>>,
    /// The clocks were compared: once is enough.
    compared: Arc<AtomicBool>,
}

impl Watch {
    /// The region that the server named last, if any.
    pub(super) fn region(&self) -> Option<String> {
        self.region.lock().clone()
    }

    /// Warns if this machine's clock is not the server's. A wrong clock is a riddle otherwise: requests are
    /// refused as if their keys were wrong, and credentials seem to have expired.
    #[expect(clippy::disallowed_methods, reason = "two clocks are compared by the time of day")]
    fn compare_clocks(&self, answer: &HeaderMap) {
        if let Some(date) = answer.get(DATE).and_then(|date| date.to_str().ok())
            && !self.compared.swap(true, Relaxed)
            && let Some(off) = off(date, SystemTime::now())
        {
            tracing::warn!(date, "this machine's clock is {off} that of the object store: set it");
        }
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
        let is_head = request.method() == Method::HEAD;
        let mut answer = self.inner.execute(request).await;
        if let Ok(r) = &answer {
            self.watch.compare_clocks(r.headers());
        }
        if let Ok(r) = &mut answer
            && let Some(offered) = Offered::new(r.headers())
        {
            r.extensions_mut().insert(offered);
        }
        if is_head && let Ok(r) = &mut answer {
            let described = Described::new(r.headers());
            r.extensions_mut().insert(described);
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

/// By how much a clock differs from a server's, in words; nothing if it is little.
fn off(date: &str, now: SystemTime) -> Option<String> {
    let theirs = DateTime::parse_from_rfc2822(date).ok()?;
    let minutes = (DateTime::<Utc>::from(now) - theirs.to_utc()).num_minutes();
    let side = if minutes > 0 { "ahead of" } else { "behind" };
    (minutes.abs() >= OFF_MINUTES).then(|| format!("{} min {side}", minutes.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn a_clock_that_is_off_is_told_by_how_much() {
        let date = "Tue, 14 Nov 2023 22:13:20 GMT";
        let at = |minutes: i64| UNIX_EPOCH + Duration::from_secs((1_700_000_000 + 60 * minutes) as u64);
        assert_eq!(off(date, at(0)), None);
        assert_eq!(off(date, at(-4)), None);
        assert_eq!(off(date, at(7)).as_deref(), Some("7 min ahead of"));
        assert_eq!(off(date, at(-90)).as_deref(), Some("90 min behind"));
        assert_eq!(off("soon", at(0)), None);
    }
}
