//! The quotas of the directories: which bytes are in use, and which are reserved for files to come.

/// The quota of one directory.
#[derive(Debug, Default)]
pub struct Quota {
    /// Bytes that the directory may use.
    pub limit_bytes: u64,
    /// Bytes in use: files, those being written and those being removed, folders.
    pub used_bytes: u64,
    /// Bytes of what there is besides files, at most so far.
    folders_bytes: u64,
    /// How often the directory was set aside. Its bytes are forgotten then, as its files count as absent: a
    /// reservation of an earlier era is void, and is neither resized nor released.
    era: u64,
}

impl Quota {
    pub fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }

    /// How many bytes more would have to be free for `bytes` to fit.
    pub fn short_bytes(&self, bytes: u64) -> u64 {
        self.used_bytes.saturating_add(bytes).saturating_sub(self.limit_bytes)
    }
}

/// Bytes that count as used in a directory: of a file to come, or of one that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    pub dir: usize,
    pub bytes: u64,
    era: u64,
}

/// The quotas of all directories, by their numbers.
#[derive(Debug, Default)]
pub struct Quotas(Vec<Quota>);

impl Quotas {
    pub fn new(limits: impl IntoIterator<Item = u64>) -> Self {
        Self(limits.into_iter().map(|limit_bytes| Quota { limit_bytes, ..Quota::default() }).collect())
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
        Reservation { dir, bytes, era: self.0[dir].era }
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

    /// Forgets all bytes of a directory, and begins its next era.
    pub fn clear(&mut self, dir: usize) {
        let quota = &mut self.0[dir];
        quota.era += 1;
        (quota.used_bytes, quota.folders_bytes) = (0, 0);
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
    fn folders_count_as_large_as_they_ever_were() {
        let mut quotas = Quotas::new([100]);
        for bytes in [4, 8, 4] {
            quotas.set_folders(0, bytes);
        }
        quotas.set_folders(0, 9);
        assert_eq!(quotas.used_bytes(), 9);
    }
}
