//! **The** read path: a segment from the disk cache or from memory, or filled from its object, once.
//!
//! A read looks on disk and into the memory tier; what it does not find it fills, as the one who leads or by
//! waiting for another's fill. A fill asks other nodes for a copy, or else fetches and decodes the columns
//! that are missing; then the segment goes where [`place`] says. Memory is bounded by [`Memory`]: a fill
//! waits for memory before it fetches anything, and one that nobody waits for again before it decodes.

use super::block::{Block, COLUMNS};
use super::fill::{Ahead, FillOutcome, Underway};
use super::lookup::{compose, origin};
use super::memory::{FillPermit, Memory, MemoryPermit};
use super::memory_tier::MemoryTier;
use super::placement::{Placement, place};
use super::plans::{Plans, ReadSpan};
use super::single_flight::{InFlight, SingleFlight, Turnout};
use crate::cluster::peers::{Content, Peers, WantedColumns};
use crate::disk::file::Origin;
use crate::disk::policy::{Admit, Refusal, Role};
use crate::disk::{DiskCache, Found, Written};
use crate::events::{Event, Events};
use crate::runtime::{blocking, given_up};
use forebay_dataset::stream::Reading;
use forebay_dataset::{ReadySegment, SegmentBatch, SegmentReader, Urgency};
use forebay_proto::manifest::SegmentId;
use forebay_proto::ring::is_under;
use forebay_proto::{Kind, Result};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::sync::broadcast;

/// Segments written that replication may be late for: beyond that it looks at all that are held.
const WRITTEN_MAX: usize = 4096;

/// The cache of one node.
pub struct Cache {
    pub(super) source: SegmentReader,
    pub(super) disk: Arc<DiskCache>,
    pub(super) events: Arc<Events>,
    pub(super) plans: Arc<Plans>,
    pub(super) memory: Memory,
    pub(super) peers: Arc<Peers>,
    /// Told of each segment that is written to disk.
    pub written: broadcast::Sender<SegmentId>,
    pub(super) memory_tier: MemoryTier,
    /// By this node's role when they began: an owner's fill waits for no other node's, so that none wait for
    /// each other in a circle.
    pub(super) fills: SingleFlight<(SegmentId, Role), FillOutcome, Underway>,
    /// Fetches from the object store, which wait for no other node: one of a segment, whatever the role.
    pub(super) fetches: SingleFlight<SegmentId, FillOutcome, Underway>,
    warned_full: AtomicBool,
}

impl Cache {
    /// A cache that fills `disk` from `peers` and `source` within `memory`. The disk cache was opened with
    /// `plans`.
    pub fn new(
        source: SegmentReader,
        disk: Arc<DiskCache>,
        events: Arc<Events>,
        plans: Arc<Plans>,
        memory: Memory,
        peers: Arc<Peers>,
    ) -> Arc<Self> {
        let memory_tier = MemoryTier::new(plans.clone(), memory.tier.clone());
        let written = broadcast::Sender::new(WRITTEN_MAX);
        let (fills, fetches) = (SingleFlight::default(), SingleFlight::default());
        let warned_full = AtomicBool::new(false);
        Arc::new(Self {
            source,
            disk,
            events,
            plans,
            memory,
            peers,
            written,
            memory_tier,
            fills,
            fetches,
            warned_full,
        })
    }

    /// A segment with the columns of `reading`. If a file that holds them is mapped and warm, it is found at
    /// once.
    #[tracing::instrument(level = "trace", skip_all)]
    pub async fn get(self: &Arc<Self>, reading: &Reading, segment: u32) -> Result<ReadySegment> {
        let id = reading.manifest.segment_id(segment)?;
        let columns: Vec<String> = reading.columns().cloned().collect();
        if let Some(ready) = self.disk.mapped(id, &columns) {
            self.events.record(Event::Hit);
            let rows = reading.manifest.segment(segment)?.total_rows;
            return compose(&reading.projected, &[ready], rows);
        }
        self.read(reading, segment, Ahead::demand(), None).await
    }

    /// Removes every segment of objects under a URI, from the disk and from memory. Returns how many files
    /// and bytes went.
    pub fn free(&self, uri: &str) -> (u64, u64) {
        self.memory_tier.forget(|origin| is_under(&origin.object, uri));
        self.disk.free(uri)
    }

    /// Removes segments likewise.
    pub fn free_segments(&self, ids: &[SegmentId]) -> (u64, u64) {
        let meant: HashSet<_> = ids.iter().collect();
        self.memory_tier.forget(|origin| meant.contains(&origin.id));
        self.disk.free_segments(ids)
    }

