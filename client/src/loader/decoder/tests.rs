//! Messages whose rows lie in a file: packed ones, and a file that somebody changes meanwhile.

use super::*;
use crate::loader::reorder::Opened;
use crate::loader::sampler::Epoch;
use arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema};
use forebay_dataset::SegmentBatch;
use forebay_dataset::shared::channel::{FileNote, send_note};
use forebay_dataset::shared::{FileMaps, LentRows, MessagePool};
use forebay_dataset::stream::Message;
use forebay_proto::manifest::{Digest, Manifest, Object, SegmentSize};
use forebay_proto::plan::steps::{Cut, Ending, Layout};
use forebay_proto::plan::{Order, PlanKey, Shuffle};
use forebay_proto::{Kind, v1};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::time::UNIX_EPOCH;

/// Bytes that a page has at most where these tests run.
const PAGE: usize = 64 << 10;

const WORD: usize = size_of::<i64>();

/// Rows of a table of packed rows: their bytes need no padding.
const TABLE_ROWS: u32 = 192;

/// A message, and its body in a file.
struct InFile {
    head: Head,
    schema: SchemaRef,
    body: Vec<u8>,
    /// Bytes of a row.
    width: usize,
    file: File,
}

impl InFile {
    fn new() -> Self {
        let values = Int64Array::from_iter_values(0..3 * (PAGE / WORD) as i64);
        Self::of(&RecordBatch::try_from_iter([("x", Arc::new(values) as ArrayRef)]).unwrap(), WORD)
    }

    /// A batch of one column.
    fn of(batch: &RecordBatch, width: usize) -> Self {
        let pool = MessagePool::from(Pool::new(0));
        let Message { header, body, .. } = Message::new(batch, v1::MessageMeta::default(), &pool).unwrap();
        let body = body.concat();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&body).unwrap();
        // A write within the clock's tick of the last one would leave no trace.
        file.set_modified(UNIX_EPOCH).unwrap();
        let head = Head { header, body_bytes: body.len(), ..Head::default() };
        Self { head, schema: batch.schema(), body, width, file }
    }

    /// The body as a node on this host lends it.
    fn lent(&self) -> LentRows {
        let (node, reader) = UnixStream::pair().unwrap();
        reader.set_nonblocking(true).unwrap();
        let stat = self.file.metadata().unwrap();
        let modified = i128::from(stat.mtime()) * 1_000_000_000 + i128::from(stat.mtime_nsec());
        let note = FileNote { number: 0, bytes: stat.len(), modified };
        send_note(&node, &note, Some(self.file.as_fd())).unwrap();
        let count = self.body.len() / self.width;
        let files = vec![v1::FileStart { number: 0, start: 0 }];
        let rows = v1::FileRows { width: self.width as u32, runs: 1, files, segments: Vec::new() };
        // One run: all rows of source 0.
        let run = (count as u64) << 32;
        FileMaps::default().rows(&reader, &rows, &run.to_le_bytes()).unwrap()
    }

    /// The hash of a message with so much of its body.
    fn hash(&self, body: &[u8]) -> u64 {
        let mut hash = Hash64::default();
        hash.update(&self.head.header);
        hash.update(body);
        hash.digest()
    }

    /// Brings rows of a batch out of the file, or as bytes that are cut where no row ends.
    fn bring(&self, copy: &RowCopy, lent: bool, buffer: &ReorderBuffer) {
        let mut decoder = MessageDecoder::new(&self.head, &self.schema).unwrap();
        decoder.scatter(std::slice::from_ref(copy), buffer.pool());
        let travels: &[u8] = if lent { &[] } else { &self.body };
        match lent {
            true => decoder.push_rows(SharedRows::new(self.lent(), Arc::new(())), buffer.schema()),
            false => travels.chunks(1000).for_each(|bytes| decoder.push(bytes)),
        }
        let message = decoder.complete(self.hash(travels), &self.schema, buffer.pool()).unwrap();
        assert_eq!(message.is_split, lent);
        message.commit(copy, buffer).unwrap();
    }

    /// What the reader makes of it, if `meanwhile` happens between the copy and the message's end.
    fn decode(&self, meanwhile: impl FnOnce(&File)) -> Result<Option<Buffer>> {
        let pool = Pool::new(0);
        let mut decoder = MessageDecoder::new(&self.head, &self.schema).unwrap();
        decoder.hold(&pool);
        let schema = PackedSchema::new(self.schema.clone());
        decoder.push_rows(SharedRows::new(self.lent(), Arc::new(())), &schema);
        meanwhile(&self.file);
        decoder.complete(self.hash(&[]), &self.schema, &pool).map(|message| message.held)
    }
}

