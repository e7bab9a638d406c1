//! Messages that leave out which rows they have: a reader that knows the plan finds them in the files.

use super::*;
use crate::pool::Pool;
use crate::shared::tests::files::OnDisk;
use crate::shared::{FileMaps, MessagePool, RowRuns, RowsDone, SharedRegion};
use arrow::array::AsArray;
use forebay_proto::hash::Hash64;
use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;

/// Rows of a segment: a few messages' worth.
const ROWS: u64 = 9000;

const SEGMENTS: usize = 5;

/// Two numbers: all columns are packed.
fn table(first: u64, rows: u64) -> RecordBatch {
    let ids = first as i64..(first + rows) as i64;
    let odd = Int64Array::from_iter_values(ids.clone().map(|id| id * 7 + 1));
    RecordBatch::try_from_iter([
        ("id", Arc::new(Int64Array::from_iter_values(ids)) as ArrayRef),
        ("odd", Arc::new(odd) as ArrayRef),
    ])
    .unwrap()
}

/// The segments, each packed; those that are named lie in memory alone.
struct Disk {
    in_memory: BTreeSet<u32>,
    files: Vec<(Arc<SegmentBatch>, Arc<OnDisk>)>,
}

impl Disk {
    fn new(in_memory: &[u32]) -> Self {
        let packed = PackedSchema::new(table(0, 1).schema());
        let layout = packed.layout.clone().unwrap();
        let file = |number: usize| {
            let batch = SegmentBatch::pack(table(number as u64 * ROWS, ROWS)).unwrap();
            let file = OnDisk::holding(batch.whole_rows(&layout).unwrap().bytes.to_vec());
            // As it is mapped.
            let rows = file.rows.clone();
            let batch = SegmentBatch::of_rows(&packed.schema, &layout, rows, Vec::new(), ROWS as usize);
            (Arc::new(batch), file)
        };
        Self { in_memory: in_memory.iter().copied().collect(), files: (0..SEGMENTS).map(file).collect() }
    }
}

impl SegmentSource for Disk {
    fn get<'a>(&'a self, _: &'a Reading, segment: u32) -> BoxFuture<'a, Result<ReadySegment>> {
        let (batch, file) = self.files[segment as usize].clone();
        let in_memory = self.in_memory.contains(&segment);
        let ready = if in_memory { batch.into() } else { ReadySegment::in_file(batch, file) };
        std::future::ready(Ok(ready)).boxed()
    }
}

/// A node's stream, and its reader's end.
struct Both {
    manifest: Arc<Manifest>,
    region: SharedRegion,
    files: FileMaps,
    socket: UnixStream,
    stream: BatchStream,
}

