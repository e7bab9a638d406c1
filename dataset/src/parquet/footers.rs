//! Footers by object: read in one or two ranged requests, and kept in a cache bounded in bytes.

use crate::parquet::footer::Footer;
use crate::source::{Place, Purpose, Source, Version};
use crate::urgency::Urgency;
use bytes::Bytes;
use forebay_proto::{Error, Result};
use parquet::file::FOOTER_SIZE;
use parquet::file::metadata::FooterTail;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use std::sync::Arc;

/// Read of each object first: most footers are shorter.
const TAIL_BYTES: u64 = 64 << 10;

/// A footer of this size may be read, however little the cache may hold.
const SMALL_BYTES: usize = 16 << 20;

/// Footers that the cache makes ready to hold; more is only slower at first.
const EXPECTED: usize = 64;

/// The footers of all objects. Cheap to clone; all clones share the cache.
#[derive(Clone)]
pub(crate) struct Footers {
    source: Source,
    cache: Arc<Cache<Key, Arc<Footer>, FooterWeight>>,
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
        // One shard: a footer may take a large part of the whole.
        let options = OptionsBuilder::new()
            .shards(1)
            .estimated_items_capacity(EXPECTED)
            .weight_capacity(limit_bytes)
            .build()
            .unwrap_or_else(|e| unreachable!("all options are set: {e}"));
        let lifecycle = DefaultLifecycle::default();
        let cache = Cache::with_options(options, FooterWeight, DefaultHashBuilder::default(), lifecycle);
        Self { source, cache: Arc::new(cache) }
    }

    /// The footer of an object, from the cache or read: the last 64 KiB, then exactly the bytes that are
    /// missing.
    ///
    /// # Errors
    /// `Corrupt` if it is no sound Parquet, `Invalid` if it is encrypted or too large.
    pub(crate) async fn get(
        &self,
        place: &Place,
        version: &Version,
        urgency: &Urgency,
    ) -> Result<Arc<Footer>> {
        let key = key(place, version);
        if let Some(footer) = self.cache.get(&key) {
            return Ok(footer);
        }
        let (uri, size) = (place.uri(), version.size);
        let metadata = self.metadata(place, version, urgency).await?;
        let parse = move || {
            std::panic::catch_unwind(|| Footer::parse(&metadata, size))
                .unwrap_or_else(|_| Err("the parser gave up".into()))
        };
        let parsed = tokio::task::spawn_blocking(parse).await;
        let footer =
            parsed.map_err(|e| Error::closed(format!("{uri}: {e}")))?.map_err(|why| corrupt(uri, &why))?;
        let footer = Arc::new(footer);
        self.cache.insert(key, footer.clone());
        Ok(footer)
    }

    /// Has the footer of an object read again when it is needed next: it may be what was damaged in transit.
    pub(crate) fn forget(&self, place: &Place, version: &Version) {
        self.cache.remove(&key(place, version));
    }

    /// The Thrift bytes before the last 8 of an object.
    async fn metadata(&self, place: &Place, version: &Version, urgency: &Urgency) -> Result<Bytes> {
        let (uri, size) = (place.uri(), version.size);
        if size < FOOTER_SIZE as u64 + 4 {
            return Err(corrupt(uri, &format!("it has only {size} bytes")));
        }
        let from = size.saturating_sub(TAIL_BYTES);
        let mut tail = self.source.get(place, version, from..size, Purpose::Footer, urgency).await?;
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
        if needed > tail.len() as u64 {
            let head = self.source.get(place, version, size - needed..from, Purpose::Footer, urgency).await?;
            tail = [head, tail].concat().into();
        }
        Ok(tail.slice(tail.len() - needed as usize..tail.len() - FOOTER_SIZE))
    }
}

fn key(place: &Place, version: &Version) -> Key {
    (place.uri().to_owned(), version.etag.clone())
}

fn corrupt(uri: &str, why: &str) -> Error {
    Error::corrupt(format!("{uri}: not sound Parquet: {why}"))
}
