//! **The** read path: a segment from the store, or filled from its object, once.
//!
//! `get`: store -> single flight -> source (fetch and decode) -> store. What the store has no room for is served
//! without storing. Of a segment whose columns are partly held, only the missing ones are fetched. The bytes being
//! filled at once are bounded: a fill waits for room before it fetches anything.

use crate::events::{Event, Events};
use crate::flight::{Flights, Seat};
use crate::store::file::Origin;
use crate::store::policy::Admit;
use crate::store::{Store, Written};
use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema, SchemaRef};
use forebay_proto::manifest::{Manifest, SegmentId};
use forebay_proto::{Error, Result};
use forebay_segment::answer::Segments;
use forebay_segment::{Source, Urgency, schema};
use futures::future::BoxFuture;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Decoding holds the fetched bytes, the decoded pieces and their concatenation for a moment.
const FILL_FACTOR: u64 = 2;

/// The cache of one node.
pub struct Cache {
    source: Source,
    store: Arc<Store>,
    events: Arc<Events>,
    /// A fill's outcome: the columns, or none if the store got some of them just before it began.
    flights: Flights<SegmentId, Option<Arc<RecordBatch>>>,
    /// One permit per KiB of memory that fills may use.
    fill_room: Arc<Semaphore>,
    fill_kib: u32,
}

impl Cache {
    /// A cache that fills `store` from `source`, with at most about `fill_bytes` of memory in fills.
    pub fn new(source: Source, store: Arc<Store>, events: Arc<Events>, fill_bytes: u64) -> Self {
        let fill_kib = (fill_bytes / 1024).clamp(1, u64::from(u32::MAX >> 3)) as u32;
        let fill_room = Arc::new(Semaphore::new(fill_kib as usize));
        Self { source, store, events, flights: Flights::default(), fill_room, fill_kib }
    }

    /// The store behind it.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The source behind it.
    pub fn source(&self) -> &Source {
        &self.source
    }

    async fn read(
        &self,
        manifest: &Arc<Manifest>,
        segment: u32,
        projection: &[usize],
    ) -> Result<Arc<RecordBatch>> {
        let id = manifest.segment_id(segment)?;
        let whole = schema::from_ipc(manifest.schema())?;
        let wanted =
            Arc::new(whole.project(projection).map_err(|e| Error::invalid(format!("project: {e}")))?);
        let columns: Vec<String> = wanted.fields().iter().map(|f| f.name().clone()).collect();
        let mut seat = None;
        loop {
            let (store, names) = (self.store.clone(), columns.clone());
            let found = blocking(move || store.find(id, &names)).await?;
            if found.missing.is_empty() {
                self.events.record(seat.map_or(Event::Hit, Event::Miss));
                return compose(&wanted, &found.parts, manifest.segment(segment)?.total_rows);
            }
            let missing: Vec<usize> = found.missing.iter().filter_map(|c| whole.index_of(c).ok()).collect();
            let fill = || self.fill(manifest.clone(), segment, found.missing.clone(), missing);
            let (now, filled) = self.flights.fly(id, fill).await;
            // None: another flight landed between the look into the store and the take-off. Look again.
            let Some(filled) = filled? else { continue };
            // Led once is led; a join of another's columns may be followed by a lead for the rest.
            seat = Some(if seat == Some(Seat::Led) { Seat::Led } else { now });
            let mut parts = found.parts;
            parts.push(filled);
            if columns.iter().all(|c| parts.iter().any(|p| p.column_by_name(c).is_some())) {
                self.events.record(Event::Miss(seat.unwrap_or(now)));
                return compose(&wanted, &parts, manifest.segment(segment)?.total_rows);
            }
        }
    }

    /// Fetches, decodes and stores columns of a segment, named and by index; `None` if the store has any of them by now.
    fn fill(
        &self,
        manifest: Arc<Manifest>,
        segment: u32,
        names: Vec<String>,
        projection: Vec<usize>,
    ) -> impl Future<Output = Result<Option<Arc<RecordBatch>>>> + Send + 'static {
        let (source, store, room, fill_kib) =
            (self.source.clone(), self.store.clone(), self.fill_room.clone(), self.fill_kib);
        async move {
            let s = manifest.segment(segment)?;
            let (id, again) = (manifest.segment_id(segment)?, store.clone());
            // Only now is this the one flight for the segment: whoever looked before may have looked too early.
            if !blocking(move || again.find(id, &names)).await?.parts.is_empty() {
                return Ok(None);
            }
            let kib =
                (s.decoded_bytes.saturating_mul(FILL_FACTOR) / 1024).clamp(1, u64::from(fill_kib)) as u32;
            let _room = room.acquire_many(kib).await.map_err(|_| Error::closed("the server is stopping"))?;
            let batch = source.read_segment(&manifest, segment, &projection, &Urgency::demand()).await?;
            let object = &manifest.objects()[s.object as usize];
            let origin = Origin { id, object: manifest.object_uri(object), etag: object.etag.clone() };
            blocking(move || match store.write(&origin, &batch, Admit::IfWorthIt)? {
                // Decoded bytes live on in the page cache alone.
                Written::Mapped(mapped) => Ok(Some(mapped)),
                Written::NotWorthIt | Written::NoRoom => Ok(Some(Arc::new(batch))),
            })
            .await?
        }
    }
}

