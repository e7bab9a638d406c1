//! Rows that lie in files: told by a node's end, copied by a reader's end.

use super::*;
use crate::ready::{OpenedFile, ReadySegment, Verifier};
use crate::segment_batch::SegmentBatch;
use arrow::array::{Array as _, ArrayRef, AsArray as _, BinaryArray, FixedSizeBinaryArray, RecordBatch};
use arrow::buffer::Buffer;
use forebay_proto::v1;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes in front of a file's rows.
const HEAD: usize = 100;

const WIDTH: usize = 200;

/// A file as a disk cache has it: its rows are "mapped" in `rows`.
#[derive(Debug)]
pub(crate) struct OnDisk {
    file: tempfile::NamedTempFile,
    pub rows: Buffer,
    opened: AtomicUsize,
}

impl OnDisk {
    fn new(number: usize, rows: usize) -> Arc<Self> {
        Self::holding((0..rows * WIDTH).map(|i| (i / WIDTH * 7 + i % WIDTH + number) as u8).collect())
    }

    /// A file of these rows.
    pub(crate) fn holding(rows: Vec<u8>) -> Arc<Self> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[0xee; HEAD]).unwrap();
        file.write_all(&rows).unwrap();
        Arc::new(Self { file, rows: rows.into(), opened: AtomicUsize::new(0) })
    }

    fn segment(self: &Arc<Self>) -> ReadySegment {
        let rows = FixedSizeBinaryArray::try_new(WIDTH as i32, self.rows.clone(), None).unwrap();
        let batch = RecordBatch::try_from_iter([("x", Arc::new(rows) as ArrayRef)]).unwrap();
        ReadySegment::in_file(Arc::new(SegmentBatch::from(batch)), self.clone())
    }
}

impl Verifier for OnDisk {
    fn is_sound(&self) -> bool {
        true
    }

    fn is_in_memory(&self, _: &[u8]) -> bool {
        true
    }

    fn offset_of(&self, bytes: &[u8]) -> Option<u64> {
        let at = (bytes.as_ptr() as usize).checked_sub(self.rows.as_ptr() as usize)?;
        (at + bytes.len() <= self.rows.len()).then_some((HEAD + at) as u64)
    }

    fn open(&self) -> Option<OpenedFile> {
        self.opened.fetch_add(1, Relaxed);
        let file = File::open(self.file.path()).ok()?;
        let stat = file.metadata().ok()?;
        let modified = i128::from(stat.mtime()) * 1_000_000_000 + i128::from(stat.mtime_nsec());
        Some(OpenedFile { bytes: stat.len(), modified, file })
    }
}

/// A node's pool and its reader's end.
struct Both {
    region: SharedRegion,
    pool: MessagePool,
    map: SharedMap,
    socket: UnixStream,
    files: FileMaps,
}

