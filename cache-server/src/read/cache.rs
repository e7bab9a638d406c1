//! **The** read path: a segment from the disk cache, or filled from its object, once.
//!
//! `get`: disk cache -> segments in transit -> single flight -> another node's copy, or source (fetch and
//! decode) -> disk cache. What is not worth storing is served from memory until every stream of its plan has
//! passed it (`transit`). Of a segment whose columns are partly held, only the missing ones are fetched.
//! Memory is bounded by [`Memory`]: a fill waits for room before it fetches anything, and holds nothing else
//! then; a segment for which transit has no room is stored all the same, so that it is not fetched twice.

mod copies;
mod transit;

use crate::cluster::ownership::Ownership;
use crate::cluster::peers::{Peers, WantedColumns};
use crate::disk::file::Origin;
use crate::disk::policy::{Admit, Role};
use crate::disk::{DiskCache, Written};
use crate::events::{Event, Events};
use crate::read::budget::Held;
use crate::read::memory::Memory;
use crate::read::plans::Plans;
use crate::read::single_flight::{Flights, Seat};
use crate::runtime::blocking;
use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema, SchemaRef};
pub(crate) use copies::Stored;
use forebay_dataset::ready::memory_bytes;
use forebay_dataset::stream::{Reading, Segments};
use forebay_dataset::{ReadySegment, SegmentReader, Urgency, schema};
use forebay_proto::manifest::{Manifest, SegmentId};
use forebay_proto::{Error, Result};
use futures::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use transit::Transit;

/// The cache of one node.
pub struct Cache {
    /// By this node's role when they took off: an owner's flight waits for no other node's, so that none wait
    /// for each other in a circle.
    flights: Flights<(SegmentId, Role), Landed>,
    /// The fills that nobody waited for when they began.
    prefetches: Mutex<HashMap<SegmentId, Urgency>>,
    parts: Parts,
}

/// A fill's outcome, for all who wait for it, whichever columns they want.
#[derive(Clone)]
enum Landed {
    /// These columns.
    Filled(ReadySegment),
    /// None: some of them were found just before it began, or a copy of them did not come.
    Elsewhere,
    /// These columns could not be filled. That says nothing of others.
    Failed(Error, Vec<String>),
}

impl Landed {
    /// What came of filling `columns`.
    fn of(filled: Result<Option<ReadySegment>>, columns: Vec<String>) -> Self {
        match filled {
            Ok(Some(ready)) => Self::Filled(ready),
            Ok(None) => Self::Elsewhere,
            Err(e) => Self::Failed(e, columns),
        }
    }
}

/// How a fill is wanted.
struct Wish {
    /// The node's role for the segment.
    role: Role,
    ahead: Prefetch,
}

/// A read ahead of any demand.
struct Prefetch {
    urgency: Urgency,
    /// Its part of the memory that prefetches may use for fills; none where somebody waits for it.
    share: Option<Held>,
    /// Memory to keep the segment in if it is not worth storing.
    room: Option<Held>,
}

impl Prefetch {
    /// None: somebody waits for the segment.
    fn none() -> Self {
        Self { urgency: Urgency::demand(), share: None, room: None }
    }

    /// Makes its share what the fill really costs. For more than it has it waits, holding nothing meanwhile;
    /// as soon as somebody waits for the segment it needs none, also while it waits: what others hold may be
    /// for segments that wait for this one, at another node.
    async fn take_share(&mut self, bytes: u64, memory: &Memory) {
        let Some(mut share) = self.share.take().filter(|_| !self.urgency.is_demand()) else { return };
        if bytes > share.bytes() {
            drop(share);
            share = tokio::select! {
                biased;
                () = self.urgency.raised() => return,
                share = memory.prefetch.hold(bytes, &self.urgency) => share,
            };
        } else {
            share.resize(bytes);
        }
        self.share = Some(share);
    }
}

/// What a fill works with.
#[derive(Clone)]
struct Parts {
    source: SegmentReader,
    disk: Arc<DiskCache>,
    events: Arc<Events>,
    plans: Arc<Plans>,
    memory: Memory,
    ownership: Arc<Ownership>,
    peers: Arc<Peers>,
    stored: Stored,
    transit: Arc<Transit>,
    overfull: Arc<AtomicBool>,
}

/// What a look found.
struct Look {
    found: Vec<ReadySegment>,
    missing: Vec<String>,
}

