//! BatchStreams against the plan's own words: every slot of every step, in order, with the right values.

mod faults;
mod messages;
mod whole_steps;

use super::*;
use crate::packed::PackedSchema;
use crate::ready::{MemoryGuard, ReadySegment};
use crate::segment_batch::SegmentBatch;
use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use forebay_proto::digest::OrderDigest;
use forebay_proto::manifest::{Manifest, Object, SegmentSize};
use forebay_proto::plan::steps::{Cut, Ending, Layout, Steps};
use forebay_proto::plan::{Order, PlanKey, Shuffle};
use forebay_proto::v1::split::Rows;
use forebay_proto::view::Split;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Segments made on the spot: row r of segment s holds its row number in the dataset, as a number and as
/// text.
struct Made {
    rows: Vec<u64>,
    asked: Mutex<Vec<u32>>,
}

fn batch(first: i64, rows: u64) -> RecordBatch {
    let ids = first..first + rows as i64;
    RecordBatch::try_from_iter([
        ("id", Arc::new(Int64Array::from_iter_values(ids.clone())) as ArrayRef),
        ("name", Arc::new(StringArray::from_iter_values(ids.clone().map(|i| format!("row {i}"))))),
        ("half", Arc::new(Int32Array::from_iter_values(ids.map(|i| (i / 2) as i32)))),
    ])
    .unwrap()
}

impl SegmentSource for Made {
    fn get<'a>(&'a self, reading: &'a Reading, segment: u32) -> BoxFuture<'a, Result<ReadySegment>> {
        async move {
            self.asked.lock().push(segment);
            let s = reading.manifest.segment(segment)?;
            assert_eq!(s.total_rows, self.rows[segment as usize]);
            // Whole segments are read; the rows that belong to a split hold their number in it.
            let first = s.first_row as i64 - s.skip as i64;
            let batch = batch(first, s.total_rows).project(&reading.projection).unwrap();
            // As from disk, or as they were decoded.
            let batch = if segment.is_multiple_of(3) { batch.into() } else { SegmentBatch::pack(batch)? };
            Ok(Arc::new(batch).into())
        }
        .boxed()
    }
}

fn dataset(rows: &[u64]) -> (Arc<Made>, Arc<Manifest>, SchemaRef) {
    let schema = batch(0, 1).schema();
    let object = |i: usize| Object { key: format!("o{i}"), etag: "e".into(), size: 1, ..Default::default() };
    let size = |(i, &rows): (usize, &u64)| SegmentSize {
        object: i as u32,
        row_groups: 1,
        rows,
        decoded_bytes: rows * 20,
    };
    let manifest = Manifest::new(
        "s3://b/p",
        1,
        crate::schema::to_ipc(&schema).unwrap(),
        (0..rows.len()).map(object).collect(),
        &rows.iter().enumerate().map(size).collect::<Vec<_>>(),
    )
    .unwrap();
    (Arc::new(Made { rows: rows.to_vec(), asked: Mutex::default() }), Arc::new(manifest), schema)
}

fn setup(
    segments: Arc<dyn SegmentSource>,
    manifest: &Arc<Manifest>,
    schema: &SchemaRef,
    budget: StreamBudget,
) -> StreamSetup {
    let reading = Reading::new(manifest.clone(), schema, &[]).unwrap();
    StreamSetup { budget, ..StreamSetup::new(reading, segments) }
}

fn plan(
    segments: Arc<dyn SegmentSource>,
    manifest: Arc<Manifest>,
    schema: &SchemaRef,
    ticket: &v1::PlanTicket,
    budget: StreamBudget,
) -> Result<BatchStream> {
    let walk = PlanWalk::new(&manifest, ticket, &Orders::default())?;
    let reading = Reading::new(manifest, schema, &ticket.columns)?;
    Ok(BatchStream::plan(StreamSetup { budget, ..StreamSetup::new(reading, segments) }, walk))
}

fn scan(
    segments: Arc<dyn SegmentSource>,
    manifest: Arc<Manifest>,
    schema: &SchemaRef,
    ticket: &v1::ScanTicket,
    budget: StreamBudget,
) -> Result<BatchStream> {
    let reading = Reading::new(manifest, schema, &ticket.columns)?;
    Ok(BatchStream::scan(StreamSetup { budget, ..StreamSetup::new(reading, segments) }, ticket))
}

fn rows(
    segments: Arc<dyn SegmentSource>,
    manifest: Arc<Manifest>,
    schema: &SchemaRef,
    ticket: &v1::RowsTicket,
    budget: StreamBudget,
) -> Result<BatchStream> {
    let reading = Reading::new(manifest, schema, &ticket.columns)?;
    BatchStream::rows(StreamSetup { budget, ..StreamSetup::new(reading, segments) }, ticket)
}

