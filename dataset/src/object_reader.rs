//! Objects byte for byte, whatever is in them: their version of now, ranges of one version, listings.

use crate::off_thread::blocking;
use crate::source::{
    FoundObject, ObjectStoreAnswer, ObjectStoreRequest, PageRequest, Source, SourceObject, normalise,
    normalise_object,
};
use crate::urgency::Urgency;
use bytes::Bytes;
use forebay_proto::manifest::uri_below;
use forebay_proto::object::{ObjectVersion, check_etag};
use forebay_proto::{Error, Kind, Result, v1};
use std::ops::Range;

/// Entries of a page at most: those of S3.
const PAGE: usize = 1000;

/// Reads objects, within the limits and with the retries of all reads of its source. Cheap to clone.
#[derive(Clone)]
pub struct ObjectReader(Source);

/// A page of a listing, in no order.
pub type ListPage = v1::ListObjectsReply;

impl ObjectReader {
    pub(crate) fn new(source: Source) -> Self {
        Self(source)
    }

    /// The object in its version of now, to be cut into blocks of `block_bytes`. One HEAD.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the object store's ETag does not tell versions apart.
    pub async fn version(&self, uri: &str, block_bytes: u64) -> Result<ObjectVersion> {
        let uri = spelled(uri, normalise_object).await?;
        let place = self.0.place(&uri)?;
        let found = self.0.find(&place).await?;
        check_etag(&found.etag).map_err(|e| e.context(&uri))?;
        wire(uri, &found, block_bytes).try_into()
    }

    /// Reads a range of one version and hands pieces on as they come. What was handed on stays so if the read
    /// fails. Bytes of an object that is read as a whole, and of which the object store keeps a checksum,
    /// come when they have been checked.
    ///
    /// # Errors
    /// `Changed` if the object has another version.
    pub async fn read(
        &self,
        object: &ObjectVersion,
        range: Range<u64>,
        urgency: &Urgency,
        hand_on: impl FnMut(Bytes) + Send,
    ) -> Result<()> {
        object.check_range(&range)?;
        let bytes = range.end - range.start;
        let place = self.0.place(&object.uri)?;
        let etag = object.etag.to_string();
        let of = SourceObject { place, etag, size: object.size, version_id: String::new() };
        let read = self.0.get_pieces(&of, range, urgency, hand_on).await;
        urgency.add_fetched(if read.is_ok() { bytes } else { 0 });
        read.map_err(|e| match e.kind {
            Kind::Changed => Error::changed(format!(
                "{}: was overwritten while it was read (its ETag was {}): read it again",
                object.uri, object.etag
            )),
            Kind::NotFound => Error::changed(format!("{}: was deleted while it was read", object.uri)),
            _ => e,
        })
    }

    /// What an object store (S3) says to a request in its own words, its refusals too.
    pub async fn ask(&self, request: &ObjectStoreRequest) -> Result<ObjectStoreAnswer> {
        self.0.ask(request).await
    }

    /// The region of the object store (S3).
    pub fn region(&self) -> &str {
        self.0.region()
    }

    /// A page of what lies under a prefix, or the object of this URI where nothing does; all are to be cut
    /// into blocks as `block_bytes` says of their URIs. `NotFound` if there is neither.
    pub async fn list(
        &self,
        wanted: &v1::ListObjectsRequest,
        block_bytes: impl Fn(&str) -> u64,
    ) -> Result<ListPage> {
        let uri = spelled(&wanted.uri, normalise).await?;
        let place = self.0.place(&uri)?;
        let limit = match wanted.limit as usize {
            n @ 1..PAGE => n,
            _ => PAGE,
        };
        let token = Some(wanted.token.clone()).filter(|token| !token.is_empty());
        let is_first = token.is_none();
        let page =
            self.0.list_page(&place, &PageRequest { is_recursive: wanted.recursive, token, limit }).await?;
        let root = uri.strip_suffix(place.path()).unwrap_or(&uri);
        let listed = |found: &FoundObject| {
            let uri = uri_below(root, &found.key);
            let block_bytes = block_bytes(&uri);
            wire(uri, found, block_bytes)
        };
        let mut reply = ListPage {
            objects: page.objects.iter().map(listed).collect(),
            prefixes: page.prefixes.iter().map(|prefix| uri_below(root, prefix)).collect(),
            token: page.token.unwrap_or_default(),
        };
        if is_first && reply.objects.is_empty() && reply.prefixes.is_empty() && reply.token.is_empty() {
            let missing = || Error::not_found(format!("{uri}: no object is there, nor any below it"));
            let is_bucket = place.path().is_empty();
            let only = if is_bucket { return Ok(reply) } else { self.0.find(&place).await };
            reply
                .objects
                .push(listed(&only.map_err(|e| if e.kind == Kind::NotFound { missing() } else { e })?));
        }
        Ok(reply)
    }
}

fn wire(uri: String, found: &FoundObject, block_bytes: u64) -> v1::ObjectVersion {
    let FoundObject { etag, size, modified_ms, headers, .. } = found;
    let (etag, headers) = (etag.clone(), headers.clone());
    v1::ObjectVersion { uri, etag, size: *size, modified_ms: *modified_ms, block_bytes, headers }
}

/// The one spelling of a URI. Follows links where it names a file.
async fn spelled(uri: &str, spell: fn(&str) -> Result<String>) -> Result<String> {
    let uri = uri.to_owned();
    blocking(move || spell(&uri)).await
}
