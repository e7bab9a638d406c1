//! Eviction: room for a new file, made by removing what will be read last.
//!
//! First go replicas, the owner has another copy. Of each kind first goes what is in no plan, by recency,
//! then what is read farthest from now; never what is pinned or being read. Victims are found by a scan over
//! all entries, which is paid once for many: the best 3 per cent or so are queued, and each is looked at
//! again, and asked about again, when its turn comes. The scan is made anew when the queue is used up, or
//! when so much was read or written that others may have become better victims.

use super::index::{Entry, FileKey, Index, Reservation};
use super::policy::{Admit, NextUse, Role};
use super::{DiskCache, dirs::Health};
use forebay_proto::manifest::SegmentId;
use std::sync::atomic::Ordering;

/// A scan is out of date after this share of the entries was written or used for the first time since.
const STALE_SHARE: u64 = 64;

/// Victims queued besides their share of the entries.
const QUEUE_MIN: usize = 16;

/// Attempts to find victims: others may take them, or they may be read, in between.
const ATTEMPTS: usize = 8;

/// Candidates for eviction, the best first.
#[derive(Debug, Default)]
pub struct Victims {
    queue: Vec<Victim>,
    is_scanned: bool,
    /// The soonest next use in the queue when it was made: of primaries, of replicas.
    soonest: [Option<NextUse>; 2],
}

#[derive(Debug, Clone, Copy)]
struct Victim {
    key: FileKey,
    dir: usize,
    bytes: u64,
    used: u64,
    replica: bool,
    next: NextUse,
}

/// What room is wanted for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub id: SegmentId,
    pub bytes: u64,
    pub admit: Admit,
    pub role: Role,
    /// In this directory alone.
    pub only: Option<usize>,
}

/// Room for a file, or why there is none.
#[derive(Debug)]
pub enum Room {
    /// Here.
    Booked(Reservation),
    /// Only at the price of what will be read sooner.
    NotWorthIt,
    /// Not at all.
    None,
}

/// Files that were taken out of the index and are to be unlinked.
struct Taken {
    keys: Vec<FileKey>,
    /// The bytes of each.
    held: Vec<u64>,
    /// All of them, or as many as are wanted.
    booking: Reservation,
}

/// What came of looking for victims.
enum Step {
    Taken(Taken),
    /// Others were faster, or the plans changed.
    Again,
    End(Room),
}

impl DiskCache {
    /// Books room in a directory that works, evicting as far as it is wanted.
    pub(super) fn make_room(&self, wanted: Wanted) -> Room {
        for _ in 0..ATTEMPTS {
            // First what is free: whoever finds that waits for no scan.
            let short = match self.free_room(wanted) {
                Ok(booking) => return Room::Booked(booking),
                Err(short) => short,
            };
            if short.is_empty() {
                return Room::None;
            }
            if wanted.admit == Admit::IfFree {
                return Room::NotWorthIt;
            }
            match self.take_victims(wanted, &short) {
                Step::Taken(taken) => {
                    if let Some(booking) = self.remove_taken(taken, wanted.bytes) {
                        return Room::Booked(booking);
                    }
                }
                Step::Again => {}
                Step::End(room) => return room,
            }
        }
        Room::None
    }

    /// Books free room; where there is none, says which directories are short of how much.
    fn free_room(&self, Wanted { bytes, only, .. }: Wanted) -> Result<Reservation, Vec<(usize, u64)>> {
        let mut index = self.index();
        let short = self.short(&index, bytes, only);
        match short.iter().find(|(_, short)| *short == 0) {
            Some((dir, _)) => Ok(index.book(*dir, bytes)),
            None => Err(short),
        }
    }

    /// Takes the best victims of one directory out of the index; others look for theirs while these are
    /// unlinked.
    fn take_victims(&self, wanted: Wanted, short: &[(usize, u64)]) -> Step {
        let mut victims = self.victims.lock();
        if victims.is_stale(&self.index()) {
            self.scan(&mut victims, false);
        }
        let mut groups = victims.groups(&self.index(), short);
        if groups.is_empty() {
            // A queue of before may lack what was being read then.
            self.scan(&mut victims, true);
            groups = victims.groups(&self.index(), short);
        }
        if groups.is_empty() {
            return Step::End(Room::None);
        }
        let Some((dir, group)) = self.choose(&mut victims, wanted, groups) else { return Step::Again };
        let Some(keys) = group else { return Step::End(Room::NotWorthIt) };
        let taken = self.index().take(dir, &keys, wanted.bytes);
        let Some((booking, entries)) = taken else { return Step::Again };
        let held = entries.iter().map(|e| e.bytes).collect();
        drop(victims);
        drop(entries);
        Step::Taken(Taken { keys, held, booking })
    }

    /// What was found out about victims does not hold any more.
    pub(super) fn look_for_victims_anew(&self) {
        self.victims.lock().is_scanned = false;
    }

    /// Directories that can be written and could hold `bytes`, and how many each is short of; the roomiest
    /// first.
    fn short(&self, index: &Index, bytes: u64, only: Option<usize>) -> Vec<(usize, u64)> {
        let mut short: Vec<_> = (0..self.dirs.len())
            .filter(|&dir| only.is_none_or(|only| only == dir))
            .filter(|&dir| self.dirs[dir].health() == Health::Up && bytes <= index.quota(dir).limit_bytes)
            .map(|dir| {
                let a = index.quota(dir);
                (
                    dir,
                    (a.used_bytes + bytes).saturating_sub(a.limit_bytes),
                    a.limit_bytes.saturating_sub(a.used_bytes),
                )
            })
            .collect();
        short.sort_by_key(|&(dir, _, free)| (std::cmp::Reverse(free), dir));
        short.into_iter().map(|(dir, short, _)| (dir, short)).collect()
    }

