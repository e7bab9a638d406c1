//! Any object, byte for byte, for all protocols: its version, ranges of one version as
//! streams of bytes, listings. What serves them (gRPC, S3) knows this and nothing behind it.
//!
//! ```text
//! version(uri)          ─► one version, as old as the settings allow
//! read(version, ranges) ─► ObjectStream ─► bytes
//! ```
//!
//! A stream is of one version: every block's id has the ETag in it, every request for one `If-Match`. An
//! object that is overwritten while it is read is an error, or the version that was begun.

mod missing;
mod read_ahead;
mod refusals;
mod rules;
mod stream;
mod versions;

pub use missing::MissingAge;
pub use stream::{ObjectPiece, ObjectStream, Toll};

use crate::allow::Allowed;
use crate::cluster::peers::Peers;
use crate::disk::policy::Role;
use crate::read::cache::Cache;
use crate::read::memory::{Memory, MemoryBudget, MemoryPermit};
use crate::runtime::blocking;
use crate::settings::{MetadataAge, ObjectSettings};
use forebay_dataset::source::{ObjectStoreAnswer, ObjectStoreRequest, is_under};
use forebay_dataset::{ObjectReader, Urgency};
use forebay_proto::object::{ObjectVersion, URI_BYTES_MAX};
use forebay_proto::{Error, Kind, Result, v1};
use refusals::ObjectStoreRefusals;
use rules::Rules;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use versions::Versions;

/// Ranges of one read at most.
const RANGES_MAX: usize = 1024;

/// Bytes that a stream holds of what it sends: the piece that travels, and the next one.
const STREAM_BYTES: u64 = 2 * crate::read::block_reader::PIECE_BYTES;

/// How long a stream waits for its memory, while other streams have it.
const MEMORY: Duration = Duration::from_secs(20);

/// Answers of the object store, of 8 MiB at most each, that are held at once.
const ASKED_AT_ONCE: usize = 8;

/// What a question to the object store is about: that must be allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// A bucket of which something is allowed.
    Bucket,
    /// All keys that begin with the parameter `prefix`.
    Listing,
    /// One key.
    Key,
}

/// Memory for what a stream holds, until dropped.
pub type StreamMemory = MemoryPermit;

/// Objects as this node serves them.
pub struct Objects {
    cache: Arc<Cache>,
    peers: Arc<Peers>,
    reader: ObjectReader,
    allow: Arc<Allowed>,
    rules: Rules,
    versions: Versions,
    refusals: ObjectStoreRefusals,
    streams: Arc<MemoryBudget>,
    /// Bytes that are made ready ahead of a stream at most.
    ahead_bytes: u64,
    /// Turns of those who ask the object store for what may be long.
    pub listings: Arc<Semaphore>,
}

impl Objects {
    /// `Invalid` if a prefix of the settings is no URI.
    pub fn new(
        cache: Arc<Cache>,
        peers: Arc<Peers>,
        reader: ObjectReader,
        settings: &ObjectSettings,
        allow: Arc<Allowed>,
        memory: &Memory,
    ) -> Result<Self> {
        let ahead_bytes = read_ahead::BYTES_MAX.min(memory.fills.prefetch.limit() / 4);
        let listings = Arc::new(Semaphore::new(ASKED_AT_ONCE));
        Ok(Self {
            versions: Versions::new(reader.clone()),
            refusals: ObjectStoreRefusals::new(reader.clone(), listings.clone()),
            rules: Rules::new(settings)?,
            streams: memory.streams.clone(),
            cache,
            peers,
            reader,
            allow,
            ahead_bytes,
            listings,
        })
    }

    /// The object in its version of now, or of a while ago if the settings of its prefix allow that. Where
    /// they do, one node keeps the metadata for all, so that no reader sees an older version than another.
    /// That there is no such object may be as old as `missing_age`.
    pub async fn version(&self, uri: &str, missing_age: MissingAge) -> Result<Arc<ObjectVersion>> {
        let uri = self.allowed(uri).await?;
        if self.rules.age(&uri) != MetadataAge::Always && !self.is_keeper(&uri) {
            let missing_may_be_old = missing_age == MissingAge::Second;
            let request = v1::VersionRequest { uri: uri.clone(), missing_may_be_old, ..Default::default() };
            if let Some(told) = self.peers.version(request).await? {
                return Ok(Arc::new(told));
            }
        }
        self.known(&uri, missing_age).await
    }

