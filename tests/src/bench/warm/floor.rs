//! Floors: what this machine gives in the same minute to programs that do nothing but move bytes.
//!
//! Sockets carry a file's mapping to a ring of memory in another process. The file is page-cached, and the
//! mapping's and the ring's pages were touched before.

use super::child::{ChildProcess, run_together, run_when_told, say_ready, say_report};
use super::rank::touch;
use super::shape::{Shape, arrow_bytes_of};
use super::span::Span;
use anyhow::Context;
use clap::{Args, ValueEnum};
use fastrand::Rng;
use memmap2::{Mmap, MmapOptions};
use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Bytes of a write, and of a read at most.
pub const PIECE: usize = 1 << 20;

/// Bytes of the memory that is written to.
pub const RING: usize = 64 << 20;

/// Bytes of the file at full size.
pub const FILE: usize = 1 << 30;

/// Batches in memory; they are gone through as often as it takes for [`PASSES`] epochs.
const BATCHES: usize = 16;

/// One pass takes microseconds.
const PASSES: usize = 100;

/// A floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloorKind {
    /// One TCP connection of the loopback between two processes.
    Tcp,
    /// One Unix socket between two processes.
    Unix,
    /// A copy from a mapping to memory.
    Memcpy,
    /// Reads of a file.
    Pread,
    /// A loop over batches that lie in memory, with the consumer of a rank.
    Prebuilt(Shape),
}

/// One measurement of it.
#[derive(Debug, Clone, Copy)]
pub struct FloorRead {
    pub mb_per_s: f64,
    /// Of both processes, where there are two.
    pub cpu_s_per_gb: f64,
}

impl FloorKind {
    /// Those that are measured once in a round; TCP is measured around each subject.
    pub fn of_round(shapes: &[Shape]) -> Vec<Self> {
        let prebuilt = shapes.iter().map(|shape| Self::Prebuilt(*shape));
        [Self::Unix, Self::Memcpy, Self::Pread].into_iter().chain(prebuilt).collect()
    }

    /// Its name in the report.
    pub fn name(self) -> String {
        match self {
            Self::Tcp => "floor.tcp".to_owned(),
            Self::Unix => "floor.unix".to_owned(),
            Self::Memcpy => "floor.memcpy".to_owned(),
            Self::Pread => "floor.pread".to_owned(),
            Self::Prebuilt(shape) => format!("floor.prebuilt.{shape:?}"),
        }
    }

    /// Measures it with the bytes of a file.
    pub fn measure(self, file: &Path) -> anyhow::Result<FloorRead> {
        let part = |part: FloorPart, to: &str| {
            let part = part.to_possible_value().context("every part has a name")?;
            ChildProcess::start(["floor", part.get_name(), &file.to_string_lossy(), to])
        };
        let mut children = match self {
            Self::Tcp => vec![part(FloorPart::ReceiveTcp, "")?],
            Self::Unix => vec![part(FloorPart::ReceiveUnix, "")?],
            Self::Memcpy => vec![part(FloorPart::Memcpy, "")?],
            Self::Pread => vec![part(FloorPart::Pread, "")?],
            Self::Prebuilt(Shape::X) => vec![part(FloorPart::PrebuiltX, "")?],
            Self::Prebuilt(Shape::T) => vec![part(FloorPart::PrebuiltT, "")?],
            Self::Prebuilt(Shape::B) => vec![part(FloorPart::PrebuiltB, "")?],
            Self::Prebuilt(Shape::N) => vec![part(FloorPart::PrebuiltN, "")?],
        };
        let address = children[0].ready()?;
        let sender = match self {
            Self::Tcp => Some(part(FloorPart::SendTcp, &address)?),
            Self::Unix => Some(part(FloorPart::SendUnix, &address)?),
            _ => None,
        };
        if let Some(sender) = sender {
            sender.ready()?;
            children.push(sender);
        }
        let reports: Vec<(Span, usize)> = run_together(&mut children)?;
        let bytes = reports.iter().map(|(_, bytes)| *bytes).max().context("somebody moved bytes")? as f64;
        let span = Span::together(reports.into_iter().map(|(span, _)| span)).context("a child ran")?;
        Ok(FloorRead { mb_per_s: bytes / 1e6 / span.seconds(), cpu_s_per_gb: span.cpu_s / (bytes / 1e9) })
    }
}

