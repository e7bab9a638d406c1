//! Copies for other nodes, and from them ahead of any demand.

use super::{Cache, Landed, Parts, compose, origin};
use crate::disk::Written;
use crate::disk::file::{Encoded, Origin};
use crate::disk::policy::{Admit, Role};
use crate::runtime::blocking;
use arrow::datatypes::{Schema, SchemaRef};
use forebay_dataset::Urgency;
use forebay_dataset::stream::Reading;
use forebay_dataset::{MemoryGuard, ReadySegment};
use forebay_proto::manifest::SegmentId;
use forebay_proto::{Error, Result, v1};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::Notify;

/// Segments that are remembered at most.
const STORED_MAX: usize = 64 << 10;

/// Segments that were stored since somebody looked; `None`: too many.
#[derive(Debug, Clone)]
pub(crate) struct Stored(Arc<(Mutex<Option<HashSet<SegmentId>>>, Notify)>);

impl Default for Stored {
    fn default() -> Self {
        Self(Arc::new((Mutex::new(Some(HashSet::new())), Notify::new())))
    }
}

impl Stored {
    pub fn note(&self, id: SegmentId) {
        let mut stored = self.lock();
        match &mut *stored {
            Some(ids) if ids.len() < STORED_MAX => drop(ids.insert(id)),
            _ => *stored = None,
        }
        drop(stored);
        self.0.1.notify_one();
    }

    /// Waits until there are some.
    pub async fn any(&self) {
        while self.lock().as_ref().is_some_and(HashSet::is_empty) {
            self.0.1.notified().await;
        }
    }

    /// Takes those that there are now; `None`: a look at the whole disk cache has to find them.
    pub fn take(&self) -> Option<HashSet<SegmentId>> {
        self.lock().replace(HashSet::new())
    }

    fn lock(&self) -> MutexGuard<'_, Option<HashSet<SegmentId>>> {
        self.0.0.lock()
    }
}

impl Cache {
    /// Whether another node could have these columns at once. Does not touch the disk.
    pub(crate) fn offers(&self, id: SegmentId, columns: &[String]) -> bool {
        self.parts.disk.holds(id, columns)
    }

    /// Columns of a segment for another node, and what must live as long as they do, from what is held;
    /// `NotFound` if something is missing.
    pub(crate) async fn held_file(
        &self,
        id: SegmentId,
        columns: Vec<String>,
    ) -> Result<(Encoded, MemoryGuard)> {
        let parts = self.parts.clone();
        blocking(move || parts.file_of(id, &columns)).await?
    }

    /// The same of a segment that this node owns, filled if need be.
    pub(crate) async fn filled_file(
        &self,
        reading: &Reading,
        segment: u32,
    ) -> Result<(Encoded, MemoryGuard)> {
        let columns: Vec<String> = reading.columns().cloned().collect();
        let origin = origin(&reading.manifest, segment)?;
        let is_owner = self.parts.ownership.role(origin.id) == Role::Primary;
        if !is_owner && !self.offers(origin.id, &columns) {
            return Err(Error::invalid("this node is not the segment's owner, and does not hold it"));
        }
        let ready = self.read(reading, segment, None, Some(Role::Primary)).await?;
        let parts = self.parts.clone();
        blocking(move || parts.encode(&origin, &ready)).await?
    }

    /// Takes a copy of a file that another node offers, if there is free room for it; whether it is held
    /// then. `allowed` says which objects may be here at all.
    pub(crate) async fn take_copy(
        &self,
        from: &str,
        item: &v1::CopyItem,
        allowed: impl Fn(&str) -> Result<()> + Send + 'static,
    ) -> Result<bool> {
        let id = SegmentId(forebay_proto::manifest::Digest::from_bytes(&item.segment)?);
        if self.offers(id, &item.columns) {
            return Ok(true);
        }
        if !self.parts.disk.has_room([item.bytes]) {
            return Ok(false);
        }
        let (parts, from, wanted) = (self.parts.clone(), from.to_owned(), item.clone());
        let copy = || async move {
            // Whoever waits for it too looks again, and gets it elsewhere.
            let copied = parts.copy(&from, &wanted, allowed).await.unwrap_or_else(|e| {
                tracing::debug!(error = %e, from, "a copy did not come");
                None
            });
            Ok(copied.map_or(Landed::Elsewhere, Landed::Filled))
        };
        // The owner's flights wait for no fill at another node, and neither does a copy.
        self.flights.fly((id, Role::Primary), copy).await.1?;
        Ok(self.offers(id, &item.columns))
    }
}

impl Parts {
    async fn copy(
        self,
        from: &str,
        item: &v1::CopyItem,
        allowed: impl Fn(&str) -> Result<()> + Send + 'static,
    ) -> Result<Option<ReadySegment>> {
        let (prefetch, urgency) = (&self.memory.prefetch, &Urgency::prefetch());
        let copied = self.peers.copy(from, item, |bytes| prefetch.hold(bytes, urgency)).await?;
        let (origin, batch, room) = copied;
        let parts = self.clone();
        let written = blocking(move || {
            allowed(&origin.object)?;
            let role = parts.ownership.role(origin.id);
            let written = parts.disk.write(&origin, &batch, Admit::IfFree, role);
            drop((batch, room));
            written
        });
        Ok(match written.await?? {
            Written::Stored(ready) => Some(ready),
            Written::NotWorthIt | Written::NoRoom => None,
        })
    }

    fn file_of(&self, id: SegmentId, columns: &[String]) -> Result<(Encoded, MemoryGuard)> {
        let lacks = || Error::not_found(format!("segment {id} is not held here"));
        let look = self.look(id, columns.to_vec());
        if !look.missing.is_empty() {
            return Err(lacks());
        }
        let origin = self.disk.copies().origin(id).or_else(|| self.transit.origin(id)).ok_or_else(lacks)?;
        let field = |c: &String| {
            let found = look.found.iter().find_map(|p| p.batch.schema().field_with_name(c).ok().cloned());
            found.ok_or_else(lacks)
        };
        let fields = columns.iter().map(field).collect::<Result<Vec<_>>>()?;
        let rows = look.found.first().map_or(0, |p| p.batch.num_rows() as u64);
        let wanted: SchemaRef = Arc::new(Schema::new(fields));
        self.encode(&origin, &compose(&wanted, &look.found, rows)?)
    }

    /// As a segment file. `Retry` if the one behind it changed meanwhile.
    fn encode(&self, origin: &Origin, ready: &ReadySegment) -> Result<(Encoded, MemoryGuard)> {
        let encoded = Encoded::new(origin, &ready.batch)?;
        match ready.verify() {
            true => Ok((encoded, ready.guard.clone())),
            false => Err(Error::retry(format!("segment {} changed while it was read", origin.id))),
        }
    }
}
