//! The reader's end of shared memory: a mapping that can only be read.
#![expect(unsafe_code, reason = "a mapping is made of another process's file")]

use memmap2::{Mmap, MmapOptions};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use std::io;
use std::os::fd::OwnedFd;

/// A node's region, mapped.
#[derive(Debug)]
pub struct SharedMap(Mmap);

impl SharedMap {
    /// Maps `bytes` bytes of a region. Refuses a file that could become shorter while it is read, or is
    /// shorter already.
    pub fn new(region: &OwnedFd, bytes: usize) -> io::Result<Self> {
        let wrong = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        if !fcntl_get_seals(region)?.contains(SealFlags::SHRINK) {
            return wrong("the region is not sealed");
        }
        if bytes == 0 || u64::try_from(fstat(region)?.st_size).unwrap_or(0) < bytes as u64 {
            return wrong("the region is shorter than was said");
        }
        // SAFETY: the file is sealed against becoming shorter, so reading it never faults. The node does not
        // write to a range that it has sent until this process has given it back.
        let map = unsafe { MmapOptions::new().len(bytes).map(region)? };
        Ok(Self(map))
    }

    /// A stretch of it; `None` if it lies outside.
    pub fn get(&self, offset: u64, bytes: u64) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        self.0.get(start..start.checked_add(usize::try_from(bytes).ok()?)?)
    }
}
