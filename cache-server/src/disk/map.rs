//! Segment files as mapped Arrow: the one place that knows `mmap`.
//!
//! A map lives as long as any batch over it. Evicting a file unlinks it; the bytes stay until the last map
//! goes, so a reader never sees them change. Files are never truncated or rewritten by us. Whoever does so
//! from outside is found out: [`is_sound`] says after a use whether the file was still the one that was
//! mapped (its length, times and inode), and a page that is not there any more, cut off or unreadable, marks
//! the map as torn (see [`guard`]).
#![expect(unsafe_code, reason = "mapping a file is unsafe: somebody else could change it")]

mod guard;
pub mod pages;

use super::file::{Unreadable, read_header, verify_body};
use super::file_system::{Disk, Stamp, Stat};
use arrow::array::{Array, ArrayData, RecordBatch};
use arrow::buffer::Buffer;
use bytes::Bytes;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The unit in which pages are let go.
const PAGE_BYTES: usize = 4096;

/// A mapped segment file.
#[derive(Debug)]
pub struct Mapped {
    /// Its columns.
    pub batch: Arc<RecordBatch>,
    /// The file, as it was when it was mapped or checked.
    pub stat: Stat,
    place: Arc<Place>,
    body: Buffer,
    /// Its pages may be in the process's memory.
    touched: AtomicBool,
    /// Holders of the body when nobody reads it: the batch's own arrays and `body`.
    holders: usize,
}

impl Mapped {
    /// Whether anybody but the disk cache holds any of it.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.batch) > 1 || self.body.strong_count() > self.holders
    }

    /// Notes that it is about to be read; answers whether that was known.
    pub fn set_touched(&self) -> bool {
        self.touched.swap(true, Relaxed)
    }

    /// Gives its pages back to the kernel's page cache. Whoever reads it meanwhile gets them from there.
    pub fn let_go(&self) {
        self.touched.store(false, Relaxed);
        let start = (self.body.as_ptr() as usize).next_multiple_of(PAGE_BYTES);
        let end = (self.body.as_ptr() as usize + self.body.len()) / PAGE_BYTES * PAGE_BYTES;
        if start < end {
            // SAFETY: whole pages of a mapping that `self.body` keeps; it is of a file and only read, so that
            // a page that was let go comes back with the file's bytes.
            unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
        }
    }

    /// Whether the file is still the one that was mapped.
    pub fn is_of(&self, stamp: &Stamp) -> bool {
        self.stat.stamp == *stamp && !self.place.guard.is_torn()
    }
}

/// Where a map came from.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    stamp: Stamp,
    end: usize,
    guard: guard::Guard,
}

/// All maps there are, by address.
static PLACES: RwLock<BTreeMap<usize, Arc<Place>>> = RwLock::new(BTreeMap::new());

/// A map, in [`PLACES`] for as long as it lives.
struct Owner {
    map: memmap2::Mmap,
}

impl Owner {
    fn new(map: memmap2::Mmap, path: &Path, stamp: Stamp) -> (Self, Arc<Place>) {
        let start = map.as_ptr() as usize;
        let end = start + map.len();
        let guard = guard::Guard::new(start, end);
        let place = Arc::new(Place { path: path.to_owned(), stamp, end, guard });
        PLACES.write().insert(start, place.clone());
        (Self { map }, place)
    }
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Before the address is anybody else's.
        let start = self.map.as_ptr() as usize;
        if let Some(place) = PLACES.write().remove(&start) {
            place.guard.end();
        }
    }
}

/// Whether the files behind a batch are still those that were mapped, and were all there. What lies in no
/// file is sound.
pub fn is_sound(disk: &dyn Disk, batch: &RecordBatch) -> bool {
    let mut places: Vec<Arc<Place>> = Vec::new();
    {
        let all = PLACES.read();
        for column in batch.columns() {
            let Some(address) = address(&column.to_data()) else { continue };
            let place = all.range(..=address).next_back().map(|(_, place)| place);
            if let Some(place) = place.filter(|p| address < p.end)
                && !places.iter().any(|known| Arc::ptr_eq(known, place))
            {
                places.push(place.clone());
            }
        }
    }
    places.iter().all(|p| !p.guard.is_torn() && disk.stat_path(&p.path).is_ok_and(|now| now.stamp == p.stamp))
}

/// An address inside the values of a column, where it has any.
fn address(data: &ArrayData) -> Option<usize> {
    let own = data.buffers().iter().find(|b| !b.is_empty()).map(|b| b.as_ptr() as usize);
    own.or_else(|| data.child_data().iter().find_map(address))
}

/// Opens a segment file as a batch over its mapping. With `verify` every byte is checked first; call it off
/// the async threads.
pub fn open(disk: &dyn Disk, path: &Path, verify: bool) -> Result<Mapped, Unreadable> {
    let damaged = |why: &str| Unreadable::Damaged(why.into());
    let file = disk.open(path)?;
    let stat = disk.stat(&file)?;
    let (header, body_offset) = read_header(disk, &file, stat.stamp.bytes)?;
    if verify {
        verify_body(disk, &file, &header, body_offset)?;
    }
    // SAFETY: the file is private to this disk cache, immutable once renamed into place, and only ever
    // unlinked (see above); what others do to it is found out after each use, before anything is made of what
    // was read.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(Unreadable::Disk)?;
    // Whoever changed it since must not have what we mapped taken for what we checked.
    if map.len() as u64 != stat.stamp.bytes || disk.stat(&file)?.stamp != stat.stamp {
        return Err(damaged("it was changed while it was read"));
    }
    let (owner, place) = Owner::new(map, path, stat.stamp);
    let body = Buffer::from(Bytes::from_owner(owner).slice(body_offset as usize..));
    let batch = header.batch_of(&body)?;
    let holders = body.strong_count();
    Ok(Mapped { batch: Arc::new(batch), stat, place, body, touched: AtomicBool::new(false), holders })
}
