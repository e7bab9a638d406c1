//! Copies for the cluster: what leaves first, what a precaution may push out, files that travel.

use super::*;
use crate::disk::copies::CopyInfo;
use arrow::buffer::Buffer;
use forebay_dataset::stream::wire;
use forebay_proto::hash::xxh3_64;
use policy::{NextUse, Role};
use prost::Message;

/// All are read soon; the higher its number, the later.
#[derive(Debug)]
struct Soon;

impl Forecast for Soon {
    fn next_uses(&self, ids: &[SegmentId]) -> Vec<NextUse> {
        ids.iter().map(|id| NextUse::Planned(100 + (id.0.0 & 0xffff) as u64)).collect()
    }
}

fn cache(dir: &Path, files: u64) -> DiskCache {
    let limit = limit_for(files, file_bytes(50, &["a"]));
    DiskCache::open(&DiskCacheSettings::new(dir, limit), Arc::new(Soon)).unwrap()
}

fn write(cache: &DiskCache, n: u128, admit: Admit, role: Role) -> bool {
    matches!(cache.write(&origin(n), &batch(n, 50, &["a"]).into(), admit, role).unwrap(), Written::Stored(_))
}

fn held(cache: &DiskCache) -> Vec<u128> {
    (0..16).filter(|&n| cache.holds(origin(n).id, &[])).collect()
}

#[test]
fn replicas_leave_before_primaries_and_a_precaution_pushes_nothing_out() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), 4);
    // The replicas are read sooner than the primaries.
    for (n, role) in [(1, Role::Replica), (2, Role::Replica), (7, Role::Primary), (8, Role::Primary)] {
        assert!(write(&cache, n, Admit::IfWorthIt, role));
    }
    assert!(!write(&cache, 0, Admit::IfFree, Role::Replica));
    assert_eq!(held(&cache), [1, 2, 7, 8]);
    // A primary that is read last of all still takes a replica's place, of the two that of the later one.
    assert!(write(&cache, 9, Admit::IfWorthIt, Role::Primary));
    assert_eq!(held(&cache), [1, 7, 8, 9]);
    // A replica takes another's only if it is read sooner.
    assert!(!write(&cache, 3, Admit::IfWorthIt, Role::Replica));
    assert!(write(&cache, 0, Admit::IfWorthIt, Role::Replica));
    assert_eq!(held(&cache), [0, 7, 8, 9]);
    assert!(write(&cache, 10, Admit::IfWorthIt, Role::Primary));
    assert_eq!(held(&cache), [7, 8, 9, 10]);
    // Among primaries it is as ever: the one that is read last stays out.
    assert!(!write(&cache, 11, Admit::IfWorthIt, Role::Primary));
    // Once this node is not their owner any more, they go first.
    cache.copies().set_roles(false, |_| vec![Role::Replica; 4]);
    assert!(!write(&cache, 12, Admit::IfWorthIt, Role::Primary), "none is demoted yet");
    cache.copies().set_roles(true, |all| {
        all.iter().map(|id| if *id == origin(7).id { Role::Replica } else { Role::Primary }).collect()
    });
    assert!(write(&cache, 12, Admit::IfWorthIt, Role::Primary));
    assert_eq!(held(&cache), [8, 9, 10, 12]);
}

#[test]
fn a_copy_is_listed_with_its_origin_and_dropped_unless_it_is_read_or_pinned() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), 8);
    let reader = cache.write(&origin(1), &batch(1, 50, &["a"]).into(), Admit::IfFree, Role::Replica).unwrap();
    put(&cache, 1, 50, &["s"]).unwrap();
    put(&cache, 2, 50, &["a"]).unwrap();
    let of = |kept: &CopyInfo| (kept.id, kept.object.as_str().into());
    assert_eq!(cache.copies().list().len(), 3);
    let listed = cache.copies().list_of([origin(1).id, origin(5).id]);
    assert!(listed.len() == 2 && listed.iter().all(|k| of(k) == (origin(1).id, origin(1).object)));
    assert_eq!(
        (cache.copies().origin(origin(1).id), cache.copies().origin(origin(5).id)),
        (Some(origin(1)), None)
    );
    assert!(!cache.copies().remove(origin(1).id), "it is being read");
    drop(reader);
    assert!(cache.copies().remove(origin(1).id));
    cache.pin("s3://b").unwrap();
    assert!(!cache.copies().remove(origin(2).id), "it is pinned");
    assert_eq!(held(&cache), [2]);
}

