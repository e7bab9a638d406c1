//! Requests to a store: listings, heads and ranged reads, each sent until it is answered or its patience ends.

use super::checksum::Offered;
use super::gate::{Closed, Pass, Tries};
use super::joint::{self, Riders};
use super::{Place, Purpose, Source, Version};
use crate::Urgency;
use bytes::Bytes;
use forebay_proto::{Error, Kind, Result};
use futures::TryStreamExt;
use futures::stream::BoxStream;
use object_store::{GetOptions, GetRange, ObjectMeta};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// A whole object that does not match its checksum is read this often before it is called corrupt.
const READINGS: u32 = 3;

/// One request and its attempts.
struct Request<'a> {
    source: &'a Source,
    place: &'a Place,
    version: Option<&'a Version>,
    tries: Tries<'a>,
    start: Option<Instant>,
    last: Option<Error>,
}

impl<'a> Request<'a> {
    fn new(source: &'a Source, place: &'a Place, version: Option<&'a Version>, urgency: &'a Urgency) -> Self {
        let tries = source.inner.gate.tries(urgency);
        Self { source, place, version, tries, start: None, last: None }
    }

    /// Waits until an attempt for `bytes` may begin.
    async fn begin(&mut self, bytes: u64) -> Result<Pass> {
        let pass = self.tries.begin(bytes).await.map_err(|Closed| self.closed())?;
        self.start.get_or_insert_with(Instant::now);
        Ok(pass)
    }

    /// Waits until an attempt for the bytes `rest` may begin; none if they were read along with others' meanwhile, into
    /// `bytes`, as far as `filled` then says.
    async fn turn(
        &mut self,
        joins: bool,
        rest: Range<u64>,
        bytes: &mut [u8],
        filled: &mut usize,
    ) -> Result<Option<Pass>> {
        let wanted = rest.end - rest.start;
        let Some(version) = self.version.filter(|_| joins) else { return self.begin(wanted).await.map(Some) };
        let mut stop = self.source.inner.joint.wait(key(self.place, version), rest);
        let pass = tokio::select! {
            biased;
            () = stop.taken() => None,
            pass = self.begin(wanted) => Some(pass?),
        };
        // It may have been taken along just before its own turn came.
        if pass.is_some() && stop.leave() {
            return Ok(pass);
        }
        drop(pass);
        self.tries.spare();
        *filled += stop.ride(bytes).await;
        Ok(None)
    }

    /// The attempt's outcome: none if it is to be tried again.
    fn end<T>(&mut self, pass: Pass, done: object_store::Result<T>) -> Result<Option<T>> {
        let e = match done {
            Ok(value) => {
                self.tries.well(pass);
                return Ok(Some(value));
            }
            Err(e) => e,
        };
        let start = self.start.unwrap_or_else(Instant::now);
        let e = self.place.store.about.fault(&self.place.uri, self.version, start, e);
        if e.kind != Kind::Retry || self.place.is_file() {
            self.tries.well(pass);
            return Err(e);
        }
        if !self.tries.badly(pass) {
            return Err(e);
        }
        self.source.inner.counters.retries.fetch_add(1, Relaxed);
        self.last = Some(e);
        Ok(None)
    }

    fn closed(&mut self) -> Error {
        self.last.take().unwrap_or_else(|| {
            Error::retry(format!(
                "{}: not tried, as {} has answered no request for {} s: try again later",
                self.place.uri, self.place.store.about.endpoint, self.source.inner.settings.patience_s
            ))
        })
    }
}