    /// The same as this node knows it, whichever node keeps it. If that is the version that the request calls
    /// stale, the object store is asked first.
    pub async fn version_here(&self, request: &v1::VersionRequest) -> Result<Arc<ObjectVersion>> {
        let uri = self.allowed(&request.uri).await?;
        if !request.stale_etag.is_empty() {
            self.versions.doubt(&uri, &request.stale_etag);
        }
        let missing_age = if request.missing_may_be_old { MissingAge::Second } else { MissingAge::Now };
        self.known(&uri, missing_age).await
    }

    /// What came of reading a version. Where the object has another one now, that is told to the node which
    /// keeps its metadata, so that the next reader is not told the old one again.
    pub async fn noting_change<T>(&self, version: &ObjectVersion, read: Result<T>) -> Result<T> {
        if read.as_ref().is_err_and(|e| e.kind == Kind::Changed) {
            self.outdated(version).await;
        }
        read
    }

    /// A version was found to be the object's no more: the node that keeps its metadata asks the object store
    /// before it tells that version again.
    pub async fn outdated(&self, version: &ObjectVersion) {
        let uri = &*version.uri;
        if self.rules.age(uri) == MetadataAge::Always {
            return;
        }
        self.versions.doubt(uri, &version.etag);
        if self.is_keeper(uri) {
            return;
        }
        let (uri, stale_etag) = (uri.to_owned(), version.etag.to_string());
        let request = v1::VersionRequest { uri, stale_etag, ..Default::default() };
        if let Err(e) = self.peers.version(request).await {
            tracing::debug!(error = %e, "the node that keeps an object's version did not tell another one");
        }
    }

    /// Whether this node keeps an object's metadata for all.
    fn is_keeper(&self, uri: &str) -> bool {
        self.peers.ownership.role(ObjectVersion::name_id(uri)) == Role::Primary
    }

    async fn known(&self, uri: &str, missing_age: MissingAge) -> Result<Arc<ObjectVersion>> {
        let age = self.rules.age(uri);
        self.versions.get(uri, (age, missing_age), self.rules.block_bytes(uri)).await
    }

    /// The version of now of an object that the cache has no name for, by a question to the object store. Who
    /// asks in the meantime waits for the same answer.
    pub async fn uncached_version<F>(&self, uri: &str, ask: impl Fn() -> F) -> Result<Arc<ObjectVersion>>
    where
        F: Future<Output = Result<Arc<ObjectVersion>>> + Send + 'static,
    {
        self.versions.answer(uri, (MetadataAge::Always, MissingAge::Second), ask).await
    }

    /// The version that a caller names, who had it from a node: its URI must be allowed. Whether it ever was
    /// the object's shows when it is read.
    pub async fn named(&self, wire: v1::ObjectVersion) -> Result<Arc<ObjectVersion>> {
        let version = ObjectVersion::try_from(wire)?;
        match self.allowed(&version.uri).await? == *version.uri {
            true => Ok(Arc::new(version)),
            false => Err(Error::invalid(format!("{}: name the object as it was told", version.uri))),
        }
    }

    /// The same, cut into blocks as this node does: a stranger must not have it keep an object in many ways.
    pub async fn named_here(&self, wire: v1::ObjectVersion) -> Result<Arc<ObjectVersion>> {
        let version = self.named(wire).await?;
        let block_bytes = self.rules.block_bytes(&version.uri);
        match version.block_bytes == block_bytes {
            true => Ok(version),
            false => Ok(Arc::new(ObjectVersion { block_bytes, ..(*version).clone() })),
        }
    }

    /// Bytes of one version, range by range. Waits until there is memory for what travels.
    ///
    /// # Errors
    /// `Invalid` for ranges that the version does not have, `Full` if other streams hold all memory.
    pub async fn read(&self, version: Arc<ObjectVersion>, ranges: Vec<Range<u64>>) -> Result<ObjectStream> {
        if ranges.len() > RANGES_MAX {
            return Err(Error::invalid(format!("{}: {RANGES_MAX} ranges at once at most", version.uri)));
        }
        ranges.iter().try_for_each(|range| version.check_range(range))?;
        let memory = self.stream_memory(&version.uri).await?;
        Ok(ObjectStream::new(self.cache.clone(), version, ranges, self.ahead_bytes, memory))
    }

