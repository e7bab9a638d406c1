//! Segment files as mapped Arrow: the one place that knows `mmap`.
//!
//! A map lives as long as any batch over it. Evicting a file unlinks it; the bytes stay until the last map
//! goes, so a reader never sees them change. Files are never truncated or rewritten by us. If somebody else
//! does so, a reader's verifier finds it out after the use: it compares the file's length, times and inode
//! with those of the file that was mapped, and knows of pages that are not there any more, cut off or
//! unreadable ([`Guard`]).
#![expect(unsafe_code, reason = "mapping a file is unsafe: somebody else could change it")]

mod kept_files;
pub(super) mod pages;

use super::file::{Unreadable, read_header, verify_body};
use super::file_system::{Disk, Stamp, StampMark, Stat};
use arrow::buffer::Buffer;
use bytes::Bytes;
use forebay_dataset::map_guard::Guard;
use forebay_dataset::ready::{OpenedFile, Verifier};
use forebay_dataset::{ReadySegment, SegmentBatch};
use kept_files::KeptFile;
pub use kept_files::KeptFiles;
use rustix::io::ReadWriteFlags;
use std::any::Any;
use std::fs::File;
use std::io::IoSliceMut;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

/// Pages that the kernel is asked about at once.
const PAGES_ASKED: usize = 512;

/// A segment file that is mapped, and its columns over the map.
#[derive(Debug)]
pub struct Mapped {
    /// The file, as it was when it was mapped or checked.
    pub stat: Stat,
    batch: Arc<SegmentBatch>,
    place: Arc<MappedFile>,
    body: Buffer,
    /// Its pages may be in the process's memory.
    touched: AtomicBool,
    /// Holders of the body when nobody reads it: the batch's own arrays and `body`.
    holders: usize,
}

impl Mapped {
    /// Its columns, for a reader.
    pub fn ready(&self) -> ReadySegment {
        ReadySegment::in_file(self.batch.clone(), self.place.clone())
    }

    /// Whether any reader holds any of it.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.batch) > 1 || self.body.strong_count() > self.holders
    }

    /// Whether its pages may be in the process's memory, and no reader found the file changed.
    pub fn is_touched(&self) -> bool {
        self.touched.load(Relaxed) && self.is_well()
    }

    /// Whether no reader found the file changed.
    pub fn is_well(&self) -> bool {
        !self.place.guard.is_torn() && !self.place.is_damaged.load(Relaxed)
    }

    /// Notes that it is about to be read. Returns whether that was known.
    pub fn set_touched(&self) -> bool {
        self.touched.swap(true, Relaxed)
    }

    /// Gives its pages back to the kernel's page cache. A reader that is at it gets them from there.
    pub fn let_go(&self) {
        self.touched.store(false, Relaxed);
        self.advise(libc::MADV_DONTNEED);
    }

    /// Has the kernel read and map all pages that are not in memory. Waits for the disk. A page that cannot
    /// be read is found out by the reader that touches it.
    pub fn populate(&self) {
        self.advise(libc::MADV_POPULATE_READ);
    }

    /// The file is about to be removed by us: what was mapped of it stays as it is from now on.
    pub fn retire(&self) {
        if self.place.is_sound() {
            self.place.is_retired.store(true, Release);
        }
        self.place.file.close();
    }

    fn advise(&self, advice: libc::c_int) {
        advise(&self.body, advice);
    }

    /// Whether the file is still the one that was mapped.
    pub fn is_of(&self, stamp: &Stamp) -> bool {
        self.place.is_of(stamp)
    }
}

/// The file behind a map.
#[derive(Debug)]
struct MappedFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    stamp: Stamp,
    /// Where the map begins.
    start: usize,
    guard: Guard,
    /// A reader found that it is not the file any more that was mapped.
    is_damaged: AtomicBool,
    /// It was sound when we removed it.
    is_retired: AtomicBool,
    /// The file itself, open for those who read a few bytes.
    file: KeptFile,
}

impl MappedFile {
    fn is_of(&self, stamp: &Stamp) -> bool {
        self.stamp == *stamp && !self.guard.is_torn()
    }
}

impl Verifier for MappedFile {
    fn using(&self) -> Option<Box<dyn Any + Send>> {
        self.disk.using().map(|operation| Box::new(operation) as Box<dyn Any + Send>)
    }

    fn is_sound(&self) -> bool {
        let is_same = self.disk.stat_path(&self.path).is_ok_and(|now| self.is_of(&now.stamp));
        // Looked at after the file: it is marked before it goes.
        let is_sound = is_same || self.is_retired.load(Acquire) && !self.guard.is_torn();
        if !is_sound {
            self.is_damaged.store(true, Relaxed);
        }
        is_sound
    }