impl Both {
    fn new(bytes: usize) -> Self {
        let region = SharedRegion::new(bytes).unwrap();
        let map = SharedMap::new(&sent(&region), region.bytes()).unwrap();
        let (node, socket) = UnixStream::pair().unwrap();
        node.set_nonblocking(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        region.lend_files(node.into());
        let pool = MessagePool::new(Pool::new(0), Some(region.clone()));
        Self { region, pool, map, socket, files: FileMaps::default() }
    }

    /// What a message names: a part that stands for these rows.
    fn refer(&self, files: &[&Arc<OnDisk>], runs: &[(usize, usize, usize)]) -> Option<Bytes> {
        let segments: Vec<ReadySegment> = files.iter().map(|file| file.segment()).collect();
        let sources: Vec<&Buffer> = files.iter().map(|file| &file.rows).collect();
        let part = self.pool.over(&segments).refer(&sources, WIDTH, runs.iter().copied())?;
        let (parts, is_shared) = self.pool.place(vec![Bytes::from_owner(Owned(part))]);
        assert!(is_shared);
        parts.into_iter().next()
    }

    /// What the reader makes of it.
    fn rows(&self, part: &Bytes) -> forebay_proto::Result<LentRows> {
        let lease = self.region.lease(part).unwrap();
        let rows = lease.file_rows().expect("rows in files");
        let runs = self.map.get(lease.offset, u64::from(rows.runs) * RUN_BYTES as u64).unwrap();
        self.files.rows(&self.socket, &rows, runs)
    }
}

struct Owned(Buffer);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn wanted(files: &[&Arc<OnDisk>], runs: &[(usize, usize, usize)]) -> Vec<u8> {
    let rows = |&(source, first, rows): &(usize, usize, usize)| {
        files[source].rows.as_slice()[first * WIDTH..(first + rows) * WIDTH].to_vec()
    };
    runs.iter().flat_map(rows).collect()
}

fn copied(rows: &LentRows) -> Vec<u8> {
    let mut all = vec![0; rows.bytes()];
    rows.copy(&mut RowsDone::default(), &mut all);
    all
}

#[test]
fn the_reader_copies_the_rows_that_the_node_names() {
    let both = Both::new(4 << 20);
    let files: Vec<Arc<OnDisk>> = (0..3).map(|number| OnDisk::new(number, 1000)).collect();
    let files: Vec<&Arc<OnDisk>> = files.iter().collect();
    let runs: Vec<_> = (0..500).map(|i| (i % 2 * 2, i * 131 % 990, 1 + i % 9)).collect();
    let part = both.refer(&files, &runs).unwrap();
    let rows = both.rows(&part).unwrap();
    assert!(copied(&rows) == wanted(&files, &runs) && rows.is_sound());
    let opened: Vec<_> = files.iter().map(|file| file.opened.load(Relaxed)).collect();
    assert_eq!(opened, [1, 0, 1], "a file is sent once, and only if rows lie in it");
    // What the node would send in place of it, if it had to travel.
    assert_eq!(both.region.copied_rows(&part).unwrap(), wanted(&files, &runs));
    let again = both.refer(&files, &runs[..400]).unwrap();
    assert!(copied(&both.rows(&again).unwrap()) == wanted(&files, &runs[..400]));
    assert_eq!(files[0].opened.load(Relaxed), 1);
    // A file that is removed stays what it was; one that is written to is found out.
    std::fs::remove_file(files[0].file.path()).unwrap();
    assert!(copied(&rows) == wanted(&files, &runs) && rows.is_sound());
    std::os::unix::fs::FileExt::write_at(files[2].file.as_file(), b"x", 500).unwrap();
    assert!(!rows.is_sound());
}

#[test]
fn the_reader_takes_rows_that_the_plan_says_out_of_segments() {
    let both = Both::new(4 << 20);
    let files: Vec<Arc<OnDisk>> = (0..2).map(|number| OnDisk::new(number, 1000)).collect();
    let segments: Vec<ReadySegment> = files.iter().map(OnDisk::segment).collect();
    let sources: Vec<&Buffer> = files.iter().map(|file| &file.rows).collect();
    let pool = both.pool.over(&segments);
    let refer = |numbers: &[u32], rows| pool.refer_planned(&sources, numbers, WIDTH, rows);
    assert!(refer(&[7, 3], 10).is_none(), "a few bytes");
    assert!(refer(&[7], 900).is_none() && both.pool.refer_planned(&sources, &[7, 3], WIDTH, 900).is_none());
    let part = Bytes::from_owner(Owned(refer(&[7, 3], 900).unwrap()));
    assert!(part.len() == 900 * WIDTH && both.region.copied_rows(&part).is_none());
    let told = both.region.lease(&part).unwrap().file_rows().unwrap();
    assert_eq!((told.runs, &told.segments[..], told.files.len()), (0, &[7, 3][..], 2));
    let segments = both.files.segments(&both.socket, &told).unwrap();
    assert_eq!((segments.width(), segments.source(3), segments.source(5)), (WIDTH, Some(1), None));
    let mut runs = RowRuns::new(WIDTH, 2);
    assert!(runs.push(1, 990, 10) && runs.push(0, 5, 1));
    let rows = segments.rows(runs.clone()).unwrap();
    let files: Vec<&Arc<OnDisk>> = files.iter().collect();
    assert!(copied(&rows) == wanted(&files, &[(1, 990, 10), (0, 5, 1)]) && segments.is_sound());
    assert!(runs.push(1, 1000, 1));
    assert_eq!(segments.rows(runs).unwrap_err().kind, forebay_proto::Kind::Retry, "behind the file's end");
    std::os::unix::fs::FileExt::write_at(files[0].file.as_file(), b"x", 500).unwrap();
    assert!(!segments.is_sound());
    let short = v1::FileRows { segments: vec![7], ..told };
    assert_eq!(both.files.segments(&both.socket, &short).unwrap_err().kind, forebay_proto::Kind::Retry);
}

#[test]
fn what_is_not_worth_it_or_lies_elsewhere_is_gathered() {
    let both = Both::new(4 << 20);
    let file = OnDisk::new(1, 1000);
    assert!(both.refer(&[&file], &[(0, 0, 10)]).is_none(), "a few bytes");
    let elsewhere = Arc::new(OnDisk {
        rows: Buffer::from(vec![1; 1000 * WIDTH]),
        file: tempfile::NamedTempFile::new().unwrap(),
        opened: AtomicUsize::new(0),
    });
    let other = Buffer::from(vec![1; 1000 * WIDTH]);
    let pool = both.pool.over(&[elsewhere.segment()]);
    assert!(pool.refer(&[&other], WIDTH, [(0, 0, 900)].into_iter()).is_none(), "in no file");
    assert!(both.pool.refer(&[&file.rows], WIDTH, [(0, 0, 900)].into_iter()).is_none(), "of no segment");
    // Runs of a byte: to name them takes more than they have.
    let bytes = (0..70_000).map(|i| (0, i * 2, 1));
    assert!(both.pool.over(&[file.segment()]).refer(&[&file.rows], 1, bytes).is_none());
    assert!(both.refer(&[&file], &[(0, 0, 900)]).is_some());
    std::fs::remove_file(file.file.path()).unwrap();
    let gone = OnDisk::new(2, 1000);
    std::fs::remove_file(gone.file.path()).unwrap();
    assert!(both.refer(&[&gone], &[(0, 0, 900)]).is_none(), "it is not there any more");
    // The region has no room.
    let part = filled(&both.region, 4 << 20, 1);
    assert!(both.refer(&[&file], &[(0, 0, 900)]).is_none());
    drop(part);
    assert!(both.refer(&[&file], &[(0, 0, 900)]).is_some(), "the reader has this file");
}

#[test]
fn files_are_taken_back_that_no_message_names() {
    let both = Both::new(64 << 20);
    let files: Vec<Arc<OnDisk>> = (0..100).map(|number| OnDisk::new(number, 400)).collect();
    let mut held = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let part = both.refer(&[file], &[(0, 1, 399)]).unwrap();
        assert!(copied(&both.rows(&part).unwrap()) == wanted(&[file], &[(0, 1, 399)]));
        // Of the first ten the reader keeps a message each.
        if number < 10 {
            held.push(part);
        }
    }
    let open = |file: &Arc<OnDisk>| {
        let links = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
        // One is the test's own.
        links.filter(|link| link == file.file.path()).count() - 1
    };
    let open: Vec<usize> = files.iter().map(open).collect();
    assert_eq!(open[..10], [1; 10], "messages name them");
    assert_eq!(open[10..].iter().sum::<usize>(), 22);
    for (file, part) in files.iter().zip(&held) {
        assert!(copied(&both.rows(part).unwrap()) == wanted(&[file], &[(0, 1, 399)]));
    }
    // One that was taken back is sent once more.
    let part = both.refer(&[&files[20]], &[(0, 0, 400)]).unwrap();
    assert!(copied(&both.rows(&part).unwrap()) == wanted(&[&files[20]], &[(0, 0, 400)]));
    assert_eq!(files[20].opened.load(Relaxed), 2);
}

