//! Files of the disk cache as copies: for other nodes, and by the role that each has in the cluster.

use super::file::{FileKey, Origin, read_header};
use super::index::Entry;
use super::policy::Role;
use super::segment_files::SegmentFiles;
use forebay_proto::manifest::SegmentId;
use forebay_proto::v1;
use std::sync::Arc;

/// A file, as other nodes may want it.
#[derive(Debug, Clone)]
pub struct CopyInfo {
    pub id: SegmentId,
    /// URI of its object.
    pub object: String,
    /// Names of the columns.
    pub columns: Arc<[String]>,
    /// Bytes on the disk.
    pub bytes: u64,
}

impl From<(&FileKey, &Entry)> for CopyInfo {
    fn from((key, e): (&FileKey, &Entry)) -> Self {
        Self { id: key.id, object: e.object.to_string(), columns: e.columns.clone(), bytes: e.bytes }
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

/// The files of the disk cache as copies.
pub struct Copies<'a>(pub(super) &'a SegmentFiles);

impl Copies<'_> {
    /// All files.
    pub fn list(&self) -> Vec<CopyInfo> {
        self.0.index().entries().map(CopyInfo::from).collect()
    }

    /// The files of some segments.
    pub fn list_of(&self, ids: impl IntoIterator<Item = SegmentId>) -> Vec<CopyInfo> {
        let index = self.0.index();
        let keys = ids.into_iter().flat_map(|id| index.files_of(id));
        keys.filter_map(|key| index.get(&key).map(|e| CopyInfo::from((&key, e)))).collect()
    }

    /// Which object version a segment is of, from the header of one of its files.
    pub fn origin(&self, id: SegmentId) -> Option<Origin> {
        let (key, dir) = {
            let index = self.0.index();
            let key = *index.files_of(id).first()?;
            (key, index.get(&key)?.dir())
        };
        let place = self.0.dirs.get(dir);
        let file = place.disk.open(&place.segment(&key)).ok()?;
        let bytes = place.disk.stat(&file).ok()?.stamp.bytes;
        read_header(&*place.disk, &file, bytes).ok()?.0.origin().ok()
    }

    /// Says which files are primaries now, and if `demote` which are not any more: `roles` is asked about
    /// segments and the URIs of their objects.
    pub fn set_roles(&self, demote: bool, roles: impl Fn(&[SegmentId]) -> Vec<Role>) {
        let keys: Vec<FileKey> = self.0.index().entries().map(|(key, _)| *key).collect();
        let roles = roles(&keys.iter().map(|key| key.id).collect::<Vec<_>>());
        {
            let mut index = self.0.index();
            let told = keys.iter().zip(roles).filter(|(_, role)| demote || *role == Role::Primary);
            told.for_each(|(key, role)| index.set_replica(key, role == Role::Replica));
        }
        self.0.evictor.forget_victims();
    }

    /// Removes all files of a segment, unless they are pinned or being read; false if any is left.
    pub fn remove(&self, id: SegmentId) -> bool {
        let keys = self.0.index().files_of(id);
        for key in &keys {
            // Checked as it is taken: somebody may pin it or begin to read it at any time.
            self.0.remove(key, Entry::may_leave);
        }
        !self.0.index().holds(id, &[])
    }
}