impl Both {
    fn start(disk: Disk, ask: impl FnOnce(&Manifest) -> v1::PlanTicket) -> Self {
        let (_, manifest, _) = dataset(&[ROWS; SEGMENTS]);
        let region = SharedRegion::new(16 << 20).unwrap();
        let (node, socket) = UnixStream::pair().unwrap();
        node.set_nonblocking(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        region.lend_files(node.into());
        let ticket = ask(&manifest);
        let walk = PlanWalk::new(&manifest, &ticket, &Orders::default()).unwrap();
        let reading = Reading::new(manifest.clone(), &table(0, 1).schema(), &[]).unwrap();
        let budget = StreamBudget { message_bytes: 320 << 10, ..StreamBudget::default() };
        let pool = MessagePool::new(Pool::new(0), Some(region.clone()));
        let setup = StreamSetup { budget, pool, ..StreamSetup::new(reading, Arc::new(disk)) };
        let stream = BatchStream::plan(setup, walk);
        Self { manifest, region, files: FileMaps::default(), socket, stream }
    }

    /// The rows' ids, and of each message how many whole steps it has. The reader works out `steps`.
    async fn read(mut self, steps: &Steps<'_>, rank: u32) -> (Vec<i64>, Vec<u32>) {
        let (mut ids, mut whole, mut slots) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(message) = self.stream.messages.recv().await {
            let message = message.unwrap();
            let meta = message.meta.clone().unwrap();
            whole.push(meta.whole_steps);
            assert_eq!(message.segment_rows().map(|(_, rows)| rows).sum::<f64>(), message.rows() as f64);
            let lease = message.body.first().and_then(|part| self.region.lease(part));
            let told = lease.as_ref().and_then(|lease| lease.file_rows());
            let bytes = match (meta.whole_steps, told) {
                (0, None) => {
                    let packed = message.to_record_batch(&self.stream.schema).unwrap();
                    packed.column(0).as_fixed_size_binary().value_data().to_vec()
                }
                (0, Some(told)) => {
                    let runs = &message.body[0][..told.runs as usize * crate::shared::RUN_BYTES];
                    let rows = self.files.rows(&self.socket, &told, runs).unwrap();
                    copied(&rows)
                }
                (count, told) => {
                    assert!(meta.runs.is_empty() && meta.digest.is_empty() && message.is_shared);
                    let mut hash = Hash64::default();
                    hash.update(&message.header);
                    assert_eq!((message.body.len(), meta.hash), (1, hash.digest()), "nothing else travels");
                    let segments = self.files.segments(&self.socket, &told.unwrap()).unwrap();
                    let mut runs = RowRuns::new(segments.width(), 0);
                    for step in meta.first_step..meta.first_step + u64::from(count) {
                        steps.batch(step, rank, &mut slots);
                        for slot in &slots {
                            assert!(steps.is_real(slot), "padding comes by itself");
                            let source = segments.source(slot.sample.segment).unwrap();
                            let skip = self.manifest.segments()[slot.sample.segment as usize].skip;
                            assert!(runs.push(source, (skip as usize) + slot.sample.row as usize, 1));
                        }
                    }
                    assert_eq!(runs.bytes() as u64, message.rows() * segments.width() as u64);
                    copied(&segments.rows(runs).unwrap())
                }
            };
            ids.extend(bytes.as_chunks::<16>().0.iter().map(|row| {
                let (id, odd) = row.split_at(8);
                let (id, odd) =
                    (i64::from_le_bytes(id.try_into().unwrap()), i64::from_le_bytes(odd.try_into().unwrap()));
                assert_eq!(odd, id * 7 + 1);
                id
            }));
        }
        (ids, whole)
    }
}

fn copied(rows: &crate::shared::LentRows) -> Vec<u8> {
    let mut all = vec![0; rows.bytes()];
    rows.copy(&mut RowsDone::default(), &mut all);
    all
}

/// Steps of 2,051 rows for two ranks, the last one padded. Their bytes are no multiple of Arrow's alignment.
fn cut(ending: Ending) -> Cut {
    Cut { first_position: 11, global_batch: 4102, world: 2, ending, layout: Layout::Segment }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_those_of_the_plan_wherever_they_lie() {
    for shuffle in [Shuffle::None, Shuffle::Window(2), Shuffle::Full] {
        // In files, in memory, and one of five in memory.
        for in_memory in [&[][..], &[0, 1, 2, 3, 4], &[3]] {
            for rank in 0..2 {
                let cut = cut(Ending::Pad);
                let both = Both::start(Disk::new(in_memory), |manifest| v1::PlanTicket {
                    packed: true,
                    knows_rows: true,
                    ..ticket(manifest, shuffle, cut, rank)
                });
                let manifest = both.manifest.clone();
                let order = Order::new(&manifest, 9, 1, shuffle);
                let steps = Steps::new(&order, cut).unwrap();
                let (mut wanted, mut slots) = (Vec::new(), Vec::new());
                for step in 0..steps.count() {
                    steps.batch(step, rank, &mut slots);
                    let first = |segment: u32| manifest.segments()[segment as usize].first_row;
                    let id = |slot: &forebay_proto::plan::steps::Slot| {
                        (first(slot.sample.segment) + u64::from(slot.sample.row)) as i64
                    };
                    wanted.extend(slots.iter().map(id));
                }
                let (ids, whole) = both.read(&steps, rank).await;
                assert!(ids == wanted, "{shuffle} rank {rank}, in memory {in_memory:?}");
                let sent: u32 = whole.iter().sum();
                match in_memory.len() {
                    // All steps but the padded one, few at first.
                    0 => {
                        assert_eq!((whole[..3].to_vec(), u64::from(sent)), (vec![2, 3, 5], steps.count() - 1))
                    }
                    SEGMENTS => assert_eq!(sent, 0),
                    // In one window of two all segments may be in files.
                    _ => assert!((sent > 0) == (shuffle != Shuffle::Full), "{whole:?}"),
                }
            }
        }
    }
}

#[tokio::test]
async fn readers_that_know_less_are_told_which_rows_they_get() {
    let less: [fn(&mut v1::PlanTicket); 3] = [
        |ticket| ticket.knows_rows = false,
        // Not all segments: how many rows a step has of them is the plan's to say.
        |ticket| ticket.segments = vec![0b01111].into(),
        |ticket| ticket.packed = false,
    ];
    for change in less {
        let mut both = Both::start(Disk::new(&[]), |manifest| {
            let ticket = ticket(manifest, Shuffle::Window(2), cut(Ending::Drop), 0);
            let mut ticket = v1::PlanTicket { packed: true, knows_rows: true, ..ticket };
            change(&mut ticket);
            ticket
        });
        let mut messages = 0;
        while let Some(message) = both.stream.messages.recv().await {
            assert_eq!(message.unwrap().meta.unwrap().whole_steps, 0);
            messages += 1;
        }
        assert!(messages > 0);
    }
}
