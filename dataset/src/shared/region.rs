//! The node's end of shared memory: the file, its mapping, and who holds which range.
#![expect(unsafe_code, reason = "ranges of the mapping are handed out as slices")]

use super::file_rows::FileRows;
use super::files::LentFiles;
use super::ranges::{ALIGNMENT, FreeRanges};
use bytes::Bytes;
use forebay_proto::v1;
use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use tokio::sync::Notify;

/// Shared memory for one reader; clones are the same.
#[derive(Debug, Clone)]
pub struct SharedRegion(Arc<Region>);

#[derive(Debug)]
struct Region {
    file: File,
    memory: MmapRaw,
    state: Mutex<RegionState>,
    /// A range was given back, or the region was closed.
    freed: Notify,
    /// Those that the reader has, if it takes files.
    files: OnceLock<LentFiles>,
}

#[derive(Debug)]
struct RegionState {
    free: FreeRanges,
    /// What was shared and is still held, by where it begins.
    held: BTreeMap<usize, Weak<SharedBuffer>>,
    is_closed: bool,
}

/// A range of the region, which nobody else has until this is dropped.
#[derive(Debug)]
pub struct SharedBuffer {
    start: usize,
    bytes: usize,
    /// What stands in place of bytes: rows that the reader copies out of files. The range's first bytes are
    /// their runs.
    rows: Option<FileRows>,
    region: Arc<Region>,
}

/// Keeps a range that was sent to the reader.
#[derive(Debug, Clone)]
pub struct SharedLease {
    /// Where the bytes begin in the region.
    pub offset: u64,
    buffer: Arc<SharedBuffer>,
}

impl SharedLease {
    /// The rows whose runs lie there in place of bytes.
    pub fn file_rows(&self) -> Option<v1::FileRows> {
        self.buffer.rows.as_ref().map(FileRows::to_wire)
    }
}

impl SharedRegion {
    /// A region of `bytes` bytes, rounded up to whole pages. Pages come into memory when something is put
    /// there: a reader that takes files needs few. The file is sealed: it keeps its length, and who gets its
    /// descriptor can read only. Kernels before 5.1 do not know that seal: an error.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("forebay", flags)?);
        file.set_len(bytes as u64)?;
        let memory = MmapOptions::new().len(bytes).map_raw(&file)?;
        let length = SealFlags::SHRINK | SealFlags::GROW;
        fcntl_add_seals(&file, length | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        let state = RegionState { free: FreeRanges::new(bytes), held: BTreeMap::new(), is_closed: false };
        let (state, freed, files) = (Mutex::new(state), Notify::new(), OnceLock::new());
        Ok(Self(Arc::new(Region { file, memory, state, freed, files })))
    }

    /// What the reader is sent.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }

    /// The reader at the other end of `socket`, which never waits, takes files too.
    pub fn lend_files(&self, socket: OwnedFd) {
        // It is said once.
        self.0.files.set(LentFiles::new(socket)).ok();
    }

    /// Whether the reader copies rows out of files by itself.
    pub fn lends_files(&self) -> bool {
        self.files().is_some()
    }

    /// Those that the reader has, if it takes files.
    pub(super) fn files(&self) -> Option<&LentFiles> {
        self.0.files.get()
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.0.memory.len()
    }

    /// A range of at least `bytes` bytes with arbitrary contents; `None` if there is none, or the reader has
    /// gone.
    pub fn take(&self, bytes: usize) -> Option<SharedBuffer> {
        let mut state = self.0.state.lock();
        if state.is_closed {
            return None;
        }
        let (start, bytes) = state.free.take(bytes)?;
        Some(SharedBuffer { start, bytes, rows: None, region: self.0.clone() })
    }

    /// Ends writing: the first `bytes` bytes of a range.
    pub fn share(&self, buffer: SharedBuffer, bytes: usize) -> Bytes {
        struct Shared(Arc<SharedBuffer>);
        impl AsRef<[u8]> for Shared {
            fn as_ref(&self) -> &[u8] {
                self.0.as_slice()
            }
        }
        let (start, bytes) = (buffer.start, bytes.min(buffer.bytes));
        let buffer = Arc::new(buffer);
        self.0.state.lock().held.insert(start, Arc::downgrade(&buffer));
        Bytes::from_owner(Shared(buffer)).slice(..bytes)
    }

    /// A range that stands for rows in files: its length is theirs, and its first bytes are their runs.
    /// `None` if there is no room.
    pub(super) fn refer(&self, rows: FileRows) -> Option<Bytes> {
        let bytes = rows.bytes();
        let mut buffer = self.take(bytes)?;
        rows.write_runs(buffer.as_slice_mut()).then_some(())?;
        buffer.rows = Some(rows);
        Some(self.share(buffer, bytes))
    }

    /// The bytes that a part of a message stands for, if it stands for rows in files and tells which.
    pub(super) fn copied_rows(&self, part: &[u8]) -> Option<Vec<u8>> {
        self.lease(part)?.buffer.rows.as_ref().and_then(FileRows::copied)
    }

    /// Whether `part` lies in the region.
    pub fn has(&self, part: &[u8]) -> bool {
        self.offset(part).is_some()
    }

    /// Keeps the range that `part` lies in; `None` if it lies elsewhere.
    pub fn lease(&self, part: &[u8]) -> Option<SharedLease> {
        let offset = self.offset(part)?;
        let buffer = {
            let state = self.0.state.lock();
            state.held.range(..=offset).next_back()?.1.upgrade()?
        };
        let is_inside = offset + part.len() <= buffer.start + buffer.bytes;
        is_inside.then_some(SharedLease { offset: offset as u64, buffer })
    }

    /// Waits until a range of `bytes` bytes is free. False if that will never be: the region is smaller, or
    /// its reader has gone.
    pub async fn room(&self, bytes: usize) -> bool {
        loop {
            let mut freed = std::pin::pin!(self.0.freed.notified());
            freed.as_mut().enable();
            {
                let state = self.0.state.lock();
                if state.is_closed || bytes > self.bytes() {
                    return false;
                }
                if state.free.longest() >= bytes {
                    return true;
                }
            }
            freed.await;
        }
    }

    /// The reader has gone: nothing more is taken.
    pub fn close(&self) {
        self.0.state.lock().is_closed = true;
        self.0.freed.notify_waiters();
    }

    fn offset(&self, part: &[u8]) -> Option<usize> {
        let offset = (part.as_ptr() as usize).checked_sub(self.0.memory.as_ptr() as usize)?;
        (!part.is_empty() && offset.checked_add(part.len())? <= self.bytes()).then_some(offset)
    }
}

impl SharedBuffer {
    fn as_slice(&self) -> &[u8] {
        // SAFETY: the range lies in the mapping, which lives as long as `region`; this process writes to it
        // only by `as_slice_mut` of this very value, and no other process can.
        unsafe { std::slice::from_raw_parts(self.region.memory.as_ptr().add(self.start), self.bytes) }
    }

    /// Its bytes, to be written.
    pub fn as_slice_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; nobody else has the range while it is taken, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.region.memory.as_mut_ptr().add(self.start), self.bytes) }
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        {
            let mut state = self.region.state.lock();
            state.held.remove(&self.start);
            state.free.give(self.start, self.bytes);
        }
        self.region.freed.notify_waiters();
    }
}
