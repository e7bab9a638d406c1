//! Copies for other nodes, and from them ahead of any demand.

use super::{Cache, Parts, blocking, compose};
use crate::room::Held;
use crate::store::Written;
use crate::store::file::{Encoded, Origin};
use crate::store::policy::{Admit, Role};
use arrow::datatypes::{Schema, SchemaRef};
use forebay_proto::manifest::SegmentId;
use forebay_proto::{Error, Result, v1};
use forebay_segment::answer::{Guard, Reading, Ready};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Segments that are remembered at most: beyond that a look at the whole store finds the rest.
const STORED_MAX: usize = 64 << 10;

/// Segments that were stored since somebody looked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stored(Arc<(Mutex<HashSet<SegmentId>>, Notify)>);

impl Stored {
    pub fn note(&self, id: SegmentId) {
        let mut stored = self.lock();
        if stored.len() < STORED_MAX {
            stored.insert(id);
        }
        drop(stored);
        self.0.1.notify_one();
    }

    /// Waits until there are some, and takes them.
    pub async fn take(&self) -> HashSet<SegmentId> {
        loop {
            let stored = self.take_now();
            if !stored.is_empty() {
                return stored;
            }
            self.0.1.notified().await;
        }
    }

    /// Those that there are now.
    pub fn take_now(&self) -> HashSet<SegmentId> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<SegmentId>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    /// Whether another node could have these columns at once. Does not touch the disk.
    pub(crate) fn offers(&self, id: SegmentId, columns: &[String]) -> bool {
        self.parts.store.holds(id, columns)
    }

    /// Columns of a segment for another node and what must live as long as they do, from what is held; `NotFound` if something is missing.
    pub(crate) async fn held_file(&self, id: SegmentId, columns: Vec<String>) -> Result<(Encoded, Guard)> {
        let parts = self.parts.clone();
        blocking(move || parts.file_of(id, &columns)).await?
    }

    /// The same of a segment that this node owns, filled if need be.
    pub(crate) async fn filled_file(&self, reading: &Reading, segment: u32) -> Result<(Encoded, Guard)> {
        let (manifest, columns) = (&reading.manifest, reading.columns().cloned().collect::<Vec<_>>());
        let s = manifest.segment(segment)?;
        let object = &manifest.objects()[s.object as usize];
        let id = manifest.segment_id(segment)?;
        let origin = Origin { id, object: manifest.object_uri(object), etag: object.etag.clone() };
        if self.parts.peers.role(id, &origin.object) != Role::Primary && !self.offers(id, &columns) {
            return Err(Error::invalid("this node is not the segment's owner, and does not hold it"));
        }
        let ready = self.read(reading, segment, None).await?;
        let parts = self.parts.clone();
        blocking(move || parts.encode(&origin, &ready)).await?
    }

    /// Takes a copy of a file that another node offers, if there is free room for it; whether it is held then. `allowed`
    /// says which objects may be here at all.
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
        if self.parts.store.free_bytes() < item.bytes {
            return Ok(false);
        }
        let room = self.parts.memory.prefetch.hold(item.bytes).await;
        let (parts, from, wanted) = (self.parts.clone(), from.to_owned(), item.clone());
        let copy = || async move { parts.copy(&from, &wanted, allowed, room).await };
        self.flights.fly(id, copy).await.1?;
        Ok(self.offers(id, &item.columns))
    }
}

impl Parts {
    async fn copy(
        self,
        from: &str,
        item: &v1::CopyItem,
        allowed: impl Fn(&str) -> Result<()> + Send + 'static,
        room: Held,
    ) -> Result<Option<Ready>> {
        let (origin, batch) = self.peers.copy(from, item).await?;
        allowed(&origin.object)?;
        let written = blocking(move || {
            let role = self.peers.role(origin.id, &origin.object);
            let written = self.store.write(&origin, &batch, Admit::IfFree, role);
            drop((batch, room));
            written
        });
        Ok(match written.await?? {
            Written::Mapped(mapped) => Some(mapped.into()),
            Written::NotWorthIt | Written::NoRoom => None,
        })
    }

    fn file_of(&self, id: SegmentId, columns: &[String]) -> Result<(Encoded, Guard)> {
        let lacks = || Error::not_found(format!("segment {id} is not held here"));
        let look = self.look(id, columns.to_vec());
        if !look.missing.is_empty() {
            return Err(lacks());
        }
        let origin = self.store.origin(id).or_else(|| self.transit.origin(id)).ok_or_else(lacks)?;
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
    fn encode(&self, origin: &Origin, ready: &Ready) -> Result<(Encoded, Guard)> {
        let encoded = Encoded::new(origin, &ready.batch)?;
        match self.store.is_sound(&ready.batch) {
            true => Ok((encoded, ready.guard.clone())),
            false => Err(Error::retry(format!("segment {} changed while it was read", origin.id))),
        }
    }
}
