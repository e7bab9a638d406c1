//! Segments of frozen datasets: what they cost to read, and their rows as a record batch.

use crate::freeze::{self, Frozen, base};
use crate::object_reader::ObjectReader;
use crate::off_thread::blocking;
use crate::parquet::chunks::Chunks;
use crate::parquet::cost::Cost;
use crate::parquet::counting::Tools;
use crate::parquet::fetch::{PIECE_BYTES, fetch, piece_bytes};
use crate::parquet::filtered::{self, GroupTask, ObjectColumns};
use crate::parquet::footers::Footers;
use crate::priority::PrioritySemaphore;
use crate::schema::from_ipc;
use crate::selection::Selection;
use crate::source::{
    ObjectGuard, ObjectStoreSilence, Place, Source, SourceCounters, SourceObject, SourceSettings, normalise,
};
use crate::urgency::Urgency;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use forebay_proto::manifest::Object;
use forebay_proto::{Error, Kind, Manifest, Result};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use std::future::ready;
use std::iter;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A segment that does not decode is fetched this often before its object is called corrupt: the bytes may
/// have been damaged in transit.
const READINGS: u32 = 3;

/// With this many requests at once or fewer, it pays to read several segments in one.
const FEW_REQUESTS: usize = 4;

/// Freezes datasets and reads their segments, behind one set of settings. Cheap to clone; all clones share
/// limits, caches and counters.
#[derive(Clone)]
pub struct SegmentReader {
    pub(super) source: Source,
    footers: Footers,
    /// One per core.
    decoders: Arc<PrioritySemaphore>,
    /// Bytes of memory for columns of filters, while datasets are frozen.
    filtering: Arc<PrioritySemaphore>,
}

/// Memory that all filters take together while their rows are counted, at most: they are narrow columns of a
/// few row groups at once.
const FILTERING_BYTES: u64 = 256 << 20;

/// A segment that may be fetched and decoded.
pub(super) struct SegmentLayout {
    pub object: SourceObject,
    tasks: Vec<GroupTask>,
    /// Of the columns that are read.
    schema: SchemaRef,
    cost: Cost,
}

impl SegmentReader {
    /// A reader that connects to nothing yet.
    ///
    /// # Errors
    /// `Invalid` if settings, environment and AWS files contradict each other.
    pub fn new(settings: SourceSettings) -> Result<Self> {
        Self::of(Source::new(settings, None)?)
    }

    /// As [`SegmentReader::new`]; of the objects that a table's log names outside of the table only those are
    /// read that `guard` lets through.
    pub fn guarded(settings: SourceSettings, guard: ObjectGuard) -> Result<Self> {
        Self::of(Source::new(settings, Some(guard))?)
    }

