//! The quotas of the directories: which bytes are in use, and which are reserved for files to come.
//!
//! A disk may be full before the limit of its directory is reached. Then the limit is lowered to the
//! bytes in use: files leave for new ones as they do at any limit. It rises again as room comes back.

/// A limit that was lowered rises by this part of the share at least: each time the disk is written to.
const RISE_PARTS: u64 = 256;

/// What one directory may take on its disk, and how much of it is in use.
#[derive(Debug, Default)]
pub struct Quota {
    /// Bytes that the directory may use if its disk has them.
    share_bytes: u64,
    /// Bytes that the disk turned out to have for it, where that is less.
    disk_bytes: Option<u64>,
    /// How often the limit was lowered.
    lowered: u32,
    /// How many files in a row found no room on the disk though they kept to a lowered limit.
    misses: u32,
    /// Bytes in use: files, those being written and those being removed, folders.
    pub used_bytes: u64,
    /// Bytes of what there is besides files, at most so far.
    folders_bytes: u64,
    /// How often the directory was set aside. Its bytes are forgotten then, as its files count as absent: a
    /// reservation of an earlier era is void, and is neither resized nor released.
    era: u64,
}

impl Quota {
    /// Bytes that the directory may use if its disk has them.
    pub fn share_bytes(&self) -> u64 {
        self.share_bytes
    }

    /// Bytes that the directory may use now.
    pub fn limit_bytes(&self) -> u64 {
        self.disk_bytes.map_or(self.share_bytes, |bytes| bytes.min(self.share_bytes))
    }

    /// Whether its disk turned out to have less than its share.
    pub fn is_lowered(&self) -> bool {
        self.disk_bytes.is_some()
    }

    pub fn free_bytes(&self) -> u64 {
        self.limit_bytes().saturating_sub(self.used_bytes)
    }

    /// How many bytes more would have to be free for `bytes` to fit.
    pub fn short_bytes(&self, bytes: u64) -> u64 {
        self.used_bytes.saturating_add(bytes).saturating_sub(self.limit_bytes())
    }
}

/// Bytes that count as used in a directory: of a file to come, or of one that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    pub dir: usize,
    pub bytes: u64,
    era: u64,
    /// How often the limit had been lowered when it was made.
    lowered: u32,
}

/// The quotas of all directories, by their numbers.
#[derive(Debug, Default)]
pub struct Quotas(Vec<Quota>);

impl Quotas {
    pub fn new(limits: impl IntoIterator<Item = u64>) -> Self {
        Self(limits.into_iter().map(|share_bytes| Quota { share_bytes, ..Quota::default() }).collect())
    }

    pub fn of(&self, dir: usize) -> &Quota {
        &self.0[dir]
    }

    pub fn used_bytes(&self) -> u64 {
        self.0.iter().map(|quota| quota.used_bytes).sum()
    }

    /// Reserves bytes whether they fit or not.
    pub fn reserve(&mut self, dir: usize, bytes: u64) -> Reservation {
        self.0[dir].used_bytes += bytes;
        self.in_use(dir, bytes)
    }

    /// Bytes that count as used already, as a reservation that can be released.
    pub fn in_use(&self, dir: usize, bytes: u64) -> Reservation {
        let Quota { era, lowered, .. } = self.0[dir];
        Reservation { dir, bytes, era, lowered }
    }

    pub fn release(&mut self, reservation: Reservation) {
        if self.is_valid(&reservation) {
            let quota = &mut self.0[reservation.dir];
            quota.used_bytes = quota.used_bytes.saturating_sub(reservation.bytes);
        }
    }

    /// Changes a reservation's bytes, whether they fit or not.
    pub fn resize(&mut self, reservation: &mut Reservation, bytes: u64) {
        self.release(*reservation);
        reservation.bytes = bytes;
        if self.is_valid(reservation) {
            self.0[reservation.dir].used_bytes += bytes;
        }
    }

    /// Whether a reservation still counts: its directory was not set aside since.
    pub fn is_valid(&self, reservation: &Reservation) -> bool {
        self.0[reservation.dir].era == reservation.era
    }

    /// Counts what a directory takes now besides its files. Folders do not shrink.
    pub fn set_folders(&mut self, dir: usize, bytes: u64) {
        let quota = &mut self.0[dir];
        quota.used_bytes += bytes.saturating_sub(quota.folders_bytes);
        quota.folders_bytes = bytes.max(quota.folders_bytes);
    }

    /// Notes that the disk of a directory is full, or that it had no room for a file whose reservation was
    /// released since: from now on the directory may use what it uses now. Returns how many files in a row
    /// found no room though they kept to a lowered limit: something else takes the room that files leave.
    pub fn lower(&mut self, dir: usize, failed: Option<&Reservation>) -> u32 {
        let quota = &mut self.0[dir];
        let is_miss = |failed: &Reservation| (failed.era, failed.lowered) == (quota.era, quota.lowered);
        let is_miss = quota.is_lowered() && failed.is_some_and(is_miss);
        quota.misses = quota.misses.saturating_add(u32::from(is_miss));
        quota.disk_bytes = Some(quota.limit_bytes().min(quota.used_bytes));
        quota.lowered = quota.lowered.wrapping_add(1);
        quota.misses
    }