    /// Whether a read of the segment would fetch nothing. Does not touch the disk.
    pub fn has(&self, reading: &Reading, id: SegmentId) -> bool {
        let columns: Vec<String> = reading.columns().cloned().collect();
        let in_memory = |c: &String| self.memory_tier.find(id).iter().any(|p| p.batch.has(c));
        self.disk.holds(id, &columns)
            || columns.iter().all(|c| in_memory(c) || self.disk.holds(id, std::slice::from_ref(c)))
    }

    /// Whether a read of a block would fetch nothing. Does not touch the disk.
    pub fn holds_block(&self, block: &Block) -> bool {
        self.disk.holds(block.id(), &*COLUMNS) || !self.memory_tier.find(block.id()).is_empty()
    }

    /// Bytes of its object that a fill of a segment fetches.
    pub async fn fetch_bytes(&self, reading: &Reading, segment: u32) -> Result<u64> {
        let (manifest, demand) = (&reading.manifest, Urgency::demand());
        Ok(self.source.segment_cost(manifest, segment, &reading.projection, &demand).await?.fetched)
    }

    /// Makes a segment ready before anybody asks, with what `ahead` holds. Says whether it is held then: it
    /// may be that it could not be fetched, or that there is no place for it.
    pub async fn prefetch(self: &Arc<Self>, reading: &Reading, segment: u32, ahead: Ahead) -> bool {
        let done = self.read(reading, segment, ahead, None).await;
        done.is_ok() && reading.manifest.segment_id(segment).is_ok_and(|id| self.has(reading, id))
    }

    /// Reads a segment, in the role that this node has for it, or in another.
    #[tracing::instrument(level = "trace", skip_all)]
    pub async fn read(
        self: &Arc<Self>,
        reading: &Reading,
        segment: u32,
        ahead: Ahead,
        role: Option<Role>,
    ) -> Result<ReadySegment> {
        let id = reading.manifest.segment_id(segment)?;
        let rows = reading.manifest.segment(segment)?.total_rows;
        let is_prefetch = !ahead.urgency.is_demand();
        let report = |turnout| match (is_prefetch, turnout) {
            (false, None) => self.events.record(Event::Hit),
            (false, Some(turnout)) => self.events.record(Event::Miss(turnout)),
            (true, Some(Turnout::Leader)) => self.events.record(Event::Prefetched),
            (true, _) => {}
        };
        let (mut ahead, mut turnout) = (Some(ahead), None);
        loop {
            let (cache, columns) = (self.clone(), reading.columns().cloned().collect());
            let is_sparse = reading.is_sparse;
            let looked = blocking(move || {
                let found = cache.look(id, columns);
                if !is_sparse {
                    cache.disk.populate(id);
                }
                found
            });
            let Found { parts: mut found, missing } = match looked.await {
                // The directory that hangs is set aside: what lies in it is missing now.
                Err(e) if e.kind == Kind::Retry => continue,
                found => found?,
            };
            if missing.is_empty() {
                report(turnout);
                return compose(&reading.projected, &found, rows);
            }
            let role = role.unwrap_or_else(|| self.peers.ownership.role(id));
            let (now, filling) = self.join_or_lead(reading, segment, (id, role), &missing, &mut ahead);
            if !is_prefetch {
                filling.about.urgency.raise();
            }
            match filling.value.await? {
                FillOutcome::Filled(filled) => found.push(filled),
                FillOutcome::Retry => continue,
                // What could not be filled is another's: look again, and lead if need be.
                FillOutcome::Failed(_, columns) if columns.iter().any(|c| !missing.contains(c)) => continue,
                FillOutcome::Failed(e, _) => return Err(e),
            }
            // Led once is led; a join of another's columns may be followed by a lead for the rest.
            turnout = turnout.filter(|so_far| *so_far == Turnout::Leader).or(Some(now));
            if reading.columns().all(|c| found.iter().any(|p| p.batch.has(c))) {
                report(turnout);
                return compose(&reading.projected, &found, rows);
            }
        }
    }

    /// Joins the fill of a segment that is under way, or starts one of the missing columns, which takes
    /// `ahead`.
    fn join_or_lead(
        self: &Arc<Self>,
        reading: &Reading,
        segment: u32,
        key: (SegmentId, Role),
        missing: &[String],
        ahead: &mut Option<Ahead>,
    ) -> (Turnout, InFlight<FillOutcome, Underway>) {
        let urgency = ahead.as_ref().map_or_else(Urgency::demand, |ahead| ahead.urgency.clone());
        self.fills.join_or_lead(key, urgency.into(), || {
            let (ahead, columns) = (ahead.take().unwrap_or_else(Ahead::demand), missing.to_vec());
            let filled = self.clone().fill(reading.clone(), segment, columns.clone(), key.1, ahead);
            async move {
                Ok(match filled.await {
                    Ok(Some(ready)) => FillOutcome::Filled(ready),
                    Ok(None) => FillOutcome::Retry,
                    Err(e) => FillOutcome::Failed(e, columns),
                })
            }
        })
    }