#[test]
fn a_file_that_stays_as_it_is_gives_its_rows() {
    let message = InFile::new();
    assert_eq!(message.decode(|_| ()).unwrap().as_deref(), Some(&message.body[..]));
}

#[test]
fn a_file_that_is_written_to_or_cut_gives_an_error() {
    type Change = fn(&File);
    let changes: [(&str, Change); 3] = [
        ("written to", |file| file.write_all_at(b"!", PAGE as u64).unwrap()),
        ("cut", |file| file.set_len(PAGE as u64).unwrap()),
        ("longer", |file| file.write_all_at(b"!", 4 * PAGE as u64).unwrap()),
    ];
    for (what, change) in changes {
        let e = InFile::new().decode(change).unwrap_err();
        assert_eq!(e.kind, Kind::Corrupt, "{what}: {e}");
        assert!(e.message.contains("file was changed"), "{what}: {e}");
    }
}

/// A table of narrow columns, and its packed rows in a file.
fn table() -> (RecordBatch, InFile) {
    let ids = Int64Array::from_iter_values(0..i64::from(TABLE_ROWS));
    let values: Float32Array = (0..TABLE_ROWS).map(|row| (row % 7 > 0).then_some(row as f32)).collect();
    let fields = vec![Field::new("id", DataType::Int64, false), Field::new("x", DataType::Float32, true)];
    let columns: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(values)];
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
    let schema = PackedSchema::new(batch.schema());
    let sent = SegmentBatch::pack(batch.clone()).unwrap().to_physical(&schema).unwrap();
    (batch, InFile::of(&sent, schema.layout.unwrap().width))
}

/// An epoch of one step, all rows of the table.
fn epoch() -> Epoch {
    let rows = u64::from(TABLE_ROWS);
    let object = Object { key: "a".into(), etag: "e".into(), size: 1, ..Default::default() };
    let size = SegmentSize { object: 0, row_groups: 1, rows, decoded_bytes: 1 };
    let manifest = Manifest::new("file:///d", 1, vec![], vec![object], &[size]).unwrap();
    let key = PlanKey { manifest: Digest(1), seed: 2, epoch: 3, shuffle: Shuffle::None };
    let (ending, layout) = (Ending::Pad, Layout::Segment);
    let cut = Cut { first_position: 0, global_batch: rows, world: 1, ending, layout };
    Epoch::new(Arc::new(manifest), Order::of_segments(&[rows], key), cut, 0, 0).unwrap()
}

#[test]
fn packed_rows_out_of_files_and_as_bytes_make_one_batch() {
    let (table, message) = table();
    let wrong = self::table().1;
    wrong.file.write_all_at(&vec![7; wrong.body.len()], 0).unwrap();
    for (first_lent, second_lent) in [(true, true), (true, false), (false, true), (false, false)] {
        let buffer = ReorderBuffer::new(table.schema(), Pool::new(0), 1 << 20, message.width as f64);
        let Ok(Opened::Open(builder)) = buffer.try_open(&epoch(), 0) else { panic!("no batch") };
        let copy = |message_row, batch_row, rows| {
            let builder = builder.clone();
            RowCopy { builder, message_row, batch_row, rows }
        };
        // A message that breaks off leaves bytes that the next attempt overwrites.
        let mut broken = MessageDecoder::new(&wrong.head, &wrong.schema).unwrap();
        broken.scatter(&[copy(100, 0, 92)], buffer.pool());
        broken.push_rows(SharedRows::new(wrong.lent(), Arc::new(())), buffer.schema());
        drop(broken);
        message.bring(&copy(100, 0, 92), first_lent, &buffer);
        assert!(buffer.try_take(0).unwrap().is_none(), "rows are missing");
        message.bring(&copy(0, 92, 100), second_lent, &buffer);
        let batch = buffer.try_take(0).unwrap().unwrap();
        let wanted = [table.slice(100, 92), table.slice(0, 100)];
        assert_eq!(batch.columns, concat_batches(&table.schema(), &wanted).unwrap());
    }
}