#[test]
fn nonsense_is_an_error() {
    let both = Both::new(4 << 20);
    let file = OnDisk::new(1, 1000);
    let part = both.refer(&[&file], &[(0, 0, 900)]).unwrap();
    both.rows(&part).unwrap();
    let lease = both.region.lease(&part).unwrap();
    let right = lease.file_rows().unwrap();
    let runs = both.map.get(lease.offset, RUN_BYTES as u64).unwrap();
    let end = (HEAD + 1000 * WIDTH) as u64;
    for (number, start, width) in [
        (7, HEAD as u64, 200),
        (0, end + 1, 200),
        (0, u64::MAX, 200),
        (0, HEAD as u64, 0),
        (0, HEAD as u64, 230),
        (0, HEAD as u64, u32::MAX),
    ] {
        let mut rows = right.clone();
        (rows.width, rows.files[0].number, rows.files[0].start) = (width, number, start);
        let e = both.files.rows(&both.socket, &rows, runs).unwrap_err();
        assert_eq!(e.kind, forebay_proto::Kind::Retry, "{e}");
    }
    assert!(both.files.rows(&both.socket, &right, runs).is_ok());
    // A note that is no note, and a descriptor that is no file.
    let (node, reader) = UnixStream::pair().unwrap();
    reader.set_nonblocking(true).unwrap();
    let mut rows = right.clone();
    rows.files[0].number = 9;
    (&node).write_all(&[1; 5]).unwrap();
    assert!(FileMaps::default().rows(&reader, &rows, runs).is_err());
    let note = super::channel::FileNote { number: 9, bytes: 10, modified: 0 };
    super::channel::send_note(&node, &note, Some(std::os::fd::AsFd::as_fd(&node))).unwrap();
    let e = FileMaps::default().rows(&reader, &rows, runs).unwrap_err();
    assert!(e.message.contains("no file"), "{e}");
    drop(node);
    assert!(FileMaps::default().rows(&reader, &rows, runs).is_err());
}

