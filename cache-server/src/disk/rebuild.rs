//! Takes the files of a directory into the index, when the cache is opened and when the directory comes back.

use super::dirs::Dir;
use super::index::Entry;
use super::recover::{recover, sidecar_lengths};
use super::segment_files::SegmentFiles;
use forebay_proto::Result;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Folders that are kept beside the segments: a block of each counts from the start.
const SIDECAR_FOLDERS: u64 = 2;

/// Indexes every file whose header verifies and removes the rest, then evicts down to the limit, which may
/// have been lowered since. Of files that another directory holds as well one is enough.
pub fn rebuild(files: &SegmentFiles, dir: usize) -> Result<()> {
    let place = files.dirs().get(dir);
    let fail = |e: io::Error| place.refusal("cannot be read", e);
    files.dirs().note_block_bytes(dir).map_err(fail)?;
    let found = recover(place).map_err(fail)?;
    for (path, why) in found.damaged {
        files.counters().corrupt.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(error = %format!("{}: {why}", path.display()), "a segment file is damaged: removed, it will be filled again");
        place.disk().remove(&path).ok();
    }
    let mut names: HashSet<Arc<[String]>> = HashSet::new();
    let mut twice = Vec::new();
    let mut index = files.index();
    index.clear(dir);
    for seen in found.seen {
        if index.get(&seen.key).is_some() {
            twice.push(place.segment(&seen.key));
            continue;
        }
        let columns = names.get(seen.columns.as_slice()).cloned().unwrap_or_else(|| seen.columns.into());
        names.insert(columns.clone());
        let bytes = files.dirs().allocated_bytes(seen.stat.stamp.bytes).max(seen.stat.allocated_bytes);
        let reservation = index.quotas.reserve(dir, bytes);
        let pinned = files.is_pinned(&seen.object);
        let entry =
            Entry { object: seen.object, columns, bytes, dir, used: 0, pinned, replica: false, map: None };
        index.insert(seen.key, entry, reservation);
    }
    drop(index);
    // Unlinking takes the disk's time: readers of other directories need the index meanwhile.
    twice.iter().for_each(|path| drop(place.disk().remove(path)));
    let sidecar = sidecar_bytes(files, place).map_err(fail)?;
    files.index().quotas.reserve(dir, sidecar);
    files.measure(dir).map_err(fail)?;
    trim(files, dir);
    Ok(())
}

fn sidecar_bytes(files: &SegmentFiles, dir: &Dir) -> io::Result<u64> {
    let folders = SIDECAR_FOLDERS * files.dirs().sidecar_bytes(0);
    let lengths = sidecar_lengths(dir)?;
    Ok(folders + lengths.into_iter().map(|bytes| files.dirs().sidecar_bytes(bytes)).sum::<u64>())
}

/// Evicts files above the limit: by recency, pinned ones last.
fn trim(files: &SegmentFiles, dir: usize) {
    let mut index = files.index();
    let mut held: Vec<_> =
        index.entries().filter(|(_, e)| e.dir == dir).map(|(key, e)| (e.pinned, e.used, *key)).collect();
    held.sort_unstable();
    let (mut going, mut going_bytes, mut pinned_gone) = (Vec::new(), 0, 0);
    for (pinned, _, key) in held {
        if index.quotas.of(dir).short_bytes(0) <= going_bytes {
            break;
        }
        let Some((reservation, entry)) = index.take_one(&key, |_| true) else { continue };
        going_bytes += reservation.bytes;
        pinned_gone += u64::from(pinned);
        going.push((key, reservation, entry));
    }
    drop(index);
    for (key, reservation, entry) in going {
        drop(entry);
        files.unlink_taken(&key, reservation);
        files.counters().evictions.fetch_add(1, Ordering::Relaxed);
    }
    if pinned_gone > 0 {
        tracing::warn!(
            segments = pinned_gone,
            "pinned segments were evicted: they are more than the limit; raise --cache-bytes or unpin some"
        );
    }
}