/// (step, segment, id) of every row of an answer, and its merged digest.
async fn read(mut answer: BatchStream) -> Result<(Vec<(u64, u32, i64)>, OrderDigest)> {
    let (mut rows, mut digest) = (Vec::new(), OrderDigest::default());
    while let Some(message) = answer.messages.recv().await {
        let message = message?;
        let meta = message.meta.clone().unwrap();
        let columns = PackedSchema::new(batch(0, 0).schema());
        let mut batch = message.to_record_batch(&answer.schema)?;
        if answer.schema == columns.physical {
            batch = SegmentBatch::from_physical(&columns, batch)?.columns()?;
        }
        let column = batch.column_by_name("id").unwrap().clone();
        let ids = arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(&column).clone();
        let mut at = 0;
        for run in meta.runs.chunks_exact(3) {
            for _ in 0..run[2] {
                rows.push((meta.first_step + u64::from(run[0]), run[1], ids.value(at)));
                at += 1;
            }
        }
        assert_eq!(at, batch.num_rows());
        if !meta.digest.is_empty() {
            digest.merge(OrderDigest::from_bytes(&meta.digest)?);
        }
    }
    Ok((rows, digest))
}

/// Waits until something is so.
async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn ticket(manifest: &Manifest, shuffle: Shuffle, cut: Cut, rank: u32) -> v1::PlanTicket {
    let key = PlanKey { manifest: manifest.digest(), seed: 9, epoch: 1, shuffle };
    v1::PlanTicket {
        plan: Some(key.into()),
        columns: vec![],
        first_position: cut.first_position,
        global_batch: cut.global_batch,
        rank,
        world: cut.world,
        ending: cut.ending.into(),
        layout: cut.layout.into(),
        segments: Default::default(),
        held_only: false,
        epochs_after: None,
        packed: false,
        row_spans: Vec::new(),
        knows_rows: false,
    }
}

#[tokio::test]
async fn plans_are_followed_slot_by_slot() {
    let sizes = [50u64, 7, 120, 33, 64, 1, 90];
    let (made, manifest, schema) = dataset(&sizes);
    let small = StreamBudget { message_bytes: 300, messages: 1, segments_ahead: Some(1) };
    for (shuffle, layout, ending) in [
        (Shuffle::Window(3), Layout::Segment, Ending::Pad),
        (Shuffle::Full, Layout::Position, Ending::Exact),
        (Shuffle::None, Layout::Segment, Ending::Drop),
    ] {
        let cut = Cut { first_position: 13, global_batch: 48, world: 2, ending, layout };
        let order = Order::new(&manifest, 9, 1, shuffle);
        let steps = Steps::new(&order, cut).unwrap();
        for rank in 0..2 {
            let (mut want, mut digest, mut slots) = (Vec::new(), OrderDigest::default(), Vec::new());
            for step in 0..steps.count() {
                steps.batch(step, rank, &mut slots);
                let first = |s: u32| manifest.segments()[s as usize].first_row;
                digest.merge(steps.digest(&slots, first));
                want.extend(slots.iter().map(|s| {
                    (step, s.sample.segment, (first(s.sample.segment) + u64::from(s.sample.row)) as i64)
                }));
            }
            let ask = v1::PlanTicket { packed: rank == 0, ..ticket(&manifest, shuffle, cut, rank) };
            let whole = plan(made.clone(), manifest.clone(), &schema, &ask, small).unwrap();
            assert_eq!(read(whole).await.unwrap(), (want.clone(), digest), "{shuffle} rank {rank}");
            // Split between two owners: even and odd segments. Together they are the whole.
            let mut both = Vec::new();
            for bits in [0b01010101u8, 0b10101010] {
                let part = v1::PlanTicket { segments: vec![bits].into(), ..ask.clone() };
                both.extend(
                    read(plan(made.clone(), manifest.clone(), &schema, &part, small).unwrap())
                        .await
                        .unwrap()
                        .0,
                );
            }
            both.sort_unstable();
            want.sort_unstable();
            assert_eq!(both, want);
        }
    }
}

