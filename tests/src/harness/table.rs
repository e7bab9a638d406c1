//! Datasets made by rule: every value follows from its row and column, so a reader can check every byte
//! without the data at hand.
//!
//! Row `r` has `id = r` and three columns `a`, `b`, `c` of 336 bytes each, so that 1,024 rows are almost 1
//! MiB.

use crate::harness::s3::S3Server;
use crate::harness::seen::SeenRequest;
use arrow::array::{ArrayRef, AsArray, FixedSizeBinaryArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use bytes::Bytes;
use forebay_client::Batch;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Rows of a segment of 1 MiB.
pub const MIB_ROWS: u64 = 1024;

/// Bytes of a row, rounded up, so that each row group becomes a segment.
const ROW_BYTES: u64 = 1024;

/// Row groups of an object.
const PER_OBJECT: u64 = 16;

/// 64-bit words of a wide value.
const WORDS: u64 = 42;

/// Bytes of the magic at an object's beginning.
const MAGIC_BYTES: u64 = 4;

/// Bytes of an object's end that readers fetch at least, to find its footer.
const TAIL_BYTES: u64 = 64 << 10;

/// The wide columns.
pub const WIDE: [&str; 3] = ["a", "b", "c"];

/// A dataset in the S3 server.
#[derive(Debug, Clone)]
pub struct Table {
    /// Where it lies.
    pub uri: String,
    /// How many segments it has.
    pub segments: u64,
    /// Decoded bytes that segments have to aim at so that each row group is one.
    pub segment_bytes: u64,
    objects: BTreeMap<String, TableObject>,
}

/// An object, by its key.
#[derive(Debug, Clone)]
struct TableObject {
    /// Its first segment.
    first: u64,
    /// Where each of its segments ends. The first one begins behind the magic.
    ends: Vec<u64>,
    /// How many bytes come before its footer.
    footer: u64,
    size: u64,
}

impl Table {
    /// Makes a dataset of `segments` segments of `segment_rows` rows.
    pub fn upload(s3: &S3Server, name: &str, segments: u64, segment_rows: u64) -> anyhow::Result<Self> {
        Self::put(s3, name, segments, PER_OBJECT, segment_rows, &WIDE)
    }

    /// Makes a dataset of `segments` segments of one row and one column, the smallest there are.
    pub fn upload_tiny(s3: &S3Server, name: &str, segments: u64) -> anyhow::Result<Self> {
        Self::put(s3, name, segments, 1000, 1, &[])
    }

    fn put(
        s3: &S3Server,
        name: &str,
        segments: u64,
        per_object: u64,
        segment_rows: u64,
        wide: &[&str],
    ) -> anyhow::Result<Self> {
        let mut objects = BTreeMap::new();
        let mut first = 0;
        while first < segments {
            let last = (first + per_object).min(segments);
            let (bytes, ends) = object(first..last, segment_rows, wide)?;
            let key = format!("{name}/part-{:05}.parquet", first / per_object);
            let (footer, size) = (footer(&bytes), bytes.len() as u64);
            objects.insert(key.clone(), TableObject { first, ends, footer, size });
            s3.put(&key, bytes);
            first = last;
        }
        let segment_bytes = segment_rows * ROW_BYTES;
        Ok(Self { uri: s3.uri(name), segments, segment_bytes, objects })
    }

    /// Bytes of column data in the log of the S3 server. Footers are left out, and so are refusals; a body
    /// that was cut counts as a whole one.
    ///
    /// # Panics
    /// If a request has no range, or one with columns and a footer in it: it counts as neither.
    pub fn data_bytes(&self, log: &[SeenRequest]) -> u64 {
        self.data_gets(log).map(|(seen, ..)| seen.bytes).sum()
    }

    /// The same of some segments alone, by the ranges that were asked for: one over several segments counts
    /// for each with its part.
    pub fn data_bytes_of(&self, log: &[SeenRequest], segments: &BTreeSet<u64>) -> u64 {
        self.data_gets(log).map(|(_, object, range)| object.bytes_of(&range, segments)).sum()
    }

    /// Of each segment whose columns were read more than once: who read them, and when.
    pub fn read_again<'a>(&'a self, log: &'a [SeenRequest]) -> BTreeMap<u64, Vec<(&'a str, Instant)>> {
        let mut reads = BTreeMap::<_, Vec<_>>::new();
        for (seen, object, range) in self.data_gets(log) {
            for segment in object.segments_of(&range) {
                reads.entry(segment).or_default().push((&*seen.signed_by, seen.at));
            }
        }
        reads.retain(|_, reads| reads.len() > 1);
        reads
    }

    /// The requests for columns, with their objects and ranges.
    fn data_gets<'a>(
        &'a self,
        log: &'a [SeenRequest],
    ) -> impl Iterator<Item = (&'a SeenRequest, &'a TableObject, Range<u64>)> {
        let gets = log.iter().filter(|seen| seen.is_object_get() && seen.status < 300);
        gets.filter_map(move |seen| {
            let object = self.objects.get(&seen.key)?;
            let TableObject { footer, size, .. } = *object;
            let tail = size.saturating_sub(TAIL_BYTES).min(footer);
            match seen.range_bytes() {
                Some(range) if range.end <= footer => Some((seen, object, range)),
                Some(range) if range.start >= tail => None,
                _ => panic!("neither columns nor the end of an object of {size} bytes: {seen:?}"),
            }
        })
    }

    /// Bytes of objects in the log of the S3 server, their footers included.
    pub fn object_bytes(&self, log: &[SeenRequest]) -> u64 {
        let objects = log.iter().filter(|seen| seen.is_object_get() && seen.status < 300);
        objects.filter(|seen| self.objects.contains_key(&seen.key)).map(|seen| seen.bytes).sum()
    }

    /// Bytes of all column chunks: everything between the magic at a file's beginning and its footer.
    pub fn projected_bytes(&self) -> u64 {
        self.objects.values().map(|object| object.footer - MAGIC_BYTES).sum()
    }
}

