//! The metadata of objects: their versions, each as old as its settings allow.
//!
//! Who asks while the object store is being asked waits for the next answer, not for that one: it may be of
//! before a write that the asker knows of. A version that a reader calls stale is asked about again, once for
//! each tag: what the object store says then counts until it is old.
//!
//! No `quick_cache`: a version that is told again and again grows old all the same, so use gives it no place,
//! and a change of its standing counts the bytes of no other.

use super::missing::{LastSecond, MissingAge};
use crate::read::single_flight::{SingleFlight, Turnout};
use crate::settings::MetadataAge;
use forebay_dataset::ObjectReader;
use forebay_dataset::source::is_under;
use forebay_proto::object::ObjectVersion;
use forebay_proto::{Error, Kind, Result};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Versions that are kept at most: some 40 MB, and the bytes of their headers.
const KEPT_MAX: usize = 100_000;
const HEADERS_BYTES_MAX: usize = 24 << 20;

/// How long the object store's word counts, although readers have found otherwise: the object may be written
/// again after that.
const CONFIRMED: Duration = Duration::from_secs(1);

/// Errors of missing objects that are kept at most: some 10 MB, as a URI has 2 KiB at most.
const MISSING_MAX: usize = 4096;

/// The versions that were asked for last.
pub struct Versions {
    reader: ObjectReader,
    cached: Mutex<VersionCache>,
    missing: Arc<LastSecond<Error>>,
    /// By URI and by what may be said of a missing object: who wants the word of now shares no other.
    asking: SingleFlight<(String, MissingAge), Arc<ObjectVersion>>,
}

/// The last versions that the object store has told, young enough or not.
#[derive(Default)]
struct VersionCache {
    versions: HashMap<Arc<str>, CachedVersion>,
    /// The oldest first; some may be gone.
    order: VecDeque<Arc<str>>,
    /// Bytes of the headers of all.
    headers_bytes: usize,
}

struct CachedVersion {
    /// When the object store was asked.
    asked: Instant,
    version: Arc<ObjectVersion>,
    standing: Standing,
}

/// What readers said of a version that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Nothing.
    Good,
    /// That it is stale, at that time: it is told to nobody until the object store has said it again.
    Doubted(Instant),
    /// That it is stale, but the object store has said it again since.
    Confirmed,
}

impl CachedVersion {
    /// The standing of what the object store said next.
    fn standing_of(&self, asked: Instant, next: &ObjectVersion) -> Standing {
        match self.standing {
            Standing::Doubted(at) if self.version.etag == next.etag => match asked >= at {
                true => Standing::Confirmed,
                // The question is of before the doubt.
                false => Standing::Doubted(at),
            },
            _ => Standing::Good,
        }
    }
}

impl VersionCache {
    fn insert(&mut self, asked: Instant, version: Arc<ObjectVersion>) {
        let uri = version.uri.clone();
        self.headers_bytes += version.headers.len();
        let before = self.versions.get(&uri);
        let standing = before.map_or(Standing::Good, |before| before.standing_of(asked, &version));
        match self.versions.insert(uri.clone(), CachedVersion { asked, version, standing }) {
            Some(old) => self.headers_bytes -= old.version.headers.len(),
            None => self.order.push_back(uri),
        }
        while (self.order.len() > KEPT_MAX || self.headers_bytes > HEADERS_BYTES_MAX)
            && let Some(oldest) = self.order.pop_front()
        {
            self.remove(&oldest);
        }
    }

    /// Its place in the order stays.
    fn remove(&mut self, uri: &str) {
        if let Some(old) = self.versions.remove(uri) {
            self.headers_bytes -= old.version.headers.len();
        }
    }

    fn forget(&mut self, is_gone: impl Fn(&str) -> bool) {
        self.versions.retain(|uri, _| !is_gone(uri));
        self.headers_bytes = self.versions.values().map(|cached| cached.version.headers.len()).sum();
        self.order.retain(|uri| !is_gone(uri));
    }
}

impl Versions {
    /// None is known yet.
    pub fn new(reader: ObjectReader) -> Self {
        let missing = Arc::new(LastSecond::new(MISSING_MAX));
        Self { reader, cached: Mutex::default(), missing, asking: SingleFlight::default() }
    }

    /// The version of an object, which has a normalised URI, as old as `ages` allow.
    pub async fn get(
        &self,
        uri: &str,
        ages: (MetadataAge, MissingAge),
        block_bytes: u64,
    ) -> Result<Arc<ObjectVersion>> {
        let ask = || {
            let (reader, key) = (self.reader.clone(), uri.to_owned());
            async move { reader.version(&key, block_bytes).await.map(Arc::new) }
        };
        self.cached_or(uri, ages, block_bytes, ask).await
    }