#[tokio::test]
async fn splits_and_mixes_are_read_like_datasets() {
    let (_, whole, schema) = dataset(&[50, 7, 120, 33]);
    let split = whole.split(&Split::Rows(Rows { from: 30, to: 150 })).unwrap();
    let other = dataset(&[20, 40]).1;
    let mix = Manifest::mix(&[(split.clone(), 0.75), ((*other).clone(), 0.25)]).unwrap();
    let small = StreamBudget { message_bytes: 300, messages: 1, segments_ahead: Some(1) };
    for (manifest, rows, samples) in [(split, vec![50, 7, 120], 120), (mix, vec![50, 7, 120, 20, 40], 160)] {
        let manifest = Arc::new(manifest);
        let made = Arc::new(Made { rows, asked: Mutex::default() });
        let cut = Cut {
            first_position: 0,
            global_batch: 16,
            world: 1,
            ending: Ending::Exact,
            layout: Layout::Position,
        };
        let order = Order::new(&manifest, 9, 1, Shuffle::Window(2));
        assert_eq!((order.len(), Order::samples(&manifest)), (samples, samples));
        let want: Vec<i64> = (0..samples)
            .map(|p| order.at(p).unwrap())
            .map(|s| (manifest.segments()[s.segment as usize].first_row + u64::from(s.row)) as i64)
            .collect();
        let ask = ticket(&manifest, Shuffle::Window(2), cut, 0);
        let (got, _) =
            read(plan(made.clone(), manifest.clone(), &schema, &ask, small).unwrap()).await.unwrap();
        assert_eq!(got.iter().map(|r| r.2).collect::<Vec<_>>(), want);
        let t =
            v1::ScanTicket { manifest: manifest.digest().to_bytes().to_vec().into(), ..Default::default() };
        let (scanned, _) = read(scan(made, manifest.clone(), &schema, &t, small).unwrap()).await.unwrap();
        assert_eq!(
            scanned.iter().map(|r| r.2).collect::<Vec<_>>(),
            (0..manifest.rows() as i64).collect::<Vec<_>>()
        );
    }
}

#[tokio::test]
async fn scans_and_rows_keep_their_order() {
    let (made, manifest, schema) = dataset(&[5, 6, 7]);
    let tiny = StreamBudget { message_bytes: 30, messages: 1, segments_ahead: Some(1) };
    let digest = manifest.digest().to_bytes().to_vec();
    for limit in [0, 8, 18, 100] {
        let t = v1::ScanTicket { manifest: digest.clone().into(), columns: vec!["id".into()], limit };
        let (rows, _) = read(scan(made.clone(), manifest.clone(), &schema, &t, tiny).unwrap()).await.unwrap();
        let n = if limit == 0 { 18 } else { limit.min(18) };
        assert_eq!(rows.iter().map(|r| r.2).collect::<Vec<_>>(), (0..n as i64).collect::<Vec<_>>());
    }
    let asked = v1::RowsTicket {
        manifest: digest.into(),
        columns: vec![],
        segment: vec![2, 0, 2, 1],
        row: vec![6, 4, 0, 0],
    };
    let (rows_read, _) =
        read(rows(made.clone(), manifest.clone(), &schema, &asked, tiny).unwrap()).await.unwrap();
    assert_eq!(rows_read.iter().map(|r| r.2).collect::<Vec<_>>(), [17, 4, 11, 5]);
    let outside = v1::RowsTicket { segment: vec![1], row: vec![6], ..asked };
    assert!(rows(made, manifest, &schema, &outside, tiny).unwrap_err().message.contains("no row 6"));
}

#[tokio::test]
async fn messages_of_a_scan_have_as_many_rows_as_their_budget_holds() {
    let (made, manifest, schema) = dataset(&[100]);
    let budget = StreamBudget { message_bytes: 80, messages: 1, segments_ahead: Some(1) };
    let digest = manifest.digest().to_bytes().to_vec();
    let ticket = v1::ScanTicket { manifest: digest.into(), columns: vec!["id".into()], limit: 0 };
    let mut answer = scan(made, manifest, &schema, &ticket, budget).unwrap();
    let mut rows = Vec::new();
    while let Some(message) = answer.messages.recv().await {
        rows.push(message.unwrap().to_record_batch(&answer.schema).unwrap().num_rows());
    }
    assert_eq!(rows, [10; 10], "80 bytes of numbers of 8");
}

