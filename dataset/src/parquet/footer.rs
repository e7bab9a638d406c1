//! Parquet footers: read in one or two ranged requests, checked, and kept in a byte-bounded cache.
//!
//! A footer that is here is sound: its column chunks lie inside the object and its row counts add up, so what builds
//! on it need not check again.

use crate::Urgency;
use crate::schema::{plain, with_zones};
use crate::source::{Place, Purpose, Source, Version};
use arrow::datatypes::{Schema, SchemaRef};
use arrow_ipc::convert::try_schema_from_ipc_buffer;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use forebay_proto::{Error, Manifest, Result};
use parking_lot::Mutex;
use parquet::arrow::ARROW_SCHEMA_META_KEY;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::errors::ParquetError;
use parquet::file::FOOTER_SIZE;
use parquet::file::metadata::{FooterTail, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// What is read of an object first: most footers are shorter.
const TAIL_BYTES: u64 = 64 << 10;

/// A footer of this size may be read whatever the cache of footers may keep.
const SMALL_BYTES: usize = 16 << 20;

/// An object's footer.
#[derive(Debug)]
pub(crate) struct Footer {
    /// As the parquet crate has it, for reading with [`Footer::schema`].
    pub arrow: ArrowReaderMetadata,
    /// The plain Arrow schema of the object.
    pub schema: SchemaRef,
    /// The leaf columns of each column.
    pub leaves: Vec<Range<usize>>,
}

impl Footer {
    /// The row groups.
    pub(crate) fn row_groups(&self) -> &[RowGroupMetaData] {
        self.arrow.metadata().row_groups()
    }

    /// Where in the object the chunks of `column` in `group` lie, leaf by leaf.
    pub(crate) fn chunks(&self, group: &RowGroupMetaData, column: usize) -> impl Iterator<Item = Range<u64>> {
        let leaves = self.leaves.get(column).cloned().unwrap_or_default();
        leaves.filter_map(|leaf| group.columns().get(leaf)).map(|chunk| {
            let (start, len) = chunk.byte_range();
            start..start + len
        })
    }

    /// Parses and checks `metadata`, the Thrift bytes before the last 8 of an object of `size` bytes.
    pub(crate) fn parse(metadata: &[u8], size: u64) -> Result<Self, String> {
        let bad = |e: ParquetError| e.to_string();
        let meta = Arc::new(ParquetMetaDataReader::decode_metadata(metadata).map_err(bad)?);
        let end = size - metadata.len() as u64 - FOOTER_SIZE as u64;
        check(&meta, end)?;
        let descriptor = meta.file_metadata().schema_descr_ptr();
        let derived = ArrowReaderMetadata::try_new(meta.clone(), ArrowReaderOptions::new()).or_else(|_| {
            let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
            ArrowReaderMetadata::try_new(meta.clone(), options)
        });
        let mut schema = plain(derived.map_err(bad)?.schema());
        if let Some(written) = written_schema(&meta) {
            schema = with_zones(schema, &plain(&written));
        }
        let schema: SchemaRef = Arc::new(schema);
        let options = ArrowReaderOptions::new().with_schema(schema.clone());
        let arrow = ArrowReaderMetadata::try_new(meta, options).map_err(bad)?;
        let mut leaves: Vec<Range<usize>> = Vec::new();
        for leaf in 0..descriptor.num_columns() {
            let root = descriptor.get_column_root_idx(leaf);
            match leaves.get_mut(root) {
                Some(range) => range.end = leaf + 1,
                None => leaves.push(leaf..leaf + 1),
            }
        }
        if leaves.len() != schema.fields().len() {
            return Err("it has a column that Arrow cannot express".into());
        }
        repeated(&schema)?;
        Ok(Self { arrow, schema, leaves })
    }

    fn weight(&self) -> usize {
        self.arrow.metadata().memory_size() + 256 * self.schema.fields().len() + 256
    }
}

/// Chunks must lie before `end`, and rows must add up.
fn check(meta: &ParquetMetaData, end: u64) -> Result<(), String> {
    let mut rows = 0i64;
    for (i, group) in meta.row_groups().iter().enumerate() {
        if group.num_rows() < 0 {
            return Err(format!("row group {i} has {} rows", group.num_rows()));
        }
        rows = rows.checked_add(group.num_rows()).ok_or("its rows overflow")?;
        for chunk in group.columns() {
            let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
            let (start, len) = (u64::try_from(start), u64::try_from(chunk.compressed_size()));
            let inside = match (start, len) {
                (Ok(start), Ok(len)) => start.checked_add(len).is_some_and(|e| e <= end),
                _ => false,
            };
            if !inside || chunk.uncompressed_size() < 0 {
                return Err(format!(
                    "column '{}' of row group {i} lies outside the object",
                    chunk.column_path()
                ));
            }
            // A flat column has a value or a null for every row, a repeated one at least a level.
            let flat = chunk.column_descr().max_rep_level() == 0;
            let values = chunk.num_values();
            if values < group.num_rows() || flat && values != group.num_rows() {
                let (path, rows) = (chunk.column_path(), group.num_rows());
                return Err(format!("column '{path}' of row group {i} has {values} values for {rows} rows"));
            }
            if chunk.file_path().is_some() {
                return Err(format!("column '{}' lies in another file", chunk.column_path()));
            }
        }
    }
    match meta.file_metadata().num_rows() {
        n if n == rows => Ok(()),
        n => Err(format!("its footer claims {n} rows but its row groups have {rows}")),
    }
}

/// The Arrow schema that an Arrow writer left beside Parquet's own, if there is one that can be read.
fn written_schema(meta: &ParquetMetaData) -> Option<Schema> {
    let pairs = meta.file_metadata().key_value_metadata()?;
    let text = pairs.iter().find(|pair| pair.key == ARROW_SCHEMA_META_KEY)?.value.as_deref()?;
    let bytes = BASE64_STANDARD.decode(text).ok()?;
    try_schema_from_ipc_buffer(&bytes).ok()
}

fn repeated(schema: &Schema) -> Result<(), String> {
    let mut names: Vec<_> = schema.fields().iter().map(|f| f.name()).collect();
    names.sort_unstable();
    match names.windows(2).find(|w| w[0] == w[1]) {
        Some(w) => Err(format!("it has two columns named '{}'", w[0])),
        None => Ok(()),
    }
}

impl Source {
    /// The footer of an object, from the cache or read: the last 64 KiB, then exactly what is missing.
    pub(crate) async fn footer(
        &self,
        place: &Place,
        version: &Version,
        urgency: &Urgency,
    ) -> Result<Arc<Footer>> {
        let key = (place.uri().to_owned(), version.etag.clone());
        if let Some(footer) = self.footers().get(&key) {
            return Ok(footer);
        }
        let (uri, size) = (place.uri(), version.size);
        let corrupt = |why: &str| Error::corrupt(format!("{uri}: not sound Parquet: {why}"));
        if size < FOOTER_SIZE as u64 + 4 {
            return Err(corrupt(&format!("it has only {size} bytes")));
        }
        let from = size.saturating_sub(TAIL_BYTES);
        let mut tail = self.get(place, version, from..size, Purpose::Footer, urgency).await?;
        let last: &[u8; FOOTER_SIZE] = tail.last_chunk().ok_or_else(|| corrupt("it is too short"))?;
        let end = FooterTail::try_new(last).map_err(|_| corrupt("it does not end like a Parquet file"))?;
        if end.is_encrypted_footer() {
            return Err(Error::invalid(format!("{uri}: is encrypted, which is not supported")));
        }
        let needed = (end.metadata_length() + FOOTER_SIZE) as u64;
        if needed + 4 > size {
            return Err(corrupt("its footer claims to be longer than the object: truncated?"));
        }
        let most = self.settings().footer_cache_bytes.max(SMALL_BYTES) as u64;
        if needed > most {
            return Err(Error::invalid(format!(
                "{uri}: its footer has {needed} bytes, footer_cache_bytes allows {most}: write it with fewer row groups or \
                 columns, or allow more"
            )));
        }
        if needed > tail.len() as u64 {
            let head = self.get(place, version, size - needed..from, Purpose::Footer, urgency).await?;
            tail = [head, tail].concat().into();
        }
        let tail: Bytes = tail.slice(tail.len() - needed as usize..tail.len() - FOOTER_SIZE);
        let parse = move || {
            std::panic::catch_unwind(|| Footer::parse(&tail, size))
                .unwrap_or_else(|_| Err("the parser gave up".into()))
        };
        let parsed = tokio::task::spawn_blocking(parse).await;
        let footer =
            parsed.map_err(|e| Error::closed(format!("{uri}: {e}")))?.map_err(|why| corrupt(&why))?;
        let footer = Arc::new(footer);
        self.footers().put(key, footer.clone());
        Ok(footer)
    }

    /// Has the footer of a segment's object read anew when it is needed next: it may be what was damaged on its way.
    pub(crate) fn forget_footer(&self, manifest: &Manifest, segment: u32) -> Result<()> {
        if let Some(object) = manifest.objects().get(manifest.segment(segment)?.object as usize) {
            self.footers().forget(&(manifest.object_uri(object), object.etag.clone()));
        }
        Ok(())
    }
}

type Key = (String, String);

/// Footers by object URI and tag; beyond the limit the least recently used go.
#[derive(Debug)]
pub(crate) struct FooterCache {
    limit: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    entries: HashMap<Key, (Arc<Footer>, u64)>,
    bytes: usize,
    clock: u64,
}

impl FooterCache {
    /// A cache of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, held: Mutex::default() }
    }

    fn get(&self, key: &Key) -> Option<Arc<Footer>> {
        let mut held = self.held.lock();
        held.clock += 1;
        let now = held.clock;
        let (footer, used) = held.entries.get_mut(key)?;
        *used = now;
        Some(footer.clone())
    }

    fn forget(&self, key: &Key) {
        let mut held = self.held.lock();
        if let Some((footer, _)) = held.entries.remove(key) {
            held.bytes -= footer.weight();
        }
    }

    fn put(&self, key: Key, footer: Arc<Footer>) {
        let weight = footer.weight();
        if weight > self.limit {
            return;
        }
        let mut held = self.held.lock();
        if held.bytes + weight > self.limit {
            held.evict(self.limit.saturating_sub(weight) / 2);
        }
        held.clock += 1;
        let now = held.clock;
        held.bytes += weight;
        if let Some((old, _)) = held.entries.insert(key, (footer, now)) {
            held.bytes -= old.weight();
        }
    }
}

impl Held {
    /// Drops the least recently used until at most `limit` bytes are left: well below the cache's limit, so that the
    /// sort is rare.
    fn evict(&mut self, limit: usize) {
        let mut by_use: Vec<_> = self.entries.iter().map(|(key, (_, used))| (*used, key.clone())).collect();
        by_use.sort_unstable();
        for (_, key) in by_use {
            if self.bytes <= limit {
                return;
            }
            if let Some((footer, _)) = self.entries.remove(&key) {
                self.bytes -= footer.weight();
            }
        }
    }
}