    /// Joins the fill of a segment as its owner's, or leads it with other `work`: for copies that other nodes
    /// offer.
    pub(super) async fn fill_with<F>(
        &self,
        id: SegmentId,
        urgency: Urgency,
        work: impl FnOnce() -> F,
    ) -> Result<FillOutcome>
    where
        F: Future<Output = Result<FillOutcome>> + Send + 'static,
    {
        // The owner's fills wait for none at another node, and neither does a copy.
        self.fills.join_or_lead((id, Role::Primary), urgency.into(), work).1.value.await
    }

    /// The columns of a segment that are on disk or in memory. Touches the disk.
    pub(super) fn look(&self, id: SegmentId, columns: Vec<String>) -> Found {
        let mut found = self.disk.find(id, &columns);
        if !found.missing.is_empty() {
            self.memory_tier.find(id).into_iter().for_each(|ready| found.add(ready));
        }
        found
    }

    /// Whether nothing of a segment is held. Does not touch the disk.
    pub(super) fn lacks(&self, id: SegmentId) -> bool {
        !self.disk.holds(id, &[]) && self.memory_tier.find(id).is_empty()
    }

    /// Fetches, decodes and places columns of a segment; `None` if some of them are there now.
    #[tracing::instrument(level = "trace", skip_all)]
    async fn fill(
        self: Arc<Self>,
        reading: Reading,
        segment: u32,
        columns: Vec<String>,
        role: Role,
        ahead: Ahead,
    ) -> Result<Option<ReadySegment>> {
        let origin = origin(&reading.manifest, segment)?;
        let id = origin.id;
        // Only this fill leads now. Another may have ended between the look of this one's caller and its
        // lead.
        let (cache, wanted) = (self.clone(), columns.clone());
        let looked = blocking(move || cache.look(id, wanted)).await;
        if !given_up(looked, Found::default())?.parts.is_empty() {
            return Ok(None);
        }
        let wanted = WantedColumns {
            content: Content::Segment(&reading.manifest, segment),
            origin: &origin,
            columns: &columns,
            ask_owner: role == Role::Replica,
        };
        let (fills, urgency) = (&self.memory.fills, &ahead.urgency);
        match self.peers.fetch(&wanted, |bytes| fills.acquire_for_copy(bytes, urgency)).await? {
            Some((batch, filling)) => self.end_fill(origin, batch, ahead.tier, filling).await.map(Some),
            None => self.fetch_once(reading, segment, columns, ahead).await,
        }
    }

    /// Fetches columns of a segment from the object store and places them, or waits for the fetch that this
    /// node began in its other role: when a node dies, others fetch its segments and become their owners
    /// meanwhile. `None` if that one failed, and was of other columns.
    async fn fetch_once(
        self: Arc<Self>,
        reading: Reading,
        segment: u32,
        columns: Vec<String>,
        ahead: Ahead,
    ) -> Result<Option<ReadySegment>> {
        let origin = origin(&reading.manifest, segment)?;
        let (id, urgency, wanted) = (origin.id, ahead.urgency.clone(), columns.clone());
        let (turnout, fetch) = self.fetches.join_or_lead(id, urgency.clone().into(), || {
            let cache = self.clone();
            async move {
                let fetched = match cache.fetch(&reading, segment, &columns, &ahead).await {
                    Ok((batch, filling)) => cache.end_fill(origin, batch, ahead.tier, filling).await,
                    Err(e) => Err(e),
                };
                Ok(match fetched {
                    Ok(ready) => FillOutcome::Filled(ready),
                    Err(e) => FillOutcome::Failed(e, columns),
                })
            }
        });
        if turnout == Turnout::Follower {
            tokio::select! {
                biased;
                () = urgency.raised() => fetch.about.urgency.raise(),
                _ = fetch.value.clone() => {}
            }
        }
        match fetch.value.await? {
            FillOutcome::Filled(ready) => Ok(Some(ready)),
            FillOutcome::Failed(e, failed) if failed == wanted => Err(e),
            _ => Ok(None),
        }
    }

    /// Puts what a fill brought where it belongs.
    pub(super) async fn end_fill(
        self: &Arc<Self>,
        origin: Origin,
        batch: SegmentBatch,
        tier: Option<MemoryPermit>,
        filling: FillPermit,
    ) -> Result<ReadySegment> {
        let (cache, id, spare) = (self.clone(), origin.id, batch.clone());
        match blocking(move || cache.put(&origin, batch, tier, filling)).await {
            // Nobody waits for a disk that hangs while it is written.
            Err(e) if e.kind == Kind::Retry => Ok(self.serve_once(id, spare)),
            placed => placed?,
        }
    }

