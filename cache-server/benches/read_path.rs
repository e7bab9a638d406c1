//! Mapping or `pread`: what it costs to gather rows from segment files, each way.
//!
//! `cargo bench -p forebay-server --bench read_path`; `-- --help` lists the options. The rows of eight
//! segments are read once each in a random order, in messages of 1.5 MiB, as a node serves a shuffled window.
//! Figures are medians of rounds in which the ways take turns: GB/s of gathered rows, and seconds of
//! processor time (user and system) per GB.
//!
//! * `map`: each file is mapped, and rows are copied out of the mapping, as the disk cache does it.
//! * `map+populate`: the same, but all pages are asked for (`MADV_POPULATE_READ`) when a file is mapped.
//! * `pread file`: each file's columns are read into a pooled buffer when the first row of it is needed.
//! * `pread rows`: each row is read by itself, straight into the message. Only for rows in one column.
#![expect(unsafe_code, reason = "mapping a file, and asking for processor time, are unsafe")]

use arrow::array::{ArrayRef, BinaryArray, FixedSizeBinaryArray, Int64Array, RecordBatch};
use arrow::buffer::Buffer;
use bytes::Bytes;
use clap::Parser;
use forebay_dataset::stream::gather::{Pick, gather};
use forebay_dataset::stream::wire;
use forebay_dataset::{Form, PackedSchema, SegmentBatch};
use forebay_proto::hash::xxh3_64;
use parking_lot::Mutex;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

const SEGMENTS: usize = 8;
const MESSAGE_BYTES: usize = 3 << 19;
const STREAMS: [usize; 2] = [1, 4];

#[derive(Parser)]
struct Options {
    /// Where the segment files are made; on a disk, not in memory.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// MiB of a segment.
    #[arg(long, default_value_t = 32)]
    segment_mib: usize,
    /// Rounds, of which the medians are printed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Given by `cargo bench`; without it a small run shows that the program works.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let mut options = Options::parse();
    if !options.bench {
        (options.segment_mib, options.rounds) = (1, 1);
    }
    println!("{SEGMENTS} segments of {} MiB, {} rounds\n", options.segment_mib, options.rounds);
    println!("| rows | pages | streams | way | GB/s | CPU s/GB |\n|---|---|---|---|---|---|");
    let folder = options.dir.join(format!("forebay-read-path-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("make the folder");
    for shape in shapes() {
        let dataset = Dataset::write(&shape, &folder, options.segment_mib << 20);
        for (pages, is_cold) in [("cold", true), ("hot", false)] {
            for streams in STREAMS {
                measure(&dataset, &shape, (pages, is_cold), streams, options.rounds);
            }
        }
    }
    std::fs::remove_dir_all(&folder).expect("remove the folder");
}

/// Measures all ways by turns, and prints a line for each.
fn measure(dataset: &Dataset, shape: &Shape, (pages, is_cold): (&str, bool), streams: usize, rounds: usize) {
    let ways = [Way::Map, Way::MapPopulated, Way::PreadFile, Way::PreadRows];
    let ways = &ways[..if shape.columns == 1 { 4 } else { 3 }];
    let mut figures = vec![Vec::new(); ways.len()];
    let mut pool = Pool::default();
    for round in 0..=rounds {
        for (way, figures) in ways.iter().zip(&mut figures) {
            if is_cold {
                dataset.drop_pages();
            }
            let (begun, cpu) = (Instant::now(), cpu_seconds());
            let bytes = dataset.read(*way, streams, &mut pool);
            let gb = bytes as f64 / 1e9;
            // The first round warms the pages and the pool up.
            if round > 0 {
                figures.push((gb / begun.elapsed().as_secs_f64(), (cpu_seconds() - cpu) / gb));
            }
        }
    }
    for (way, figures) in ways.iter().zip(figures) {
        let (rates, costs): (Vec<f64>, Vec<f64>) = figures.into_iter().unzip();
        let (rate, cost) = (median(rates), median(costs));
        println!("| {} | {pages} | {streams} | {} | {rate:.2} | {cost:.3} |", shape.name, way.name());
    }
}

/// A kind of row.
struct Shape {
    name: &'static str,
    columns: usize,
    row_bytes: usize,
    batch: fn(usize) -> RecordBatch,
}

fn shapes() -> [Shape; 4] {
    fn one(array: ArrayRef) -> RecordBatch {
        RecordBatch::try_from_iter([("c", array)]).expect("one column")
    }
    fn fixed<const N: usize>(rows: usize) -> RecordBatch {
        let values = (0..rows * N).map(|i| (i / N * 31 + i) as u8).collect::<Vec<u8>>();
        one(Arc::new(FixedSizeBinaryArray::new(N as i32, Buffer::from_vec(values), None)))
    }
    fn narrow(rows: usize) -> RecordBatch {
        let column =
            |c: i64| Arc::new(Int64Array::from_iter_values((0..rows as i64).map(|r| r * 40 + c))) as ArrayRef;
        RecordBatch::try_from_iter((0..40).map(|c| (format!("c{c}"), column(c)))).expect("40 columns")
    }
    fn binary(rows: usize) -> RecordBatch {
        let values: Vec<Vec<u8>> = (0..rows).map(|r| vec![r as u8; 100_000]).collect();
        one(Arc::new(BinaryArray::from_iter_values(values)))
    }
    [
        Shape { name: "64 B", columns: 1, row_bytes: 64, batch: fixed::<64> },
        Shape { name: "3,136 B", columns: 1, row_bytes: 3136, batch: fixed::<3136> },
        Shape { name: "40 columns of 8 B", columns: 40, row_bytes: 320, batch: narrow },
        Shape { name: "binary, 100 KB", columns: 1, row_bytes: 100_000, batch: binary },
    ]
}

#[derive(Clone, Copy)]
enum Way {
    Map,
    MapPopulated,
    PreadFile,
    PreadRows,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::MapPopulated => "map+populate",
            Self::PreadFile => "pread file",
            Self::PreadRows => "pread rows",
        }
    }
}