#[test]
fn a_message_of_binaries_is_told_as_stretches() {
    let both = Both::new(4 << 20);
    let file = OnDisk::new(5, 2000);
    let offsets = arrow::buffer::OffsetBuffer::from_lengths((0..1000).map(|i| 300 + i % 100));
    let bytes: Buffer = file.rows.clone();
    let values = BinaryArray::try_new(offsets, bytes, None).unwrap();
    let batch = RecordBatch::try_from_iter([("b", Arc::new(values) as ArrayRef)]).unwrap();
    let schema = crate::packed::PackedSchema::new(batch.schema());
    let segment = ReadySegment::in_file(Arc::new(batch.clone().into()), file.clone());
    let picks: Vec<(usize, usize)> = (0..600).map(|i| (0, i * 7 % 1000)).collect();
    let pool = both.pool.over(std::slice::from_ref(&segment));
    let got =
        crate::stream::gather::gather(&schema, &[&segment.batch], &picks, crate::packed::Form::Packed, &pool);
    let got = got.unwrap().columns().unwrap();
    let got = got.column(0).as_binary::<i32>();
    let part = Bytes::from_owner(Owned(got.values().clone()));
    let rows = copied(&both.rows(&part).unwrap());
    let values = batch.column(0).as_binary::<i32>();
    let wanted: Vec<u8> = picks.iter().flat_map(|(_, row)| values.value(*row).to_vec()).collect();
    assert!(rows == wanted && got.len() == 600);
}
