//! Eviction: which files leave so that a new one can be written. It knows the index and the forecast, and no
//! disk.
//!
//! Replicas leave first: their owner has another copy. Of each kind, those in no plan leave first, by
//! recency; then those whose next use is farthest away. A file that is pinned or being read never leaves. A
//! new segment that is needed later than one of its victims is not worth writing.
//!
//! An example. The limit holds four files; a job will read `a` in 10 samples, `b` in 500, `c` in 900; `x` is
//! in no plan.
//!
//! | held          | new, its next use   | leaves | why |
//! |---|---|---|---|
//! | `a b c x`     | `d`, in 700         | `x`    | it is in no plan |
//! | `a b c d`     | `e`, in 300         | `c`    | it is needed last, in 900, and that is later than `e` |
//! | `a b d e`     | `c`, in 900         | none   | all are needed sooner: not worth it |
//! | `a b d e`     | `y`, in no plan     | none   | planned files do not leave for an unplanned one |
//! | `a b d e'`    | `c`, in 900         | `e'`   | a replica leaves whenever it is needed, for a primary |
//! | `a b d c`     | `y`, being read (`Admit::Always`) | `c` | somebody waits: the file needed last leaves |
//!
//! Raw blocks are in no plan, so training data would push them all out. Therefore a share of the limit is
//! theirs: as long as they have no more than that, they leave for nothing, and a new one that fits into it is
//! worth a planned file's place. What they have beyond it leaves as all that is in no plan.
//!
//! A limit on what lies under some prefixes (of a principal with `cache_bytes`) is held the same way, before
//! space is reserved: the files that leave for it are among those under its prefixes.
//!
//! Victims are found by a scan over all entries, which is paid once for many: the best 3 per cent or so are
//! queued, and each is looked at again, and its next use asked for again, when its turn comes. The next scan
//! is made when the queue is used up, or when enough files were read or written that others may have become
//! better victims.

use super::counters::DiskCounters;
use super::file::FileKey;
use super::index::{Entry, Index, Taken};
use super::policy::{Admit, Forecast, NextUse, Refusal, Role};
use super::quota::Reservation;
use forebay_proto::manifest::{Digest, SegmentId};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A scan is out of date after this share of the entries was written or used for the first time since.
const STALE_SHARE: u64 = 64;

/// Victims queued besides their share of the entries.
const QUEUE_MIN: usize = 16;

/// What space is wanted for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub id: SegmentId,
    /// A raw block rather than columns of a dataset.
    pub raw: bool,
    pub bytes: u64,
    pub admit: Admit,
    pub role: Role,
}

impl Wanted {
    /// For a small file that is no segment, whatever has to leave for it.
    pub fn sidecar(bytes: u64) -> Self {
        let id = SegmentId(Digest(0));
        Self { id, raw: false, bytes, admit: Admit::Always, role: Role::Primary }
    }
}

/// Decides which files leave for one that is to be written.
#[derive(Debug)]
pub struct Evictor {
    index: Arc<Mutex<Index>>,
    forecast: Arc<dyn Forecast>,
    counters: Arc<DiskCounters>,
    /// Bytes that raw blocks keep.
    raw_share_bytes: u64,
    /// With raw blocks among the victims, and without.
    queues: [Mutex<Queue>; 2],
    /// Of limits of prefixes, by their numbers.
    prefix_queues: Mutex<HashMap<usize, Queue>>,
}

impl Evictor {
    pub fn new(
        index: Arc<Mutex<Index>>,
        forecast: Arc<dyn Forecast>,
        counters: Arc<DiskCounters>,
        raw_share_bytes: u64,
    ) -> Self {
        let (queues, prefix_queues) = Default::default();
        Self { index, forecast, counters, raw_share_bytes, queues, prefix_queues }
    }

    /// Bytes that raw blocks keep whatever else is read.
    pub fn raw_share_bytes(&self) -> u64 {
        self.raw_share_bytes
    }