/// One process of a floor.
#[derive(Debug, Clone, Args)]
pub struct PartOptions {
    part: FloorPart,
    file: PathBuf,
    /// The receiver's address, for a sender.
    #[arg(default_value = "")]
    to: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FloorPart {
    SendTcp,
    ReceiveTcp,
    SendUnix,
    ReceiveUnix,
    Memcpy,
    Pread,
    #[value(name = "prebuilt-x")]
    PrebuiltX,
    #[value(name = "prebuilt-t")]
    PrebuiltT,
    #[value(name = "prebuilt-b")]
    PrebuiltB,
    #[value(name = "prebuilt-n")]
    PrebuiltN,
}

/// Is a process of a floor.
pub fn run(options: &PartOptions) -> anyhow::Result<()> {
    let PartOptions { part, file, to } = options;
    let report = match part {
        FloorPart::SendTcp => send(TcpStream::connect(to)?, file),
        FloorPart::SendUnix => send(UnixStream::connect(to)?, file),
        FloorPart::ReceiveTcp => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let ring = Ring::new();
            say_ready(&listener.local_addr()?.to_string())?;
            receive(listener.accept()?.0, ring)
        }
        FloorPart::ReceiveUnix => {
            let path = file.with_extension(format!("{}.sock", std::process::id()));
            let listener = UnixListener::bind(&path)?;
            let ring = Ring::new();
            say_ready(&path.to_string_lossy())?;
            let (stream, _) = listener.accept()?;
            std::fs::remove_file(path)?;
            receive(stream, ring)
        }
        FloorPart::Memcpy => copy(file),
        FloorPart::Pread => read(file),
        FloorPart::PrebuiltX => loop_over(Shape::X),
        FloorPart::PrebuiltT => loop_over(Shape::T),
        FloorPart::PrebuiltB => loop_over(Shape::B),
        FloorPart::PrebuiltN => loop_over(Shape::N),
    };
    say_report(&report?)
}

/// Memory that is written to from its beginning to its end, again and again.
struct Ring {
    bytes: Vec<u8>,
    at: usize,
}

impl Ring {
    fn new() -> Self {
        Self { bytes: vec![1; RING], at: 0 }
    }

    /// The next piece, of as many bytes at most.
    fn next(&mut self, most: usize) -> &mut [u8] {
        let at = if self.at == self.bytes.len() { 0 } else { self.at };
        let end = (at + most.min(PIECE)).min(self.bytes.len());
        self.at = end;
        &mut self.bytes[at..end]
    }

    /// The last piece was not filled: this many bytes of it are free.
    fn give_back(&mut self, bytes: usize) {
        self.at -= bytes;
    }
}

fn send(mut stream: impl Write, file: &Path) -> anyhow::Result<(Span, usize)> {
    let bytes = mapped(file)?;
    say_ready("")?;
    let (span, ()) =
        run_when_told(|| Ok(bytes.chunks(PIECE).try_for_each(|piece| stream.write_all(piece))?))?;
    Ok((span, bytes.len()))
}

fn receive(mut stream: impl Read, mut ring: Ring) -> anyhow::Result<(Span, usize)> {
    run_when_told(|| {
        let mut received = 0;
        loop {
            let piece = ring.next(PIECE);
            let wanted = piece.len();
            match stream.read(piece)? {
                0 => return Ok(received),
                bytes => {
                    ring.give_back(wanted - bytes);
                    received += bytes;
                }
            }
        }
    })
}

fn copy(file: &Path) -> anyhow::Result<(Span, usize)> {
    let (bytes, mut ring) = (mapped(file)?, Ring::new());
    say_ready("")?;
    run_when_told(|| {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let piece = ring.next(rest.len());
            let (from, after) = rest.split_at(piece.len());
            piece.copy_from_slice(from);
            black_box(&piece[0]);
            rest = after;
        }
        Ok(bytes.len())
    })
}

fn read(file: &Path) -> anyhow::Result<(Span, usize)> {
    let (file, mut ring) = (File::open(file)?, Ring::new());
    let bytes = file.metadata()?.len() as usize;
    say_ready("")?;
    run_when_told(|| {
        let mut at = 0;
        while at < bytes {
            let piece = ring.next(bytes - at);
            file.read_exact_at(piece, at as u64)?;
            at += piece.len();
        }
        Ok(bytes)
    })
}

fn loop_over(shape: Shape) -> anyhow::Result<(Span, usize)> {
    let mut dice = Rng::with_seed(1);
    let make = |i| shape.batch(shape.batch_rows(), i * shape.batch_rows(), &mut dice);
    let batches: Vec<_> = (0..BATCHES).map(make).collect::<Result<_, _>>()?;
    let bytes = batches.iter().map(arrow_bytes_of).sum::<Result<usize, _>>()?;
    let times = PASSES * FILE.div_ceil(bytes);
    say_ready("")?;
    let (span, ()) = run_when_told(|| {
        // A clone, as a loader's batch gives its columns.
        (0..times).flat_map(|_| &batches).try_for_each(|batch| touch(&batch.clone()))
    })?;
    Ok((span, times * bytes))
}

#[expect(unsafe_code, reason = "the floor of mapped segment files is a mapping")]
fn mapped(file: &Path) -> anyhow::Result<Mmap> {
    let file = File::open(file)?;
    // SAFETY: the benchmark wrote the file, and nobody changes it after that.
    let map = unsafe { MmapOptions::new().populate().map(&file) }?;
    map.iter().step_by(4096).for_each(|byte| _ = black_box(byte));
    Ok(map)
}

#[test]
fn a_ring_is_filled_piece_by_piece_to_its_end() {
    let mut ring = Ring { bytes: vec![0; PIECE + 10], at: 0 };
    assert_eq!(ring.next(7).len(), 7);
    ring.give_back(2);
    assert_eq!(ring.next(usize::MAX).len(), PIECE);
    assert_eq!(ring.next(usize::MAX).len(), 5, "up to the end");
    assert_eq!(ring.next(usize::MAX).len(), PIECE, "from the beginning");
}