    async fn cached_or<F>(
        &self,
        uri: &str,
        ages: (MetadataAge, MissingAge),
        block_bytes: u64,
        ask: impl Fn() -> F,
    ) -> Result<Arc<ObjectVersion>>
    where
        F: Future<Output = Result<Arc<ObjectVersion>>> + Send + 'static,
    {
        if let Some(version) = self.young(uri, ages.0, block_bytes) {
            return Ok(version);
        }
        let told = self.answer(uri, ages, &ask).await?;
        // It may be the answer to a question that was under way when somebody called it stale.
        match self.is_doubted(&told) {
            true => self.answer(uri, ages, ask).await,
            false => Ok(told),
        }
    }

    /// The same by a question of the caller's, of which there is one at a time.
    pub async fn answer<F>(
        &self,
        uri: &str,
        (age, missing_age): (MetadataAge, MissingAge),
        ask: impl Fn() -> F,
    ) -> Result<Arc<ObjectVersion>>
    where
        F: Future<Output = Result<Arc<ObjectVersion>>> + Send + 'static,
    {
        let (turnout, asked) = self.ask(uri, (age, missing_age), &ask).await;
        if turnout == Turnout::Leader || age != MetadataAge::Always && asked.is_ok() {
            return asked;
        }
        self.ask(uri, (age, missing_age), &ask).await.1
    }

    /// A reader found that the object has this tag no more. If the version that is kept has it, the object
    /// store is asked before that is told again; not if it has confirmed the version just now.
    pub fn doubt(&self, uri: &str, etag: &str) {
        let mut cached = self.cached.lock();
        if let Some(cached) = cached.versions.get_mut(uri)
            && *cached.version.etag == *etag
            && (cached.standing == Standing::Good
                || cached.standing == Standing::Confirmed && cached.asked.elapsed() >= CONFIRMED)
        {
            cached.standing = Standing::Doubted(Instant::now());
        }
    }

    fn is_doubted(&self, version: &ObjectVersion) -> bool {
        let cached = self.cached.lock();
        let cached = cached.versions.get(&*version.uri).filter(|cached| cached.version.etag == version.etag);
        cached.is_some_and(|cached| matches!(cached.standing, Standing::Doubted(_)))
    }

    /// Forgets what lies under a URI.
    pub fn forget(&self, root: &str) {
        self.cached.lock().forget(|uri| is_under(uri, root));
        self.missing.forget(|uri| is_under(uri, root));
    }

    fn young(&self, uri: &str, age: MetadataAge, block_bytes: u64) -> Option<Arc<ObjectVersion>> {
        let cached = self.cached.lock();
        let CachedVersion { asked, version, standing } = cached.versions.get(uri)?;
        let is_young = match age {
            MetadataAge::Always => false,
            MetadataAge::Ttl(age) => asked.elapsed() < age,
            MetadataAge::Immutable => true,
        };
        let is_good = is_young && !matches!(standing, Standing::Doubted(_));
        (is_good && version.block_bytes == block_bytes).then(|| version.clone())
    }