    /// Reserves space for a new file in one of these directories, and has files leave for it: `unlink`
    /// removes one from its directory, and says whether it is gone. `None`: other callers were faster, or the
    /// plans changed, or a file would not go. Then it is worth another try.
    pub fn reserve(
        &self,
        wanted: Wanted,
        dirs: &[usize],
        unlink: impl Fn(usize, &FileKey) -> bool,
    ) -> Result<Option<Reservation>, Refusal> {
        // First the free bytes: a caller that finds enough waits for no scan.
        let short = match self.reserve_free(wanted.bytes, dirs) {
            Ok(reservation) => return Ok(Some(reservation)),
            Err(short) if short.is_empty() => return Err(Refusal::NoRoom),
            Err(_) if wanted.admit == Admit::IfFree => return Err(Refusal::NotWorthIt),
            Err(short) => short,
        };
        let Some((more, victims)) = self.take_victims(wanted, &short)? else { return Ok(None) };
        self.counters.evictions.fetch_add(victims.len() as u64, Ordering::Relaxed);
        let unlink = |Taken { key, reservation, map }| {
            drop(map);
            (key, reservation, unlink(more.dir, &key))
        };
        let unlinked: Vec<_> = victims.into_iter().map(unlink).collect();
        let mut index = self.index.lock();
        let is_all = unlinked.iter().all(|(_, _, is_unlinked)| *is_unlinked);
        unlinked
            .into_iter()
            .for_each(|(key, reservation, is_unlinked)| index.gone(&key, reservation, is_unlinked));
        index.quotas.release(more);
        // Unless the directory was set aside meanwhile.
        let is_free = is_all && index.quotas.is_valid(&more);
        Ok(is_free.then(|| index.quotas.reserve(more.dir, wanted.bytes)))
    }

    /// Takes the files out of the index that leave for a new one, all of one of the directories that are
    /// `short` of bytes, and reserves the rest.
    fn take_victims(
        &self,
        wanted: Wanted,
        short: &[(usize, u64)],
    ) -> Result<Option<(Reservation, Vec<Taken>)>, Refusal> {
        let (raw, share_bytes) = {
            let index = self.index.lock();
            (index.raw(), index.quotas.of_disks(self.raw_share_bytes))
        };
        let own_bytes = if wanted.raw { wanted.bytes } else { 0 };
        // Raw blocks with no more than their share.
        let are_kept = raw.bytes.saturating_add(own_bytes) <= share_bytes;
        let mut queue = self.queues[usize::from(are_kept && raw.files > 0)].lock();
        queue.keeps_raw = are_kept;
        if queue.is_stale(&self.index.lock()) {
            self.scan(&mut queue, false);
        }
        let mut groups = queue.groups(&self.index.lock(), short);
        if groups.is_empty() {
            // The queue may lack what was being read when it was made.
            self.scan(&mut queue, true);
            groups = queue.groups(&self.index.lock(), short);
        }
        if groups.is_empty() {
            return Err(Refusal::NoRoom);
        }
        let Some((dir, group)) = self.choose(&mut queue, wanted, groups) else { return Ok(None) };
        let keys = group.ok_or(Refusal::NotWorthIt)?;
        // Other callers look for their victims while these are unlinked, and while their maps are dropped.
        Ok(self.index.lock().take(dir, &keys, wanted.bytes))
    }

    /// Has files leave that stand in the way of a limit of prefixes, which is `short` of some bytes; `unlink`
    /// as in [`Evictor::reserve`]. Others may do the same, or the plans change: look again after it.
    pub fn make_room_under(
        &self,
        (limit, short): (usize, u64),
        wanted: Wanted,
        unlink: impl Fn(usize, &FileKey) -> bool,
    ) -> Result<(), Refusal> {
        if wanted.bytes > self.index.lock().prefixes.limit_bytes(limit) {
            return Err(Refusal::NoRoom);
        }
        if wanted.admit == Admit::IfFree {
            return Err(Refusal::NotWorthIt);
        }
        let mut queues = self.prefix_queues.lock();
        let queue = queues.entry(limit).or_default();
        queue.under = Some(limit);
        if queue.is_stale(&self.index.lock()) {
            self.scan(queue, false);
        }
        let mut group = queue.group(&self.index.lock(), short);
        if group.is_none() {
            self.scan(queue, true);
            group = queue.group(&self.index.lock(), short);
        }
        let group = group.ok_or(Refusal::NoRoom)?;
        let Some((_, chosen)) = self.choose(queue, wanted, vec![(0, group)]) else { return Ok(()) };
        let keys = chosen.ok_or(Refusal::NotWorthIt)?;
        let victims: Vec<Taken> = {
            let mut index = self.index.lock();
            keys.iter().filter_map(|key| index.take_one(key, Entry::may_leave)).collect()
        };
        drop(queues);
        self.counters.evictions.fetch_add(victims.len() as u64, Ordering::Relaxed);
        for Taken { key, reservation, map } in victims {
            drop(map);
            let is_unlinked = unlink(reservation.dir, &key);
            self.index.lock().gone(&key, reservation, is_unlinked);
        }
        Ok(())
    }

