//! Messages whose rows lie in a file that somebody changes meanwhile.

use super::*;
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use forebay_dataset::shared::channel::{FileNote, send_note};
use forebay_dataset::shared::{FileMaps, LentRows, MessagePool};
use forebay_dataset::stream::Message;
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

/// A message, and its body in a file.
struct InFile {
    head: Head,
    schema: SchemaRef,
    body: Vec<u8>,
    file: File,
}

impl InFile {
    fn new() -> Self {
        let values = Int64Array::from_iter_values(0..3 * (PAGE / WORD) as i64);
        let batch = RecordBatch::try_from_iter([("x", Arc::new(values) as ArrayRef)]).unwrap();
        let pool = MessagePool::from(Pool::new(0));
        let Message { header, body, .. } = Message::new(&batch, v1::MessageMeta::default(), &pool).unwrap();
        let body = body.concat();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&body).unwrap();
        // A write within the clock's tick of the last one would leave no trace.
        file.set_modified(UNIX_EPOCH).unwrap();
        let head = Head { header, body_bytes: body.len(), ..Head::default() };
        Self { head, schema: batch.schema(), body, file }
    }

    /// The body as a node on this host lends it.
    fn lent(&self) -> LentRows {
        let (node, reader) = UnixStream::pair().unwrap();
        reader.set_nonblocking(true).unwrap();
        let stat = self.file.metadata().unwrap();
        let modified = i128::from(stat.mtime()) * 1_000_000_000 + i128::from(stat.mtime_nsec());
        let note = FileNote { number: 0, bytes: stat.len(), modified };
        send_note(&node, &note, Some(self.file.as_fd())).unwrap();
        let words = self.body.len() / WORD;
        let files = vec![v1::FileStart { number: 0, start: 0 }];
        let rows = v1::FileRows { width: WORD as u32, runs: 1, files };
        // One run: all rows of source 0.
        let run = (words as u64) << 32;
        FileMaps::default().rows(&reader, &rows, &run.to_le_bytes()).unwrap()
    }

    /// What the reader makes of it, if `meanwhile` happens between the copy and the message's end.
    fn decode(&self, meanwhile: impl FnOnce(&File)) -> Result<Option<Buffer>> {
        let pool = Pool::new(0);
        let mut decoder = MessageDecoder::new(&self.head, &self.schema).unwrap();
        decoder.hold(&pool);
        decoder.push_rows(SharedRows::new(self.lent(), Arc::new(())));
        meanwhile(&self.file);
        let mut hash = Hash64::default();
        hash.update(&self.head.header);
        decoder.complete(hash.digest(), &self.schema, &pool).map(|message| message.held)
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
