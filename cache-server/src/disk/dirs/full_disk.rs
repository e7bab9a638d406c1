//! A disk that is full before the limit of its directory is reached: how much room has come back since, and
//! when it is written again if something else takes the room that our files leave.

use std::io;
use std::time::{Duration, Instant};

/// Files that may find no room in a row, though others left for them, before nothing is written for a while:
/// else all would leave, one after the other, for somebody else.
const MISSES: u32 = 2;

/// Bounds of the time for which nothing is written then.
const REST_FIRST: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(60);

/// For how long a disk is believed to have no use of what it called free when it had no room.
const DOUBT: Duration = Duration::from_secs(60);

/// Whether an operation failed as there was no room.
pub fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A disk that had no room.
#[derive(Debug, Clone, Copy)]
pub struct FullDisk {
    since: Instant,
    /// Bytes that it called free all the same: too few, or more than a quota of its user or its number of
    /// files left.
    free_bytes: u64,
    /// Bytes that found no room.
    wanted_bytes: u64,
    /// Until when nothing is written, if anything keeps it from that.
    rests_until: Option<Instant>,
}

impl FullDisk {
    /// A disk that had no room now, for `misses` files in a row though others left for them.
    pub fn new(now: Instant, free_bytes: u64, wanted_bytes: u64, misses: u32) -> Self {
        let rest = |more: u32| REST_FIRST.saturating_mul(1 << more.min(6)).min(REST_MAX);
        let rests_until = misses.checked_sub(MISSES).map(|more| now + rest(more));
        Self { since: now, free_bytes, wanted_bytes, rests_until }
    }

    /// Whether nothing is to be written now.
    pub fn rests(&self) -> bool {
        self.rests_until.is_some()
    }

    /// Has it be written again.
    pub fn wake(&mut self) {
        self.rests_until = None;
    }

    /// Looks how much it calls free now: wakes it if it is time, or if what found no room may find it.
    /// Returns how many bytes more can be used.
    pub fn look(&mut self, now: Instant, free_bytes: u64) -> u64 {
        let more = free_bytes.saturating_sub(self.free_bytes);
        let has_come = self.wanted_bytes > 0 && more >= self.wanted_bytes;
        if self.rests_until.is_some_and(|until| has_come || until <= now) {
            self.wake();
        }
        match now.saturating_duration_since(self.since) < DOUBT {
            true => more,
            // A quota may have been raised since.
            false => free_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_full_disk_calls_free_counts_as_far_as_it_grows_and_after_a_while_all_of_it() {
        let now = Instant::now();
        let mut disk = FullDisk::new(now, 700, 1000, 0);
        assert!(!disk.rests());
        let looks = [100, 700, 900].map(|free| disk.look(now + DOUBT / 2, free));
        assert_eq!((looks, disk.look(now + DOUBT, 900)), ([0, 0, 200], 900));
    }

    #[test]
    fn it_rests_longer_and_longer_where_others_take_what_files_leave_and_wakes_early_when_room_comes() {
        let now = Instant::now();
        let rests = |misses: u32, after: Duration, free: u64| {
            let mut disk = FullDisk::new(now, 50, 1000, misses);
            disk.look(now + after, free);
            disk.rests()
        };
        let second = Duration::from_secs(1);
        assert!(!rests(0, Duration::ZERO, 50) && !rests(1, Duration::ZERO, 50));
        for (misses, seconds) in [(2, 1), (3, 2), (4, 4), (7, 32), (8, 60), (u32::MAX, 60)] {
            assert!(rests(misses, second * seconds - second / 2, 50), "{misses} misses");
            assert!(!rests(misses, second * seconds, 50), "{misses} misses");
        }
        assert!(rests(8, second, 1049) && !rests(8, second, 1050));
        let mut disk = FullDisk::new(now, 0, 0, 9);
        disk.look(now, 0);
        assert!(disk.rests(), "nothing has come");
        disk.wake();
        assert!(!disk.rests());
    }

    #[test]
    fn a_quota_that_is_used_up_is_a_full_disk() {
        use rustix::io::Errno;
        let is = |errno: Errno| is_full(&io::Error::from_raw_os_error(errno.raw_os_error()));
        assert!(is(Errno::NOSPC) && is(Errno::DQUOT) && !is(Errno::IO) && !is(Errno::NOENT));
    }
}