impl TableObject {
    /// The segments of which a range has some bytes.
    fn segments_of(&self, range: &Range<u64>) -> impl Iterator<Item = u64> {
        let last = self.first + self.ends.len() as u64;
        (self.first..last).filter(|segment| self.bytes_of(range, &BTreeSet::from([*segment])) > 0)
    }

    /// How many bytes of a range are of some segments.
    fn bytes_of(&self, range: &Range<u64>, segments: &BTreeSet<u64>) -> u64 {
        let starts = std::iter::once(MAGIC_BYTES).chain(self.ends.iter().copied());
        let held = (self.first..).zip(starts.zip(self.ends.iter().copied()));
        let wanted = held.filter(|(segment, _)| segments.contains(segment));
        wanted.map(|(_, (start, end))| range.end.min(end).saturating_sub(range.start.max(start))).sum()
    }
}

/// One object: a row group for each segment, plain and without any index, so that it is written fast. And
/// where each row group ends.
fn object(segments: Range<u64>, rows: u64, wide: &[&str]) -> anyhow::Result<(Bytes, Vec<u64>)> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .build();
    let schema = rows_of(0..1, wide)?.schema();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema, Some(properties))?;
    let mut ends = Vec::new();
    for segment in segments {
        writer.write(&rows_of(segment * rows..(segment + 1) * rows, wide)?)?;
        writer.flush()?;
        ends.push(writer.bytes_written() as u64);
    }
    Ok((writer.into_inner()?.into(), ends))
}

/// Where the footer of a Parquet file begins: its length stands before the magic at the end.
fn footer(bytes: &Bytes) -> u64 {
    let end = bytes.len() - 8;
    let length = bytes[end..end + 4].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
    end as u64 - length
}

fn rows_of(rows: Range<u64>, wide: &[&str]) -> anyhow::Result<RecordBatch> {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| row as i64)));
    let mut columns = vec![("id", ids, false)];
    for (column, name) in wide.iter().enumerate() {
        let bytes: Vec<u8> =
            rows.clone().flat_map(|row| words(row, column)).flat_map(u64::to_le_bytes).collect();
        let values = FixedSizeBinaryArray::try_new(8 * WORDS as i32, bytes.into(), None)?;
        columns.push((name, Arc::new(values), false));
    }
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}