impl Segments for Cache {
    fn get<'a>(
        &'a self,
        manifest: &'a Arc<Manifest>,
        segment: u32,
        projection: &'a [usize],
    ) -> BoxFuture<'a, Result<Arc<RecordBatch>>> {
        Box::pin(self.read(manifest, segment, projection))
    }

    fn is_sound(&self, segment: &RecordBatch) -> bool {
        self.store.is_sound(segment)
    }
}

/// The wanted columns out of parts that hold them all.
fn compose(wanted: &SchemaRef, parts: &[Arc<RecordBatch>], rows: u64) -> Result<Arc<RecordBatch>> {
    if let [only] = parts
        && only.schema().fields() == wanted.fields()
    {
        return Ok(only.clone());
    }
    let unfit = |e| Error::corrupt(format!("the stored columns do not fit the dataset's schema: {e}"));
    let column = |wanted: &Field| {
        let found = parts.iter().find_map(|p| p.column_by_name(wanted.name()).cloned());
        let found = found.ok_or_else(|| {
            Error::corrupt(format!("column `{}` vanished while it was read", wanted.name()))
        })?;
        // A segment may have been filled for another dataset that holds its object, whose first object named the
        // parts of lists and maps differently.
        schema::retype(found, wanted.data_type()).map_err(unfit)
    };
    let columns = wanted.fields().iter().map(|f| column(f)).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows as usize));
    let plain: SchemaRef = Arc::new(Schema::new(wanted.fields().clone()));
    RecordBatch::try_new_with_options(plain, columns, &options).map(Arc::new).map_err(unfit)
}

/// Runs work that touches the disk off the async threads.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|e| Error::corrupt(format!("a disk task failed: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreSettings;
    use crate::store::policy::NoForecast;
    use arrow::array::{ArrayRef, ListArray};
    use arrow::datatypes::{DataType, Int64Type};

    #[test]
    fn columns_stored_for_another_dataset_fit_whatever_it_called_their_parts() {
        let rows = [Some(vec![Some(1), Some(2)]), None, Some(vec![])];
        let list = |name: &str| -> ArrayRef {
            let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(rows.clone());
            let (_, offsets, values, nulls) = lists.into_parts();
            let item = Arc::new(Field::new(name, DataType::Int64, true));
            Arc::new(ListArray::new(item, offsets, values, nulls))
        };
        let batch = |name| Arc::new(RecordBatch::try_from_iter([("ids", list(name))]).unwrap());
        let (stored, wanted) = (batch("element"), batch("item"));
        let composed = compose(&wanted.schema(), &[stored], 3).unwrap();
        assert_eq!(composed, wanted);
    }

    /// What happens when a flight lands between a reader's look into the store and its own take-off.
    #[tokio::test]
    async fn a_fill_that_comes_too_late_fetches_nothing() {
        use forebay_proto::manifest::{Object, SegmentSize};
        let dir = tempfile::tempdir().unwrap();
        let batch = RecordBatch::try_from_iter([(
            "id",
            Arc::new(arrow::array::Int64Array::from_iter_values(0..5)) as ArrayRef,
        )])
        .unwrap();
        // The object does not exist: whoever tries to fetch it fails.
        let object = Object { key: "gone.parquet".into(), etag: "e".into(), size: 9 };
        let size = SegmentSize { object: 0, row_groups: 1, rows: 5, decoded_bytes: 40 };
        let ipc = schema::to_ipc(&batch.schema()).unwrap();
        let manifest = Arc::new(Manifest::new("file:///none", 1, ipc, vec![object], &[size]).unwrap());
        let store =
            Arc::new(Store::open(&StoreSettings::new(dir.path(), 1 << 20), Arc::new(NoForecast)).unwrap());
        let source = Source::new(Default::default()).unwrap();
        let cache = Cache::new(source, store.clone(), Arc::default(), 1 << 20);
        let fill = || cache.fill(manifest.clone(), 0, vec!["id".into()], vec![0]);
        assert!(fill().await.is_err(), "nothing is stored yet");
        let id = manifest.segment_id(0).unwrap();
        let origin = Origin { id, object: "file:///none/gone.parquet".into(), etag: "e".into() };
        store.write(&origin, &batch, Admit::Always).unwrap();
        assert!(fill().await.unwrap().is_none(), "look again");
        assert_eq!(*cache.read(&manifest, 0, &[0]).await.unwrap(), batch);
    }
}