impl Cache {
    /// A cache that fills `disk` from `peers` and `source` within `memory`; `plans` is what the disk cache
    /// was opened with.
    pub fn new(
        source: SegmentReader,
        disk: Arc<DiskCache>,
        events: Arc<Events>,
        plans: Arc<Plans>,
        memory: Memory,
        peers: Arc<Peers>,
    ) -> Self {
        let transit = Arc::new(Transit::new(plans.clone(), memory.transit.clone()));
        let (overfull, stored) = (Arc::default(), Stored::default());
        let ownership = peers.ownership().clone();
        let parts =
            Parts { source, disk, events, plans, memory, ownership, peers, stored, transit, overfull };
        Self { flights: Flights::default(), prefetches: Mutex::default(), parts }
    }

    /// The disk cache behind it.
    pub fn disk(&self) -> &Arc<DiskCache> {
        &self.parts.disk
    }

    /// The source behind it.
    pub fn source(&self) -> &SegmentReader {
        &self.parts.source
    }

    /// The announced plans.
    pub fn plans(&self) -> &Arc<Plans> {
        &self.parts.plans
    }

    /// What was stored lately.
    pub(crate) fn stored(&self) -> &Stored {
        &self.parts.stored
    }

    /// The memory it uses.
    pub fn memory(&self) -> &Memory {
        &self.parts.memory
    }

    /// Whether a read of the segment would fetch nothing. Does not touch the disk.
    pub(crate) fn has(&self, reading: &Reading, id: SegmentId) -> bool {
        let columns: Vec<String> = reading.columns().cloned().collect();
        let in_transit =
            |c: &String| self.parts.transit.find(id).iter().any(|p| p.batch.column_by_name(c).is_some());
        self.parts.disk.holds(id, &columns)
            || columns.iter().all(|c| in_transit(c) || self.parts.disk.holds(id, std::slice::from_ref(c)))
    }

    /// Memory for a segment that may not be worth storing, if there is some at once.
    pub(crate) fn transit_room(&self, bytes: u64) -> Option<Held> {
        self.parts.transit.room(bytes)
    }

    /// Lets go of segments that no stream needs any more. Not for an async thread.
    pub(crate) fn sweep(&self) {
        self.parts.transit.sweep();
    }

    /// Makes a segment ready before anybody asks; `share` is a part of the memory for prefetches, `room` is
    /// memory to keep the segment in if it is not worth storing. Answers whether it is held then: it may be
    /// that it could not be fetched, or that there is no place for it.
    pub(crate) async fn prefetch(
        &self,
        reading: &Reading,
        segment: u32,
        share: Held,
        room: Option<Held>,
    ) -> bool {
        let Ok(id) = reading.manifest.segment_id(segment) else { return false };
        let urgency = Urgency::prefetch();
        self.prefetches().insert(id, urgency.clone());
        let ahead = Prefetch { urgency, share: Some(share), room };
        let done = self.read(reading, segment, Some(ahead), None).await;
        self.prefetches().remove(&id);
        done.is_ok() && self.has(reading, id)
    }

    /// Reads a segment on demand. `urgency` counts the bytes that it fetches from the object store.
    pub(crate) async fn get_counted(
        &self,
        reading: &Reading,
        segment: u32,
        urgency: &Urgency,
    ) -> Result<ReadySegment> {
        let demand = Prefetch { urgency: urgency.clone(), share: None, room: None };
        self.read(reading, segment, Some(demand), None).await
    }

