//! The scrub: reads every file from the disk, at leisure, so that what rots is found before it is needed.
//!
//! It reads past the page cache where the file system can (`O_DIRECT`): a copy in memory must not hide what
//! the disk has become. Small pieces, with pauses that the caller makes; it holds one open file and one piece
//! of memory.

use super::file::{BodyCheck, FileKey, Unreadable, read_header};
use super::file_system::{Disk, Stamp, Stat};
use super::segment_files::SegmentFiles;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

/// Bytes read at once.
const PIECE_BYTES: usize = 256 << 10;

/// What direct reads are aligned to.
const ALIGNMENT: usize = 4096;

/// Reads all files that there are now. `go_on` is told the bytes of each piece when that is read, and returns
/// whether to go on, after a pause if need be.
pub(super) fn scrub(files: &SegmentFiles, mut go_on: impl FnMut(u64) -> bool) {
    let keys: Vec<FileKey> = files.index().entries().map(|(key, _)| *key).collect();
    let mut buffer = vec![0; PIECE_BYTES + ALIGNMENT];
    for key in keys {
        let Some((dir, seen)) = files.index().get(&key).map(|e| (e.dir(), e.seen())) else { continue };
        let path = files.dirs.get(dir).segment(&key);
        let mut go_on = |read| {
            files.counters.scrubbed_bytes.fetch_add(read, Ordering::Relaxed);
            go_on(read)
        };
        let mut stamp = None;
        match scrub_file(&*files.dirs.get(dir).disk, &path, &mut stamp, &mut buffer, &mut go_on) {
            Ok(true) => {}
            Ok(false) => return,
            Err(why) => {
                // Unless another has taken its name meanwhile.
                let now = files.dirs.get(dir).disk.stat_path(&path);
                let is_it = match stamp {
                    Some(read) => now.is_ok_and(|now: Stat| now.stamp.is_same_file(&read)),
                    None => now.is_err() || !matches!(why, Unreadable::Gone),
                };
                if is_it {
                    files.discard(&key, dir, &path, why, |entry| entry.seen() == seen);
                }
            }
        }
    }
}

/// Reads and checks a file. Returns whether to go on.
fn scrub_file(
    disk: &dyn Disk,
    path: &Path,
    opened: &mut Option<Stamp>,
    buffer: &mut [u8],
    go_on: &mut impl FnMut(u64) -> bool,
) -> Result<bool, Unreadable> {
    let plain = disk.open(path)?;
    let stamp = disk.stat(&plain)?.stamp;
    let (header, offset) = read_header(disk, &plain, stamp.bytes)?;
    let mut start = vec![0; offset as usize];
    if disk.read(&plain, &mut start, 0)? < start.len() {
        return Err(Unreadable::Damaged("the file ends within its header".into()));
    }
    let (mut file, mut check, mut at) = (disk.open_direct(path)?, BodyCheck::of_file(&header, &start), 0);
    *opened = Some(stamp);
    let first = buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    let piece = &mut buffer[first..first + PIECE_BYTES];
    while at < stamp.bytes {
        let wanted = (stamp.bytes - at).min(PIECE_BYTES as u64) as usize;
        let read = match disk.read(&file, piece, at) {
            // A file system that takes direct reads only in larger units: then it is read as all others read
            // it.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                file = disk.open(path)?;
                disk.read(&file, piece, at)?
            }
            read => read?,
        };
        if read < wanted || !check.take(&piece[..wanted]) {
            return Err(Unreadable::Damaged("what the disk holds does not match its checksum".into()));
        }
        at += wanted as u64;
        if !go_on(wanted as u64) {
            return Ok(false);
        }
    }
    Ok(true)
}