#[tokio::test]
async fn messages_keep_their_size_when_rows_grow() {
    struct Growing;
    impl SegmentSource for Growing {
        fn get<'a>(&'a self, reading: &'a Reading, segment: u32) -> BoxFuture<'a, Result<ReadySegment>> {
            async move {
                let s = reading.manifest.segment(segment)?;
                let ids = s.first_row as i64..(s.first_row + s.rows) as i64;
                let text = "x".repeat(if segment == 0 { 1 } else { 10_000 });
                let texts = (0..s.rows).map(|_| text.as_str());
                let columns = [
                    ("id", Arc::new(Int64Array::from_iter_values(ids.clone())) as ArrayRef),
                    ("name", Arc::new(StringArray::from_iter_values(texts))),
                    ("half", Arc::new(Int32Array::from_iter_values(ids.map(|i| (i / 2) as i32)))),
                ];
                Ok(Arc::new(SegmentBatch::from(RecordBatch::try_from_iter(columns).unwrap())).into())
            }
            .boxed()
        }
    }
    let schema = batch(0, 1).schema();
    let object = Object { key: "o".into(), etag: "e".into(), size: 1, ..Default::default() };
    let sizes = [(2000, 13), (200, 10_012)].map(|(rows, row_bytes)| SegmentSize {
        object: 0,
        row_groups: 1,
        rows,
        decoded_bytes: rows * row_bytes,
    });
    let ipc = crate::schema::to_ipc(&schema).unwrap();
    let manifest = Arc::new(Manifest::new("s3://b/p", 1, ipc, vec![object], &sizes).unwrap());
    let cut =
        Cut { first_position: 0, global_batch: 100, world: 1, ending: Ending::Pad, layout: Layout::Segment };
    let t = ticket(&manifest, Shuffle::None, cut, 0);
    let budget = StreamBudget { message_bytes: 30_000, messages: 1, segments_ahead: Some(1) };
    let mut answer = plan(Arc::new(Growing), manifest, &schema, &t, budget).unwrap();
    let mut messages = 0;
    while let Some(message) = answer.messages.recv().await {
        let bytes = message.unwrap().body_bytes();
        assert!(bytes < 60_000, "message {messages} has {bytes} bytes");
        messages += 1;
    }
    assert!(messages < 120, "{messages} messages for 2 MB");
}

#[tokio::test]
async fn a_rank_without_rows_in_most_segments_still_reads_ahead() {
    let (made, manifest, schema) = dataset(&[1; 200]);
    let cut =
        Cut { first_position: 0, global_batch: 16, world: 8, ending: Ending::Pad, layout: Layout::Segment };
    let t = ticket(&manifest, Shuffle::None, cut, 3);
    let budget = StreamBudget { message_bytes: 1, messages: 1, segments_ahead: Some(4) };
    let mut answer = plan(made.clone(), manifest, &schema, &t, budget).unwrap();
    // Its rows are 6, 7, 22, 23, 38, 39, ...
    for _ in 0..4 {
        answer.messages.recv().await.unwrap().unwrap();
    }
    until("too few are made ready", || made.asked.lock().contains(&41)).await;
    // Time for more of them, which there must not be.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let asked = made.asked.lock().clone();
    assert!(!asked.contains(&60), "{asked:?}");
}

/// Segments that lie in memory, and how many are held.
struct Tight {
    made: Arc<Made>,
    held: Arc<Mutex<(usize, usize)>>,
}

struct Counted(Arc<Mutex<(usize, usize)>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.lock().0 -= 1;
    }
}

impl SegmentSource for Tight {
    fn get<'a>(&'a self, reading: &'a Reading, segment: u32) -> BoxFuture<'a, Result<ReadySegment>> {
        async move {
            let ReadySegment { batch, .. } = self.made.get(reading, segment).await?;
            let mut held = self.held.lock();
            held.0 += 1;
            held.1 = held.1.max(held.0);
            Ok(ReadySegment::in_memory(batch, Some(Arc::new(Counted(self.held.clone())))))
        }
        .boxed()
    }
}

/// Memory for one segment at a time.
struct Scarce;

impl StreamHooks for Scarce {
    fn reached(&self, _: u64) {}

    fn held_bytes(&self) -> usize {
        1
    }

    fn permit(&self, _: usize) -> BoxFuture<'_, MemoryGuard> {
        std::future::ready(None).boxed()
    }
}

#[tokio::test]
async fn a_message_of_more_segments_than_memory_holds_is_gathered_in_parts() {
    let (made, manifest, schema) = dataset(&[30; 60]);
    let cut = Cut {
        first_position: 0,
        global_batch: 100,
        world: 1,
        ending: Ending::Exact,
        layout: Layout::Segment,
    };
    for shuffle in [Shuffle::Full, Shuffle::Window(20)] {
        let budget = StreamBudget { message_bytes: 20_000, messages: 1, segments_ahead: None };
        let ticket = ticket(&manifest, shuffle, cut, 0);
        let tight = Arc::new(Tight { made: made.clone(), held: Arc::default() });
        let setup =
            StreamSetup { hooks: Arc::new(Scarce), ..setup(tight.clone(), &manifest, &schema, budget) };
        let walk = PlanWalk::new(&manifest, &ticket, &Orders::default()).unwrap();
        let parts = BatchStream::plan(setup, walk);
        let whole = plan(made.clone(), manifest.clone(), &schema, &ticket, budget).unwrap();
        assert_eq!(read(parts).await.unwrap(), read(whole).await.unwrap());
        assert_eq!(tight.held.lock().1, 1, "segments held at once");
    }
}
