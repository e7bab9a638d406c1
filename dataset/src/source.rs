//! Object stores, opened by URI: `s3://` at any endpoint and `file://`.
//!
//! Promises: requests at once and bytes a second are bounded, demand goes before prefetch; transient failures are retried
//! for a bounded time and never in a storm; every read of a frozen object names its version, so bytes of two versions
//! never mix; errors say which object and what to do, and never show a secret. Does not write, and knows nothing of
//! caches.

mod checksum;
mod credentials;
mod faults;
mod gate;
mod joint;
mod read;
mod retry;
mod settings;
mod turns;
mod uri;
mod watch;
mod window;

pub use forebay_proto::ring::is_under;
pub use retry::jitter;
pub use settings::SourceSettings;
pub use uri::normalise;

use crate::parquet::footer::FooterCache;
use crate::{PrioritySemaphore, SemaphorePermit, Urgency};
use faults::About;
use forebay_proto::{Error, Result};
use gate::Gate;
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use joint::Joint;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectMeta, ObjectStore, RetryConfig};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use uri::{Location, locate, spell};

/// Sums since the source was made. `file://` counts like S3.
#[derive(Debug, Default)]
pub struct SourceCounters {
    /// Requests that carried column data.
    pub s3_requests: AtomicU64,
    /// Bytes of column data.
    pub s3_bytes: AtomicU64,
    /// Listings, heads and footers.
    pub footer_requests: AtomicU64,
    /// Bytes of footers.
    pub footer_bytes: AtomicU64,
    /// Attempts that failed and could be tried again.
    pub retries: AtomicU64,
    /// Segments that did not decode and were fetched anew.
    pub damaged: AtomicU64,
    /// Compressed bytes of the column chunks that were decoded.
    pub parquet_bytes_decoded: AtomicU64,
    /// Bytes of Arrow buffers that they became.
    pub arrow_bytes_decoded: AtomicU64,
}

/// Object stores behind one set of settings. Cheap to clone; all clones share limits, caches and counters.
#[derive(Clone)]
pub struct Source {
    inner: Arc<Inner>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.inner.settings).finish()
    }
}

struct Inner {
    settings: SourceSettings,
    s3: credentials::Resolved,
    stores: Mutex<HashMap<String, Arc<Store>>>,
    gate: Gate,
    joint: Joint,
    decoders: Arc<PrioritySemaphore>,
    cores: usize,
    footers: FooterCache,
    counters: Arc<SourceCounters>,
}

struct Store {
    objects: Box<dyn ObjectStore>,
    about: About,
}

/// An object or a prefix in its store.
#[derive(Clone)]
pub(crate) struct Place {
    store: Arc<Store>,
    path: Path,
    uri: String,
}

/// Which counters a request belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Footers.
    Footer,
    /// Column chunks.
    Data,
}

/// The version of an object: its tag without quotes, and its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    pub etag: String,
    pub size: u64,
}