/// The words of a wide value.
fn words(row: u64, column: usize) -> impl Iterator<Item = u64> {
    let base = fastrand::Rng::with_seed(row * WIDE.len() as u64 + column as u64).u64(..);
    (0..WORDS).map(move |k| base.wrapping_add(k.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
}

/// The mark of a row. Epochs with equal sums of marks have the same rows.
fn mark(row: u64) -> u64 {
    fastrand::Rng::with_seed(!row).u64(..)
}

/// Rows that were read, each compared with the rule as it came.
#[derive(Debug, Clone, Copy, Default)]
pub struct Checked {
    /// Rows, padding left out.
    pub rows: u64,
    /// Values that differ from the rule.
    pub wrong: u64,
    marks: u64,
}

impl Checked {
    /// Compares every value of a batch with the rule.
    pub fn add(&mut self, batch: &Batch) {
        let columns = &batch.columns;
        let Some(ids) = columns.column_by_name("id").and_then(|ids| ids.as_primitive_opt::<Int64Type>())
        else {
            self.wrong += 1;
            return;
        };
        for (slot, id) in ids.values().iter().enumerate() {
            if batch.mask.as_ref().is_none_or(|mask| mask.value(slot)) {
                self.rows += 1;
                self.marks = self.marks.wrapping_add(mark(*id as u64));
            }
        }
        for (column, name) in WIDE.iter().enumerate() {
            if let Some(values) = columns.column_by_name(name) {
                self.wrong += wrong_values(ids, values, column);
            }
        }
    }

    /// Adds the rows of another rank.
    pub fn merge(&mut self, other: &Self) {
        self.rows += other.rows;
        self.wrong += other.wrong;
        self.marks = self.marks.wrapping_add(other.marks);
    }

    /// How many values were wrong, counting an epoch that does not hold each row once as one more.
    pub fn wrong_of_epoch(&self, rows: u64) -> u64 {
        let marks = (0..rows).fold(0u64, |all, row| all.wrapping_add(mark(row)));
        self.wrong + u64::from(self.rows != rows || self.marks != marks)
    }
}

fn wrong_values(ids: &Int64Array, values: &ArrayRef, column: usize) -> u64 {
    let Some(values) = values.as_fixed_size_binary_opt() else { return ids.len() as u64 };
    let differs = |(slot, id): (usize, &i64)| {
        let (words_read, _) = values.value(slot).as_chunks::<8>();
        let equal =
            words_read.iter().zip(words(*id as u64, column)).all(|(read, word)| *read == word.to_le_bytes());
        !equal || words_read.len() as u64 != WORDS
    };
    ids.values().iter().enumerate().filter(|value| differs(*value)).count() as u64
}

#[test]
fn bytes_count_for_the_segments_that_they_are_of() {
    use hyper::Method;

    let s3 = S3Server::start();
    // Two objects: segments 0 to 15, and 16 to 19.
    let table = Table::upload(&s3, "owned", 20, 4).expect("a table");
    let (key, object) = table.objects.last_key_value().expect("an object");
    assert_eq!((object.first, object.ends.len()), (16, 4));
    assert_eq!(object.ends.last(), Some(&object.footer), "nothing lies between the columns and the footer");
    let get = |start: u64, end: u64| SeenRequest {
        method: Method::GET,
        host: String::new(),
        bucket: s3.bucket.clone(),
        key: key.clone(),
        query: String::new(),
        range: Some(format!("bytes={start}-{}", end - 1)),
        if_match: None,
        if_none_match: None,
        status: 206,
        bytes: end - start,
        signed_by: format!("node-{start}"),
        at: Instant::now(),
    };
    let whole = object.ends[1] - object.ends[0];
    let one = [get(object.ends[0], object.ends[1])];
    // Two and a half segments from the beginning, which has the magic before it; and the footer.
    let many = [get(0, object.ends[1] + whole / 2), get(object.footer, object.size)];
    let of =
        |log: &[SeenRequest], segments: &[u64]| table.data_bytes_of(log, &segments.iter().copied().collect());
    assert_eq!((of(&one, &[17]), of(&one, &[0, 1, 16, 18, 19])), (whole, 0));
    assert_eq!((of(&many, &[17]), of(&many, &[18]), of(&many, &[19])), (whole, whole / 2, 0));
    assert!(table.read_again(&many).is_empty());
    let again = [one.to_vec(), many.to_vec()].concat();
    let by =
        |reads: Vec<(&str, Instant)>| reads.iter().map(|(node, _)| (*node).to_owned()).collect::<Vec<_>>();
    let again = table.read_again(&again).into_iter().map(|(segment, reads)| (segment, by(reads)));
    let nodes = vec![format!("node-{}", object.ends[0]), "node-0".to_owned()];
    assert_eq!(again.collect::<Vec<_>>(), [(17, nodes)]);
    let all: Vec<u64> = (0..20).collect();
    assert_eq!(of(&many, &all) + MAGIC_BYTES, table.data_bytes(&many));
}
