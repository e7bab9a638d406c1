//! A dataset of many types on disk, and what its batches must hold: computed row by row from the plan.

use crate::access::Access;
use crate::dataset::{Dataset, DatasetSpec};
use crate::loader::{Batch, Event, Loader, LoaderSettings};
use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Decimal128Array, FixedSizeBinaryArray, FixedSizeListArray,
    Float32Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray, StructArray,
    TimestampMicrosecondArray, UInt8Array, UInt32Array,
};
use arrow::compute::{concat_batches, take};
use arrow::datatypes::{Field, Int32Type};
use forebay_dataset::SourceSettings;
use forebay_proto::digest::OrderDigest;
use forebay_proto::plan::Order;
use forebay_proto::plan::steps::{Cut, Steps};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use std::sync::Arc;

/// Numbers that a seed determines.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1 << 32);
        forebay_proto::hash::xxh3_64(&self.0.to_le_bytes())
    }
}

/// A dataset on disk.
pub struct World {
    folder: tempfile::TempDir,
}

/// Rows `first ..` of the dataset. Every value tells its row.
fn rows(first: i64, count: usize) -> RecordBatch {
    let ids = || (0..count as i64).map(move |i| first + i);
    let pixel = |id: i64, p: i64| (id * 31 + p) as u8;
    let pixels = UInt8Array::from_iter_values(ids().flat_map(|id| (0..16).map(move |p| pixel(id, p))));
    let item = Arc::new(Field::new("item", arrow::datatypes::DataType::UInt8, false));
    // Nulls in every other stretch of 40 rows only: the column is plain in some messages.
    let sparse = |id: i64| (id / 40 % 2 == 0 || id % 3 > 0).then_some(id as f32 / 4.0);
    let names = ids().map(|id| (id % 5 > 0).then(|| "n".repeat(id as usize % 7) + &id.to_string()));
    let list =
        ids().map(|id| (id % 4 > 0).then(|| (0..id % 6).map(move |i| (i != 2).then_some((id + i) as i32))));
    let inner: ArrayRef = Arc::new(Int32Array::from_iter(ids().map(|id| (id % 7 > 0).then_some(id as i32))));
    let flag = Arc::new(BooleanArray::from_iter(ids().map(|id| Some(id % 3 == 1))));
    let decimals = Decimal128Array::from_iter_values(ids().map(|id| i128::from(id) * 1_000_003));
    let fixed =
        FixedSizeBinaryArray::try_from_iter(ids().map(|id| (id as u32).to_be_bytes().repeat(3))).unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(ids()))),
        ("image", Arc::new(FixedSizeListArray::new(item, 16, Arc::new(pixels), None))),
        ("sparse", Arc::new(Float32Array::from_iter(ids().map(sparse)))),
        ("name", Arc::new(StringArray::from_iter(names))),
        ("flag", flag.clone()),
        ("list", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(list))),
        ("pair", Arc::new(StructArray::try_from(vec![("a", inner), ("b", flag as ArrayRef)]).unwrap())),
        ("price", Arc::new(decimals.with_precision_and_scale(20, 3).unwrap())),
        ("hash", Arc::new(fixed)),
        ("time", Arc::new(TimestampMicrosecondArray::from_iter_values(ids().map(|id| id * 977)))),
        ("blob", Arc::new(BinaryArray::from_iter_values(ids().map(|id| vec![id as u8; id as usize % 50])))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap()
}

impl World {
    /// Some objects of some rows each, in row groups of 20.
    pub fn new(objects: &[usize]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut first = 0;
        for (i, &count) in objects.iter().enumerate() {
            let batch = rows(first, count);
            let file = std::fs::File::create(folder.path().join(format!("part-{i:03}.parquet"))).unwrap();
            let groups = WriterProperties::builder().set_max_row_group_row_count(Some(20)).build();
            let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(groups)).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
            first += count as i64;
        }
        Self { folder }
    }

    pub fn uri(&self) -> String {
        format!("file://{}", self.folder.path().display())
    }

    pub fn spec(&self) -> DatasetSpec {
        DatasetSpec { uri: self.uri(), segment_bytes: Some(4 << 10), ..Default::default() }
    }

    /// Writes other rows over the first object.
    pub fn overwrite(&self) {
        self.put("part-000.parquet");
    }

    /// Adds an object behind the others.
    pub fn add(&self) {
        self.put("part-999.parquet");
    }

    fn put(&self, name: &str) {
        let other = World::new(&[77]);
        std::fs::copy(other.folder.path().join("part-000.parquet"), self.folder.path().join(name)).unwrap();
    }

    pub fn access(&self) -> Access {
        Access::direct(SourceSettings::default()).unwrap()
    }

    pub async fn open(&self) -> Dataset {
        Dataset::open(&self.access(), &self.spec()).await.unwrap()
    }
}

/// All rows of a dataset, read segment by segment.
pub async fn all_rows(dataset: &Dataset) -> RecordBatch {
    let Access::Direct(direct) = &dataset.access else { panic!("needs direct access") };
    let mut segments = Vec::new();
    for segment in 0..dataset.manifest.segments().len() as u32 {
        let read = direct.read(&dataset.manifest, segment, &dataset.projection).await.unwrap();
        segments.push(read.columns().unwrap());
    }
    concat_batches(&dataset.projected_schema, &segments).unwrap()
}

