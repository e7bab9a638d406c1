//! The scrub: reads every file from the disk, at leisure, so that what rots is found before it is needed.
//!
//! It reads past the page cache where the file system can (`O_DIRECT`): a copy in memory must not hide what
//! the disk has become. Small pieces, with pauses that the caller makes; it holds one open file and one piece
//! of memory.

use super::file::{BodyCheck, FileKey, Unreadable, read_header};
use super::file_system::Stamp;
use super::segment_files::SegmentFiles;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes read at once.
const PIECE_BYTES: usize = 256 << 10;

/// What direct reads are aligned to.
const ALIGNMENT: usize = 4096;

/// A scrub under way.
pub struct Scrub {
    files: Arc<SegmentFiles>,
    /// Files of this round still to come.
    queue: Vec<FileKey>,
    current: Option<FileScrub>,
    buffer: Vec<u8>,
}

struct FileScrub {
    key: FileKey,
    dir: usize,
    path: PathBuf,
    file: File,
    stamp: Stamp,
    check: BodyCheck,
    at: u64,
}

impl Scrub {
    pub(super) fn new(files: Arc<SegmentFiles>) -> Self {
        Self { files, queue: Vec::new(), current: None, buffer: Vec::new() }
    }

    /// Reads the next piece. Returns its bytes, 0 at the end of a round.
    pub fn step(&mut self) -> u64 {
        loop {
            let Some(mut current) = self.current.take().or_else(|| self.next()) else { return 0 };
            match current.step(&self.files, &mut self.buffer) {
                Ok(0) => {}
                Ok(read) => {
                    self.files.counters().scrubbed_bytes.fetch_add(read, Ordering::Relaxed);
                    self.current = Some(current);
                    return read;
                }
                Err(why) => current.discard(&self.files, why),
            }
        }
    }

    /// Opens the next file that is still there; `None` when the round is over, and the next one is queued.
    fn next(&mut self) -> Option<FileScrub> {
        while let Some(key) = self.queue.pop() {
            let Some(dir) = self.files.index().get(&key).map(|e| e.dir) else { continue };
            let path = self.files.dirs().get(dir).segment(&key);
            match FileScrub::open(&self.files, key, dir, path.clone()) {
                Ok(current) => return Some(current),
                Err(why) => self.files.discard(&key, dir, &path, why),
            }
        }
        self.queue = self.files.index().entries().map(|(key, _)| *key).collect();
        None
    }
}

impl FileScrub {
    fn open(files: &SegmentFiles, key: FileKey, dir: usize, path: PathBuf) -> Result<Self, Unreadable> {
        let disk = files.dirs().get(dir).disk();
        let plain = disk.open(&path)?;
        let stamp = disk.stat(&plain)?.stamp;
        let (header, offset) = read_header(disk, &plain, stamp.bytes)?;
        let mut start = vec![0; offset as usize];
        if disk.read(&plain, &mut start, 0)? < start.len() {
            return Err(Unreadable::Damaged("the file ends within its header".into()));
        }
        let file = disk.open_direct(&path)?;
        Ok(Self { key, dir, path, file, stamp, check: BodyCheck::of_file(&header, &start), at: 0 })
    }

    /// Reads and checks the next piece; 0 when the whole file is right.
    fn step(&mut self, files: &SegmentFiles, buffer: &mut Vec<u8>) -> Result<u64, Unreadable> {
        if self.at >= self.stamp.bytes {
            return Ok(0);
        }
        buffer.resize(PIECE_BYTES + ALIGNMENT, 0);
        let first = buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        let piece = &mut buffer[first..first + PIECE_BYTES];
        let wanted = (self.stamp.bytes - self.at).min(PIECE_BYTES as u64) as usize;
        let disk = files.dirs().get(self.dir).disk();
        let read = match disk.read(&self.file, piece, self.at) {
            // A file system that takes direct reads only in larger units: then it is read as all others read
            // it.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                self.file = disk.open(&self.path)?;
                disk.read(&self.file, piece, self.at)?
            }
            read => read?,
        };
        if read < wanted || !self.check.take(&piece[..wanted]) {
            return Err(Unreadable::Damaged("what the disk holds does not match its checksum".into()));
        }
        self.at += wanted as u64;
        Ok(wanted as u64)
    }

    /// Removes the file, unless another has taken its name meanwhile.
    fn discard(&self, files: &SegmentFiles, why: Unreadable) {
        let now = files.dirs().get(self.dir).disk().stat_path(&self.path);
        if now.is_ok_and(|now| now.stamp.is_same_file(&self.stamp)) {
            files.discard(&self.key, self.dir, &self.path, why);
        }
    }
}
