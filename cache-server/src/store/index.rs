//! What the store holds, in memory: files by segment, bytes in use, order of use, kept maps.

use arrow::array::RecordBatch;
use forebay_proto::manifest::SegmentId;
use forebay_segment::source::is_under;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// Maps kept open at most: well under the kernel's limit on a process (65,530 by default).
const MAPS_MAX: usize = 16 << 10;

/// A file: some columns of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey {
    id: SegmentId,
    columns: u64,
}

impl FileKey {
    /// The file that holds these columns of a segment.
    pub fn new(id: SegmentId, columns: &[String]) -> Self {
        let mut h = Xxh3::new();
        for c in columns {
            h.update(&(c.len() as u64).to_le_bytes());
            h.update(c.as_bytes());
        }
        Self { id, columns: h.digest() }
    }

    /// The file's name: both in hex.
    pub fn file_name(&self) -> String {
        format!("{}.{:016x}", self.id, self.columns)
    }
}

#[derive(Debug)]
struct Entry {
    object: String,
    columns: Vec<String>,
    bytes: u64,
    used: u64,
    map: Option<Arc<RecordBatch>>,
}

/// The index. Every change of `used_bytes` happens here.
#[derive(Debug, Default)]
pub struct Index {
    entries: HashMap<FileKey, Entry>,
    by_segment: HashMap<SegmentId, Vec<FileKey>>,
    by_use: BTreeMap<u64, FileKey>,
    clock: u64,
    maps: usize,
    used_bytes: u64,
}

impl Index {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub fn files_of(&self, id: SegmentId) -> Vec<FileKey> {
        self.by_segment.get(&id).cloned().unwrap_or_default()
    }

    /// Number of segments of which a file is held.
    pub fn segments(&self) -> usize {
        self.by_segment.len()
    }

    /// Whether the segment's files together hold all these columns.
    pub fn holds(&self, id: SegmentId, columns: &[String]) -> bool {
        let Some(files) = self.by_segment.get(&id) else { return false };
        columns.iter().all(|c| files.iter().any(|key| self.columns(key).is_some_and(|have| have.contains(c))))
    }

    pub fn holds_any(&self, id: SegmentId) -> bool {
        self.by_segment.contains_key(&id)
    }

    pub fn columns(&self, key: &FileKey) -> Option<&[String]> {
        self.entries.get(key).map(|e| e.columns.as_slice())
    }

    /// Marks a file as used now. `None`: no such file; `Some(None)`: there is, but not mapped.
    pub fn touch(&mut self, key: &FileKey) -> Option<Option<Arc<RecordBatch>>> {
        let entry = self.entries.get_mut(key)?;
        self.by_use.remove(&entry.used);
        self.clock += 1;
        entry.used = self.clock;
        self.by_use.insert(self.clock, *key);
        Some(entry.map.clone())
    }

    /// Keeps a file's map for the next reader.
    pub fn keep_map(&mut self, key: &FileKey, map: Arc<RecordBatch>) {
        if self.maps >= MAPS_MAX {
            let oldest = self.by_use.values().find(|k| self.entries.get(k).is_some_and(|e| e.map.is_some()));
            if let Some(e) = oldest.copied().and_then(|k| self.entries.get_mut(&k)) {
                e.map = None;
                self.maps -= 1;
            }
        }
        if let Some(e) = self.entries.get_mut(key)
            && e.map.replace(map).is_none()
        {
            self.maps += 1;
        }
    }

    /// Books `bytes`, evicting files by recency until they fit under `limit`; files being read stay. Answers whether
    /// they fit and how many files went. Nothing goes when it would not be enough.
    pub fn reserve(&mut self, bytes: u64, limit: u64, unlink: impl Fn(&FileKey)) -> (bool, u64) {
        let mut short = (self.used_bytes.saturating_add(bytes)).saturating_sub(limit);
        let mut going = Vec::new();
        for key in self.by_use.values() {
            if short == 0 {
                break;
            }
            if let Some(e) = self.entries.get(key)
                && e.map.as_ref().is_none_or(|m| Arc::strong_count(m) == 1)
            {
                short = short.saturating_sub(e.bytes);
                going.push(*key);
            }
        }
        if short > 0 {
            return (false, 0);
        }
        for key in &going {
            self.remove(key);
            unlink(key);
        }
        self.used_bytes += bytes;
        (true, going.len() as u64)
    }

    /// Gives booked bytes back.
    pub fn release(&mut self, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
    }

    /// Adds a file whose bytes are booked. A file of the same name is replaced: its bytes are given back.
    pub fn insert_reserved(
        &mut self,
        key: FileKey,
        object: String,
        columns: Vec<String>,
        bytes: u64,
        map: Option<Arc<RecordBatch>>,
    ) {
        self.remove(&key);
        self.clock += 1;
        self.maps += usize::from(map.is_some());
        self.by_use.insert(self.clock, key);
        self.by_segment.entry(key.id).or_default().push(key);
        self.entries.insert(key, Entry { object, columns, bytes, used: self.clock, map });
    }

    /// Forgets a file; answers with its bytes, which are given back.
    pub fn remove(&mut self, key: &FileKey) -> Option<u64> {
        let entry = self.entries.remove(key)?;
        self.by_use.remove(&entry.used);
        self.maps -= usize::from(entry.map.is_some());
        if let Some(files) = self.by_segment.get_mut(&key.id) {
            files.retain(|k| k != key);
            if files.is_empty() {
                self.by_segment.remove(&key.id);
            }
        }
        self.release(entry.bytes);
        Some(entry.bytes)
    }

    /// The files of objects under a URI.
    pub fn files_under(&self, uri: &str) -> Vec<FileKey> {
        self.entries.iter().filter(|(_, e)| is_under(&e.object, uri)).map(|(k, _)| *k).collect()
    }
}
