//! Footers by object: read in one or two ranged requests, and kept in a cache bounded in bytes.

use crate::off_thread::blocking;
use crate::parquet::footer::Footer;
use crate::parquet::quiet::quietly;
use crate::priority::{PrioritySemaphore, SemaphorePermit};
use crate::source::{Source, SourceObject};
use crate::urgency::Urgency;
use bytes::Bytes;
use forebay_proto::{Error, Result};
use parking_lot::Mutex;
use parquet::file::FOOTER_SIZE;
use parquet::file::metadata::FooterTail;
use quick_cache::Weighter;
use quick_cache::unsync::Cache;
use std::sync::Arc;

/// Read of each object first: most footers are shorter.
const TAIL_BYTES: u64 = 64 << 10;

/// A footer of this size may be read, however little the cache may hold.
const SMALL_BYTES: usize = 16 << 20;

/// How many times its own bytes a footer takes while it is parsed, about: where all row groups are empty.
const PARSED_TIMES: u64 = 20;

/// Footers that the cache makes ready to hold; more is only slower at first.
const EXPECTED: usize = 64;

/// The footers of all objects. Cheap to clone; all clones share the cache.
#[derive(Clone)]
pub(crate) struct Footers {
    source: Source,
    cache: Arc<Mutex<Cache<Key, Arc<Footer>, FooterWeight>>>,
    /// Memory of those that are being read: as much as the cache may hold.
    reading: Arc<PrioritySemaphore>,
    /// The one that was read last, beyond what the cache may hold: most objects have the schema of the one
    /// before them.
    last: Arc<Mutex<Option<Arc<Footer>>>>,
}

/// An object's URI and the tag of its version.
type Key = (String, String);

#[derive(Clone)]
struct FooterWeight;

impl Weighter<Key, Arc<Footer>> for FooterWeight {
    fn weight(&self, key: &Key, footer: &Arc<Footer>) -> u64 {
        (key.0.len() + key.1.len() + footer.memory_bytes()) as u64
    }
}

impl Footers {
    pub(crate) fn new(source: Source) -> Self {
        let limit_bytes = source.settings().footer_cache_bytes as u64;
        let cache = Cache::with_weighter(EXPECTED, limit_bytes, FooterWeight);
        let reading = PrioritySemaphore::new(limit_bytes.max(SMALL_BYTES as u64));
        Self { source, cache: Arc::new(Mutex::new(cache)), reading, last: Arc::default() }
    }

    /// The footer of an object, from the cache or read: the last 64 KiB, then exactly the bytes that are
    /// missing.
    ///
    /// # Errors
    /// `Corrupt` if it is no sound Parquet, `Invalid` if it is encrypted or too large.
    pub(crate) async fn get(&self, object: &SourceObject, urgency: &Urgency) -> Result<Arc<Footer>> {
        let key = key(object);
        if let Some(footer) = self.cache.lock().get(&key) {
            return Ok(footer.clone());
        }
        let (uri, size) = (object.place.uri.clone(), object.size);
        let (metadata, reading) = self.metadata(object, urgency).await?;
        let like = self.last.lock().clone();
        let parse = move || {
            let parsed = quietly(|| Footer::parse(&metadata, size, like.as_deref()));
            parsed.and_then(|footer| footer).map_err(|why| corrupt(&uri, &why))
        };
        let footer = Arc::new(blocking(parse).await?);
        drop(reading);
        if footer.memory_bytes() <= SMALL_BYTES {
            *self.last.lock() = Some(footer.clone());
        }
        self.cache.lock().insert(key, footer.clone());
        Ok(footer)
    }

    /// Has the footer of an object read again when it is needed next: it may be what was damaged in transit.
    pub(crate) fn forget(&self, object: &SourceObject) {
        self.cache.lock().remove(&key(object));
    }

    /// The Thrift bytes before the last 8 of an object, with the memory to parse them.
    async fn metadata(&self, object: &SourceObject, urgency: &Urgency) -> Result<(Bytes, SemaphorePermit)> {
        let (uri, size) = (&object.place.uri, object.size);
        if size < FOOTER_SIZE as u64 + 4 {
            return Err(corrupt(uri, &format!("it has only {size} bytes")));
        }
        let from = size.saturating_sub(TAIL_BYTES);
        let mut tail = self.source.get(object, from..size, urgency).await?;
        let last: &[u8; FOOTER_SIZE] = tail.last_chunk().ok_or_else(|| corrupt(uri, "it is too short"))?;
        let end =
            FooterTail::try_new(last).map_err(|_| corrupt(uri, "it does not end like a Parquet file"))?;
        if end.is_encrypted_footer() {
            return Err(Error::invalid(format!("{uri}: is encrypted, which is not supported")));
        }
        let needed = (end.metadata_length() + FOOTER_SIZE) as u64;
        if needed + 4 > size {
            return Err(corrupt(uri, "its footer claims to be longer than the object: truncated?"));
        }
        let max = self.source.settings().footer_cache_bytes.max(SMALL_BYTES) as u64;
        if needed > max {
            return Err(Error::invalid(format!(
                "{uri}: its footer has {needed} bytes, footer_cache_bytes allows {max}: write it with fewer row groups \
                 or columns, or allow more"
            )));
        }
        let permit = self.reading.acquire(needed.saturating_mul(PARSED_TIMES), urgency).await;
        if needed > tail.len() as u64 {
            let head = self.source.get(object, size - needed..from, urgency).await?;
            tail = [head, tail].concat().into();
        }
        Ok((tail.slice(tail.len() - needed as usize..tail.len() - FOOTER_SIZE), permit))
    }
}

fn key(object: &SourceObject) -> Key {
    (object.place.uri.clone(), object.etag.clone())
}

fn corrupt(uri: &str, why: &str) -> Error {
    Error::corrupt(format!("{uri}: not sound Parquet: {why}"))
}
