//! Ranges of objects in object stores: `s3://` at any endpoint, `gs://`, `az://`, and `file://`.
//!
//! Promises: requests at once and bytes a second are bounded, demands go before prefetches; transient
//! failures are retried for a bounded time and never in a storm; every read of a frozen object names its
//! version, so bytes of two versions never mix; errors say which object and what to do, and never show a
//! secret. Does not write, and knows nothing of Parquet or caches.
//!
//! Each request passes these layers: [`request`] classes its outcome, [`retry`] repeats it, [`limits`] lets
//! it through.

mod aimd;
#[cfg(feature = "cli")]
mod args;
mod blocking;
mod checksum;
mod counters;
mod credentials;
mod faults;
mod limits;
mod object;
mod open;
mod request;
mod retry;
mod settings;
mod uri;
mod watch;

#[cfg(feature = "cli")]
pub use args::SourceArgs;
pub(crate) use blocking::blocking;
pub use counters::SourceCounters;
pub use forebay_proto::ring::is_under;
pub(crate) use object::{Place, Purpose, Version};
pub use settings::SourceSettings;
pub use uri::normalise;

use crate::urgency::Urgency;
use bytes::Bytes;
use checksum::Offered;
use forebay_proto::{Error, Result};
use futures::TryStreamExt;
use object::Bucket;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta};
use parking_lot::Mutex;
use request::Request;
use retry::Retries;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use uri::{Location, Scheme, locate};

/// A whole object that does not match its checksum is read this often before it is called corrupt.
const READINGS: u32 = 3;

/// Object stores behind one set of settings. Cheap to clone; all clones share limits and counters.
#[derive(Clone)]
pub(crate) struct Source {
    inner: Arc<Inner>,
}

/// A scheme and a bucket; `None` is the file system.
type BucketName = Option<(Scheme, String)>;

struct Inner {
    settings: SourceSettings,
    s3: credentials::Resolved,
    /// By name; the file system has none.
    buckets: Mutex<HashMap<BucketName, Arc<Bucket>>>,
    retries: Retries,
    counters: SourceCounters,
}

/// What an answer says of the whole object.
struct Answered {
    size: u64,
    checksum: Option<Offered>,
}