    /// Fetches and decodes columns of a segment from the object store, and holds memory for them.
    #[tracing::instrument(level = "trace", skip_all)]
    async fn fetch(
        &self,
        reading: &Reading,
        segment: u32,
        columns: &[String],
        ahead: &Ahead,
    ) -> Result<(SegmentBatch, FillPermit)> {
        let index = |c: &String| reading.schema.index_of(c).ok();
        let projection: Vec<usize> = columns.iter().filter_map(index).collect();
        let (manifest, urgency) = (&reading.manifest, &ahead.urgency);
        let cost = self.source.segment_cost(manifest, segment, &projection, urgency).await?;
        let memory = self.memory.fetching(&cost, urgency).await;
        let decoding = || memory.decoding();
        let (batch, filling) = match ahead.run.as_ref().filter(|_| *projection == *reading.projection) {
            Some(run) => run.read(segment, urgency, decoding).await?,
            None => {
                self.source.read_segment_within(manifest, segment, &projection, urgency, decoding).await?
            }
        };
        Ok((SegmentBatch::pack_aside(batch).await?, filling))
    }

    /// Puts a filled segment on disk or into memory. Touches the disk.
    #[tracing::instrument(level = "trace", skip_all)]
    fn put(
        &self,
        origin: &Origin,
        batch: SegmentBatch,
        tier: Option<MemoryPermit>,
        mut filling: FillPermit,
    ) -> Result<ReadySegment> {
        // A footer may say less than the segment has: the rest counts too.
        let bytes = batch.memory_bytes() as u64;
        filling.resize(bytes);
        let id = origin.id;
        let span = Arc::new(self.plans.read_span(id));
        // On disk it would be needed only after the reads that it was filled for: memory can serve those. But
        // not if other columns of it are read from disk.
        if !self.disk.holds(id, &[]) {
            self.plans.keep_in_memory(id, span.clone());
        }
        let mut stored = self.write(origin, &batch, Admit::IfWorthIt);
        let refused = match &stored {
            Ok(Written::Stored(_)) => None,
            Ok(Written::Refused(why)) => Some(*why),
            Err(_) => Some(Refusal::NoRoom),
        };
        let mut permit = tier;
        let has_room = || {
            permit = permit.take().or_else(|| self.memory_tier.permit(bytes));
            permit.is_some()
        };
        let placement = place(refused, !span.is_empty() && stored.is_ok(), has_room);
        if let (Placement::InMemory, Some(permit)) = (placement, permit) {
            return Ok(self.keep_in_memory(origin, batch, span, permit, filling));
        }
        self.plans.left_memory(id);
        if placement == Placement::OnDiskAnyway {
            stored = self.write(origin, &batch, Admit::Always);
        }
        match stored? {
            Written::Stored(ready) => {
                // Nobody may listen.
                self.written.send(id).ok();
                Ok(ready)
            }
            Written::Refused(_) => Ok(self.serve_once(id, batch)),
        }
    }

    fn write(&self, origin: &Origin, batch: &SegmentBatch, admit: Admit) -> Result<Written> {
        self.disk.write(origin, batch, admit, self.peers.ownership.role(origin.id))
    }

    fn keep_in_memory(
        &self,
        origin: &Origin,
        batch: SegmentBatch,
        span: Arc<ReadSpan>,
        mut permit: MemoryPermit,
        filling: FillPermit,
    ) -> ReadySegment {
        // A prefetch took memory for what the manifest says of all columns.
        permit.resize(filling.bytes());
        drop(filling);
        self.events.record(Event::KeptInMemory);
        self.memory_tier.put(origin, batch, span, permit)
    }

    /// A segment that has no place anywhere.
    fn serve_once(&self, id: SegmentId, batch: SegmentBatch) -> ReadySegment {
        self.events.record(Event::Unplaced);
        let tier = &self.memory.tier;
        let permit = tier.acquire_now(batch.memory_bytes() as u64);
        if tier.used() > tier.limit() && !self.warned_full.swap(true, Relaxed) {
            tracing::warn!(
                segment = %id,
                "neither the cache nor memory has room for segments being read: they are fetched again when they are \
                 needed again; a larger --memory-bytes or --cache-bytes, or a smaller window, helps"
            );
        }
        ReadySegment::in_memory(Arc::new(batch), Some(Arc::new(permit)))
    }

    /// Stores a copy that came from another node, into free room only; `None` if there is none.
    pub(super) fn take(&self, origin: &Origin, batch: &SegmentBatch) -> Result<Option<ReadySegment>> {
        Ok(match self.write(origin, batch, Admit::IfFree)? {
            Written::Stored(ready) => Some(ready),
            Written::Refused(_) => None,
        })
    }
}

#[cfg(test)]
mod tests;
