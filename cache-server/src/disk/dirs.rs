//! The directories of a disk cache: which work, which are set aside, and how those come back.
//!
//! A directory whose operations fail is probed at once (write, flush, read back, remove a small file). If
//! that works, only the one file was at fault; if not, the directory is set aside: its files count as absent,
//! and it is probed again and again, at growing intervals, until it works. A full one is still read, but
//! nothing is written to it until it has room.

use super::file_system::{Disk, Stat};
use super::index::FileKey;
use super::recover;
use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Folders that files are spread over, by the first digit of their names.
pub const SHARDS: [&str; 16] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "a", "b", "c", "d", "e", "f"];

/// Pauses between probes: they double from the first to the last.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_LAST: Duration = Duration::from_secs(60);

/// How a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Health {
    /// It works.
    Up = 0,
    /// Its disk is full though our limit is not reached: read, not written.
    Full = 1,
    /// It failed: its files count as absent.
    Away = 2,
}

/// A directory, as others are told of it.
#[derive(Debug, Clone)]
pub struct DirStatus {
    /// Where it is.
    pub path: PathBuf,
    /// How it is.
    pub health: Health,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Its share of the limit.
    pub limit_bytes: u64,
}

/// A directory.
#[derive(Debug)]
pub struct Dir {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    health: AtomicU8,
    names: AtomicU64,
    state: Mutex<State>,
}

/// What changes when a directory is set aside or comes back.
#[derive(Debug)]
pub struct State {
    /// Held while it is ours.
    pub lock: Option<File>,
    next_probe: Option<Instant>,
    pause: Duration,
    /// Bytes that a full disk must have free before it is written again.
    wanted_bytes: u64,
}

impl Dir {
    /// A directory that is not used yet.
    pub fn new(path: PathBuf, disk: Arc<dyn Disk>) -> Self {
        let state = State { lock: None, next_probe: None, pause: BACKOFF_FIRST, wanted_bytes: 0 };
        let health = AtomicU8::new(Health::Away as u8);
        Self { path, disk, health, names: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its disk.
    pub fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// How it is.
    pub fn health(&self) -> Health {
        match self.health.load(Ordering::Acquire) {
            0 => Health::Up,
            1 => Health::Full,
            _ => Health::Away,
        }
    }

    /// Held while its health changes.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The folder of a file.
    pub fn shard(&self, name: &str) -> PathBuf {
        self.path.join("v1/segments").join(&name[..1])
    }

    /// The path of a file.
    pub fn segment(&self, key: &FileKey) -> PathBuf {
        let name = key.file_name();
        self.shard(&name).join(name)
    }

    /// A path for a file being written.
    pub fn tmp(&self) -> PathBuf {
        let n = self.names.fetch_add(1, Ordering::Relaxed);
        self.path.join("v1/tmp").join(format!("{}.{n}", std::process::id()))
    }

    /// The path of the list of pins.
    pub fn pins(&self) -> PathBuf {
        self.path.join("v1/pins")
    }

    /// Writes a file under a temporary name and renames it; answers with what it is by then.
    pub fn place(&self, path: &Path, bytes: u64, parts: &mut [IoSlice<'_>]) -> io::Result<Stat> {
        let tmp = self.tmp();
        let written = (|| {
            let mut file = self.disk.create(&tmp, bytes)?;
            self.disk.write(&mut file, parts)?;
            self.disk.rename(&tmp, path)?;
            self.disk.stat(&file)
        })();
        if written.is_err() {
            self.disk.remove(&tmp).ok();
        }
        written
    }

    /// Whether it works: writes a small file, flushes it, reads it back and removes it.
    pub fn probe(&self) -> io::Result<()> {
        const TEXT: &[u8] = b"forebay: does this disk work?";
        let path = self.tmp();
        let probed = (|| {
            let mut file = self.disk.create(&path, TEXT.len() as u64)?;
            self.disk.write(&mut file, &mut [IoSlice::new(TEXT)])?;
            self.disk.sync(&file)?;
            let mut back = [0; TEXT.len()];
            let got = self.disk.read(&self.disk.open(&path)?, &mut back, 0)?;
            match got == TEXT.len() && back == TEXT {
                true => self.disk.list(&self.path.join("v1/segments")).map(drop),
                false => Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "it reads back other bytes than were written",
                )),
            }
        })();
        let removed = self.disk.remove(&path);
        probed.and(removed)
    }

    /// Sets it aside, or to read only where its disk is full. To be called with its state held.
    pub fn set_aside(&self, state: &mut State, health: Health, wanted_bytes: u64) {
        self.health.store(health as u8, Ordering::Release);
        if health == Health::Away {
            state.lock = None;
        }
        state.pause = BACKOFF_FIRST;
        state.next_probe = Some(Instant::now() + BACKOFF_FIRST);
        state.wanted_bytes = wanted_bytes;
    }

    /// It works. To be called with its state held.
    pub fn set_up(&self, state: &mut State) {
        self.health.store(Health::Up as u8, Ordering::Release);
        (state.next_probe, state.pause) = (None, BACKOFF_FIRST);
    }

    /// Whether its next probe is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.health() != Health::Up && self.state().next_probe.is_some_and(|at| at <= now)
    }

    /// Tries to take one that is not up into use again, as far as its files go: an error says why not, and
    /// the next attempt comes later.
    pub fn retry(&self, state: &mut State, now: Instant) -> forebay_proto::Result<()> {
        let tried = self.try_again(state);
        if tried.is_err() {
            state.pause = (state.pause * 2).min(BACKOFF_LAST);
            state.next_probe = Some(now + state.pause);
        }
        tried
    }

    fn try_again(&self, state: &mut State) -> forebay_proto::Result<()> {
        let wrong = |e: io::Error| recover::refusal(&self.path, "does not work", e);
        if self.health() == Health::Full {
            let free = self.disk.free_bytes(&self.path).map_err(wrong)?;
            if free < state.wanted_bytes.saturating_mul(2) {
                return Err(wrong(io::ErrorKind::StorageFull.into()));
            }
        } else {
            // A lock of ours on the same file would stand in our own way.
            state.lock = None;
            state.lock = Some(recover::prepare(self)?);
        }
        self.probe().map_err(wrong)
    }
}

/// Whether an error says something of the process rather than of the disk.
pub fn is_of_process(e: &io::Error) -> bool {
    use rustix::io::Errno;
    let own = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR];
    e.raw_os_error().is_some_and(|code| own.iter().any(|own| own.raw_os_error() == code))
}

/// Whether an error says that the disk is full.
pub fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