impl Source {
    /// `Invalid` if settings, environment and AWS files contradict each other. Connects to nothing yet.
    pub fn new(settings: SourceSettings) -> Result<Self> {
        settings.check()?;
        let env = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let s3 = credentials::resolve(&settings, &env)?;
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let inner = Inner {
            s3,
            stores: Mutex::default(),
            gate: Gate::new(&settings),
            joint: Joint::default(),
            decoders: PrioritySemaphore::new(cores as u64),
            cores,
            footers: FooterCache::new(settings.footer_cache_bytes),
            counters: Arc::default(),
            settings,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What the source has done so far.
    pub fn counters(&self) -> &SourceCounters {
        &self.inner.counters
    }

    pub(crate) fn settings(&self) -> &SourceSettings {
        &self.inner.settings
    }

    pub(crate) fn footers(&self) -> &FooterCache {
        &self.inner.footers
    }

    /// Threads that decode at once.
    pub(crate) fn cores(&self) -> usize {
        self.inner.cores
    }

    /// Whether requests wait for each other: then those that follow each other in an object are sent as one.
    pub fn is_crowded(&self) -> bool {
        self.inner.gate.queue() > 0
    }

    /// A turn at decoding: there is one per core.
    pub(crate) async fn decoder(&self, urgency: &Urgency) -> SemaphorePermit {
        self.inner.decoders.acquire(1, urgency).await
    }

    /// The place of a normalised URI.
    pub(crate) fn place(&self, uri: &str) -> Result<Place> {
        let (name, path) = match locate(uri)? {
            Location::S3 { bucket, key } => (bucket, key),
            Location::File { path } => {
                let text = path.to_str().ok_or_else(|| Error::invalid(format!("{uri}: not UTF-8")))?;
                (String::new(), text.trim_start_matches('/').to_owned())
            }
        };
        let path = Path::parse(&path).map_err(|e| Error::invalid(format!("{uri}: {e}")))?;
        let mut stores = self.inner.stores.lock();
        let store = match stores.get(&name) {
            Some(store) => store.clone(),
            None => {
                let store = Arc::new(self.open(&name)?);
                stores.insert(name, store.clone());
                store
            }
        };
        Ok(Place { store, path, uri: uri.to_owned() })
    }

    /// Opens a bucket, or with no name the file system.
    fn open(&self, bucket: &str) -> Result<Store> {
        if bucket.is_empty() {
            return Ok(Store { objects: Box::new(LocalFileSystem::new()), about: About::default() });
        }
        let (s3, settings) = (&self.inner.s3, &self.inner.settings);
        // A custom endpoint is hardly ever reached by an instance's role, whose absence takes a minute to notice.
        let roles = [
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        ];
        let role = s3.endpoint.is_none() || roles.iter().any(|name| std::env::var_os(name).is_some());
        if s3.keys.is_none() && !settings.s3_anonymous && !role {
            return Err(Error::denied(format!(
                "s3://{bucket}: no credentials in settings, environment or ~/.aws: set an access key, or s3_anonymous \
                 for a public bucket"
            )));
        }
        let watch = watch::Watch::default();
        let plain = s3.endpoint.as_ref().is_some_and(|e| e.starts_with("http://"));
        // A whole-request timeout would cut off large bodies on slow links: an idle timeout does not.
        let client = ClientOptions::new()
            .with_allow_http(plain)
            .with_no_system_certificates(plain)
            .with_timeout_disabled()
            .with_connect_timeout(Duration::from_secs(5))
            .with_read_timeout(Duration::from_secs_f64(settings.request_timeout_s))
            .with_default_headers(HeaderMap::from_iter([(
                HeaderName::from_static("x-amz-checksum-mode"),
                HeaderValue::from_static("ENABLED"),
            )]))
            .with_pool_max_idle_per_host(settings.s3_max_requests);
        // Retries are the gate's: `object_store`'s own know nothing of each other.
        let retry = RetryConfig { max_retries: 0, ..Default::default() };
        let mut builder = match &s3.keys {
            // Only without keys may the environment name further sources of them (roles of pods and instances).
            Some(_) => AmazonS3Builder::new(),
            None => AmazonS3Builder::from_env(),
        };
        builder = builder
            .with_bucket_name(bucket)
            .with_region(&s3.region)
            .with_virtual_hosted_style_request(!s3.path_style)
            .with_client_options(client)
            .with_retry(retry)
            .with_http_connector(watch.clone())
            .with_skip_signature(settings.s3_anonymous);
        if let Some(endpoint) = &s3.endpoint {
            // With the bucket in the host name, object_store wants it in the endpoint too.
            builder = builder.with_endpoint(match (s3.path_style, endpoint.split_once("://")) {
                (false, Some((scheme, host))) => format!("{scheme}://{bucket}.{host}"),
                _ => endpoint.clone(),
            });
        }
        if let Some(keys) = &s3.keys {
            builder = builder.with_access_key_id(&keys.id).with_secret_access_key(&keys.secret);
            if let Some(token) = &keys.token {
                builder = builder.with_token(token);
            }
        }
        let objects =
            builder.build().map_err(|e| Error::invalid(format!("s3://{bucket}: cannot be opened: {e}")))?;
        let about = About {
            bucket: Some(bucket.to_owned()),
            endpoint: s3.endpoint.clone().unwrap_or_else(|| format!("AWS S3 ({})", s3.region)),
            region: s3.region.clone(),
            key_id: s3.keys.as_ref().map(|k| k.id.clone()),
            watch,
        };
        Ok(Store { objects: Box::new(objects), about })
    }
}

/// Runs what asks the file system off the async threads.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|e| Err(Error::closed(format!("asking the file system: {e}"))))
}

impl Place {
    /// The URI that the place was opened by.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// The path in the store: a listed object's key starts with it.
    pub(crate) fn path(&self) -> &str {
        self.path.as_ref()
    }

    /// Whether the place is in the file system.
    pub(crate) fn is_file(&self) -> bool {
        self.store.about.bucket.is_none()
    }

    /// `Denied` if the object, symbolic links resolved, lies outside of its dataset's normalised URI. Not for an async thread
    /// where it is a file.
    pub(crate) fn stays_under(&self, dataset: &str) -> Result<()> {
        if !self.is_file() || is_under(&spell(&self.uri, locate(&self.uri)?)?, dataset) {
            return Ok(());
        }
        Err(Error::denied(format!(
            "{}: is a link that leads out of {dataset}: name the target itself",
            self.uri
        )))
    }

    /// The version in a store's answer.
    pub(crate) fn version(&self, meta: &ObjectMeta) -> Result<Version> {
        let etag = meta.e_tag.as_deref().map(|e| e.trim_matches('"')).filter(|e| !e.is_empty());
        let etag = etag.ok_or_else(|| {
            Error::invalid(format!("{}: the store gives no ETag, so versions cannot be told apart", self.uri))
        })?;
        Ok(Version { etag: etag.to_owned(), size: meta.size })
    }
}