/// Segment files, and the messages that are made of them.
struct Dataset {
    files: Vec<File>,
    file_bytes: usize,
    header: Bytes,
    wanted: PackedSchema,
    /// Where the messages' buffers come from.
    buffers: forebay_dataset::shared::MessagePool,
    row_bytes: usize,
    /// Where the first row lies in a file.
    values_at: u64,
    messages: Vec<Vec<Pick>>,
}

impl Dataset {
    fn write(shape: &Shape, folder: &Path, segment_bytes: usize) -> Self {
        let rows = segment_bytes / shape.row_bytes;
        let batch = (shape.batch)(rows);
        let (header, parts) = wire::encode(&batch).expect("encode");
        let body: Vec<u8> = parts.concat();
        let files = (0..SEGMENTS).map(|i| {
            let path = folder.join(format!("{i}"));
            let mut file = File::create(&path).expect("make a file");
            file.write_all(&body).and_then(|()| file.sync_all()).expect("write a file");
            File::open(path).expect("open a file")
        });
        let files = files.collect();
        let (schema, file_bytes) = (batch.schema(), body.len());
        let body = Buffer::from_vec(body);
        let decoded = wire::decode(&header, &body, &schema).expect("decode");
        let values =
            decoded.column(0).to_data().buffers().last().map_or(0, |values| values.as_ptr() as usize);
        let values_at = (values - body.as_ptr() as usize) as u64;
        let mut picks: Vec<Pick> = (0..SEGMENTS).flat_map(|s| (0..rows).map(move |r| (s, r))).collect();
        picks.sort_by_cached_key(|(s, r)| xxh3_64(&((s << 40) + r).to_le_bytes()));
        let messages = picks.chunks((MESSAGE_BYTES / shape.row_bytes).max(1)).map(<[Pick]>::to_vec).collect();
        let wanted = PackedSchema::unpacked(schema);
        let buffers = forebay_dataset::pool::Pool::new(64 * MESSAGE_BYTES).into();
        Self { buffers, files, file_bytes, header, wanted, row_bytes: shape.row_bytes, values_at, messages }
    }

    /// Has the kernel forget the files' pages.
    fn drop_pages(&self) {
        for file in &self.files {
            rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).expect("drop pages");
        }
    }

    /// Makes all messages. Returns the bytes of their rows.
    fn read(&self, way: Way, streams: usize, pool: &mut Pool) -> u64 {
        let segments: Vec<OnceLock<SegmentBatch>> = self.files.iter().map(|_| OnceLock::new()).collect();
        let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
        let shared = &*pool;
        let stream = || {
            while let Some(picks) = self.messages.get(next.fetch_add(1, Ordering::Relaxed)) {
                let sum = match way {
                    Way::PreadRows => self.read_rows(picks),
                    _ => {
                        let open = |i: usize| segments[i].get_or_init(|| self.open(way, i, shared));
                        let sources: Vec<&SegmentBatch> = (0..segments.len()).map(open).collect();
                        let batch = gather(&self.wanted, &sources, picks, Form::Columns, &self.buffers)
                            .expect("gather");
                        std::hint::black_box(&batch);
                        picks.len() * self.row_bytes
                    }
                };
                bytes.fetch_add(sum as u64, Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| (0..streams).for_each(|_| drop(scope.spawn(stream))));
        drop(segments);
        pool.take_back();
        bytes.into_inner()
    }

    fn open(&self, way: Way, i: usize, pool: &Pool) -> SegmentBatch {
        let body = match way {
            Way::Map | Way::MapPopulated => {
                // SAFETY: the file is this program's alone, and is not changed.
                let map = unsafe { memmap2::Mmap::map(&self.files[i]) }.expect("map");
                if matches!(way, Way::MapPopulated) {
                    map.advise(memmap2::Advice::PopulateRead).expect("populate");
                }
                Bytes::from_owner(map)
            }
            Way::PreadFile | Way::PreadRows => {
                let mut buffer = pool.free.lock().pop().unwrap_or_default();
                buffer.resize(self.file_bytes, 0);
                self.files[i].read_exact_at(&mut buffer, 0).expect("read");
                let buffer = Pooled(Arc::new(buffer));
                pool.lent.lock().push(buffer.0.clone());
                Bytes::from_owner(buffer)
            }
        };
        wire::decode(&self.header, &Buffer::from(body), &self.wanted.schema).expect("decode").into()
    }

    fn read_rows(&self, picks: &[Pick]) -> usize {
        let mut message = vec![0; picks.len() * self.row_bytes];
        for ((segment, row), into) in picks.iter().zip(message.chunks_mut(self.row_bytes)) {
            let at = self.values_at + (row * self.row_bytes) as u64;
            self.files[*segment].read_exact_at(into, at).expect("read");
        }
        std::hint::black_box(message).len()
    }
}

/// Buffers that are used again, so that no memory is asked for while it is measured.
#[derive(Default)]
struct Pool {
    free: Mutex<Vec<Vec<u8>>>,
    lent: Mutex<Vec<Arc<Vec<u8>>>>,
}

struct Pooled(Arc<Vec<u8>>);

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Pool {
    /// Takes back the buffers that nobody uses any more.
    fn take_back(&mut self) {
        let lent = std::mem::take(self.lent.get_mut());
        self.free.get_mut().extend(lent.into_iter().filter_map(Arc::into_inner));
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Processor time of this process so far, user and system.
fn cpu_seconds() -> f64 {
    // SAFETY: an all-zero rusage is a valid one, and the call fills it in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
