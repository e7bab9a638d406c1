//! What the disk cache can say and do about its files as copies: for other nodes, and by the role that each
//! has in the cluster.

use super::dirs::Health;
use super::file::{Origin, read_header};
use super::policy::Role;
use super::{DiskCache, Entry, FileKey};
use forebay_proto::manifest::SegmentId;
use forebay_proto::v1;
use std::sync::Arc;

/// A file, as other nodes may want it.
#[derive(Debug, Clone)]
pub struct CopyInfo {
    /// The segment.
    pub id: SegmentId,
    /// URI of its object.
    pub object: String,
    /// Names of the columns.
    pub columns: Arc<[String]>,
    /// Bytes on the disk.
    pub bytes: u64,
}

impl CopyInfo {
    fn new(key: &FileKey, e: &Entry) -> Self {
        Self { id: key.id, object: e.object.clone(), columns: e.columns.clone(), bytes: e.bytes }
    }
}

impl From<&CopyInfo> for v1::CopyItem {
    fn from(copy: &CopyInfo) -> Self {
        Self {
            segment: copy.id.0.to_bytes().to_vec().into(),
            columns: copy.columns.to_vec(),
            bytes: copy.bytes,
        }
    }
}

impl DiskCache {
    /// All files.
    pub fn list(&self) -> Vec<CopyInfo> {
        self.index().entries().map(|(key, e)| CopyInfo::new(key, e)).collect()
    }

    /// The files of some segments.
    pub fn list_of(&self, ids: impl IntoIterator<Item = SegmentId>) -> Vec<CopyInfo> {
        let index = self.index();
        let keys = ids.into_iter().flat_map(|id| index.files_of(id));
        keys.filter_map(|key| index.get(&key).map(|e| CopyInfo::new(&key, e))).collect()
    }

    /// Which object version a segment is of, from the header of one of its files.
    pub fn origin(&self, id: SegmentId) -> Option<Origin> {
        let (key, dir) = {
            let index = self.index();
            let key = *index.files_of(id).first()?;
            (key, index.get(&key)?.dir)
        };
        let place = &self.dirs[dir];
        let file = place.disk().open(&place.segment(&key)).ok()?;
        let bytes = place.disk().stat(&file).ok()?.stamp.bytes;
        read_header(place.disk(), &file, bytes).ok()?.0.origin().ok()
    }

    /// Says anew which files are primaries, and if `demote` which are not any more: `roles` answers for
    /// segments and the URIs of their objects.
    pub fn set_roles(&self, demote: bool, roles: impl Fn(&[(SegmentId, String)]) -> Vec<Role>) {
        let (keys, segments): (Vec<FileKey>, Vec<_>) =
            self.index().entries().map(|(key, e)| (*key, (key.id, e.object.clone()))).unzip();
        let roles = roles(&segments);
        {
            let mut index = self.index();
            let told = keys.iter().zip(roles).filter(|(_, role)| demote || *role == Role::Primary);
            told.for_each(|(key, role)| index.set_replica(key, role == Role::Replica));
        }
        self.look_for_victims_anew();
    }

    /// Removes all files of a segment, unless they are pinned or being read; false if any is left.
    pub fn drop_copy(&self, id: SegmentId) -> bool {
        let keys = self.index().files_of(id);
        for key in &keys {
            // Looked at as it is taken: somebody may pin it or begin to read it at any time.
            self.remove_if(key, |e| !e.pinned && !e.is_in_use());
        }
        !self.holds_any(id)
    }

    /// Bytes that can still be written without evicting anything, in all directories that can be written.
    pub fn free_bytes(&self) -> u64 {
        self.free_of_dirs().sum()
    }

    /// Whether files of so many bytes can all be written without evicting anything, each where most room is:
    /// not in a directory that fails or is full, nor partly in one and partly in another.
    pub fn has_room(&self, files: impl IntoIterator<Item = u64>) -> bool {
        let mut free: Vec<u64> = self.free_of_dirs().collect();
        files.into_iter().all(|bytes| {
            let most = free.iter_mut().max();
            let left = most.and_then(|most| Some((most.checked_sub(bytes + self.folder_growth())?, most)));
            left.map(|(left, most)| *most = left).is_some()
        })
    }

    fn free_of_dirs(&self) -> impl Iterator<Item = u64> {
        let up = self.dirs().into_iter().filter(|dir| dir.health == Health::Up);
        up.map(|dir| dir.limit_bytes.saturating_sub(dir.used_bytes))
    }
}