    /// Of each directory's group of victims, the group whose soonest is read last; `Some(None)` when even
    /// that is read sooner than the new segment. `None` when one of the victims is none any more, as when a
    /// plan was announced since: scan again.
    fn choose(
        &self,
        victims: &mut Victims,
        Wanted { id, admit, role, .. }: Wanted,
        groups: Vec<(usize, Vec<Victim>)>,
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
                // Whenever a replica is read: it is not worth a primary's place.
                let next = if victim.replica && role == Role::Primary { NextUse::Unplanned } else { next };
                soonest = soonest.min(next);
                if victims.is_much_sooner(next, victim.replica) {
                    victims.is_scanned = false;
                    return None;
                }
            }
            let oldest = group.iter().map(|v| v.used).max();
            if best.as_ref().is_none_or(|(s, used, _, _)| {
                (soonest, std::cmp::Reverse(oldest)) > (*s, std::cmp::Reverse(*used))
            }) {
                best = Some((soonest, oldest, dir, group));
            }
        }
        let (soonest, _, dir, group) = best?;
        let worth = match own {
            NextUse::Planned(_) => soonest > own,
            NextUse::Unplanned => soonest == NextUse::Unplanned,
        };
        let keys = || group.iter().map(|v| v.key).collect();
        Some((dir, (worth || admit == Admit::Always).then(keys)))
    }

    /// Looks at every entry and queues the best victims, or all.
    pub(super) fn scan(&self, victims: &mut Victims, whole: bool) {
        let mut all = {
            let mut index = self.index();
            index.scanned();
            let free = |e: &Entry| !e.pinned && !e.is_in_use();
            let victim = |(key, e): (&FileKey, &Entry)| Victim {
                key: *key,
                dir: e.dir,
                bytes: e.bytes,
                used: e.used,
                replica: e.replica,
                next: NextUse::Unplanned,
            };
            index.entries().filter(|(_, e)| free(e)).map(victim).collect::<Vec<Victim>>()
        };
        let ids: Vec<SegmentId> = all.iter().map(|v| v.key.id).collect();
        for (victim, next) in all.iter_mut().zip(self.forecast.next_uses(&ids)) {
            victim.next = next;
        }
        let order = |v: &Victim| (!v.replica, std::cmp::Reverse(v.next), v.used, v.key);
        let keep = QUEUE_MIN + 2 * all.len() / STALE_SHARE as usize;
        if !whole && keep < all.len() {
            all.select_nth_unstable_by_key(keep, order);
            all.truncate(keep);
        }
        all.sort_unstable_by_key(order);
        let soonest = |replica| all.iter().filter(|v| v.replica == replica).map(|v| v.next).min();
        victims.soonest = [soonest(false), soonest(true)];
        victims.is_scanned = true;
        victims.queue = all;
        self.counters.scans.fetch_add(1, Ordering::Relaxed);
    }

    /// Unlinks files that were taken out of the index, and answers with what is booked in their place; `None`
    /// when one of them cannot be removed: what it takes stays booked until it can.
    fn remove_taken(&self, Taken { keys, held, mut booking }: Taken, bytes: u64) -> Option<Reservation> {
        let files = keys.iter().zip(held);
        let stuck: Vec<_> = files.filter(|(key, _)| !self.unlink(booking.dir, key)).collect();
        self.counters.evictions.fetch_add(keys.len() as u64, Ordering::Relaxed);
        let mut index = self.index();
        index.gone(&keys);
        if stuck.is_empty() {
            index.resize(&mut booking, bytes);
            return Some(booking);
        }
        index.resize(&mut booking, stuck.iter().map(|(_, held)| held).sum());
        stuck.into_iter().for_each(|(key, bytes)| index.keep_stuck(*key, booking.part(bytes)));
        None
    }
}

impl Victims {
    fn is_stale(&self, index: &Index) -> bool {
        !self.is_scanned || index.changes() > index.len() as u64 / STALE_SHARE
    }

    /// Whether a victim will be read much sooner than any was to be when the queue was made: it is none any
    /// more. All draw nearer as time goes on, but not by half within the life of a queue.
    fn is_much_sooner(&self, next: NextUse, replica: bool) -> bool {
        match (next, self.soonest[usize::from(replica)]) {
            (NextUse::Planned(next), Some(NextUse::Planned(soonest))) => next < soonest / 2,
            (NextUse::Planned(_), Some(NextUse::Unplanned)) => true,
            _ => false,
        }
    }

    /// For each directory that is short of bytes, the first victims that give them; directories without
    /// enough are left out. What was used, read, pinned or removed since the scan is dropped.
    fn groups(&mut self, index: &Index, short: &[(usize, u64)]) -> Vec<(usize, Vec<Victim>)> {
        let good = |v: &Victim| {
            index
                .get(&v.key)
                .is_some_and(|e| e.used == v.used && e.dir == v.dir && !e.pinned && !e.is_in_use())
        };
        self.queue.retain(good);
        let mut groups = Vec::new();
        for &(dir, short) in short {
            let (mut group, mut got) = (Vec::new(), 0);
            for victim in self.queue.iter().filter(|v| v.dir == dir) {
                if got >= short {
                    break;
                }
                got += victim.bytes;
                group.push(*victim);
            }
            if got >= short {
                groups.push((dir, group));
            }
        }
        groups
    }
}
