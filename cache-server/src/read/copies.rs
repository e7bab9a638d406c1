//! Segments for other nodes, and from them ahead of any demand.

use super::block::{Block, columns};
use super::block_reader::BlockReader;
use super::cache::Cache;
use super::fill::{Ahead, FillOutcome};
use super::lookup::{compose, origin};
use crate::disk::Found;
use crate::disk::file::{Encoded, Origin};
use crate::disk::policy::Role;
use crate::runtime::blocking;
use arrow::datatypes::{Schema, SchemaRef};
use forebay_dataset::stream::Reading;
use forebay_dataset::{MemoryGuard, ReadySegment, Urgency};
use forebay_proto::manifest::{Digest, SegmentId};
use forebay_proto::{Error, Kind, Result, v1};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long a node that asks for a copy waits for a fetch that is under way, at most: well below the time
/// after which it takes this node for silent.
const COMING: Duration = Duration::from_millis(500);

/// What a node gives to others and takes from them. Cheap to clone.
#[derive(Clone)]
pub struct SegmentExchange(pub Arc<Cache>);

impl SegmentExchange {
    /// Whether another node could have these columns at once. Does not touch the disk.
    pub fn offers(&self, id: SegmentId, columns: &[String]) -> bool {
        self.0.disk.holds(id, columns)
    }

    /// The same, or a moment later: a fetch of the segment that is under way is waited for. As nodes come and
    /// go, the next owner must not fetch what this node is about to have.
    pub async fn offers_soon(&self, id: SegmentId, columns: &[String]) -> bool {
        if !self.offers(id, columns)
            && let Some(fetch) = self.0.fetches.under_way(&id)
        {
            timeout(COMING, fetch.value).await.ok();
        }
        self.offers(id, columns)
    }

    /// Columns of a segment for another node, and what must live as long as they do, if they are held;
    /// `NotFound` if one is missing.
    pub async fn held_file(&self, id: SegmentId, columns: Vec<String>) -> Result<(Encoded, MemoryGuard)> {
        let cache = self.0.clone();
        blocking(move || file_of(&cache, id, &columns)).await?
    }

    /// The same of a segment that this node owns, filled if need be.
    pub async fn filled_file(&self, reading: &Reading, segment: u32) -> Result<(Encoded, MemoryGuard)> {
        let columns: Vec<String> = reading.columns().cloned().collect();
        let origin = origin(&reading.manifest, segment)?;
        self.check_owner(origin.id, &columns)?;
        let ready = self.0.read(reading, segment, Ahead::demand(), Some(Role::Primary)).await?;
        blocking(move || encode(&origin, &ready)).await?
    }

    /// The same of a raw block.
    pub async fn filled_block(&self, block: Block) -> Result<(Encoded, MemoryGuard)> {
        self.check_owner(block.id(), &columns())?;
        let mut is_second = false;
        loop {
            let ready = BlockReader::as_owner(&self.0, block.clone()).whole().await?;
            let origin = block.origin();
            match blocking(move || encode(&origin, &ready)).await.and_then(|encoded| encoded) {
                // Its file was changed, or lies on a disk that hangs: it is missing now.
                Err(e) if e.kind == Kind::Retry && !is_second => is_second = true,
                encoded => return encoded,
            }
        }
    }

    fn check_owner(&self, id: SegmentId, columns: &[String]) -> Result<()> {
        let is_owner = self.0.peers.ownership.role(id) == Role::Primary;
        match is_owner || self.offers(id, columns) {
            true => Ok(()),
            false => Err(Error::invalid("this node is not the segment's owner, and does not hold it")),
        }
    }

    /// Takes a copy of a file that another node offers, if there is free room for it; whether it is held
    /// then. `allowed` says which objects may be here at all.
    pub async fn take_copy(
        &self,
        from: &str,
        item: &v1::CopyItem,
        allowed: impl Fn(&str) -> Result<()> + Send + 'static,
    ) -> Result<bool> {
        let id = SegmentId(Digest::from_bytes(&item.segment)?);
        if self.offers(id, &item.columns) {
            return Ok(true);
        }
        if !self.0.disk.has_room(None, [item.bytes]) {
            return Ok(false);
        }
        let (own, from, wanted, urgency) = (self.clone(), from.to_owned(), item.clone(), Urgency::prefetch());
        let hurried = urgency.clone();
        let copy = || async move {
            // Others who wait for it too look again, and get it elsewhere.
            let copied = own.copy(&from, &wanted, &hurried, allowed).await.unwrap_or_else(|e| {
                tracing::debug!(error = %e, from, "a copy did not come");
                None
            });
            Ok(copied.map_or(FillOutcome::Retry, FillOutcome::Filled))
        };
        self.0.fill_with(id, urgency, copy).await?;
        Ok(self.offers(id, &item.columns))
    }

    async fn copy(
        &self,
        from: &str,
        item: &v1::CopyItem,
        urgency: &Urgency,
        allowed: impl Fn(&str) -> Result<()> + Send + 'static,
    ) -> Result<Option<ReadySegment>> {
        // Like any prefetch a copy has its share of the fills.
        let hold = |bytes| self.0.memory.fills.acquire(bytes, urgency);
        let (origin, batch, memory) = self.0.peers.copy(from, item, hold).await?;
        let cache = self.0.clone();
        let written = blocking(move || {
            allowed(&origin.object)?;
            let taken = cache.take(&origin, &batch);
            drop((batch, memory));
            taken
        });
        written.await?
    }
}

fn file_of(cache: &Cache, id: SegmentId, columns: &[String]) -> Result<(Encoded, MemoryGuard)> {
    let lacks = || Error::not_found(format!("segment {id} is not held here"));
    let Found { parts: found, missing } = cache.look(id, columns.to_vec());
    if !missing.is_empty() {
        return Err(lacks());
    }
    let origin = cache.disk.copies().origin(id).or_else(|| cache.memory_tier.origin(id)).ok_or_else(lacks)?;
    let field = |c: &String| {
        let field = found.iter().find_map(|p| p.batch.schema().field_with_name(c).ok().cloned());
        field.ok_or_else(lacks)
    };
    let fields = columns.iter().map(field).collect::<Result<Vec<_>>>()?;
    let rows = found.first().map_or(0, |p| p.batch.num_rows() as u64);
    let wanted: SchemaRef = Arc::new(Schema::new(fields));
    encode(&origin, &compose(&wanted, &found, rows)?)
}

/// As a segment file. `Retry` if the file behind it changed meanwhile.
fn encode(origin: &Origin, ready: &ReadySegment) -> Result<(Encoded, MemoryGuard)> {
    let encoded = Encoded::new(origin, &ready.batch)?;
    match ready.verify() {
        true => Ok((encoded, ready.guard.clone())),
        false => Err(Error::retry(format!("segment {} changed while it was read", origin.id))),
    }
}

#[cfg(test)]
mod tests;
