//! The metadata of objects: their versions, each as old as its settings allow.
//!
//! Who asks while the object store is being asked waits for the next answer, not for that one: it may be of
//! before a write that the asker knows of.

use super::missing::{Missing, MissingAge};
use crate::read::single_flight::{SingleFlight, Turnout};
use crate::settings::MetadataAge;
use forebay_dataset::ObjectReader;
use forebay_dataset::source::is_under;
use forebay_proto::object::ObjectVersion;
use forebay_proto::{Kind, Result};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Versions that are kept at most: some 40 MB, and the bytes of their headers.
const KEPT_MAX: usize = 100_000;
const HEADERS_BYTES_MAX: usize = 24 << 20;

/// The versions that were asked for last.
pub struct Versions {
    reader: ObjectReader,
    kept: Mutex<Kept>,
    missing: Arc<Missing>,
    /// By URI and by what may be said of a missing object: who wants the word of now shares no other.
    asking: SingleFlight<(String, MissingAge), Arc<ObjectVersion>>,
}

#[derive(Default)]
struct Kept {
    /// With the time at which the object store was asked.
    versions: HashMap<Arc<str>, (Instant, Arc<ObjectVersion>)>,
    /// The oldest first; some may be gone.
    order: VecDeque<Arc<str>>,
    /// Bytes of the headers of all.
    headers_bytes: usize,
}

impl Kept {
    fn insert(&mut self, asked: Instant, version: Arc<ObjectVersion>) {
        let uri = version.uri.clone();
        self.headers_bytes += version.headers.len();
        match self.versions.insert(uri.clone(), (asked, version)) {
            Some((_, old)) => self.headers_bytes -= old.headers.len(),
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
        if let Some((_, old)) = self.versions.remove(uri) {
            self.headers_bytes -= old.headers.len();
        }
    }

    fn forget(&mut self, is_gone: impl Fn(&str) -> bool) {
        self.versions.retain(|uri, _| !is_gone(uri));
        self.headers_bytes = self.versions.values().map(|(_, version)| version.headers.len()).sum();
        self.order.retain(|uri| !is_gone(uri));
    }
}

impl Versions {
    /// None is known yet.
    pub fn new(reader: ObjectReader) -> Self {
        Self { reader, kept: Mutex::default(), missing: Arc::default(), asking: SingleFlight::default() }
    }

    /// The version of an object, which has a normalised URI, as old as `age` allows.
    pub async fn get(
        &self,
        uri: &str,
        (age, missing_age): (MetadataAge, MissingAge),
        block_bytes: u64,
    ) -> Result<Arc<ObjectVersion>> {
        if let Some(version) = self.young(uri, age, block_bytes) {
            return Ok(version);
        }
        let ask = || {
            let (reader, key) = (self.reader.clone(), uri.to_owned());
            async move { reader.version(&key, block_bytes).await.map(Arc::new) }
        };
        self.answer(uri, (age, missing_age), ask).await
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
        let (turnout, asked) = self.ask(uri, missing_age, &ask).await;
        if turnout == Turnout::Leader || age != MetadataAge::Always && asked.is_ok() {
            return asked;
        }
        self.ask(uri, missing_age, &ask).await.1
    }

    /// Forgets what lies under a URI.
    pub fn forget(&self, root: &str) {
        self.kept.lock().forget(|uri| is_under(uri, root));
        self.missing.forget(|uri| is_under(uri, root));
    }

    fn young(&self, uri: &str, age: MetadataAge, block_bytes: u64) -> Option<Arc<ObjectVersion>> {
        let kept = self.kept.lock();
        let (asked, version) = kept.versions.get(uri)?;
        let is_young = match age {
            MetadataAge::Always => false,
            MetadataAge::Ttl(age) => asked.elapsed() < age,
            MetadataAge::Immutable => true,
        };
        (is_young && version.block_bytes == block_bytes).then(|| version.clone())
    }

    /// Asks the object store, or waits for an answer that is under way.
    async fn ask<F>(
        &self,
        uri: &str,
        missing_age: MissingAge,
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
                && let Some(error) = missing.error(&key)
            {
                return Err(error);
            }
            let answer = answer.await;
            if let Err(error) = &answer
                && error.kind == Kind::NotFound
            {
                missing.keep(&key, asked, error);
            }
            answer
        };
        let (turnout, flight) = self.asking.join_or_lead((uri.to_owned(), missing_age), (), ask);
        let answer = flight.value.await;
        if turnout == Turnout::Leader {
            let mut kept = self.kept.lock();
            match &answer {
                Ok(version) => kept.insert(asked, version.clone()),
                Err(_) => kept.remove(uri),
            }
        }
        (turnout, answer)
    }
}