impl Source {
    /// `Invalid` if settings, environment and AWS files contradict each other. Connects to nothing yet.
    pub(crate) fn new(settings: SourceSettings) -> Result<Self> {
        settings.check()?;
        let env = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let inner = Inner {
            s3: credentials::resolve(&settings, &env)?,
            buckets: Mutex::default(),
            retries: Retries::new(&settings),
            counters: SourceCounters::default(),
            settings,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub(crate) fn settings(&self) -> &SourceSettings {
        &self.inner.settings
    }

    pub(crate) fn counters(&self) -> &SourceCounters {
        &self.inner.counters
    }

    /// The place of a normalised URI.
    pub(crate) fn place(&self, uri: &str) -> Result<Place> {
        let (name, path) = match locate(uri)? {
            Location::Bucket { scheme, bucket, key } => (Some((scheme, bucket)), key),
            Location::File { path } => {
                let text = path.to_str().ok_or_else(|| Error::invalid(format!("{uri}: not UTF-8")))?;
                (None, text.trim_start_matches('/').to_owned())
            }
        };
        let path = Path::parse(&path).map_err(|e| Error::invalid(format!("{uri}: {e}")))?;
        let mut buckets = self.inner.buckets.lock();
        let bucket = match buckets.get(&name) {
            Some(bucket) => bucket.clone(),
            None => {
                let settings = &self.inner.settings;
                let bucket = Arc::new(match &name {
                    None => open::file_system(),
                    Some((Scheme::S3, name)) => open::s3(name, &self.inner.s3, settings)?,
                    Some((Scheme::Gs, name)) => open::gcs(name, settings)?,
                    Some((Scheme::Az, name)) => open::azure(name, settings)?,
                });
                buckets.insert(name, bucket.clone());
                bucket
            }
        };
        Ok(Place { bucket, path, uri: uri.to_owned() })
    }

    /// All objects under a prefix (on a `/` boundary), in no order.
    pub(crate) async fn list(&self, place: &Place) -> Result<Vec<ObjectMeta>> {
        let urgency = Urgency::demand();
        let mut request = self.request(place, None, &urgency);
        let prefix = (!place.path.as_ref().is_empty()).then_some(&place.path);
        let mut listed: Vec<ObjectMeta> = Vec::new();
        loop {
            let pass = request.begin(0).await?;
            self.inner.counters.footer_requests.fetch_add(1, Relaxed);
            // S3 lists in the order of keys: a listing that broke off goes on after its last one.
            let mut rest = match listed.last() {
                Some(last) => place.bucket.objects.list_with_offset(prefix, &last.location),
                None => place.bucket.objects.list(prefix),
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
        let mut request = self.request(place, None, &urgency);
        loop {
            let pass = request.begin(1).await?;
            self.inner.counters.footer_requests.fetch_add(1, Relaxed);
            // A GET of one byte, as the answer to a HEAD has no error document.
            let range = (!place.is_file()).then_some(GetRange::Bounded(0..1));
            let options = GetOptions { head: range.is_none(), range, ..Default::default() };
            let done = place.bucket.objects.get_opts(&place.path, options).await;
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

    /// As [`Source::get`], from `start` on into `bytes`, as many as those are. A body that breaks off is
    /// continued where it did.
    pub(crate) async fn get_into(
        &self,
        place: &Place,
        version: &Version,
        start: u64,
        bytes: &mut [u8],
        purpose: Purpose,
        urgency: &Urgency,
    ) -> Result<()> {
        let mut request = self.request(place, Some(version), urgency);
        let (mut filled, mut readings) = (0, 0);
        let end = start + bytes.len() as u64;
        loop {
            let rest = start + filled as u64..end;
            let is_whole = rest == (0..version.size);
            let pass = request.begin(rest.end - rest.start).await?;
            let done = self.attempt(place, version, rest, &mut bytes[filled..], &mut filled, purpose).await;
            let Some(Answered { size, checksum }) = request.end(pass, done)? else { continue };
            if size != version.size || filled < bytes.len() {
                return Err(Error::changed(format!(
                    "{}: has {size} bytes, not the {} it was frozen with: open the dataset again",
                    place.uri, version.size
                )));
            }
            match checksum.filter(|checksum| is_whole && !checksum.fits(bytes)) {
                None => return Ok(()),
                Some(checksum) => {
                    (filled, readings) = (0, readings + 1);
                    if readings == READINGS {
                        return Err(Error::corrupt(format!(
                            "{}: does not match the {} that {} keeps of it: write the object again",
                            place.uri, checksum, place.bucket.endpoint.name
                        )));
                    }
                }
            }
        }
    }

    /// Fills `bytes` with `range` as far as one answer goes, and adds to `filled` how far that is.
    async fn attempt(
        &self,
        place: &Place,
        version: &Version,
        range: Range<u64>,
        bytes: &mut [u8],
        filled: &mut usize,
        purpose: Purpose,
    ) -> object_store::Result<Answered> {
        let c = &self.inner.counters;
        let (requests, received) = match purpose {
            Purpose::Footer => (&c.footer_requests, &c.footer_bytes),
            Purpose::Data => (&c.s3_requests, &c.s3_bytes),
        };
        requests.fetch_add(1, Relaxed);
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: Some(format!("\"{}\"", version.etag)),
            ..Default::default()
        };
        let answer = place.bucket.objects.get_opts(&place.path, options).await?;
        let answered =
            Answered { size: answer.meta.size, checksum: answer.extensions.get::<Offered>().cloned() };
        let mut rest = bytes;
        let mut take = |piece: &[u8]| {
            received.fetch_add(piece.len() as u64, Relaxed);
            let fits = piece.len().min(rest.len());
            let (now, later) = std::mem::take(&mut rest).split_at_mut(fits);
            now.copy_from_slice(&piece[..fits]);
            *filled += fits;
            rest = later;
            rest.is_empty()
        };
        if place.is_file() {
            take(&answer.bytes().await?);
            return Ok(answered);
        }
        let mut body = answer.into_stream();
        let mut is_filled = false;
        loop {
            match body.try_next().await {
                Ok(Some(piece)) => is_filled = take(&piece),
                Ok(None) => return Ok(answered),
                // Broken after its last byte: there is nothing left to ask for.
                Err(_) if is_filled => return Ok(answered),
                Err(e) => return Err(e),
            }
        }
    }

    fn request<'a>(
        &'a self,
        place: &'a Place,
        version: Option<&'a Version>,
        urgency: &'a Urgency,
    ) -> Request<'a> {
        Request::new(&self.inner.retries, &self.inner.counters, place, version, urgency)
    }
}
