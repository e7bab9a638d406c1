//! A segment that is ready to be read: its rows, and what its reader owes for them.
//!
//! A segment lies in this process's own memory, or in a file that is mapped. Its memory is accounted for by a
//! guard. A mapped file can be damaged by others while it is read: its verifier says after the use whether
//! the bytes were still those that had been checked. Readers call [`ReadySegment::verify`] and know nothing
//! of files.

use crate::segment_batch::SegmentBatch;
use std::any::Any;
use std::fmt::Debug;
use std::fs::File;
use std::sync::Arc;

/// Lives as long as the bytes beside it are in use: mostly their share of a memory budget.
pub type MemoryGuard = Option<Arc<dyn Any + Send + Sync>>;

/// Checks a segment whose bytes others can change, and knows where they are.
pub trait Verifier: Debug + Send + Sync {
    /// Whether the bytes are still those that were checked. May ask the disk: not for an async thread, unless
    /// a few bytes were taken that [`Self::is_in_memory`].
    fn is_sound(&self) -> bool;

    /// Whether these bytes can be read without waiting for the segment's disk: others than its own always.
    fn is_in_memory(&self, bytes: &[u8]) -> bool;

    /// Has these bytes of the segment read into memory. Waits for the disk.
    fn bring(&self, _bytes: &[u8]) {}

    /// Notes that the bytes are being used, until this is dropped: they may have to come from a disk that
    /// does not answer.
    fn using(&self) -> Option<Box<dyn Any + Send>> {
        None
    }

    /// Where these bytes lie in the segment's file, if they lie in one.
    fn offset_of(&self, _bytes: &[u8]) -> Option<u64> {
        None
    }

    /// The segment's file, to be read by others; `None` if there is none, or not any more as it was checked.
    fn open(&self) -> Option<OpenedFile> {
        None
    }

    /// Copies these bytes of the segment by another way than by their addresses, if they can be had without
    /// waiting for a disk. False if they cannot, or are not sound: what was copied is then of no use.
    fn copy_now(&self, _bytes: &[u8], _into: &mut [u8]) -> bool {
        false
    }
}

/// A segment's file, opened only to be read.
#[derive(Debug)]
pub struct OpenedFile {
    /// Its descriptor.
    pub file: File,
    /// Its length.
    pub bytes: u64,
    /// Time of its last write, in nanoseconds.
    pub modified: i128,
}

/// A segment to read from. Who reads its bytes holds the guard too.
#[derive(Debug, Clone)]
pub struct ReadySegment {
    /// All rows of the segment in file order, with the columns that are read.
    pub batch: Arc<SegmentBatch>,
    /// Accounts for the batch's memory.
    pub guard: MemoryGuard,
    verifiers: Vec<Arc<dyn Verifier>>,
}

impl From<Arc<SegmentBatch>> for ReadySegment {
    fn from(batch: Arc<SegmentBatch>) -> Self {
        Self::in_memory(batch, None)
    }
}

impl ReadySegment {
    /// A segment in this process's own memory, accounted for by `guard`.
    pub fn in_memory(batch: Arc<SegmentBatch>, guard: MemoryGuard) -> Self {
        Self { batch, guard, verifiers: Vec::new() }
    }

    /// A segment in a mapped file, which takes none of the process's own memory.
    pub fn in_file(batch: Arc<SegmentBatch>, verifier: Arc<dyn Verifier>) -> Self {
        Self { batch, guard: None, verifiers: vec![verifier] }
    }

    /// A batch made of columns of several segments, which lives as long as they do.
    pub fn composed(batch: Arc<SegmentBatch>, parts: &[Self]) -> Self {
        let guards: Vec<_> = parts.iter().filter_map(|part| part.guard.clone()).collect();
        let guard: MemoryGuard = if guards.is_empty() { None } else { Some(Arc::new(guards)) };
        let verifiers = parts.iter().flat_map(|part| part.verifiers.clone()).collect();
        Self { batch, guard, verifiers }
    }

    /// Whether the segment is still what was checked. To be asked once after each use, before anything is
    /// made of the rows read: a segment that is no longer sound has to be got again. Not for an async thread.
    pub fn verify(&self) -> bool {
        self.verifiers.iter().all(|verifier| verifier.is_sound())
    }

    /// Whether these bytes can be read without waiting for its disk, on which they may not lie at all.
    pub fn is_in_memory(&self, bytes: &[u8]) -> bool {
        self.verifiers.iter().all(|verifier| verifier.is_in_memory(bytes))
    }

    /// Has these bytes of it read into memory. Not for an async thread.
    pub fn bring(&self, bytes: &[u8]) {
        self.verifiers.iter().for_each(|verifier| verifier.bring(bytes));
    }

    /// Copies these bytes of it, which then need no other check, if they lie in a file and can be had without
    /// waiting for a disk; false if not. `into` is as long as they are.
    pub fn copy_now(&self, bytes: &[u8], into: &mut [u8]) -> bool {
        match &*self.verifiers {
            [of_all] => of_all.copy_now(bytes, into),
            _ => false,
        }
    }

    /// Who checks the file in which these bytes of it lie, and where in the file that is; `None` where they
    /// lie in memory alone.
    pub(crate) fn file_of(&self, bytes: &[u8]) -> Option<(&Arc<dyn Verifier>, u64)> {
        self.verifiers.iter().find_map(|verifier| Some((verifier, verifier.offset_of(bytes)?)))
    }

    /// Whether others hold all of it too: dropping it frees nothing.
    fn is_shared(&self) -> bool {
        Arc::strong_count(&self.batch) > 1
            && self.guard.as_ref().is_none_or(|guard| Arc::strong_count(guard) > 1)
    }

    /// Notes that its bytes are being used, until what it returns is dropped.
    pub fn using(&self) -> Vec<Box<dyn Any + Send>> {
        self.verifiers.iter().filter_map(|verifier| verifier.using()).collect()
    }

    /// Bytes that the segment takes of the process's own memory; 0 if it lies in a file.
    pub fn own_bytes(&self) -> usize {
        if self.guard.is_some() || self.verifiers.is_empty() { self.batch.memory_bytes() } else { 0 }
    }
}

/// Drops segments off the async threads: the last holder of one frees or unmaps megabytes. Those that others
/// hold too, as the disk cache does a map that it keeps, go at once.
pub fn drop_aside(segments: impl IntoIterator<Item = ReadySegment>) {
    let last: Vec<_> = segments.into_iter().filter(|segment| !segment.is_shared()).collect();
    if last.is_empty() {
        return;
    }
    let drop_all = move || drop(last);
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(drop_all)),
        Err(_) => drop_all(),
    }
}