    /// Has the next decision begin with a scan: the queued victims may be the wrong ones now.
    pub fn forget_victims(&self) {
        self.queues.iter().for_each(|queue| queue.lock().is_scanned = false);
        self.prefix_queues.lock().clear();
    }

    /// Reserves free bytes, in the directory that has most of them. If there are not enough: which
    /// directories could hold the file, and how many bytes each is short of.
    fn reserve_free(&self, bytes: u64, dirs: &[usize]) -> Result<Reservation, Vec<(usize, u64)>> {
        let mut index = self.index.lock();
        let quotas = &mut index.quotas;
        let mut fit: Vec<usize> =
            dirs.iter().copied().filter(|&dir| bytes <= quotas.of(dir).limit_bytes()).collect();
        fit.sort_by_key(|&dir| (Reverse(quotas.of(dir).free_bytes()), dir));
        match fit.first() {
            Some(&dir) if quotas.of(dir).short_bytes(bytes) == 0 => Ok(quotas.reserve(dir, bytes)),
            _ => Err(fit.into_iter().map(|dir| (dir, quotas.of(dir).short_bytes(bytes))).collect()),
        }
    }

    /// Of each directory's group of victims, the group whose soonest is needed last; `Some(None)` when even
    /// that is needed sooner than the new segment. `None` when one of the victims has become needed much
    /// sooner than it was when they were queued, as when a plan was announced since.
    fn choose(
        &self,
        queue: &mut Queue,
        Wanted { id, raw, admit, role, .. }: Wanted,
        groups: Vec<(usize, Vec<Candidate>)>,
    ) -> Option<(usize, Option<Vec<FileKey>>)> {
        let ids: Vec<SegmentId> =
            std::iter::once(id).chain(groups.iter().flat_map(|(_, g)| g.iter().map(|v| v.key.id))).collect();
        let mut uses = self.forecast.next_uses(&ids).into_iter();
        let own = uses.next().unwrap_or(NextUse::Unplanned);
        let mut best = None;
        for (dir, group) in groups {
            let mut soonest = NextUse::Unplanned;
            for victim in &group {
                let next = uses.next().unwrap_or(NextUse::Unplanned);
                // Whenever a replica is read, it is not worth a primary's place.
                let next = if victim.replica && role == Role::Primary { NextUse::Unplanned } else { next };
                soonest = soonest.min(next);
                if queue.is_much_sooner(next, victim.replica) {
                    queue.is_scanned = false;
                    return None;
                }
            }
            let oldest = Reverse(group.iter().map(|v| v.used).max());
            if best.as_ref().is_none_or(|(s, used, _, _)| (soonest, oldest) > (*s, *used)) {
                best = Some((soonest, oldest, dir, group));
            }
        }
        let (soonest, _, dir, group) = best?;
        let is_worth_it = match own {
            NextUse::Planned(_) => soonest > own,
            NextUse::Unplanned => soonest == NextUse::Unplanned || raw && queue.keeps_raw,
        };
        let keys = || group.iter().map(|v| v.key).collect();
        Some((dir, (is_worth_it || admit == Admit::Always).then(keys)))
    }