    fn is_in_memory(&self, bytes: &[u8]) -> bool {
        // A message has bytes elsewhere too: in memory that its reader sees, of which pages may be unused.
        if self.offset_of(bytes).is_none() {
            return true;
        }
        let page_bytes = rustix::param::page_size();
        let (start, end) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
        let (mut at, end) = (start / page_bytes * page_bytes, end.next_multiple_of(page_bytes));
        let mut pages = [0_u8; PAGES_ASKED];
        while at < end {
            let length = (end - at).min(PAGES_ASKED * page_bytes);
            // SAFETY: the kernel writes a byte for each page of `length`, for which `pages` has room; for
            // addresses that are not mapped it refuses.
            let told = unsafe { libc::mincore(at as *mut libc::c_void, length, pages.as_mut_ptr()) };
            if told != 0 || pages[..length / page_bytes].iter().any(|page| page & 1 == 0) {
                return false;
            }
            at += length;
        }
        !self.guard.is_torn()
    }

    fn bring(&self, bytes: &[u8]) {
        advise(bytes, libc::MADV_POPULATE_READ);
    }

    fn offset_of(&self, bytes: &[u8]) -> Option<u64> {
        let at = (bytes.as_ptr() as usize).checked_sub(self.start)? as u64;
        (at + bytes.len() as u64 <= self.stamp.bytes).then_some(at)
    }

    fn open(&self) -> Option<OpenedFile> {
        let file = self.disk.open(&self.path).ok()?;
        let is_same = self.disk.stat(&file).is_ok_and(|now| self.is_of(&now.stamp));
        is_same.then_some(OpenedFile { file, bytes: self.stamp.bytes, modified: self.stamp.modified })
    }

    /// From the file: so no page of the map counts as this process's memory.
    fn copy_now(&self, bytes: &[u8], into: &mut [u8]) -> bool {
        let Some(at) = self.offset_of(bytes) else { return false };
        let Ok(file) = self.file.get(|| self.disk.open(&self.path)) else { return false };
        if into.len() != bytes.len() || !read_now(&file, into, at) {
            return false;
        }
        // It was what was checked, and still is.
        let is_sound = self.disk.stat(&file).is_ok_and(|now| self.is_of(&now.stamp));
        if !is_sound {
            // What bears its name now may be sound.
            self.file.close();
        }
        is_sound
    }
}

/// Reads bytes of a file, if all of them are in memory.
fn read_now(file: &File, into: &mut [u8], at: u64) -> bool {
    let length = into.len();
    let read = rustix::io::preadv2(file, &mut [IoSliceMut::new(into)], at, ReadWriteFlags::NOWAIT);
    read.is_ok_and(|read| read == length)
}

/// Says something of the whole pages of a part of a map. A kernel that does not know `advice` does nothing.
fn advise(bytes: &[u8], advice: libc::c_int) {
    let page_bytes = rustix::param::page_size();
    let start = (bytes.as_ptr() as usize).next_multiple_of(page_bytes);
    let end = (bytes.as_ptr() as usize + bytes.len()) / page_bytes * page_bytes;
    if start < end {
        // SAFETY: whole pages of a mapping that `bytes` keeps; it is of a file and only read, so that a page
        // that was let go comes back with the file's bytes, as does one that is read ahead.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, advice) };
    }
}

/// A map, guarded for as long as it lives.
struct GuardedMap {
    map: memmap2::Mmap,
    place: Arc<MappedFile>,
}

impl AsRef<[u8]> for GuardedMap {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for GuardedMap {
    fn drop(&mut self) {
        // Before the addresses belong to another map.
        self.place.guard.end();
    }
}

/// Opens a segment file as a batch over its mapping. Unless it is still the file of `checked` every byte is
/// checked first; call it off the async threads.
pub fn open(
    disk: &Arc<dyn Disk>,
    path: &Path,
    checked: Option<StampMark>,
    kept: &Arc<KeptFiles>,
) -> Result<Mapped, Unreadable> {
    let file = disk.open(path)?;
    let stat = disk.stat(&file)?;
    let (header, body_offset) = read_header(&**disk, &file, stat.stamp.bytes)?;
    if checked != Some(stat.stamp.mark()) {
        verify_body(&**disk, &file, &header, body_offset)?;
    }
    // SAFETY: the file is private to this disk cache, immutable once renamed into place, and only ever
    // unlinked (see above); what others do to it is found out after each use, before anything is made of what
    // was read.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(Unreadable::Disk)?;
    // A file that was changed since must not have what we mapped taken for what we checked.
    if map.len() as u64 != stat.stamp.bytes || disk.stat(&file)?.stamp != stat.stamp {
        return Err(Unreadable::Damaged("it was changed while it was read".into()));
    }
    let start = map.as_ptr() as usize;
    let guard = Guard::new(start, start + map.len());
    let (disk, path, stamp) = (disk.clone(), path.to_owned(), stat.stamp);
    let [is_damaged, is_retired] = [const { AtomicBool::new(false) }; 2];
    let file = kept.place();
    let place = Arc::new(MappedFile { disk, path, stamp, start, guard, is_damaged, is_retired, file });
    let owner = GuardedMap { map, place: place.clone() };
    let body = Buffer::from(Bytes::from_owner(owner).slice(body_offset as usize..));
    let batch = Arc::new(header.batch_of(&body)?);
    let holders = body.strong_count();
    Ok(Mapped { stat, batch, place, body, touched: AtomicBool::new(false), holders })
}
