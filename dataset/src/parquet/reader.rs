//! Segments of frozen datasets: what they cost to read, and their rows as a record batch.

use crate::freeze::{self, Frozen};
use crate::parquet::chunks::Chunks;
use crate::parquet::cost::{Cost, cost};
use crate::parquet::decode::DecodeTask;
use crate::parquet::decoders::Decoders;
use crate::parquet::fetch::{PIECE_BYTES, chunk_ranges, fetch};
use crate::parquet::footer::RowGroups;
use crate::parquet::footers::Footers;
use crate::schema::from_ipc;
use crate::source::{Place, Source, SourceCounters, SourceSettings, Version, blocking};
use crate::urgency::Urgency;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use forebay_proto::{Error, Kind, Manifest, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A segment that does not decode is fetched this often before its object is called corrupt: the bytes may
/// have been damaged in transit.
const READINGS: u32 = 3;

/// With this many requests at once or fewer, it pays to read several segments in one.
const FEW_REQUESTS: usize = 4;

/// Freezes datasets and reads their segments, behind one set of settings. Cheap to clone; all clones share
/// limits, caches and counters.
#[derive(Clone)]
pub struct SegmentReader {
    source: Source,
    footers: Footers,
    decoders: Decoders,
}

/// Where a segment lies.
struct Origin {
    place: Place,
    version: Version,
    part: RowGroups,
}

/// A segment that may be fetched and decoded.
pub(super) struct SegmentLayout {
    pub place: Place,
    pub version: Version,
    part: RowGroups,
    /// Ascending.
    columns: Vec<usize>,
    schema: SchemaRef,
    decoded_limit: u64,
}

/// Why a reading of a segment failed.
enum Failure {
    /// These bytes are not sound. Bytes that are fetched again may be.
    Bytes(Error),
    /// Fetching again changes nothing.
    Final(Error),
}

impl SegmentReader {
    /// A reader that connects to nothing yet.
    ///
    /// # Errors
    /// `Invalid` if settings, environment and AWS files contradict each other.
    pub fn new(settings: SourceSettings) -> Result<Self> {
        let source = Source::new(settings)?;
        Ok(Self { footers: Footers::new(source.clone()), decoders: Decoders::new(), source })
    }

    /// The sums of all requests and decoded bytes so far.
    pub fn counters(&self) -> &SourceCounters {
        self.source.counters()
    }

    /// Freezes the dataset under `uri` into segments of about `segment_bytes` decoded bytes (0 = the
    /// default).
    ///
    /// Its objects are the `.parquet` ones under the prefix, or the one object that `uri` names; names that
    /// start with `_` or `.` are left out.
    ///
    /// # Errors
    /// `NotFound` if there are no objects, `Corrupt` if one is not Parquet, `Invalid` if schemas differ.
    pub async fn freeze(&self, uri: &str, segment_bytes: u64) -> Result<Arc<Frozen>> {
        self.freeze_again(uri, segment_bytes, None).await
    }

    /// As [`SegmentReader::freeze`]. If the listing still has the objects of `known` in the same versions,
    /// that is returned and no footer is read.
    pub async fn freeze_again(
        &self,
        uri: &str,
        segment_bytes: u64,
        known: Option<Arc<Frozen>>,
    ) -> Result<Arc<Frozen>> {
        freeze::freeze(&self.source, &self.footers, uri, segment_bytes, known).await
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
        let Origin { place, part, .. } = self.origin(manifest, segment, urgency).await?;
        Ok(cost(&part, projection, place.is_file()))
    }

    /// Reads one segment: all its rows in file order, the columns of `projection` (indices into the
    /// manifest's schema) in ascending order of index. The footer is read again if it is no longer cached, so
    /// a manifest is all that is needed. Where the limits of the source are reached, `urgency` decides who
    /// goes first.
    ///
    /// # Errors
    /// `Changed` if the object was overwritten, `Corrupt` if it does not decode however often it is fetched,
    /// `Invalid` if the decoder says twice that it cannot read such an object.
    #[tracing::instrument(level = "trace", skip_all)]
    pub async fn read_segment(
        &self,
        manifest: &Manifest,
        segment: u32,
        projection: &[usize],
        urgency: &Urgency,
    ) -> Result<RecordBatch> {
        let mut before: Option<Error> = None;
        for reading in 1.. {
            let e = match self.read_once(manifest, segment, projection, urgency).await {
                Ok(batch) => return Ok(batch),
                Err(Failure::Final(e)) => return Err(e),
                Err(Failure::Bytes(e)) => e,
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
            let (place, version, _) = self.object(manifest, segment)?;
            self.footers.forget(&place, &version);
            before = Some(e);
        }
        unreachable!("the last reading returns")
    }

    /// Whether requests are so few that several segments should be read in one, as
    /// [`SegmentRun`](super::SegmentRun) does.
    pub fn prefers_runs(&self) -> bool {
        self.source.settings().s3_max_requests <= FEW_REQUESTS
    }

    async fn read_once(
        &self,
        manifest: &Manifest,
        segment: u32,
        projection: &[usize],
        urgency: &Urgency,
    ) -> Result<RecordBatch, Failure> {
        let layout = self.layout(manifest, segment, projection, urgency).await?;
        let chunks = self.fetch(&layout, layout.ranges(), PIECE_BYTES, urgency).await?;
        self.decode(layout, chunks, urgency).await.map_err(|e| match e.kind {
            Kind::Corrupt | Kind::Invalid => Failure::Bytes(e),
            _ => Failure::Final(e),
        })
    }

    /// Where a segment's column chunks lie, checked against the manifest and the settings.
    pub(super) async fn layout(
        &self,
        manifest: &Manifest,
        segment: u32,
        projection: &[usize],
        urgency: &Urgency,
    ) -> Result<SegmentLayout> {
        let Origin { place, version, part } = self.origin(manifest, segment, urgency).await?;
        let schema = from_ipc(manifest.schema())?;
        let mut columns = projection.to_vec();
        columns.sort_unstable();
        columns.dedup();
        let schema = schema
            .project(&columns)
            .map_err(|_| Error::invalid(format!("{}: no column {:?}", manifest.uri(), columns.last())))?;
        let rows: u64 = part.metadata().iter().map(|g| g.num_rows() as u64).sum();
        let has_columns = part.footer.schema.fields().len() > columns.last().copied().unwrap_or(0);
        if part.metadata().len() != part.range.len() || rows != part.rows || !has_columns {
            return Err(Error::changed(format!(
                "{}: its footer does not fit the manifest: open the dataset again",
                place.uri()
            )));
        }
        let cost = cost(&part, &columns, place.is_file());
        let max = self.source.settings().segment_memory_bytes;
        if cost.total() > max {
            return Err(Error::invalid(format!(
                "{}: row groups {:?} take {} bytes of memory to read, segment_memory_bytes (and on a cache node \
                 --memory-bytes) allows {max}: write it with smaller row groups, or allow more",
                place.uri(),
                part.range,
                cost.total()
            )));
        }
        let schema = Arc::new(schema);
        Ok(SegmentLayout { place, version, part, columns, schema, decoded_limit: cost.limit() })
    }

    /// The bytes of `ranges` of the layout's object.
    pub(super) async fn fetch(
        &self,
        layout: &SegmentLayout,
        ranges: Vec<Range<u64>>,
        piece_bytes: u64,
        urgency: &Urgency,
    ) -> Result<Arc<Chunks>> {
        let bytes = ranges.iter().map(|range| range.end - range.start).sum();
        let chunks =
            fetch(&self.source, (&layout.place, &layout.version), ranges, piece_bytes, urgency).await?;
        urgency.add_fetched(bytes);
        Ok(chunks)
    }

    /// The segment, out of chunks that hold its bytes.
    pub(super) async fn decode(
        &self,
        layout: SegmentLayout,
        chunks: Arc<Chunks>,
        urgency: &Urgency,
    ) -> Result<RecordBatch> {
        let compressed: u64 = layout.ranges().iter().map(|r| r.end - r.start).sum();
        let task = DecodeTask {
            uri: layout.place.uri().to_owned(),
            part: layout.part,
            columns: layout.columns,
            schema: layout.schema,
            lists: true,
            limit: layout.decoded_limit,
            decoded: AtomicU64::new(0),
        };
        let batch = self.decoders.decode(task, chunks, urgency).await?;
        let c = self.counters();
        c.parquet_bytes_decoded.fetch_add(compressed, Relaxed);
        c.arrow_bytes_decoded.fetch_add(batch.get_array_memory_size() as u64, Relaxed);
        Ok(batch)
    }

    /// Where a segment lies: nowhere outside of its dataset. Reads the footer if it is not cached.
    async fn origin(&self, manifest: &Manifest, segment: u32, urgency: &Urgency) -> Result<Origin> {
        let (place, version, range) = self.object(manifest, segment)?;
        let dataset = manifest.parts().iter().find(|p| p.segments.contains(&segment));
        if place.is_file() {
            let (place, dataset) = (place.clone(), dataset.map_or(manifest.uri(), |p| &p.uri).to_owned());
            blocking(move || place.stays_under(&dataset)).await?;
        }
        let footer = self.footers.get(&place, &version, urgency).await?;
        let rows = manifest.segment(segment)?.total_rows;
        Ok(Origin { place, version, part: RowGroups { footer, range, rows } })
    }

    /// A segment's object, and its row groups in it.
    fn object(&self, manifest: &Manifest, segment: u32) -> Result<(Place, Version, Range<usize>)> {
        let part = manifest.segment(segment)?;
        let object = manifest.objects().get(part.object as usize);
        let object =
            object.ok_or_else(|| Error::invalid(format!("{}: malformed manifest", manifest.uri())))?;
        let place = self.source.place(&manifest.object_uri(object))?;
        let version = Version { etag: object.etag.clone(), size: object.size };
        let first = part.first_row_group as usize;
        Ok((place, version, first..first + part.row_groups as usize))
    }
}

impl SegmentLayout {
    /// Where the column chunks lie in the object.
    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        chunk_ranges(&self.part, &self.columns)
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        match e.kind {
            Kind::Corrupt => Self::Bytes(e),
            _ => Self::Final(e),
        }
    }
}