/// A file as the first version wrote it, its columns as columns.
#[test]
fn a_file_of_the_first_format_is_read() {
    let (origin, batch) = (origin(3), batch(3, 40, &["a", "b", "s"]));
    let (message, body) = wire::encode(&batch).unwrap();
    let header = file::Header {
        id: origin.id.0.to_bytes().to_vec().into(),
        object: origin.object.to_string(),
        etag: origin.etag.to_string(),
        columns: names(&["a", "b", "s"]),
        rows: 40,
        schema: wire::schema_header(&batch.schema()),
        batch: message,
        part_bytes: body.iter().map(|part| part.len() as u64).collect(),
        part_hashes: body.iter().map(|part| xxh3_64(part)).collect(),
        packed: false,
    };
    let header = header.encode_to_vec();
    let offset = (24 + header.len()).next_multiple_of(64);
    let mut whole = b"FBSEG\0\0\x01".to_vec();
    whole.extend((header.len() as u32).to_le_bytes());
    whole.extend((offset as u32).to_le_bytes());
    whole.extend(xxh3_64(&header).to_le_bytes());
    whole.extend(header);
    whole.resize(offset, 0);
    body.iter().for_each(|part| whole.extend_from_slice(part));
    let (header, read) = file::from_bytes(&Buffer::from(&whole[..])).unwrap();
    assert_eq!((header.origin().unwrap(), read.columns().unwrap()), (origin, batch));
}

proptest! {
    /// A file that travels verifies itself: whatever byte is changed or wherever it is cut, it does not come.
    #[test]
    fn a_file_that_was_damaged_on_its_way_is_noticed(at in any::<prop::sample::Index>(), flip in 1u8.., cut in any::<bool>()) {
        let (origin, batch) = (origin(3), batch(3, 40, &["a", "s"]));
        let file: Vec<u8> = Encoded::new(&origin, &batch.clone().into()).unwrap().0.into_iter().flatten().collect();
        let (header, whole) = file::from_bytes(&Buffer::from(&file[..])).unwrap();
        prop_assert_eq!((header.origin().unwrap(), whole.columns().unwrap()), (origin, batch.clone()));
        let at = at.index(file.len());
        let damaged = if cut { file[..at].to_vec() } else { let mut f = file.clone(); f[at] ^= flip; f };
        // Bytes between the header and the body mean nothing.
        if let Ok((_, read)) = file::from_bytes(&Buffer::from(&damaged[..])) {
            prop_assert!(!cut && read.columns().unwrap() == batch);
        }
    }
}

/// A copy leaves while another reader writes the same columns: what the index holds then is there.
#[test]
fn what_is_written_while_its_copy_leaves_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 64 << 20).unwrap();
    let id = origin(1).id;
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let cache = &cache;
            threads.spawn(move || {
                for _ in 0..400 {
                    match thread % 2 {
                        0 => drop(put(cache, 1, 20, &["a"])),
                        _ => drop(cache.copies().remove(id)),
                    }
                    for part in cache.find(id, &names(&["a"])).parts {
                        assert_eq!(part.batch.columns().unwrap(), batch(1, 20, &["a"]));
                    }
                }
            });
        }
    });
    assert_eq!(cache.counters().corrupt.load(Ordering::Relaxed), 0, "files were gone that the index held");
}

/// Who comes while an old file of the name is being removed is refused at once, and takes nobody's place.
#[test]
fn nothing_is_written_under_a_name_that_is_being_removed() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 64 << 20).unwrap();
    put(&cache, 1, 20, &["a"]).unwrap();
    let key = FileKey::new(origin(1).id, &names(&["a"]));
    let taken = cache.files.index().take_one(&key, |_| true).unwrap();
    assert!(put(&cache, 1, 20, &["a"]).is_none(), "its name is still to be unlinked");
    cache.files.unlink_taken(&key, taken.reservation);
    assert!(put(&cache, 1, 20, &["a"]).is_some());
}