    fn of(source: Source) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let decoders = PrioritySemaphore::new(cores as u64);
        let filtering = PrioritySemaphore::new(FILTERING_BYTES.min(source.settings().segment_memory_bytes));
        Ok(Self { footers: Footers::new(source.clone()), decoders, filtering, source })
    }

    /// The sums of all requests and decoded bytes so far.
    pub fn counters(&self) -> &SourceCounters {
        self.source.counters()
    }

    /// For how long the object stores have given nothing to those who wait for them; none if nobody waits.
    pub fn silence(&self) -> Option<ObjectStoreSilence> {
        self.source.silence()
    }

    /// The objects themselves, read within the same limits.
    pub fn objects(&self) -> ObjectReader {
        ObjectReader::new(self.source.clone())
    }

    /// Asks the object store once whether what lies under a URI can be listed. The error is that which a
    /// reader would get, without the retries.
    pub async fn try_list(&self, uri: &str) -> Result<()> {
        let uri = uri.to_owned();
        let uri = blocking(move || normalise(&uri)).await?;
        self.source.try_list(&self.source.place(&uri)?).await
    }

    /// Freezes the dataset under `uri` into segments of about `segment_bytes` decoded bytes (0 = the
    /// default).
    ///
    /// Its objects are the Parquet ones under the prefix, or the one object that `uri` names (see
    /// docs/datasets.md); names that start with `_` or `.` are left out.
    ///
    /// # Errors
    /// `NotFound` if there are no objects, `Corrupt` if one is not Parquet.
    pub async fn freeze(&self, uri: &str, segment_bytes: u64) -> Result<Arc<Frozen>> {
        self.freeze_again(&Selection::new(uri, segment_bytes), None).await
    }

    /// As [`SegmentReader::freeze`], whatever is selected. If the listing still has the objects of `known`,
    /// which was frozen of the same selection, in the same versions, that is returned and no footer is read.
    pub async fn freeze_again(
        &self,
        selection: &Selection,
        known: Option<Arc<Frozen>>,
    ) -> Result<Arc<Frozen>> {
        let Self { source, footers, decoders, filtering } = self;
        freeze::freeze(Tools { source, footers, decoders, filtering }, selection, known).await
    }

    /// The manifest with the object store's ids of its objects' versions, by a HEAD for each; as it is if the
    /// object store keeps no versions of the first one, or a table's log says which objects there are.
    ///
    /// # Errors
    /// `Changed` or `NotFound` if an object is no longer that of the manifest.
    pub async fn with_version_ids(&self, manifest: &Manifest) -> Result<Manifest> {
        let id = async |object: &Object| {
            let place = self.source.place(&manifest.object_uri(object))?;
            match place.is_file() {
                true => Ok(None),
                false => self.source.version_id(&frozen(place, object)).await,
            }
        };
        let is_logged = manifest.shape().is_some_and(|shape| shape.table.is_some());
        let Some((first, others)) = manifest.objects().split_first().filter(|_| !is_logged) else {
            return Ok(manifest.clone());
        };
        let Some(of_first) = id(first).await? else { return Ok(manifest.clone()) };
        let asked: Vec<BoxFuture<'_, Result<Option<String>>>> =
            others.iter().map(|object| id(object).boxed()).collect();
        let at_once = self.source.settings().s3_max_requests;
        let of_others: Vec<_> = stream::iter(asked).buffered(at_once).try_collect().await?;
        let ids = iter::once(of_first).chain(of_others.into_iter().map(Option::unwrap_or_default));
        Ok(manifest.clone().with_version_ids(ids.collect()))
    }

    /// The memory that [`SegmentReader::read_segment`] of the same arguments holds at most. Reads the footer
    /// if it is not cached.
    pub async fn segment_cost(
        &self,
        manifest: &Manifest,
        segment: u32,
        projection: &[usize],
        urgency: &Urgency,
    ) -> Result<Cost> {
        Ok(self.layout(manifest, segment, projection, urgency).await?.cost)
    }

    /// Reads one segment: all its rows in file order, the columns of `projection` (indices into the
    /// manifest's schema) in ascending order of index. The footer is read again if it is no longer cached, so
    /// a manifest is all that is needed. Where the limits of the source are reached, `urgency` decides who
    /// goes first.
    ///
    /// # Errors
    /// `Changed` if the object was overwritten, `Corrupt` if it does not decode however often it is fetched,
    /// `Invalid` if the decoder says twice that it cannot read such an object.
    pub async fn read_segment(
        &self,
        manifest: &Manifest,
        segment: u32,
        projection: &[usize],
        urgency: &Urgency,
    ) -> Result<RecordBatch> {
        let read = self.read_segment_within(manifest, segment, projection, urgency, || ready(()));
        read.await.map(|(batch, ())| batch)
    }

    /// As [`SegmentReader::read_segment`], and what `memory` gave before the fetched bytes were decoded.
    #[tracing::instrument(level = "trace", skip_all)]
    pub async fn read_segment_within<M, F: Future<Output = M>>(
        &self,
        manifest: &Manifest,
        segment: u32,
        projection: &[usize],
        urgency: &Urgency,
        memory: impl Fn() -> F,
    ) -> Result<(RecordBatch, M)> {
        let mut before: Option<Error> = None;
        for reading in 1.. {
            let fetched = async {
                let layout = self.layout(manifest, segment, projection, urgency).await?;
                let ranges = layout.ranges();
                let bytes = ranges.iter().map(|range| range.end - range.start).sum();
                let piece_bytes = self.piece_bytes(bytes);
                let chunks = fetch(&self.source, &layout.object, ranges, piece_bytes, urgency).await?;
                urgency.add_fetched(bytes);
                Ok((layout, chunks))
            };
            let (decoded, is_fetched) = match fetched.await {
                Ok((layout, chunks)) => {
                    let held = memory().await;
                    (self.decode(layout, chunks, urgency).await.map(|batch| (batch, held)), true)
                }
                Err(e) => (Err(e), false),
            };
            let e = match decoded {
                Ok(read) => return Ok(read),
                // Bytes that are fetched again may be sound.
                Err(e) if e.kind == Kind::Corrupt || is_fetched && e.kind == Kind::Invalid => e,
                Err(e) => return Err(e),
            };
            let is_same = before.is_some_and(|before| before.message == e.message);
            if e.kind == Kind::Invalid && is_same {
                return Err(e);
            }
            if reading == READINGS {
                return Err(Error::corrupt(e.message));
            }
            tracing::info!(error = %e, "a segment does not decode: it is fetched again");
            self.counters().damaged.fetch_add(1, Relaxed);
            self.footers.forget(&self.object(manifest, segment)?.0);
            before = Some(e);
        }
        unreachable!("the last reading returns")
    }

    /// Whether requests are so few that several segments should be read in one, as
    /// [`SegmentRun`](super::SegmentRun) does.
    pub fn prefers_runs(&self) -> bool {
        self.source.settings().s3_max_requests <= FEW_REQUESTS
    }

    /// The pieces in which a segment of `bytes` stored bytes is read.
    fn piece_bytes(&self, bytes: u64) -> u64 {
        if self.prefers_runs() { PIECE_BYTES } else { piece_bytes(bytes, self.source.free_requests()) }
    }

    /// Where a segment's column chunks lie, checked against the manifest and the settings.
    pub(super) async fn layout(
        &self,
        manifest: &Manifest,
        segment: u32,
        projection: &[usize],
        urgency: &Urgency,
    ) -> Result<SegmentLayout> {
        let (object, range) = self.object(manifest, segment)?;
        let uri = object.place.uri.clone();
        self.check_place(manifest, segment, &object).await?;
        let footer = self.footers.get(&object, urgency).await?;
        let mut columns = projection.to_vec();
        columns.sort_unstable();
        columns.dedup();
        let all = from_ipc(manifest.schema())?;
        let schema = all.project(&columns);
        let schema = schema
            .map_err(|_| Error::invalid(format!("{}: no column {:?}", manifest.uri(), columns.last())))?;
        let (shape, is_file) = (manifest.shape(), object.place.is_file());
        let number = manifest.segment(segment)?.object as usize;
        let max = self.source.settings().segment_memory_bytes;
        let of = ObjectColumns {
            schema: &all,
            shape,
            footer: &footer,
            object: number,
            uri: &uri,
            is_file,
            memory_bytes: max,
        };
        let found = match manifest.filter() {
            Some(filter) => {
                let groups = (range.start, filter.rows_of(segment));
                of.filtered(filter.predicate(), groups, &columns).map_err(|e| e.context(manifest.uri()))?
            }
            None => {
                let whole = of.task(range.clone(), manifest.segment(segment)?.total_rows, &columns)?;
                whole.map(|(task, cost)| (vec![GroupTask::whole(task)], cost))
            }
        };
        let (tasks, cost) = found.ok_or_else(|| {
            Error::changed(format!("{uri}: its footer does not fit the manifest: open the dataset again"))
        })?;
        if cost.certain() > max {
            let segments = if range.len() > 1 { "use smaller segments (--segment-bytes), " } else { "" };
            return Err(Error::invalid(format!(
                "{uri}: row groups {range:?} take {} bytes of memory to read, segment_memory_bytes (and on a cache node \
                 --memory-bytes) allows {max}: read fewer columns (--columns), {segments}write it with smaller row \
                 groups, or allow more",
                cost.certain()
            )));
        }
        Ok(SegmentLayout { object, tasks, schema: Arc::new(schema), cost: cost.within(max) })
    }

    /// The segment, out of chunks that hold its bytes.
    pub(super) async fn decode(
        &self,
        layout: SegmentLayout,
        chunks: Chunks,
        urgency: &Urgency,
    ) -> Result<RecordBatch> {
        let compressed: u64 = layout.ranges().iter().map(|r| r.end - r.start).sum();
        let read = filtered::read(layout.tasks, layout.schema, chunks, &self.decoders, urgency);
        let (batch, time) = read.await?;
        let c = self.counters();
        c.decode_cpu_us.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Relaxed);
        c.parquet_bytes_decoded.fetch_add(compressed, Relaxed);
        c.arrow_bytes_decoded.fetch_add(batch.get_array_memory_size() as u64, Relaxed);
        Ok(batch)
    }

    /// `Denied` if a segment's object lies outside of its dataset.
    async fn check_place(&self, manifest: &Manifest, segment: u32, object: &SourceObject) -> Result<()> {
        if !object.place.is_file() {
            return Ok(());
        }
        let dataset = manifest.parts().iter().find(|p| p.segments.contains(&segment));
        let dataset = base(dataset.map_or(manifest.uri(), |p| &p.uri));
        let (place, dataset) = (object.place.clone(), object.place.within(dataset).to_owned());
        blocking(move || place.stays_under(&dataset)).await
    }

    /// A segment's object, and its row groups in it.
    fn object(&self, manifest: &Manifest, segment: u32) -> Result<(SourceObject, Range<usize>)> {
        let part = manifest.segment(segment)?;
        let object = manifest.objects().get(part.object as usize);
        let object =
            object.ok_or_else(|| Error::invalid(format!("{}: malformed manifest", manifest.uri())))?;
        let place = self.source.place(&manifest.object_uri(object))?;
        let first = part.first_row_group as usize;
        let row_groups = first..first + part.row_groups as usize;
        Ok((frozen(place, object), row_groups))
    }
}

/// An object in the version that a manifest names.
fn frozen(place: Place, object: &Object) -> SourceObject {
    let (etag, version_id) = (object.etag.clone(), object.version_id.clone());
    SourceObject { place, etag, size: object.size, version_id }
}

impl SegmentLayout {
    /// Where the column chunks lie in the object.
    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        self.tasks.iter().flat_map(GroupTask::ranges).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_many_requests_may_be_sent_pieces_are_short() {
        let piece = |s3_max_requests| {
            let settings = SourceSettings { s3_max_requests, ..Default::default() };
            SegmentReader::new(settings).unwrap().piece_bytes(12 << 20)
        };
        assert_eq!((piece(FEW_REQUESTS), piece(FEW_REQUESTS + 1)), (PIECE_BYTES, 3 << 20));
    }
}