impl Source {
    /// All objects under a prefix (on a `/` boundary), in no order.
    pub(crate) async fn list(&self, place: &Place) -> Result<Vec<ObjectMeta>> {
        let urgency = Urgency::demand();
        let mut request = Request::new(self, place, None, &urgency);
        let prefix = (!place.path.as_ref().is_empty()).then_some(&place.path);
        let mut listed: Vec<ObjectMeta> = Vec::new();
        loop {
            let pass = request.begin(0).await?;
            self.inner.counters.footer_requests.fetch_add(1, Relaxed);
            // S3 lists in the order of keys: a listing that broke off goes on after its last one.
            let mut rest = match listed.last() {
                Some(last) => place.store.objects.list_with_offset(prefix, &last.location),
                None => place.store.objects.list(prefix),
            };
            let done = async {
                while let Some(meta) = rest.try_next().await? {
                    listed.push(meta);
                }
                Ok(())
            };
            let done = done.await;
            drop(rest);
            if request.end(pass, done)?.is_some() {
                return Ok(listed);
            }
        }
    }

    /// Size and version of one object.
    pub(crate) async fn head(&self, place: &Place) -> Result<Version> {
        let urgency = Urgency::demand();
        let mut request = Request::new(self, place, None, &urgency);
        loop {
            let pass = request.begin(1).await?;
            self.inner.counters.footer_requests.fetch_add(1, Relaxed);
            // A GET of one byte, as the answer to a HEAD cannot say what is wrong.
            let range = place.store.about.bucket.is_some().then_some(GetRange::Bounded(0..1));
            let options = GetOptions { head: range.is_none(), range, ..Default::default() };
            let done = place.store.objects.get_opts(&place.path, options).await;
            if let Some(answer) = request.end(pass, done)? {
                return place.version(&answer.meta);
            }
        }
    }

