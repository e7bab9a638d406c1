//! Ranges of objects in object stores: `s3://` at any endpoint, `gs://`, `az://`, and `file://`.
//!
//! Promises: requests at once and bytes a second are bounded, demands go before prefetches; transient
//! failures are retried for a bounded time and never in a storm; every read of a frozen object names its
//! version, so bytes of two versions never mix; errors say which object and what to do, and never show a
//! secret. Does not write, and knows nothing of Parquet or caches.
//!
//! Each request passes these layers: [`request`] sends it until it is answered, [`limits`] lets it through.

mod aimd;
#[cfg(feature = "cli")]
mod args;
mod checksum;
mod counters;
mod credentials;
mod described;
mod faults;
mod guard;
mod kept;
mod limits;
mod object;
mod open;
mod page;
mod read_sink;
mod request;
mod retry;
mod settings;
mod silence;
mod store_names;
mod table_uri;
mod uri;
mod verbatim;
mod watch;

#[cfg(feature = "cli")]
pub use args::SourceArgs;
pub use checksum::WholeCheck;
pub use counters::SourceCounters;
pub use faults::NO_CREDENTIALS;
pub use forebay_proto::ring::is_under;
pub(crate) use object::{Place, SourceObject};
pub(crate) use page::{FoundObject, Page, PageRequest};
pub use settings::SourceSettings;
pub use silence::ObjectStoreSilence;
pub use store_names::store_names;
pub(crate) use table_uri::TableUri;
pub use table_uri::{is_version, place_of};
pub(crate) use uri::check_length;
pub use uri::{normalise, normalise_object};
pub use verbatim::{ObjectStoreAnswer, ObjectStoreRequest};

use crate::urgency::Urgency;
use aws_types::os_shim_internal::Env;
use bytes::Bytes;
use checksum::Offered;
use described::Described;
use forebay_proto::{Error, Result};
use futures::{StreamExt, TryStreamExt, stream};
pub use guard::ObjectGuard;
use kept::Overwritten;
use object::Bucket;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta};
use parking_lot::Mutex;
use read_sink::{Pieces, ReadSink, Slice};
use request::{Request, Requests};
use silence::Silence;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use uri::{BucketName, Location, locate};

/// A whole object that does not match its checksum is read this often before it is called corrupt.
const READINGS: u32 = 3;

/// Object stores behind one set of settings. Cheap to clone; all clones share limits and counters.
#[derive(Clone)]
pub(crate) struct Source {
    inner: Arc<Inner>,
}

struct Inner {
    settings: SourceSettings,
    s3: credentials::Resolved,
    /// By name; the file system has none.
    buckets: Mutex<HashMap<BucketName, Arc<Bucket>>>,
    requests: Requests,
    overwritten: Overwritten,
    guard: Option<ObjectGuard>,
}

