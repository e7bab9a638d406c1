//! The files that a node lends to one reader: rows of its messages lie in them, and the reader copies them by
//! itself.
//!
//! A file is sent once, before the first message that has rows in it, and named by its number from then on.
//! It is taken back when others are needed and no message that names it is with the reader. Files are only
//! ever unlinked, never changed, so the reader's bytes stay what they are; the disk has their room back when
//! the reader has closed them.

use super::channel::{FileNote, send_note};
use crate::ready::{OpenedFile, Verifier};
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Files that a reader has at once, unless more are named by messages that it has: two windows of 16.
const FILES_MAX: usize = 32;

/// Files that a reader has at most. What lies in others comes by the region.
const FILES_EVER: usize = 256;

/// The files that are lent to one reader, and the connection over which their descriptors go.
#[derive(Debug)]
pub(super) struct LentFiles {
    /// The connection over which the reader gives messages back.
    socket: OwnedFd,
    table: Mutex<FileTable>,
}

#[derive(Debug, Default)]
struct FileTable {
    /// Of the next file.
    next: u32,
    /// Those that the reader has, the one that was named last at the end.
    files: Vec<Entry>,
    /// The reader hears nothing any more.
    is_closed: bool,
}

#[derive(Debug)]
struct Entry {
    /// Who checks it: the same for the same file.
    verifier: Arc<dyn Verifier>,
    file: Arc<LentFile>,
}

/// A file that the reader has, for as long as this is held.
#[derive(Debug)]
pub(super) struct LentFile {
    pub number: u32,
}

impl LentFiles {
    /// For the reader at the other end of `socket`.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, table: Mutex::default() }
    }

    /// The file of this verifier, which the reader has or is sent now. `None` where that cannot be: its rows
    /// are to be copied for the reader.
    pub fn lend(&self, verifier: &Arc<dyn Verifier>) -> Option<Arc<LentFile>> {
        let mut table = self.table.lock();
        let is_same = |entry: &Entry| Arc::ptr_eq(&entry.verifier, verifier);
        if let Some(at) = table.files.iter().position(is_same) {
            let entry = table.files.remove(at);
            let file = entry.file.clone();
            table.files.push(entry);
            return Some(file);
        }
        if table.is_closed {
            return None;
        }
        let sent = table.make_room(&self.socket).and_then(|()| table.send(&self.socket, verifier));
        // A note that did not go out whole would make nonsense of the next one.
        table.is_closed = sent.as_ref().is_err_and(|e| e.kind() != io::ErrorKind::WouldBlock);
        sent.ok().flatten()
    }
}

impl FileTable {
    /// Takes files back that no message names, as far as others need their place.
    fn make_room(&mut self, socket: impl AsFd + Copy) -> io::Result<()> {
        while self.files.len() >= FILES_MAX
            && let Some(at) = self.files.iter().position(|entry| Arc::strong_count(&entry.file) == 1)
        {
            let number = self.files[at].file.number;
            send_note(socket, &FileNote { number, bytes: 0, modified: 0 }, None)?;
            self.files.remove(at);
        }
        Ok(())
    }

    fn send(&mut self, socket: impl AsFd, verifier: &Arc<dyn Verifier>) -> io::Result<Option<Arc<LentFile>>> {
        if self.files.len() >= FILES_EVER {
            return Ok(None);
        }
        let Some(OpenedFile { file, bytes, modified }) = verifier.open() else { return Ok(None) };
        let note = FileNote { number: self.next, bytes, modified };
        send_note(socket, &note, Some(file.as_fd()))?;
        let file = Arc::new(LentFile { number: note.number });
        self.next += 1;
        self.files.push(Entry { verifier: verifier.clone(), file: file.clone() });
        Ok(Some(file))
    }
}
