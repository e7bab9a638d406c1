//! One request for one object or listing: sent until it is answered or its patience ends.
//!
//! `object_store` retries each request by itself and holds its place meanwhile; many at once make a storm of
//! a fault. So its retries are switched off, and these stand in their place: each after a wait of its own,
//! from a budget shared by all ([`RetryBudget`]), for a bounded time.

use super::counters::SourceCounters;
use super::limits::{Limits, RequestPermit};
use super::object::Place;
use super::retry::RetryBudget;
use super::settings::SourceSettings;
use super::silence::{ObjectStoreWait, Silence};
use crate::urgency::Urgency;
use forebay_proto::{Backoff, Error, Kind, Result};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const WAIT_FIRST: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(5);

/// What all requests of a process share.
pub(super) struct Requests {
    limits: Limits,
    retries: RetryBudget,
    pub counters: SourceCounters,
    pub silence: Silence,
}

impl Requests {
    pub(super) fn new(settings: &SourceSettings) -> Self {
        let (retries, counters) = (RetryBudget::new(), SourceCounters::default());
        Self { limits: Limits::new(settings), retries, counters, silence: Silence::default() }
    }

    /// Requests that could be sent now.
    pub(super) fn free(&self) -> u64 {
        self.limits.free()
    }
}

/// A request and its attempts. Its patience runs from its first failure.
pub(super) struct Request<'a> {
    all: &'a Requests,
    place: &'a Place,
    /// The tag of the version asked for.
    etag: Option<&'a str>,
    urgency: &'a Urgency,
    waits: Backoff,
    first_failure: Option<Instant>,
    last: Option<Error>,
    _waiting: ObjectStoreWait<'a>,
}

impl<'a> Request<'a> {
    pub(super) fn new(
        all: &'a Requests,
        place: &'a Place,
        etag: Option<&'a str>,
        urgency: &'a Urgency,
    ) -> Self {
        let waits = Backoff::new(WAIT_FIRST, WAIT_MAX);
        let _waiting = all.silence.begin();
        Self { all, place, etag, urgency, waits, first_failure: None, last: None, _waiting }
    }

    /// Waits until an attempt for `bytes` may begin.
    pub(super) async fn begin(&mut self, bytes: u64) -> Result<RequestPermit> {
        let since = match self.first_failure {
            Some(since) => {
                tokio::time::sleep(self.waits.next()).await;
                self.all.retries.pay().await;
                since
            }
            None => {
                self.all.retries.earn();
                Instant::now()
            }
        };
        let permit = self.all.limits.enter(self.urgency, bytes, since).await;
        permit.ok_or_else(|| {
            self.last.take().unwrap_or_else(|| {
                let (endpoint, patience) = (&self.place.bucket.endpoint.name, self.all.limits.patience);
                let (uri, patience) = (&self.place.uri, patience.as_secs_f64());
                Error::retry(format!(
                    "{uri}: not tried, as {endpoint} has answered no request for {patience} s: try again later"
                ))
            })
        })
    }

    /// The attempt's outcome: none if it is to be tried again.
    pub(super) fn end<T>(
        &mut self,
        permit: RequestPermit,
        outcome: object_store::Result<T>,
    ) -> Result<Option<T>> {
        let Requests { limits, retries, counters, silence } = self.all;
        let failed = match outcome {
            Ok(value) => Ok(value),
            Err(e) => {
                let endpoint = &self.place.bucket.endpoint;
                Err(endpoint.fault(&self.place.uri, self.etag, self.first_failure, &e))
            }
        };
        match failed {
            Err(e) if e.kind == Kind::Retry && !self.place.is_file() => {
                limits.on_throttle(permit);
                let since = self.first_failure.get_or_insert_with(Instant::now);
                if since.elapsed() >= limits.patience {
                    return Err(e);
                }
                counters.retries.fetch_add(1, Relaxed);
                silence.failed(&e.message);
                self.last = Some(e);
                Ok(None)
            }
            // Answered, if only with a refusal that a retry would not change.
            answered => {
                limits.on_success(permit);
                silence.heard();
                if self.first_failure.is_some() {
                    retries.refund();
                }
                answered.map(Some)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::faults::Endpoint;
    use super::super::object::Bucket;
    use super::super::retry::SAVED;
    use super::*;
    use object_store::memory::InMemory;
    use std::sync::Arc;

    #[tokio::test]
    async fn retries_cost_and_those_that_succeed_are_given_back() {
        let settings = SourceSettings { patience_s: 0.3, ..Default::default() };
        let (all, demand, start) = (Requests::new(&settings), Urgency::demand(), Instant::now());
        let endpoint = Endpoint { bucket: Some("b".into()), ..Default::default() };
        let bucket = Arc::new(Bucket {
            objects: Box::new(InMemory::new()),
            pages: None,
            endpoint,
            verbatim: None,
            guard: None,
        });
        let place = Place { bucket, path: "k".into(), uri: "s3://b/k".into() };
        let busy = || -> object_store::Result<()> {
            let source = "status code: 503 Slow".into();
            Err(object_store::Error::Generic { store: "S3", source })
        };
        let left = || all.retries.left();
        let mut request = Request::new(&all, &place, None, &demand);
        let permit = request.begin(1).await.unwrap();
        assert!(request.end(permit, busy()).unwrap().is_none());
        let permit = request.begin(1).await.unwrap();
        assert!(start.elapsed() >= WAIT_FIRST / 2, "it waits before it tries again");
        assert!(left().take(SAVED, start).is_err(), "a retry is paid for");
        assert!(request.end(permit, Ok(())).unwrap().is_some());
        assert!(left().take(SAVED, start).is_ok());
        tokio::time::sleep(Duration::from_millis(300)).await;
        let permit = request.begin(1).await.unwrap();
        assert!(request.end(permit, busy()).is_err(), "its patience has ended");
    }
}
