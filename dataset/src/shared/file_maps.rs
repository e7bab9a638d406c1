//! The reader's end of lent files: their maps, and the rows of messages that lie in them.
#![expect(unsafe_code, reason = "another process's files are mapped")]

use super::channel::{FileNote, receive_note};
use super::row_runs::{RowRuns, RowsDone};
use crate::map_guard::Guard;
use forebay_proto::{Error, Result, v1};
use memmap2::Mmap;
use parking_lot::Mutex;
use rustix::fs::{FileType, Stat, fstat};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The files that a node has lent to this process, for one batch stream at a time.
#[derive(Debug, Default)]
pub struct FileMaps(Mutex<HashMap<u32, Arc<FileMap>>>);

/// A file, mapped. Nobody writes to it; if somebody does all the same, or cuts it, that is found out after
/// the use.
#[derive(Debug)]
struct FileMap {
    map: Mmap,
    guard: Guard,
    file: OwnedFd,
    modified: i128,
}

/// Rows of a message that lie in lent files.
#[derive(Debug)]
pub struct LentRows {
    runs: RowRuns,
    /// The files, and where in each the rows begin.
    files: Vec<(Arc<FileMap>, usize)>,
}

/// The files of segments that a node has lent, out of which the reader takes the rows that the plan says.
#[derive(Debug)]
pub struct LentSegments {
    width: usize,
    /// As for [`LentRows`], one for each of `segments`.
    files: Vec<(Arc<FileMap>, usize)>,
    segments: Vec<u32>,
}

impl FileMaps {
    /// The rows that a part of a message names, whose runs are `runs`. `socket` is where the node's notes
    /// come, without waiting. `Retry` if that makes no sense.
    pub fn rows(&self, socket: impl AsFd + Copy, rows: &v1::FileRows, runs: &[u8]) -> Result<LentRows> {
        let files = self.files(socket, rows)?;
        let runs = RowRuns::read(rows.width as usize, runs, &lengths(&files));
        Ok(LentRows { runs: runs.map_err(|e| nonsense(&e.message))?, files })
    }

    /// The segments that a part of a message names. `Retry` if that makes no sense.
    pub fn segments(&self, socket: impl AsFd + Copy, rows: &v1::FileRows) -> Result<LentSegments> {
        let (files, segments) = (self.files(socket, rows)?, rows.segments.clone());
        match files.len() == segments.len() {
            true => Ok(LentSegments { width: rows.width as usize, files, segments }),
            false => Err(nonsense("there is not one file for each segment")),
        }
    }

    /// The files in which rows lie, and where they begin.
    fn files(&self, socket: impl AsFd + Copy, rows: &v1::FileRows) -> Result<Vec<(Arc<FileMap>, usize)>> {
        let file = |at: &v1::FileStart| {
            let map = self.file(socket, at.number)?;
            let start = usize::try_from(at.start).ok().filter(|start| *start <= map.map.len());
            Ok((map, start.ok_or_else(|| nonsense("rows lie behind the end of a file"))?))
        };
        rows.files.iter().map(file).collect()
    }

    fn file(&self, socket: impl AsFd + Copy, number: u32) -> Result<Arc<FileMap>> {
        let mut maps = self.0.lock();
        if let Some(map) = maps.get(&number) {
            return Ok(map.clone());
        }
        // Its note was sent before the message.
        loop {
            match receive_note(socket) {
                Ok((note, None)) => drop(maps.remove(&note.number)),
                Ok((note, Some(file))) => {
                    let map = FileMap::new(file, &note).map_err(|e| nonsense(&e.to_string()))?;
                    maps.insert(note.number, Arc::new(map));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(nonsense(&e.to_string())),
            }
        }
        maps.get(&number).cloned().ok_or_else(|| nonsense("a message names a file that did not come"))
    }
}

impl FileMap {
    fn new(file: OwnedFd, note: &FileNote) -> io::Result<Self> {
        let wrong = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(wrong("it is no file"));
        }
        // SAFETY: the node only ever unlinks its files; what others do to it is found out by `is_sound`
        // before anything is made of what was read, and pages that are missing are the guard's.
        let map = unsafe { Mmap::map(&file)? };
        if map.len() as u64 != note.bytes || modified(&stat) != note.modified {
            return Err(wrong("the file was changed on its way"));
        }
        let start = map.as_ptr() as usize;
        let guard = Guard::new(start, start + map.len());
        Ok(Self { map, guard, file, modified: note.modified })
    }

    /// Whether all that was read of it is what the node had checked.
    fn is_sound(&self) -> bool {
        let is_same = |stat: Stat| {
            u64::try_from(stat.st_size) == Ok(self.map.len() as u64) && modified(&stat) == self.modified
        };
        !self.guard.is_torn() && fstat(&self.file).is_ok_and(is_same)
    }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        // Before the addresses belong to another map.
        self.guard.end();
    }
}

impl LentSegments {
    /// Bytes of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The number that a segment has as a source of rows.
    pub fn source(&self, segment: u32) -> Option<usize> {
        self.segments.iter().position(|other| *other == segment)
    }

    /// Whether what was copied is right: to be asked before anything is made of it.
    pub fn is_sound(&self) -> bool {
        are_sound(&self.files)
    }

    /// These rows of them, whose sources are theirs. `Retry` if one lies behind the end of its file.
    pub fn rows(&self, runs: RowRuns) -> Result<LentRows> {
        runs.check(&lengths(&self.files)).map_err(|e| nonsense(&e.message))?;
        Ok(LentRows { runs, files: self.files.clone() })
    }
}

impl LentRows {
    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.runs.bytes()
    }

    /// Copies the bytes behind those that are `done`, as many as `to` has room for.
    pub fn copy(&self, done: &mut RowsDone, to: &mut [u8]) {
        self.runs.copy(done, &self.sources(), to);
    }

    /// Copies the next `bytes` bytes as many at a time as `tile` holds, and has `take` look at them there.
    pub fn copy_tiles(
        &self,
        done: &mut RowsDone,
        mut bytes: usize,
        tile: &mut [u8],
        mut take: impl FnMut(&[u8]),
    ) {
        let sources = self.sources();
        while bytes > 0 && !tile.is_empty() {
            let now = bytes.min(tile.len());
            self.runs.copy(done, &sources, &mut tile[..now]);
            take(&tile[..now]);
            bytes -= now;
        }
    }

    fn sources(&self) -> Vec<&[u8]> {
        self.files.iter().map(|(file, start)| &file.map[*start..]).collect()
    }

    /// Passes over the next bytes.
    pub fn skip(&self, done: &mut RowsDone, bytes: usize) {
        self.runs.skip(done, bytes);
    }

    /// Whether what was copied is right: to be asked before anything is made of it.
    pub fn is_sound(&self) -> bool {
        are_sound(&self.files)
    }
}

fn are_sound(files: &[(Arc<FileMap>, usize)]) -> bool {
    files.iter().all(|(file, _)| file.is_sound())
}

fn lengths(files: &[(Arc<FileMap>, usize)]) -> Vec<usize> {
    files.iter().map(|(file, start)| file.map.len() - start).collect()
}

fn modified(stat: &Stat) -> i128 {
    i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec)
}

fn nonsense(why: &str) -> Error {
    Error::retry(format!("a message in files of a node on this host cannot be read: {why}"))
}
