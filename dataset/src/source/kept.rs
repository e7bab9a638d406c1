//! Versions that an object store keeps after their objects were overwritten or deleted.
//!
//! A frozen object is asked for as the current one, with `If-Match`. If it is that no more, and the
//! manifest knows the object store's id of its version, it is asked for by this id, at once the next time.
//! Either way its tag must be the frozen one. Asking by ids needs a permission of its own
//! (`s3:GetObjectVersion`), so who reads objects that nobody touched does not need it.

use super::object::SourceObject;
use forebay_proto::hash::xxh3_64;
use forebay_proto::{Error, Kind, Result};
use parking_lot::Mutex;
use std::collections::HashSet;

/// Objects that are remembered at most. Others cost a request more each time.
const REMEMBERED_MAX: usize = 64 << 10;

/// Hashes of objects that were read by the ids of their versions. Two of one hash cost a request more.
#[derive(Debug, Default)]
pub(super) struct Overwritten(Mutex<HashSet<u64>>);

/// How one read asks for its object: one way, then the other if the first fails.
pub(super) struct Ways<'a> {
    all: &'a Overwritten,
    object: &'a SourceObject,
    by_id: bool,
    /// What the first way gave.
    failed: Option<Error>,
}

impl Overwritten {
    pub(super) fn ways<'a>(&'a self, object: &'a SourceObject) -> Ways<'a> {
        let by_id = !object.version_id.is_empty() && self.0.lock().contains(&hash(object));
        Ways { all: self, object, by_id, failed: None }
    }
}

fn hash(object: &SourceObject) -> u64 {
    xxh3_64(format!("{}\n{}", object.place.uri, object.etag).as_bytes())
}

impl Ways<'_> {
    /// The id to ask for now; none: the current version.
    pub(super) fn version_id(&self) -> Option<&str> {
        self.by_id.then_some(&*self.object.version_id)
    }

    /// Turns to the other way if that may help after `e`; else the error for the caller.
    pub(super) fn turn(&mut self, e: Error) -> Result<()> {
        // Without the permission to list, S3 denies objects that are not there.
        let may_help = matches!(e.kind, Kind::Changed | Kind::NotFound | Kind::Denied | Kind::Invalid);
        if self.object.version_id.is_empty() || !may_help {
            return Err(e);
        }
        match self.failed.take() {
            None => {
                self.by_id = !self.by_id;
                self.failed = Some(e);
                Ok(())
            }
            Some(first) if self.by_id => Err(self.both(first, &e)),
            Some(first) => Err(self.both(e, &first)),
        }
    }

    /// The read came to its end this way.
    pub(super) fn done(&self) {
        if self.failed.is_none() {
            return;
        }
        let mut all = self.all.0.lock();
        match self.by_id {
            true if all.len() < REMEMBERED_MAX => drop(all.insert(hash(self.object))),
            true => {}
            false => drop(all.remove(&hash(self.object))),
        }
    }

    /// The current object is another one, and the version cannot be read.
    fn both(&self, current: Error, kept: &Error) -> Error {
        let (uri, id) = (&self.object.place.uri, &self.object.version_id);
        let why = kept.message.strip_prefix(&format!("{uri}: ")).unwrap_or(&kept.message);
        let what = match kept.kind {
            Kind::Denied => format!("its version {id} is not given out ({why}): allow s3:GetObjectVersion"),
            _ => format!("the object store no longer keeps its version {id}"),
        };
        Error::new(current.kind, format!("{}; {what}", current.message))
    }
}