    fn prefetches(&self) -> MutexGuard<'_, HashMap<SegmentId, Urgency>> {
        self.prefetches.lock()
    }

    /// Reads a segment, as whatever this node is to it, or in a `role`.
    async fn read(
        &self,
        reading: &Reading,
        segment: u32,
        mut prefetch: Option<Prefetch>,
        role: Option<Role>,
    ) -> Result<ReadySegment> {
        let id = reading.manifest.segment_id(segment)?;
        let rows = reading.manifest.segment(segment)?.total_rows;
        let is_prefetch = prefetch.as_ref().is_some_and(|prefetch| prefetch.share.is_some());
        let mut seat = None;
        loop {
            let (parts, columns) = (self.parts.clone(), reading.columns().cloned().collect());
            let Look { mut found, missing } = blocking(move || parts.look(id, columns)).await?;
            if missing.is_empty() {
                if !is_prefetch || seat.is_some() {
                    self.parts.events.record(seat.map_or(Event::Hit, Event::Miss));
                }
                return compose(&reading.projected, &found, rows);
            }
            let role = match role {
                Some(role) => role,
                None => self.parts.ownership.role(id),
            };
            let wanted = missing.clone();
            let fill = || {
                let wish = Wish { role, ahead: prefetch.take().unwrap_or_else(Prefetch::none) };
                let filled = self.parts.clone().fill(reading.clone(), segment, missing.clone(), wish);
                async move { Ok(Landed::of(filled.await, missing)) }
            };
            let (now, landing) = self.flights.board((id, role), fill);
            if let Some(joined) = &mut prefetch {
                // Another's flight has memory of its own, or waits for what is held here.
                joined.share = None;
            }
            if !is_prefetch && let Some(urgency) = self.prefetches().get(&id) {
                urgency.raise();
            }
            let filled = match landing.await? {
                Landed::Filled(filled) => filled,
                // Another flight landed between the look into the disk cache and the take-off. Look again.
                Landed::Elsewhere => continue,
                // What could not be filled is another's: look again, and lead if need be.
                Landed::Failed(_, columns) if columns.iter().any(|c| !wanted.contains(c)) => continue,
                Landed::Failed(e, _) => return Err(e),
            };
            // Led once is led; a join of another's columns may be followed by a lead for the rest.
            seat = Some(if seat == Some(Seat::Led) { Seat::Led } else { now });
            found.push(filled);
            if reading.columns().all(|c| found.iter().any(|p| p.batch.column_by_name(c).is_some())) {
                match (is_prefetch, seat) {
                    (true, Some(Seat::Joined)) => {}
                    (true, _) => self.parts.events.record(Event::Prefetched),
                    (false, _) => self.parts.events.record(Event::Miss(seat.unwrap_or(now))),
                }
                return compose(&reading.projected, &found, rows);
            }
        }
    }
}

impl Parts {
    /// What is there of these columns. Touches the disk.
    fn look(&self, id: SegmentId, columns: Vec<String>) -> Look {
        let stored = self.disk.find(id, &columns);
        let mut look = Look { found: stored.parts, missing: stored.missing };
        if !look.missing.is_empty() {
            for ready in self.transit.find(id) {
                let has = |c: &String| ready.batch.column_by_name(c).is_some();
                if look.missing.iter().any(has) {
                    look.missing.retain(|c| !has(c));
                    look.found.push(ready);
                }
            }
        }
        look
    }

    /// Fetches, decodes and stores columns of a segment; `None` if some of them are there by now.
    async fn fill(
        self,
        reading: Reading,
        segment: u32,
        columns: Vec<String>,
        Wish { role, mut ahead }: Wish,
    ) -> Result<Option<ReadySegment>> {
        let manifest = &reading.manifest;
        let origin = origin(manifest, segment)?;
        let id = origin.id;
        // Only now is this the one flight for the segment: whoever looked before may have looked too early.
        let (again, wanted) = (self.clone(), columns.clone());
        if !blocking(move || again.look(id, wanted)).await?.found.is_empty() {
            return Ok(None);
        }
        let wanted = WantedColumns {
            manifest,
            segment,
            origin: &origin,
            columns: &columns,
            ask_owner: role == Role::Replica,
        };
        let (fills, urgency) = (&self.memory.fills, &ahead.urgency);
        let (batch, filling) = match self.peers.fetch(&wanted, |bytes| fills.hold(bytes, urgency)).await? {
            Some(copy) => copy,
            None => {
                let index = |c: &String| reading.schema.index_of(c).ok();
                let projection: Vec<usize> = columns.iter().filter_map(index).collect();
                let urgency = ahead.urgency.clone();
                let cost = self.source.segment_cost(manifest, segment, &projection, &urgency).await?;
                ahead.take_share(cost.total(), &self.memory).await;
                let filling = self.memory.fills.hold(cost.total(), &urgency).await;
                (self.source.read_segment(manifest, segment, &projection, &urgency).await?, filling)
            }
        };
        let Prefetch { share, room, .. } = ahead;
        let kept = blocking(move || self.keep(&origin, batch, room, filling).map(Some)).await?;
        drop(share);
        kept
    }

