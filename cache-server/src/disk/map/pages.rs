//! The pages of maps that count as this process's memory.
//!
//! A page counts once the process has touched it. When the touched maps exceed the limit, the pages of the
//! map that was touched first are given back to the kernel's page cache, unless it is being read. A later
//! reader finds them there.

use super::Mapped;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Maps that are looked at when one more is touched: where thousands are being read, none of them would be
/// let go anyway.
const LOOKS: usize = 64;

/// The maps whose pages may be in memory.
#[derive(Debug)]
pub struct Pages {
    limit_bytes: u64,
    touched: Mutex<Touched>,
}

#[derive(Debug, Default)]
struct Touched {
    maps: VecDeque<(Weak<Mapped>, u64)>,
    bytes: u64,
}

impl Pages {
    /// For maps of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, touched: Mutex::default() }
    }

    /// A map is about to be read. Touches the kernel's tables: not for an async thread.
    pub fn touch(&self, map: &Arc<Mapped>) {
        if map.set_touched() {
            return;
        }
        let mut over = Vec::new();
        {
            let mut touched = self.touched.lock();
            let bytes = map.stat.stamp.bytes;
            touched.bytes += bytes;
            touched.maps.push_back((Arc::downgrade(map), bytes));
            // The pages of a map that is being read would be back at once: it waits for its next turn.
            for _ in 1..touched.maps.len().min(LOOKS) {
                if touched.bytes <= self.limit_bytes {
                    break;
                }
                let Some((map, bytes)) = touched.maps.pop_front() else { break };
                match map.upgrade().filter(|map| map.is_in_use()) {
                    Some(_) => touched.maps.push_back((map, bytes)),
                    None => {
                        touched.bytes -= bytes;
                        over.push(map);
                    }
                }
            }
        }
        over.iter().filter_map(Weak::upgrade).for_each(|map| map.let_go());
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::file::{FileKey, Origin};
    use crate::disk::policy::{Admit, Role};
    use crate::disk::tests::NoForecast;
    use crate::disk::{DiskCache, DiskCacheSettings};
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use forebay_proto::manifest::{Digest, SegmentId};
    use std::path::Path;
    use std::sync::Arc;

    fn batch(i: i64) -> RecordBatch {
        let values = Arc::new(Int64Array::from_iter_values((0..10_000).map(|r| r * i))) as ArrayRef;
        RecordBatch::try_from_iter([("id", values)]).unwrap()
    }

    fn open(dir: &Path, maps_bytes: u64) -> DiskCache {
        let settings = DiskCacheSettings { maps_bytes, ..DiskCacheSettings::new(dir, 1 << 30) };
        DiskCache::open(&settings, Arc::new(NoForecast)).unwrap()
    }

    fn write(cache: &DiskCache, segments: u64) {
        (0..segments).for_each(|i| write_batch(cache, i, batch(i as i64)));
    }

    fn write_batch(cache: &DiskCache, i: u64, batch: RecordBatch) {
        let id = SegmentId(Digest(i.into()));
        let origin = Origin { id, object: format!("file:///{i}").into(), etag: "e".into() };
        cache.write(&origin, &batch.into(), Admit::Always, Role::Primary).unwrap();
    }

    /// Bytes of the mapping of a file that are in this process's memory.
    fn resident(file: &Path) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let of_file = maps.lines().skip_while(|line| !line.ends_with(file.to_str().unwrap()));
        let rss = of_file.filter_map(|line| line.strip_prefix("Rss:")).next().expect("the file is mapped");
        rss.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    #[test]
    fn a_populated_map_is_in_memory_before_anybody_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let id = SegmentId(Digest(0));
        // With a page that is touched the kernel maps those beside it, 64 kB in all: the file is far larger.
        let values = Arc::new(Int64Array::from_iter_values(0..100_000)) as ArrayRef;
        let written = RecordBatch::try_from_iter([("id", values)]).unwrap();
        write_batch(&open(dir.path(), 1 << 20), 0, written.clone());
        let cache = open(dir.path(), 1 << 20);
        let found = cache.find(id, &["id".into()]);
        let name = FileKey::new(id, &["id".into()]).file_name();
        let file = dir.path().join("v1/segments").join(&name[..1]).join(name);
        let before = resident(&file);
        cache.populate(id);
        let after = resident(&file);
        assert!(before < 200_000, "nobody has touched its rows, and {before} bytes are in memory");
        assert!(after >= 780_000, "{after} bytes are in memory");
        assert_eq!(found.parts[0].batch.columns().unwrap(), written);
    }

    #[test]
    fn a_few_bytes_are_copied_without_a_page_of_the_map() {
        let dir = tempfile::tempdir().unwrap();
        let (id, columns) = (SegmentId(Digest(0)), ["id".to_owned()]);
        write(&open(dir.path(), 1 << 20), 1);
        let cache = open(dir.path(), 1 << 20);
        assert!(cache.known(id, &columns).is_none(), "nobody has checked it yet");
        cache.find(id, &columns);
        let name = FileKey::new(id, &columns).file_name();
        let file = dir.path().join("v1/segments").join(&name[..1]).join(name);
        let (before, ready) = (resident(&file), cache.known(id, &columns).unwrap());
        let values = ready.batch.columns().unwrap().column(0).to_data().buffers()[0].clone();
        let part = &values[9_000..60_000];
        let mut copied = vec![0; part.len()];
        assert!(ready.copy_now(part, &mut copied));
        copied.fill(0);
        assert!(ready.copy_now(part, &mut copied) && cache.kept_files.len() == 1, "it is kept open");
        assert!(!ready.copy_now(part, &mut copied[1..]), "there is no room for it");
        assert_eq!(resident(&file), before);
        assert!(copied == part && ready.is_in_memory(part));
        let elsewhere = memmap2::MmapMut::map_anon(1 << 20).unwrap();
        assert!(ready.is_in_memory(&elsewhere), "nobody has touched its pages, and it waits for no disk");
        std::fs::File::options().append(true).open(&file).unwrap().set_len(1 << 20).unwrap();
        assert!(!ready.copy_now(part, &mut copied), "it is not the file any more that was checked");
        assert!(!ready.verify() && cache.known(id, &columns).is_none());
        assert_eq!(cache.kept_files.len(), 0);
    }

    /// Descriptors of this process that lead to a file.
    fn descriptors_of(file: &Path) -> usize {
        let open =
            std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fd.unwrap().path().read_link().ok());
        open.filter(|target| target.to_string_lossy().starts_with(&*file.to_string_lossy())).count()
    }

    #[test]
    fn files_are_kept_open_until_they_are_removed_and_few_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let cache = open(dir.path(), 1 << 20);
        write(&cache, 8);
        let read = |i: u64| {
            let ready = cache.known(SegmentId(Digest(i.into())), &["id".to_owned()]).unwrap();
            let values = ready.batch.columns().unwrap().column(0).to_data().buffers()[0].clone();
            let mut copied = vec![0; 8_000];
            assert!(ready.copy_now(&values[..8_000], &mut copied));
            copied
        };
        (0..8).chain(0..8).for_each(|i| {
            let expected: Vec<u8> = (0..1000).flat_map(|row| (row * i as i64).to_ne_bytes()).collect();
            assert_eq!(read(i), expected);
        });
        let (kept, segments) = (cache.kept_files.len(), dir.path().join("v1/segments"));
        assert!((1..=4).contains(&kept), "{kept}");
        assert_eq!(descriptors_of(&segments), kept);
        let all: Vec<_> = (0..8).map(|i| SegmentId(Digest(i))).collect();
        let being_read: Vec<_> = all.iter().map(|id| cache.known(*id, &["id".to_owned()]).unwrap()).collect();
        cache.free_segments(&all);
        assert_eq!((descriptors_of(&segments), cache.kept_files.len()), (0, 0), "also while they are read");
        drop(being_read);
    }

    #[test]
    fn what_was_let_go_is_read_again_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let cache = open(dir.path(), 150_000);
        write(&cache, 5);
        for i in [0, 1, 2, 3, 4, 0, 4, 2] {
            let found = cache.find(SegmentId(Digest(i)), &["id".into()]);
            assert_eq!(found.parts[0].batch.columns().unwrap(), batch(i as i64));
            let touched = cache.pages.touched.lock();
            assert!(touched.bytes <= 150_000 && touched.maps.len() == 1, "{touched:?}");
        }
        let held: Vec<_> = (0..3).map(|i| cache.find(SegmentId(Digest(i)), &["id".into()])).collect();
        assert_eq!(cache.pages.touched.lock().maps.len(), 3, "a map that is being read keeps its pages");
        drop(held);
        cache.find(SegmentId(Digest(4)), &["id".into()]);
        assert_eq!(cache.pages.touched.lock().maps.len(), 1);
        for i in 0..5 {
            assert_eq!(
                cache.find(SegmentId(Digest(i)), &["id".into()]).parts[0].batch.columns().unwrap(),
                batch(i as i64)
            );
        }
    }
}