    /// Bytes of an object of the given version: `Changed` if it has another one.
    pub(crate) async fn get(
        &self,
        place: &Place,
        version: &Version,
        range: Range<u64>,
        purpose: Purpose,
        urgency: &Urgency,
    ) -> Result<Bytes> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.get_into(place, version, range.start, &mut bytes, purpose, urgency).await?;
        Ok(bytes.into())
    }

    /// As [`Source::get`], from `start` on into `bytes`, as many as those are. A body that breaks off is gone on with
    /// where it did.
    pub(crate) async fn get_into(
        &self,
        place: &Place,
        version: &Version,
        start: u64,
        bytes: &mut [u8],
        purpose: Purpose,
        urgency: &Urgency,
    ) -> Result<()> {
        let mut request = Request::new(self, place, Some(version), urgency);
        let (mut filled, mut readings) = (0, 0);
        let end = start + bytes.len() as u64;
        loop {
            let rest = start + filled as u64..end;
            let whole = rest == (0..version.size);
            let joins = purpose == Purpose::Data && !whole && !place.is_file();
            let Some(pass) = request.turn(joins, rest.clone(), &mut bytes[filled..], &mut filled).await?
            else {
                match filled == bytes.len() {
                    true => return Ok(()),
                    false => continue,
                }
            };
            let riders = match joins && request.last.is_none() {
                true => self.inner.joint.take_along(&key(place, version), rest, self.inner.gate.queue()),
                false => Riders::default(),
            };
            self.inner.gate.pay(riders.bytes());
            let done = self.attempt(place, version, (start, &mut *bytes), &mut filled, purpose, riders).await;
            let told = match done {
                Ok((told, Some(trail))) => {
                    self.read_on(trail, urgency, pass);
                    Some(told)
                }
                Ok((told, None)) => request.end(pass, Ok(told))?,
                Err(e) => request.end(pass, Err(e))?,
            };
            let Some((size, offered)) = told else { continue };
            if size != version.size || filled < bytes.len() {
                return Err(Error::changed(format!(
                    "{}: has {size} bytes, not the {} it was frozen with: open the dataset anew",
                    place.uri, version.size
                )));
            }
            match offered.filter(|offered| whole && !offered.fits(bytes)) {
                None => return Ok(()),
                Some(offered) => {
                    (filled, readings) = (0, readings + 1);
                    if readings == READINGS {
                        return Err(Error::corrupt(format!(
                            "{}: does not match the {} that {} keeps of it: write the object anew",
                            place.uri, offered, place.store.about.endpoint
                        )));
                    }
                }
            }
        }
    }

    /// Fills `bytes`, which lie at `start`, from `filled` on, as far as one answer goes. Says what size the object has and what checksum,
    /// and what is left to read for those who ride along.
    async fn attempt(
        &self,
        place: &Place,
        version: &Version,
        (start, bytes): (u64, &mut [u8]),
        filled: &mut usize,
        purpose: Purpose,
        mut riders: Riders,
    ) -> object_store::Result<((u64, Option<Offered>), Option<Trail>)> {
        let c = &self.inner.counters;
        let (requests, received) = match purpose {
            Purpose::Footer => (&c.footer_requests, &c.footer_bytes),
            Purpose::Data => (&c.s3_requests, &c.s3_bytes),
        };
        requests.fetch_add(1, Relaxed);
        let end = start + bytes.len() as u64;
        let (mut at, far) = (start + *filled as u64, riders.end().unwrap_or(end));
        let options = GetOptions {
            range: Some(GetRange::Bounded(at..far)),
            if_match: Some(format!("\"{}\"", version.etag)),
            ..Default::default()
        };
        let answer = place.store.objects.get_opts(&place.path, options).await?;
        let told = (answer.meta.size, answer.extensions.get::<Offered>().cloned());
        if told.0 != version.size {
            // Nobody's bytes.
            riders = Riders::default();
        }
        let mut take = |piece: &[u8]| {
            received.fetch_add(piece.len() as u64, Relaxed);
            let rest = bytes.get_mut(*filled..).unwrap_or_default();
            let fits = piece.len().min(rest.len());
            rest[..fits].copy_from_slice(&piece[..fits]);
            *filled += fits;
            fits == rest.len()
        };
        if place.is_file() {
            take(&answer.bytes().await?);
            return Ok((told, None));
        }
        let mut body = answer.into_stream();
        let mut is_filled = false;
        loop {
            match body.try_next().await {
                Ok(Some(piece)) => {
                    is_filled = take(&piece);
                    riders.hand(at, &piece).await;
                    at += piece.len() as u64;
                    if is_filled && !riders.is_empty() {
                        return Ok((told, Some(Trail { body, at, end: far, riders })));
                    }
                }
                Ok(None) => return Ok((told, None)),
                // Broken after its last byte: there is nothing left to ask for.
                Err(_) if is_filled => return Ok((told, None)),
                Err(e) => return Err(e),
            }
        }
    }

    /// Reads the rest of an answer for those who ride along, as a task of its own: the one who sent the request has its bytes.
    fn read_on(&self, mut trail: Trail, urgency: &Urgency, pass: Pass) {
        let (source, urgency) = (self.clone(), urgency.clone());
        tokio::spawn(async move {
            let received = &source.inner.counters.s3_bytes;
            let done = async {
                while let Some(piece) = trail.body.try_next().await? {
                    received.fetch_add(piece.len() as u64, Relaxed);
                    trail.riders.hand(trail.at, &piece).await;
                    trail.at += piece.len() as u64;
                    // All have gone: nobody wants the rest.
                    if trail.riders.is_empty() && trail.at < trail.end {
                        break;
                    }
                }
                Ok::<_, object_store::Error>(())
            };
            let (done, mut tries) = (done.await, source.inner.gate.tries(&urgency));
            match done {
                Ok(()) => tries.well(pass),
                Err(_) => drop(tries.badly(pass)),
            }
        });
    }
}

/// The rest of an answer, for those who ride along.
struct Trail {
    body: BoxStream<'static, object_store::Result<Bytes>>,
    /// Where in the object it goes on, and ends.
    at: u64,
    end: u64,
    riders: Riders,
}

fn key(place: &Place, version: &Version) -> joint::Key {
    (place.uri.clone(), version.etag.clone())
}
