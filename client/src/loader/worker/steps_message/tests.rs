//! Messages of whole steps, whose rows lie in the files of two segments.

use super::*;
use crate::loader::reorder::Opened;
use crate::loader::sampler::Epoch;
use crate::loader::worker::receiver::Receiver;
use crate::stream::StreamEvent;
use arrow::array::{ArrayRef, AsArray, Float32Array, Int64Array, RecordBatch};
use arrow::datatypes::{Float32Type, Int64Type};
use forebay_dataset::shared::channel::{FileNote, send_note};
use forebay_dataset::shared::{FileMaps, MessagePool};
use forebay_dataset::stream::Message;
use forebay_dataset::{PackedSchema, SegmentBatch};
use forebay_proto::manifest::{Object, SegmentSize};
use forebay_proto::plan::steps::{Cut, Ending, Layout};
use forebay_proto::plan::{Order, Shuffle};
use forebay_proto::v1::split::Rows;
use forebay_proto::view::Split;
use forebay_proto::{Kind, SegmentSet};
use prost::Message as _;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::time::UNIX_EPOCH;

/// Rows of the segments' files.
const ROWS: [u64; 2] = [3000, 2000];

/// Rows of the first that do not belong to the dataset.
const SKIPPED: u64 = 500;

/// Rows of a step.
const BATCH: u64 = 250;

/// Bytes in front of a file's rows.
const HEAD: u64 = 40;

/// Rows that tell their numbers, some with a null.
fn table(numbers: std::ops::Range<u64>) -> RecordBatch {
    let ids = Int64Array::from_iter_values(numbers.clone().map(|id| id as i64));
    let values: Float32Array = numbers.map(value).collect();
    let columns: [(&str, ArrayRef, bool); 2] = [("id", Arc::new(ids), false), ("x", Arc::new(values), true)];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

fn value(id: u64) -> Option<f32> {
    (!id.is_multiple_of(7)).then_some(id as f32)
}

/// An epoch, its batches, and the files of its segments.
struct Stage {
    epoch: Epoch,
    buffer: ReorderBuffer,
    segments: SegmentSet,
    files: Vec<File>,
    width: usize,
}

impl Stage {
    fn new(shuffle: Shuffle, budget: u64) -> Self {
        let size = |rows| SegmentSize { object: 0, row_groups: 1, rows, decoded_bytes: rows * 12 };
        let object = Object { key: "a".into(), etag: "e".into(), size: 1, ..Default::default() };
        let all = Manifest::new("file:///d", 1, vec![], vec![object], &ROWS.map(size)).unwrap();
        let rows = Rows { from: SKIPPED, to: ROWS.iter().sum() };
        let manifest = Arc::new(all.split(&Split::Rows(rows)).unwrap());
        let (ending, layout) = (Ending::Drop, Layout::Segment);
        let cut = Cut { first_position: 0, global_batch: BATCH, world: 1, ending, layout };
        let order = Order::new(&manifest, 3, 4, shuffle);
        let schema = PackedSchema::new(table(0..1).schema());
        let width = schema.layout.as_ref().unwrap().width;
        let mut first = 0;
        let files = ROWS.map(|rows| {
            let packed = SegmentBatch::pack(table(first..first + rows)).unwrap();
            first += rows;
            let physical = packed.to_physical(&schema).unwrap();
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&[0xee; HEAD as usize]).unwrap();
            file.write_all(physical.column(0).as_fixed_size_binary().value_data()).unwrap();
            // A write within the clock's tick of the last one would leave no trace.
            file.set_modified(UNIX_EPOCH).unwrap();
            file
        });
        let buffer = ReorderBuffer::new(table(0..1).schema(), Pool::new(0), budget, width as f64);
        let epoch = Epoch::new(manifest, order, cut, 0, 0).unwrap();
        Self { epoch, buffer, segments: SegmentSet::all(2), files: files.into(), width }
    }

    fn scope(&self) -> Scope<'_> {
        Scope { epoch: &self.epoch, buffer: &self.buffer, segments: &self.segments }
    }

    /// What begins a message of some steps, as a node sends it.
    fn head(&self, first_step: u64, whole_steps: u32, rows: u64) -> Head {
        let packed = SegmentBatch::pack(table(0..rows)).unwrap();
        let batch = packed.to_physical(self.buffer.schema()).unwrap();
        let meta = v1::MessageMeta { first_step, whole_steps, ..Default::default() };
        let message = Message::new(&batch, meta.clone(), &MessagePool::from(Pool::new(0))).unwrap();
        let mut hash = Hash64::default();
        hash.update(&message.header);
        let meta = v1::MessageMeta { hash: hash.digest(), ..meta }.encode_to_vec().into();
        Head { body_bytes: message.body_bytes(), header: message.header, meta, shared: None }
    }

    /// The files of some segments, as a node on this host lends them.
    fn lent(&self, segments: &[u32]) -> SharedSegments {
        let (node, reader) = UnixStream::pair().unwrap();
        reader.set_nonblocking(true).unwrap();
        for (number, file) in self.files.iter().enumerate() {
            let stat = file.metadata().unwrap();
            let modified = i128::from(stat.mtime()) * 1_000_000_000 + i128::from(stat.mtime_nsec());
            let note = FileNote { number: number as u32, bytes: stat.len(), modified };
            send_note(&node, &note, Some(file.as_fd())).unwrap();
        }
        let files = segments.iter().map(|segment| v1::FileStart { number: *segment, start: HEAD }).collect();
        let told = v1::FileRows { width: self.width as u32, files, runs: 0, segments: segments.to_vec() };
        SharedSegments::new(FileMaps::default().segments(&reader, &told).unwrap(), Arc::new(()))
    }

    /// The next batch, whose rows must be those of its sample numbers.
    async fn take(&self, step: u64) {
        let batch = self.buffer.take(step).await.unwrap();
        let wanted = batch.sample_ids.iter().map(|id| id + SKIPPED);
        let ids = batch.columns.column(0).as_primitive::<Int64Type>();
        let values = batch.columns.column(1).as_primitive::<Float32Type>();
        assert!(ids.values().iter().map(|id| *id as u64).eq(wanted.clone()), "step {step}");
        assert!(values.iter().eq(wanted.map(value)), "step {step}");
    }
}