    /// Asks the object store, or waits for an answer that is under way.
    async fn ask<F>(
        &self,
        uri: &str,
        (age, missing_age): (MetadataAge, MissingAge),
        ask: impl Fn() -> F,
    ) -> (Turnout, Result<Arc<ObjectVersion>>)
    where
        F: Future<Output = Result<Arc<ObjectVersion>>> + Send + 'static,
    {
        let asked = Instant::now();
        let (missing, key, answer) = (self.missing.clone(), uri.to_owned(), ask());
        // Kept before the next one may ask.
        let ask = || async move {
            if missing_age == MissingAge::Second
                && let Some(error) = missing.get(&key)
            {
                return Err(error);
            }
            let answer = answer.await;
            if let Err(error) = &answer
                && error.kind == Kind::NotFound
            {
                missing.keep(&key, asked, error.clone());
            }
            answer
        };
        let (turnout, flight) = self.asking.join_or_lead((uri.to_owned(), missing_age), (), ask);
        let answer = flight.value.await;
        // Where each read asks, nothing is kept.
        if turnout == Turnout::Leader && age != MetadataAge::Always {
            let mut cached = self.cached.lock();
            // Who asks in another way asks by itself: the answer to an older question may come later.
            let is_newest = cached.versions.get(uri).is_none_or(|kept| kept.asked <= asked);
            match &answer {
                Ok(version) if is_newest => cached.insert(asked, version.clone()),
                Err(_) if is_newest => cached.remove(uri),
                _ => {}
            }
        }
        (turnout, answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_dataset::SegmentReader;
    use forebay_proto::object::BLOCK_BYTES;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::time::Duration;
    use tokio::sync::Notify;

    const URI: &str = "s3://b/k";
    const HOUR: MetadataAge = MetadataAge::Ttl(Duration::from_secs(3600));

    fn new_versions() -> Versions {
        Versions::new(SegmentReader::new(Default::default()).unwrap().objects())
    }

    fn tagged(etag: &str) -> Arc<ObjectVersion> {
        let (uri, etag, headers) = (URI.into(), etag.into(), "".into());
        Arc::new(ObjectVersion { uri, etag, size: 1, modified_ms: 0, block_bytes: BLOCK_BYTES, headers })
    }

    /// The tag that is told where the object store says this one, and counts how often it is asked.
    async fn told(versions: &Versions, age: MetadataAge, store: &Mutex<(&'static str, u32)>) -> String {
        let ask = || {
            let mut store = store.lock();
            store.1 += 1;
            let version = tagged(store.0);
            async move { Ok(version) }
        };
        let told = versions.cached_or(URI, (age, MissingAge::Now), BLOCK_BYTES, ask).await.unwrap();
        told.etag.to_string()
    }

    #[tokio::test]
    async fn a_stale_version_is_asked_about_once_for_each_tag() {
        let (versions, store) = (new_versions(), Mutex::new(("one", 0)));
        let now = async || (told(&versions, HOUR, &store).await, store.lock().1);
        let is = |tag: &str, asked: u32| (tag.to_owned(), asked);
        assert_eq!(now().await, is("one", 1));
        store.lock().0 = "two";
        assert_eq!(now().await, is("one", 1), "nobody knows of the write");
        versions.doubt(URI, "another");
        assert_eq!(now().await, is("one", 1), "another one is kept");
        versions.doubt(URI, "one");
        assert_eq!(now().await, is("two", 2));
        versions.doubt(URI, "one");
        assert_eq!(now().await, is("two", 2), "another one is kept now");
        // The object store says it again, whatever readers find.
        versions.doubt(URI, "two");
        assert_eq!(now().await, is("two", 3));
        versions.doubt(URI, "two");
        assert_eq!(now().await, is("two", 3));
        // It may be written again after that.
        std::thread::sleep(CONFIRMED);
        versions.doubt(URI, "two");
        assert_eq!(now().await, is("two", 4));
        store.lock().0 = "three";
        versions.forget(URI);
        assert_eq!(now().await, is("three", 5));
        versions.doubt(URI, "three");
        assert_eq!(now().await, is("three", 6), "another tag, another question");
    }

    #[tokio::test]
    async fn an_answer_from_before_the_doubt_is_not_taken() {
        let (versions, gate) = (new_versions(), Arc::new(Notify::new()));
        assert_eq!(told(&versions, HOUR, &Mutex::new(("one", 0))).await, "one");
        let asked = AtomicU32::new(0);
        let ask = || {
            let (gate, is_first) = (gate.clone(), asked.fetch_add(1, Relaxed) == 0);
            async move {
                if is_first {
                    gate.notified().await;
                }
                Ok(tagged(if is_first { "one" } else { "two" }))
            }
        };
        // The version that is kept is too old for this reader, who asks before another one calls it stale.
        let ages = (MetadataAge::Ttl(Duration::ZERO), MissingAge::Now);
        let doubt = async {
            tokio::task::yield_now().await;
            versions.doubt(URI, "one");
            gate.notify_one();
        };
        let (told, ()) = tokio::join!(versions.cached_or(URI, ages, BLOCK_BYTES, ask), doubt);
        assert_eq!((&*told.unwrap().etag, asked.load(Relaxed)), ("two", 2));
    }

    #[tokio::test]
    async fn an_answer_that_comes_late_replaces_no_newer_one() {
        for late in [Ok(tagged("one")), Err(Error::retry("hung up"))] {
            let (versions, gate) = (new_versions(), Notify::new());
            let (gate, first) = (Arc::new(gate), Arc::new(late));
            let ask = || {
                let (gate, first) = (gate.clone(), first.clone());
                async move {
                    gate.notified().await;
                    (*first).clone()
                }
            };
            // Of another kind, so that each asks by itself.
            let older = versions.answer(URI, (HOUR, MissingAge::Second), ask);
            let newer = async {
                tokio::task::yield_now().await;
                assert_eq!(told(&versions, HOUR, &Mutex::new(("two", 0))).await, "two");
                gate.notify_one();
            };
            drop(tokio::join!(older, newer));
            assert_eq!(&*versions.young(URI, HOUR, BLOCK_BYTES).unwrap().etag, "two");
        }
    }

    #[tokio::test]
    async fn what_is_asked_about_each_time_is_not_kept() {
        let (versions, store) = (new_versions(), Mutex::new(("one", 0)));
        for asked in 1..3 {
            told(&versions, MetadataAge::Always, &store).await;
            assert_eq!((store.lock().1, versions.cached.lock().versions.len()), (asked, 0));
        }
    }
}
