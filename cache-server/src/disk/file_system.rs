//! Every file operation of the disk cache, behind one trait: the real disk, and in tests one that fails on
//! purpose.

use super::underway::Operation;
use forebay_proto::hash::Hash64;
use std::fs::{self, File};
use std::io::{self, IoSlice, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// What a file is, as far as the file system tells without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Which content: changes whenever the file is written, cut or replaced.
    pub stamp: Stamp,
    /// Bytes that it takes on the disk, as `du` counts them.
    pub allocated_bytes: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// Equal stamps: the same file, not written to since. A writer cannot keep it as it was: the time of change
/// is the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Length.
    pub bytes: u64,
    /// Time of the last write, in nanoseconds.
    pub modified: i128,
    changed: i128,
    inode: u64,
    device: u64,
}

impl Stamp {
    /// Whether both are of one file, changed in between or not.
    pub fn is_same_file(&self, other: &Self) -> bool {
        (self.inode, self.device) == (other.inode, other.device)
    }
}

impl Stamp {
    /// A mark that is another for every other stamp: in the index each byte counts, a million times.
    pub fn mark(&self) -> StampMark {
        let Self { bytes, modified, changed, inode, device } = self;
        let mut h = Hash64::default();
        [bytes, inode, device].iter().for_each(|n| h.update(&n.to_le_bytes()));
        [modified, changed].iter().for_each(|n| h.update(&n.to_le_bytes()));
        StampMark(NonZeroU64::new(h.digest()).unwrap_or(NonZeroU64::MAX))
    }
}

/// A hash of a [`Stamp`], never 0: an `Option` of it takes no more room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StampMark(NonZeroU64);

impl From<&fs::Metadata> for Stat {
    fn from(m: &fs::Metadata) -> Self {
        let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        let stamp = Stamp {
            bytes: m.len(),
            modified: ns(m.mtime(), m.mtime_nsec()),
            changed: ns(m.ctime(), m.ctime_nsec()),
            inode: m.ino(),
            device: m.dev(),
        };
        Self { stamp, allocated_bytes: m.blocks() * 512, is_dir: m.is_dir() }
    }
}

/// File operations, each as the system call of its name: those of the disk that is there, unless another
/// implementation says otherwise.
pub trait Disk: std::fmt::Debug + Send + Sync {
    /// Makes a directory and those above it; it may be there already.
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    /// Makes a file of this length, with room for all of them on the disk.
    fn create(&self, path: &Path, bytes: u64) -> io::Result<File> {
        let file = File::create(path)?;
        if bytes == 0 {
            return Ok(file);
        }
        // A full disk says so before anything is written, and the file gets neither more nor later blocks
        // than its size.
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            Err(e) if !matches!(e, rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Err(e.into()),
            _ => Ok(file),
        }
    }

    /// Writes all parts, one after the other.
    fn write(&self, file: &mut File, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut rest = parts;
        while !rest.is_empty() {
            match file.write_vectored(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => IoSlice::advance_slices(&mut rest, n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Waits until the file is on the medium.
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    /// Waits until the names in a directory are on the medium.
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        match File::open(path)?.sync_all() {
            // Not every file system has it.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        }
    }

    /// Renames; a file of the new name is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    /// Unlinks a file. Its bytes stay as long as it is open or mapped.
    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    /// Opens for reading by way of the page cache.
    fn open(&self, path: &Path) -> io::Result<File> {
        File::open(path)
    }

    /// Opens for reading from the medium rather than from the page cache, where the file system can.
    fn open_direct(&self, path: &Path) -> io::Result<File> {
        let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
        match fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
            // Not every file system has it. Then the pages that nobody maps are dropped, and read again.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                let file = File::open(path)?;
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
                Ok(file)
            }
            opened => opened,
        }
    }

    /// Reads up to `into.len()` bytes at an offset; fewer only at the end.
    fn read(&self, file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match file.read_at(&mut into[done..], at + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // A direct read goes by blocks: after the file's last, odd one there is nothing.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput && done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// What an open file is.
    fn stat(&self, file: &File) -> io::Result<Stat> {
        file.metadata().map(|m| Stat::from(&m))
    }

    /// What a path is; a link is not followed.
    fn stat_path(&self, path: &Path) -> io::Result<Stat> {
        fs::symlink_metadata(path).map(|m| Stat::from(&m))
    }

    /// Names of files and folders in a directory, in no order.
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(path)?.map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned())).collect()
    }

    /// Bytes that the file system has left for us.
    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let s = rustix::fs::statvfs(path)?;
        Ok(s.f_bavail.saturating_mul(s.f_frsize))
    }

    /// Reads the first block of a file from the medium, whatever of it is in memory.
    fn read_medium(&self, path: &Path) -> io::Result<()> {
        let file = File::open(path)?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        file.read_at(&mut [0; 512], 0).map(drop)
    }

    /// Notes that pages of mapped files are about to be used, until this is dropped; none where nobody
    /// watches.
    fn using(&self) -> Option<Operation> {
        None
    }

    /// Bytes of the blocks that the file system hands out.
    fn block_bytes(&self, path: &Path) -> io::Result<u64> {
        rustix::fs::statvfs(path).map(|s| s.f_frsize).map_err(Into::into)
    }
}

/// The file systems of this machine. Tests have disks of their own.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl Disk for RealDisk {}