/// Whether a message is complete after these events; or how it fails.
async fn receive(stage: &Stage, receiver: &mut Receiver, events: Vec<StreamEvent>) -> Result<bool, Error> {
    let (mut is_complete, mut committed) = (false, Committed::default());
    for event in events {
        let taken = receiver.take(event, stage.scope(), &mut committed).await;
        is_complete = taken.map_err(|failure| failure.error)?;
    }
    Ok(is_complete)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_come_as_there_is_room_for_their_batches() {
    for shuffle in [Shuffle::None, Shuffle::Full] {
        // Room for all steps, for some, and for one at a time.
        for budget in [1 << 20, 5 * BATCH * 13, 1] {
            let stage = Stage::new(shuffle, budget);
            let steps = stage.epoch.count;
            let mut receiver = Receiver::new(0);
            let receiving = async {
                for (first, count) in [(0, 3), (3, steps - 3)] {
                    let (head, lent) = (stage.head(first, count as u32, count * BATCH), stage.lent(&[1, 0]));
                    let events = vec![StreamEvent::Head(head), StreamEvent::Segments(lent), StreamEvent::End];
                    assert!(receive(&stage, &mut receiver, events).await.unwrap());
                }
                receiver.finish(stage.scope()).await.unwrap();
            };
            let taking = async {
                for step in 0..steps {
                    stage.take(step).await;
                }
            };
            tokio::join!(receiving, taking);
        }
    }
}

#[tokio::test]
async fn rows_that_are_committed_already_are_left_out() {
    let stage = Stage::new(Shuffle::Full, 1 << 20);
    let Ok(Opened::Open(builder)) = stage.buffer.try_open(&stage.epoch, 0) else { panic!("no batch") };
    let part = RowCopy { builder, message_row: 0, batch_row: 0, rows: 100 };
    let (sender, queue) = mpsc::sync_channel(1);
    sender.send(vec![part.clone()]).unwrap();
    drop(sender);
    let copier = RowCopier {
        queue: Mutex::new(queue),
        segments: stage.lent(&[0, 1]),
        manifest: stage.epoch.manifest.clone(),
        layout: stage.buffer.schema().layout.clone().unwrap(),
        pool: stage.buffer.pool().clone(),
    };
    copier.work().unwrap();
    commit(&[part], &copier.segments, &stage.buffer).map_err(|failure| failure.error).unwrap();
    let mut receiver = Receiver::new(0);
    let mut committed = Committed { step: 0, row: 100 };
    for event in [StreamEvent::Head(stage.head(0, 2, 2 * BATCH)), StreamEvent::Segments(stage.lent(&[0, 1]))]
    {
        receiver.take(event, stage.scope(), &mut committed).await.map_err(|failure| failure.error).unwrap();
    }
    assert_eq!(committed, Committed { step: 2, row: 0 });
    stage.take(0).await;
    stage.take(1).await;
}

#[tokio::test]
async fn messages_that_make_no_sense_bring_nothing() {
    let stage = Stage::new(Shuffle::Full, 1 << 20);
    let steps = stage.epoch.count;
    let whole = || stage.head(0, 2, 2 * BATCH);
    let segments = |lent: &[u32]| StreamEvent::Segments(stage.lent(lent));
    let damaged = Head {
        meta: v1::MessageMeta { whole_steps: 2, ..Default::default() }.encode_to_vec().into(),
        ..whole()
    };
    let cases: [(&str, Vec<StreamEvent>, Kind); 8] = [
        ("does not match its hash", vec![StreamEvent::Head(damaged)], Kind::Corrupt),
        ("its steps 500", vec![StreamEvent::Head(stage.head(0, 2, 2 * BATCH - 1))], Kind::Corrupt),
        ("fewer steps", vec![StreamEvent::Head(stage.head(steps - 1, 2, 2 * BATCH))], Kind::Corrupt),
        ("fewer steps", vec![StreamEvent::Head(stage.head(0, u32::MAX, BATCH))], Kind::Corrupt),
        ("the epoch is over", vec![StreamEvent::Head(stage.head(steps, 1, BATCH))], Kind::Corrupt),
        ("ended before its rows came", vec![StreamEvent::Head(whole()), StreamEvent::End], Kind::Corrupt),
        ("the file of segment 1", vec![StreamEvent::Head(whole()), segments(&[0])], Kind::Retry),
        // Bytes where none were to come.
        (
            "ended before its rows came",
            vec![StreamEvent::Head(whole()), StreamEvent::Body(vec![0; 9].into()), StreamEvent::End],
            Kind::Corrupt,
        ),
    ];
    for (why, events, kind) in cases {
        let e = receive(&stage, &mut Receiver::new(0), events).await.unwrap_err();
        assert!(e.kind == kind && e.message.contains(why), "{why}: {e}");
    }
    // A file that somebody writes to, or cuts, after it was lent.
    type Change = fn(&File);
    let changes: [Change; 2] =
        [|file| file.write_all_at(b"!", HEAD + 77).unwrap(), |file| file.set_len(HEAD + 1000).unwrap()];
    for change in changes {
        let stage = Stage::new(Shuffle::Full, 1 << 20);
        let lent = stage.lent(&[0, 1]);
        change(&stage.files[0]);
        let events = vec![StreamEvent::Head(stage.head(0, 2, 2 * BATCH)), StreamEvent::Segments(lent)];
        let e = receive(&stage, &mut Receiver::new(0), events).await.unwrap_err();
        assert!(e.kind == Kind::Corrupt && e.message.contains("was changed"), "{e}");
        assert!(stage.buffer.try_take(0).unwrap().is_none(), "nothing of it counts");
    }
    assert!(stage.buffer.try_take(0).unwrap().is_none());
}