    /// Memory for an answer of the object store. `Full` if streams hold all of it.
    pub async fn answer_memory(&self, bytes: u64) -> Result<StreamMemory> {
        let demand = Urgency::demand();
        let full = |_| Error::full("too many answers at once: try again, or raise --memory-bytes");
        timeout(MEMORY, self.streams.acquire(bytes.clamp(1, self.streams.limit()), &demand))
            .await
            .map_err(full)
    }

    /// Memory for a stream of an object. `Full` if other streams hold all of it.
    pub async fn stream_memory(&self, uri: &str) -> Result<StreamMemory> {
        let demand = Urgency::demand();
        let full =
            |_| Error::full(format!("{uri}: too many readers at once: try again, or raise --memory-bytes"));
        timeout(MEMORY, self.streams.acquire(STREAM_BYTES, &demand)).await.map_err(full)
    }

    /// What the object store (S3) answers to a question in its own words, past the cache. `Denied` unless
    /// that may be read here.
    pub async fn ask(&self, request: &ObjectStoreRequest, scope: Scope) -> Result<ObjectStoreAnswer> {
        self.check_asked(request, scope)?;
        self.reader.ask(request).await
    }

    /// The same of a key that is not there: all who ask within a second are told the same, so they must send
    /// the same request for one key.
    pub async fn ask_of_missing(&self, request: ObjectStoreRequest) -> Result<ObjectStoreAnswer> {
        self.check_asked(&request, Scope::Key)?;
        self.refusals.ask(request).await
    }

    fn check_asked(&self, request: &ObjectStoreRequest, scope: Scope) -> Result<()> {
        let ObjectStoreRequest { bucket, key, query, .. } = request;
        let prefix = query.iter().find_map(|(name, value)| (name == "prefix").then_some(value.as_str()));
        let is_allowed = match scope {
            Scope::Bucket => self.allow.allows_bucket(bucket),
            Scope::Listing => self.allow.allows_prefix(bucket, prefix.unwrap_or_default()),
            Scope::Key => self.allow.allows_key(bucket, key),
        };
        if !is_allowed {
            return Err(Error::denied(format!(
                "s3://{bucket}/{key}: this server may not read it (see --allow)"
            )));
        }
        // URLs with such parts mean other objects to some.
        match key.split('/').any(|part| matches!(part, "." | "..")) {
            true => Err(Error::invalid("keys with '.' or '..' as a part cannot be read")),
            false => Ok(()),
        }
    }

    /// The region of the object store (S3).
    pub fn region(&self) -> &str {
        self.reader.region()
    }

    /// The S3 buckets of which something may be read.
    pub fn buckets(&self) -> BTreeSet<String> {
        self.allow.buckets()
    }

    /// A page of what lies under a URI, as the object store lists it now.
    pub async fn list(&self, request: &v1::ListObjectsRequest) -> Result<v1::ListObjectsReply> {
        let (allow, uri) = (self.allow.clone(), request.uri.clone());
        let uri = blocking(move || allow.check(&uri)).await??;
        let request = v1::ListObjectsRequest { uri, ..request.clone() };
        self.reader.list(&request, |uri| self.rules.block_bytes(uri)).await
    }

    /// Forgets the metadata of the objects under a normalised URI.
    pub fn forget(&self, uri: &str) {
        self.versions.forget(uri);
        self.refusals.forget(|missing| is_under(missing, uri));
    }

    /// `Denied` unless an object may be read here. Follows links: not for an async thread.
    pub fn check(&self, uri: &str) -> Result<()> {
        self.allow.check_object(uri).map(drop)
    }

    async fn allowed(&self, uri: &str) -> Result<String> {
        if uri.len() > URI_BYTES_MAX {
            return Err(Error::invalid(format!("an object's URI has {URI_BYTES_MAX} bytes at most")));
        }
        // Only names of files touch the disk.
        if !uri.starts_with("file:") {
            return self.allow.check_object(uri);
        }
        let (allow, uri) = (self.allow.clone(), uri.to_owned());
        blocking(move || allow.check_object(&uri)).await?
    }
}