impl Source {
    /// `Invalid` if settings, environment and AWS files contradict each other. Connects to nothing yet.
    /// Without a guard objects outside of their dataset may be read.
    pub(crate) fn new(settings: SourceSettings, guard: Option<ObjectGuard>) -> Result<Self> {
        settings.check()?;
        let inner = Inner {
            s3: credentials::resolve(&settings, &Env::real())?,
            buckets: Mutex::default(),
            requests: Requests::new(&settings),
            overwritten: Overwritten::default(),
            guard,
            settings,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// For how long the object stores have given nothing to requests that wait; none if none wait.
    pub(crate) fn silence(&self) -> Option<ObjectStoreSilence> {
        self.inner.requests.silence.get()
    }

    /// `Denied` if an object that lies outside of its dataset may not be read. Not for an async thread.
    pub(crate) fn check_outside(&self, uri: &str) -> Result<()> {
        self.inner.guard.as_ref().map_or(Ok(()), |guard| guard(uri))
    }

    pub(crate) fn settings(&self) -> &SourceSettings {
        &self.inner.settings
    }

    pub(crate) fn counters(&self) -> &SourceCounters {
        &self.inner.requests.counters
    }

    /// Requests that could be sent at once now.
    pub(crate) fn free_requests(&self) -> u64 {
        self.inner.requests.free()
    }

    /// The place of a normalised URI.
    pub(crate) fn place(&self, uri: &str) -> Result<Place> {
        let Location { bucket: name, path } = locate(uri)?;
        let path = Path::parse(&path).map_err(|e| Error::invalid(format!("{uri}: {e}")))?;
        let mut buckets = self.inner.buckets.lock();
        let bucket = match buckets.get(&name) {
            Some(bucket) => bucket.clone(),
            None => {
                let opened = open::open(&name, &self.inner.s3, &self.inner.settings)?;
                let bucket = Arc::new(Bucket { guard: self.inner.guard.clone(), ..opened });
                buckets.insert(name, bucket.clone());
                bucket
            }
        };
        Ok(Place { bucket, path, uri: uri.to_owned() })
    }

    /// All objects under a prefix (on a `/` boundary), in no order.
    pub(crate) async fn list(&self, place: &Place) -> Result<Vec<ObjectMeta>> {
        self.list_after(place, None).await
    }

    /// As [`Source::list`], of those only that come after `after`.
    pub(crate) async fn list_after(&self, place: &Place, after: Option<&Place>) -> Result<Vec<ObjectMeta>> {
        let after = after.map(|after| &after.path);
        let (mut listed, mut token) = (Vec::new(), None);
        loop {
            let attempt = || place.bucket.objects_after(&place.path, after, token.clone());
            let page = self.answer(place, None, 0, attempt).await?;
            listed.extend(page.0);
            token = place.further(token.as_deref(), page.1)?;
            if token.is_none() {
                return Ok(listed);
            }
        }
    }

    /// One page of a listing. `NotFound` never: what has no objects is empty.
    pub(crate) async fn list_page(&self, place: &Place, wanted: &PageRequest) -> Result<Page> {
        let page = self.answer(place, None, 0, || place.bucket.page(&place.path, wanted)).await?;
        let token = place.further(wanted.token.as_deref(), page.token)?;
        Ok(Page { token, ..page })
    }

    /// The region of the object store (S3).
    pub(crate) fn region(&self) -> &str {
        &self.inner.s3.region
    }

    /// Asks an object store (S3) in its own words. Tries again where that may help.
    ///
    /// # Errors
    /// As of every read, but no error is what the object store refuses.
    pub(crate) async fn ask(&self, wanted: &ObjectStoreRequest) -> Result<ObjectStoreAnswer> {
        let uri = format!("s3://{}", wanted.bucket);
        let place = self.place(&uri)?;
        let Some(verbatim) = &place.bucket.verbatim else {
            return Err(Error::invalid(format!("{uri}: is in no object store that speaks S3")));
        };
        self.answer(&place, None, 0, || verbatim.send(wanted)).await
    }

    /// An object as it is now, whatever is in it, by a HEAD.
    pub(crate) async fn find(&self, place: &Place) -> Result<FoundObject> {
        let options = || GetOptions { head: true, ..Default::default() };
        let answer = self.answer(place, None, 0, || place.bucket.get(&place.path, options())).await?;
        let headers = answer.extensions.get::<Described>().map(|described| described.0.clone());
        Ok(FoundObject { headers: headers.unwrap_or_default(), ..(&answer.meta).into() })
    }

    /// Whether what lies under a prefix can be listed: one attempt.
    pub(crate) async fn try_list(&self, place: &Place) -> Result<()> {
        self.inner.requests.counters.footer_requests.fetch_add(1, Relaxed);
        let prefix = (!place.path.as_ref().is_empty()).then_some(&place.path);
        let listed = place.bucket.objects.list(prefix).try_next().await;
        listed.map(drop).map_err(|e| place.bucket.endpoint.fault(&place.uri, None, None, &e))
    }

    /// One object, as it is now.
    pub(crate) async fn head(&self, place: &Place) -> Result<SourceObject> {
        // A GET of one byte, as the answer to a HEAD has no error document.
        let range = || (!place.is_file()).then_some(GetRange::Bounded(0..1));
        let options = || GetOptions { head: place.is_file(), range: range(), ..Default::default() };
        let answer = self.answer(place, None, 1, || place.bucket.get(&place.path, options())).await?;
        place.object(&answer.meta)
    }

    /// What the object store calls the version of an object, by a HEAD; none if it keeps no versions.
    pub(crate) async fn version_id(&self, object: &SourceObject) -> Result<Option<String>> {
        let SourceObject { place, etag, .. } = object;
        let options =
            || GetOptions { head: true, if_match: Some(object.quoted_etag()), ..Default::default() };
        let attempt = || place.bucket.get(&place.path, options());
        Ok(self.answer(place, Some(etag), 0, attempt).await?.meta.version)
    }

    /// What the object store answers to a request that carries no column data, for which somebody waits:
    /// `attempt`, until it is answered or its patience ends. `etag` is that of the version asked for, `bytes`
    /// are those of the answer.
    async fn answer<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        place: &Place,
        etag: Option<&str>,
        bytes: u64,
        attempt: impl Fn() -> F,
    ) -> Result<T> {
        let urgency = Urgency::demand();
        let mut request = Request::new(&self.inner.requests, place, etag, &urgency);
        loop {
            let pass = request.begin(bytes).await?;
            self.inner.requests.counters.footer_requests.fetch_add(1, Relaxed);
            let done = attempt().await;
            if let Some(answer) = request.end(pass, done)? {
                return Ok(answer);
            }
        }
    }

    /// Bytes of a footer: `Changed` if the object has another version.
    pub(crate) async fn get(
        &self,
        object: &SourceObject,
        range: Range<u64>,
        urgency: &Urgency,
    ) -> Result<Bytes> {
        let c = &self.inner.requests.counters;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let counted = [&c.footer_requests, &c.footer_bytes];
        self.read(object, range, &mut Slice::new(&mut bytes), counted, urgency).await?;
        Ok(bytes.into())
    }

    /// Column data from `start` on into `bytes`, as many as those are. `Changed` if the object has another
    /// version.
    pub(crate) async fn get_into(
        &self,
        object: &SourceObject,
        start: u64,
        bytes: &mut [u8],
        urgency: &Urgency,
    ) -> Result<()> {
        let range = start..start + bytes.len() as u64;
        self.get_data(object, range, &mut Slice::new(bytes), urgency).await
    }

    /// Data of a range, handed on piece by piece as it comes. Of an answer that is the whole object, and has
    /// a checksum of it, when that fits.
    pub(crate) async fn get_pieces(
        &self,
        object: &SourceObject,
        range: Range<u64>,
        urgency: &Urgency,
        hand_on: impl FnMut(Bytes) + Send,
    ) -> Result<()> {
        self.get_data(object, range, &mut Pieces::new(hand_on), urgency).await
    }

    /// Data that counts as such, to where it lands.
    async fn get_data(
        &self,
        object: &SourceObject,
        range: Range<u64>,
        to: &mut impl ReadSink,
        urgency: &Urgency,
    ) -> Result<()> {
        let c = &self.inner.requests.counters;
        self.read(object, range, to, [&c.s3_requests, &c.s3_bytes], urgency).await
    }

    /// Reads a range. A body that breaks off is continued where it did.
    async fn read(
        &self,
        object: &SourceObject,
        range: Range<u64>,
        to: &mut impl ReadSink,
        counted: [&AtomicU64; 2],
        urgency: &Urgency,
    ) -> Result<()> {
        let SourceObject { place, etag, size: frozen, .. } = object;
        let mut request = Request::new(&self.inner.requests, place, Some(etag), urgency);
        let mut ways = self.inner.overwritten.ways(object);
        let mut readings = 0;
        loop {
            let rest = range.start + to.filled()..range.end;
            let pass = request.begin(rest.end - rest.start).await?;
            let all = &self.inner.requests;
            let done = attempt(object, ways.version_id(), rest, to, (counted, &all.silence)).await;
            let (size, checksum) = match request.end(pass, done) {
                Ok(Some(answered)) => answered,
                Ok(None) => continue,
                Err(e) => {
                    ways.turn(e)?;
                    continue;
                }
            };
            if size != *frozen {
                return Err(Error::changed(format!(
                    "{}: has {size} bytes, not the {frozen} it was frozen with: open the dataset again",
                    place.uri
                )));
            }
            if range.start + to.filled() < range.end {
                let (sent, asked, name) = (to.filled(), range.end - range.start, &place.bucket.endpoint.name);
                return Err(Error::corrupt(format!(
                    "{}: {name} sent {sent} bytes for a range of {asked}: is the endpoint right, and sound?",
                    place.uri
                )));
            }
            if to.finish(checksum.as_ref()) {
                ways.done();
                return Ok(());
            }
            readings += 1;
            if readings == READINGS {
                let name = checksum.map_or_else(String::new, |checksum| checksum.to_string());
                return Err(Error::corrupt(format!(
                    "{}: does not match the {name} that {} keeps of it: write the object again",
                    place.uri, place.bucket.endpoint.name
                )));
            }
        }
    }
}

/// Reads `range` of the object as far as one answer goes, of the version that the object store has under an
/// id if one is given. Says what the answer tells of the whole object: its size, and its checksum if the
/// answer is all of it.
async fn attempt(
    object: &SourceObject,
    version_id: Option<&str>,
    range: Range<u64>,
    to: &mut impl ReadSink,
    ([requests, received], silence): ([&AtomicU64; 2], &Silence),
) -> object_store::Result<(u64, Option<Offered>)> {
    requests.fetch_add(1, Relaxed);
    let is_whole = range == (0..object.size);
    let mut left = range.end - range.start;
    let options = GetOptions {
        range: Some(GetRange::Bounded(range)),
        if_match: Some(object.quoted_etag()),
        version: version_id.map(str::to_owned),
        ..Default::default()
    };
    let place = &object.place;
    let answer = place.bucket.get(&place.path, options).await?;
    object.check_answer(&answer.meta)?;
    let checksum = answer.extensions.get::<Offered>().copied().filter(|_| is_whole);
    let answered = (answer.meta.size, checksum);
    let mut body = match place.is_file() {
        true => stream::once(answer.bytes()).boxed(),
        false => answer.into_stream(),
    };
    loop {
        match body.try_next().await {
            Ok(Some(mut piece)) => {
                received.fetch_add(piece.len() as u64, Relaxed);
                silence.heard();
                piece.truncate(left.min(piece.len() as u64) as usize);
                left -= piece.len() as u64;
                to.put(piece, checksum.is_some());
            }
            Ok(None) => return Ok(answered),
            // Broken after its last byte: there is nothing left to ask for.
            Err(_) if left == 0 => return Ok(answered),
            Err(e) => return Err(e),
        }
    }
}