    /// Looks at every entry and queues the best victims, or all.
    fn scan(&self, queue: &mut Queue, whole: bool) {
        let mut all: Vec<Candidate> = {
            let mut index = self.index.lock();
            queue.changes = index.scanned();
            let candidate = |(key, e): (&FileKey, &Entry)| {
                let (dir, bytes, used, replica) = (e.dir(), e.bytes, e.used, e.replica);
                Candidate { key: *key, dir, bytes, used, replica, next: NextUse::Unplanned }
            };
            let is_under =
                |e: &Entry| queue.under.is_none_or(|limit| index.prefixes.covers(limit, &e.object));
            let may_leave = |key: &FileKey, e: &Entry| {
                index.may_leave(key, e) && !(e.raw && queue.keeps_raw) && is_under(e)
            };
            index.entries().filter(|(key, e)| may_leave(key, e)).map(candidate).collect()
        };
        let ids: Vec<SegmentId> = all.iter().map(|v| v.key.id).collect();
        for (victim, next) in all.iter_mut().zip(self.forecast.next_uses(&ids)) {
            victim.next = next;
        }
        let order = |v: &Candidate| (!v.replica, Reverse(v.next), v.used, v.key);
        let keep = QUEUE_MIN + 2 * all.len() / STALE_SHARE as usize;
        if !whole && keep < all.len() {
            all.select_nth_unstable_by_key(keep, order);
            all.truncate(keep);
        }
        all.sort_unstable_by_key(order);
        let soonest = |replica| all.iter().filter(|v| v.replica == replica).map(|v| v.next).min();
        queue.soonest = [soonest(false), soonest(true)];
        (queue.candidates, queue.is_scanned) = (all, true);
        self.counters.scans.fetch_add(1, Ordering::Relaxed);
    }
}

/// A file that may leave, as it was when the queue was made.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    key: FileKey,
    dir: usize,
    bytes: u64,
    used: u64,
    replica: bool,
    next: NextUse,
}

/// Candidates for eviction, the best first.
#[derive(Debug, Default)]
struct Queue {
    candidates: Vec<Candidate>,
    is_scanned: bool,
    /// Raw blocks are no candidates.
    keeps_raw: bool,
    /// Only what lies under the prefixes of this limit is a candidate.
    under: Option<usize>,
    /// The index's changes at the scan.
    changes: u64,
    /// The soonest next use in the queue when it was made: of primaries, of replicas.
    soonest: [Option<NextUse>; 2],
}

impl Queue {
    fn is_stale(&self, index: &Index) -> bool {
        !self.is_scanned || index.changes() - self.changes > index.len() as u64 / STALE_SHARE
    }

    /// Whether a candidate is needed much sooner than any was when the queue was made: it is none any more.
    /// All draw nearer as time goes on, but not by half within the life of a queue.
    fn is_much_sooner(&self, next: NextUse, replica: bool) -> bool {
        match (next, self.soonest[usize::from(replica)]) {
            (NextUse::Planned(next), Some(NextUse::Planned(soonest))) => next < soonest / 2,
            (NextUse::Planned(_), Some(NextUse::Unplanned)) => true,
            _ => false,
        }
    }

    /// A file that was used, pinned or removed since the scan, or is being read, is no candidate any more.
    fn drop_others(&mut self, index: &Index) {
        let is_same =
            |v: &Candidate, e: &Entry| e.used == v.used && e.dir() == v.dir && index.may_leave(&v.key, e);
        self.candidates.retain(|v| index.get(&v.key).is_some_and(|e| is_same(v, e)));
    }

    /// For each directory that is short of bytes, the first candidates that give them; directories without
    /// enough are left out.
    fn groups(&mut self, index: &Index, short: &[(usize, u64)]) -> Vec<(usize, Vec<Candidate>)> {
        self.drop_others(index);
        let of = |(dir, short): &(usize, u64)| Some((*dir, self.first(*short, |v| v.dir == *dir)?));
        short.iter().filter_map(of).collect()
    }

    /// The first candidates, of any directory, that give these bytes.
    fn group(&mut self, index: &Index, short: u64) -> Option<Vec<Candidate>> {
        self.drop_others(index);
        self.first(short, |_| true)
    }

    fn first(&self, short: u64, is_fit: impl Fn(&Candidate) -> bool) -> Option<Vec<Candidate>> {
        let (mut group, mut got) = (Vec::new(), 0);
        for victim in self.candidates.iter().filter(|victim| is_fit(victim)) {
            if got >= short {
                break;
            }
            got += victim.bytes;
            group.push(*victim);
        }
        (got >= short).then_some(group)
    }
}

#[cfg(test)]
mod tests;