/// The batches of one epoch from a position on, straight from the plan.
pub fn reference(
    dataset: &Dataset,
    all: &RecordBatch,
    settings: &LoaderSettings,
    epoch: u64,
    first_position: u64,
) -> (Vec<(RecordBatch, Vec<bool>)>, OrderDigest) {
    let order = Order::new(&dataset.manifest, settings.seed, epoch, settings.shuffle);
    let &LoaderSettings { global_batch, world, ending, layout, rank, .. } = settings;
    let steps = Steps::new(&order, Cut { first_position, global_batch, world, ending, layout }).unwrap();
    let first_row = |s: u32| dataset.manifest.segments()[s as usize].first_row;
    let (mut batches, mut digest, mut slots) = (Vec::new(), OrderDigest::default(), Vec::new());
    for step in 0..steps.count() {
        steps.batch(step, rank, &mut slots);
        let row = |s: &forebay_proto::plan::steps::Slot| first_row(s.sample.segment) as u32 + s.sample.row;
        let indices = UInt32Array::from_iter_values(slots.iter().map(row));
        let columns = all.columns().iter().map(|c| take(c, &indices, None).unwrap()).collect();
        let batch = RecordBatch::try_new(all.schema(), columns).unwrap();
        batches.push((batch, slots.iter().map(|s| steps.is_real(s)).collect()));
        digest.merge(steps.digest(&slots, first_row));
    }
    (batches, digest)
}

/// Checks one batch against its reference.
pub fn same(batch: &Batch, want: &(RecordBatch, Vec<bool>), what: &str) {
    let mask: Vec<bool> = match &batch.mask {
        Some(mask) => mask.iter().collect(),
        None => vec![true; batch.rows()],
    };
    assert_eq!(mask, want.1, "{what}: mask");
    assert_eq!(batch.real_rows, want.1.iter().filter(|m| **m).count(), "{what}");
    let got = &batch.columns;
    for (i, field) in want.0.schema().fields().iter().enumerate() {
        assert_eq!(got.column(i).as_ref(), want.0.column(i).as_ref(), "{what}: column {}", field.name());
        assert_eq!(batch.column(field.name()).unwrap().as_ref(), got.column(i).as_ref());
    }
    assert_eq!(*got, want.0, "{what}");
}

/// Reads the first epoch, which must be as the plan says, and does something before each step.
pub async fn check_first(
    loader: &mut Loader,
    from: &Dataset,
    all: &RecordBatch,
    settings: &LoaderSettings,
    mut before: impl AsyncFnMut(usize),
) {
    let (want, digest) = reference(from, all, settings, 0, 0);
    for (step, want) in want.iter().enumerate() {
        before(step).await;
        match loader.next().await.unwrap() {
            Some(Event::Batch(batch)) => same(&batch, want, &format!("step {step}")),
            other => panic!("{other:?}"),
        }
    }
    match loader.next().await.unwrap() {
        Some(Event::EpochEnd(end)) => assert_eq!(end.digest, digest),
        other => panic!("{other:?}"),
    }
}

/// Reads a loader to its end and checks every batch and digest.
pub async fn check(
    mut loader: Loader,
    from: &Dataset,
    all: &RecordBatch,
    settings: &LoaderSettings,
    what: &str,
) {
    let mut epoch = settings.resume.map_or(settings.first_epoch, |s| s.key.epoch);
    let mut position = settings.resume.map_or(0, |s| s.samples_done);
    let end = settings.first_epoch + settings.epochs.unwrap();
    while epoch < end {
        let (want, digest) = reference(from, all, settings, epoch, position);
        for (step, want) in want.iter().enumerate() {
            let what = format!("{what}, epoch {epoch} step {step}");
            // A look ahead now and then changes nothing.
            let ready = if step % 3 == 1 { loader.ready() } else { None };
            let next = async {
                match ready {
                    Some(event) => Ok(Some(event)),
                    None => loader.next().await,
                }
            };
            let next = tokio::time::timeout(std::time::Duration::from_secs(30), next).await;
            match next.unwrap_or_else(|_| panic!("{what}: stuck")) {
                Ok(Some(Event::Batch(batch))) => {
                    assert_eq!((batch.epoch, batch.bytes() > 0), (epoch, true));
                    same(&batch, want, &what);
                    assert_eq!(loader.state().samples_done, batch.samples_done, "{what}");
                }
                other => panic!("{what}: {other:?}"),
            }
        }
        let over = if epoch.is_multiple_of(2) { loader.ready() } else { loader.next().await.unwrap() };
        match over {
            Some(Event::EpochEnd(end)) => {
                assert_eq!((end.epoch, end.digest), (epoch, digest), "{what}");
                assert_eq!(end.steps, want.len() as u64);
                let real: usize = want.iter().map(|(_, m)| m.iter().filter(|r| **r).count()).sum();
                assert_eq!(end.samples, real as u64);
            }
            other => panic!("{what}: {other:?}"),
        }
        (epoch, position) = (epoch + 1, 0);
        let state = loader.state();
        assert_eq!((state.key.epoch, state.samples_done), (epoch, 0));
    }
    assert!(loader.next().await.unwrap().is_none());
    assert!(loader.ready().is_none());
    assert!(loader.next().await.unwrap().is_none());
}
