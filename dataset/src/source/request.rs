//! One request for one object or listing: sent until it is answered or its patience ends.

use super::counters::SourceCounters;
use super::limits::{Closed, Pass};
use super::object::{Place, Version};
use super::retry::{Attempts, Retries};
use crate::urgency::Urgency;
use forebay_proto::{Error, Kind, Result};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// A request and its attempts.
pub(super) struct Request<'a> {
    place: &'a Place,
    version: Option<&'a Version>,
    attempts: Attempts<'a>,
    counters: &'a SourceCounters,
    start: Option<Instant>,
    last: Option<Error>,
}

impl<'a> Request<'a> {
    pub(super) fn new(
        retries: &'a Retries,
        counters: &'a SourceCounters,
        place: &'a Place,
        version: Option<&'a Version>,
        urgency: &'a Urgency,
    ) -> Self {
        Self { place, version, attempts: retries.attempts(urgency), counters, start: None, last: None }
    }

    /// Waits until an attempt for `bytes` may begin.
    pub(super) async fn begin(&mut self, bytes: u64) -> Result<Pass> {
        let pass = self.attempts.begin(bytes).await.map_err(|closed| self.closed(&closed))?;
        self.start.get_or_insert_with(Instant::now);
        Ok(pass)
    }

    /// The attempt's outcome: none if it is to be tried again.
    pub(super) fn end<T>(&mut self, pass: Pass, outcome: object_store::Result<T>) -> Result<Option<T>> {
        let e = match outcome {
            Ok(value) => {
                self.attempts.on_success(pass);
                return Ok(Some(value));
            }
            Err(e) => e,
        };
        let start = self.start.unwrap_or_else(Instant::now);
        let etag = self.version.map(|v| v.etag.as_str());
        let e = self.place.bucket.endpoint.fault(&self.place.uri, etag, start, e);
        if e.kind != Kind::Retry || self.place.is_file() {
            self.attempts.on_success(pass);
            return Err(e);
        }
        if !self.attempts.on_throttle(pass) {
            return Err(e);
        }
        self.counters.retries.fetch_add(1, Relaxed);
        self.last = Some(e);
        Ok(None)
    }

    fn closed(&mut self, closed: &Closed) -> Error {
        self.last.take().unwrap_or_else(|| {
            Error::retry(format!(
                "{}: not tried, as {} has answered no request for {} s: try again later",
                self.place.uri,
                self.place.bucket.endpoint.name,
                closed.patience.as_secs_f64()
            ))
        })
    }
}