    /// Whether a limit that was lowered would rise, by an amount that matters, if `more` bytes than are in
    /// use could be used.
    pub fn would_rise(&self, dir: usize, more: u64) -> bool {
        let quota = &self.0[dir];
        let risen = quota.used_bytes.saturating_add(more).min(quota.share_bytes);
        risen > quota.limit_bytes().saturating_add(risen / RISE_PARTS)
            || quota.is_lowered() && risen == quota.share_bytes
    }

    /// Has a limit that was lowered rise, as `more` bytes than are in use can be used. Returns whether it is
    /// the whole share now.
    pub fn raise(&mut self, dir: usize, more: u64) -> bool {
        let quota = &mut self.0[dir];
        let risen = quota.used_bytes.saturating_add(more).max(quota.limit_bytes());
        if risen > quota.limit_bytes() {
            // A file that finds no room in it is no miss: none has left for it.
            quota.lowered = quota.lowered.wrapping_add(1);
        }
        quota.disk_bytes = quota.disk_bytes.map(|_| risen).filter(|risen| *risen < quota.share_bytes);
        if !quota.is_lowered() {
            quota.misses = 0;
        }
        !quota.is_lowered()
    }

    /// Notes that a file found the room that was reserved for it.
    pub fn fitted(&mut self, dir: usize) {
        self.0[dir].misses = 0;
    }

    /// A part of all shares, as large as it is of what the disks have of them.
    pub fn of_disks(&self, bytes: u64) -> u64 {
        let sum = |of: fn(&Quota) -> u64| self.0.iter().map(|quota| u128::from(of(quota))).sum::<u128>();
        let (limits, shares) = (sum(Quota::limit_bytes), sum(Quota::share_bytes));
        match limits < shares {
            true => (u128::from(bytes) * limits / shares) as u64,
            false => bytes,
        }
    }

    /// Forgets all bytes of a directory and what its disk was found to have, and begins its next era.
    pub fn clear(&mut self, dir: usize) {
        let quota = &mut self.0[dir];
        quota.era += 1;
        (quota.used_bytes, quota.folders_bytes) = (0, 0);
        (quota.disk_bytes, quota.misses) = (None, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reserved_before_a_directory_was_set_aside_is_void() {
        let mut quotas = Quotas::new([100, 100]);
        let mut old = quotas.reserve(0, 60);
        quotas.reserve(1, 10);
        assert_eq!(
            (quotas.used_bytes(), quotas.of(0).free_bytes(), quotas.of(0).short_bytes(50)),
            (70, 40, 10)
        );
        quotas.clear(0);
        let new = quotas.reserve(0, 30);
        quotas.release(old);
        quotas.resize(&mut old, 1000);
        assert!(!quotas.is_valid(&old) && quotas.is_valid(&new));
        assert_eq!(quotas.of(0).used_bytes, 30);
        quotas.release(new);
        assert_eq!(quotas.used_bytes(), 10);
    }

    #[test]
    fn a_limit_follows_what_the_disk_has_and_is_never_above_the_share() {
        let mut quotas = Quotas::new([10_000, 10_000]);
        let limit = |quotas: &Quotas| (quotas.of(0).limit_bytes(), quotas.of(0).is_lowered());
        let held = quotas.reserve(0, 4000);
        let failed = quotas.reserve(0, 1000);
        quotas.release(failed);
        assert_eq!(quotas.lower(0, Some(&failed)), 0, "nobody knew that the disk was full");
        assert_eq!(limit(&quotas), (4000, true));
        assert_eq!((quotas.of(0).short_bytes(1000), quotas.of(0).share_bytes()), (1000, 10_000));
        assert_eq!(quotas.of_disks(2000), 1400, "a part of both");
        // One that was begun before says nothing of the new limit.
        assert_eq!(quotas.lower(0, Some(&failed)), 0);
        quotas.release(held);
        for misses in 1..4 {
            let failed = quotas.reserve(0, 1000);
            quotas.release(failed);
            assert_eq!(quotas.lower(0, Some(&failed)), misses);
        }
        assert_eq!(limit(&quotas), (0, true), "it does not rise by itself");
        quotas.fitted(0);
        let failed = quotas.reserve(0, 0);
        assert_eq!(quotas.lower(0, Some(&failed)), 1, "in a row");
        assert!(quotas.would_rise(0, 3000));
        assert!(!quotas.raise(0, 3000) && limit(&quotas) == (3000, true));
        assert!(!quotas.would_rise(0, 3010) && quotas.would_rise(0, 3020), "a 256th of it");
        assert!(!quotas.raise(0, 100) && limit(&quotas) == (3000, true), "only a failure lowers it");
        assert!(quotas.would_rise(0, u64::MAX) && quotas.raise(0, u64::MAX));
        assert_eq!((limit(&quotas), quotas.of_disks(2000)), ((10_000, false), 2000));
        assert!(!quotas.would_rise(0, u64::MAX));
        quotas.reserve(0, 100);
        quotas.lower(0, None);
        quotas.clear(0);
        assert_eq!(limit(&quotas), (10_000, false), "what was known of it went with its files");
    }

    #[test]
    fn folders_count_as_large_as_they_ever_were() {
        let mut quotas = Quotas::new([100]);
        for bytes in [4, 8, 4] {
            quotas.set_folders(0, bytes);
        }
        quotas.set_folders(0, 9);
        assert_eq!(quotas.used_bytes(), 9);
    }
}