    /// Stores what was filled, or keeps it in memory, or does neither.
    fn keep(
        &self,
        origin: &Origin,
        batch: RecordBatch,
        room: Option<Held>,
        mut filling: Held,
    ) -> Result<ReadySegment> {
        // A footer may say less than there is: then what is beyond it counts too.
        let bytes = memory_bytes(&batch) as u64;
        filling.resize(bytes);
        let (id, role) = (origin.id, self.ownership.role(origin.id));
        let pass = Arc::new(self.plans.pass(id));
        // In the disk cache it would be needed only after the turn that it was filled for: memory can serve
        // that. But not if other columns of it are read from the disk cache.
        if !self.disk.holds_any(id) {
            self.plans.keep_in_memory(id, pass.clone());
        }
        let kept = self.disk.write(origin, &batch, Admit::IfWorthIt, role);
        if let Ok(Written::Stored(ready)) = kept {
            self.plans.left_memory(id);
            self.events.record(Event::Stored);
            self.stored.note(id);
            return Ok(ready);
        }
        if !pass.is_empty()
            && kept.is_ok()
            && let Some(mut held) = room.or_else(|| self.transit.room(bytes))
        {
            // A prefetch held room for what the manifest says of all columns.
            held.resize(bytes);
            self.events.record(Event::Bypassed);
            drop(filling);
            return Ok(self.transit.put(origin, batch, pass, held));
        }
        self.plans.left_memory(id);
        // A turn as long as the epoch would only push out others that are read as soon: still better than
        // memory without bounds.
        let transit = &self.memory.transit;
        let is_short = transit.used_bytes().saturating_add(bytes) > transit.limit_bytes();
        if matches!(kept?, Written::NotWorthIt)
            && !pass.is_empty()
            && (!pass.is_whole() || is_short)
            && let Written::Stored(ready) = self.disk.write(origin, &batch, Admit::Always, role)?
        {
            self.events.record(Event::Stored);
            self.stored.note(id);
            return Ok(ready);
        }
        self.events.record(Event::Bypassed);
        let held = self.memory.transit.hold_anyway(bytes);
        let is_over = self.memory.transit.used_bytes() > self.memory.transit.limit_bytes();
        if is_over && !self.overfull.swap(true, Relaxed) {
            tracing::warn!(
                segment = %id,
                "neither the cache nor memory has room for segments being read: they are fetched again when they are \
                 needed again; a larger --memory-bytes or --cache-bytes, or a smaller window, helps"
            );
        }
        Ok(ReadySegment::in_memory(Arc::new(batch), Some(Arc::new(held))))
    }
}

impl Segments for Cache {
    fn get<'a>(&'a self, reading: &'a Reading, segment: u32) -> BoxFuture<'a, Result<ReadySegment>> {
        Box::pin(self.read(reading, segment, None, None))
    }
}

/// Which object version a segment of a dataset is of.
fn origin(manifest: &Manifest, segment: u32) -> Result<Origin> {
    let object = &manifest.objects()[manifest.segment(segment)?.object as usize];
    let id = manifest.segment_id(segment)?;
    Ok(Origin { id, object: manifest.object_uri(object), etag: object.etag.clone() })
}

/// The wanted columns out of parts that hold them all.
fn compose(wanted: &SchemaRef, parts: &[ReadySegment], rows: u64) -> Result<ReadySegment> {
    if let [only] = parts
        && only.batch.schema().fields() == wanted.fields()
    {
        return Ok(only.clone());
    }
    let unfit = |e| Error::corrupt(format!("the stored columns do not fit the dataset's schema: {e}"));
    let column = |wanted: &Field| {
        let found = parts.iter().find_map(|p| p.batch.column_by_name(wanted.name()).cloned());
        let found = found.ok_or_else(|| {
            Error::corrupt(format!("column `{}` vanished while it was read", wanted.name()))
        })?;
        // A segment may have been filled for another dataset that holds its object, whose first object named
        // the parts of lists and maps differently.
        schema::retype(found, wanted.data_type()).map_err(unfit)
    };
    let columns = wanted.fields().iter().map(|f| column(f)).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows as usize));
    let plain: SchemaRef = Arc::new(Schema::new(wanted.fields().clone()));
    let batch = RecordBatch::try_new_with_options(plain, columns, &options).map_err(unfit)?;
    Ok(ReadySegment::composed(Arc::new(batch), parts))
}

#[cfg(test)]
mod tests;
