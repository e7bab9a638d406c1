//! Large buffers, used again: fresh memory of a batch's size costs more in page faults than the copy into it.
//!
//! The pool keeps a second handle on every buffer it has given away. Once all other handles are gone (the
//! batch was dropped), the buffer can be taken again; nobody has to give anything back. What the pool keeps
//! alive is bounded in bytes; beyond that, and below [`POOLED_BYTES`], buffers are ordinary ones. Contents of
//! a taken buffer are arbitrary: write every byte of a buffer before it is shared.

use arrow::buffer::{Buffer, MutableBuffer};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Buffers smaller than this are not worth keeping.
pub const POOLED_BYTES: usize = 64 << 10;

/// A pool of buffers; clones share it.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Mutex<Shelf>>);

#[derive(Debug)]
struct Shelf {
    /// Every buffer given away or idle, the one given away first in front: batches are dropped in the order
    /// in which they were made, so that the first is mostly the one that is free.
    buffers: VecDeque<Buffer>,
    bytes: usize,
    limit: usize,
}

impl Pool {
    /// A pool that keeps at most `limit` bytes alive on its own account.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(Shelf { buffers: VecDeque::new(), bytes: 0, limit })))
    }

    /// A buffer of at least `bytes` bytes with arbitrary contents, aligned for every Arrow type.
    pub fn take(&self, bytes: usize) -> MutableBuffer {
        if bytes < POOLED_BYTES {
            return MutableBuffer::from_len_zeroed(bytes);
        }
        let bytes = bytes.next_multiple_of(POOLED_BYTES);
        let mut shelf = self.0.lock();
        let fits = |b: &Buffer| (bytes..=bytes.saturating_mul(2)).contains(&b.len()) && b.strong_count() == 1;
        let free = shelf.buffers.iter().position(fits).and_then(|i| shelf.remove(i));
        if let Some(Ok(buffer)) = free.map(Buffer::into_mutable) {
            return buffer;
        }
        drop(shelf);
        MutableBuffer::from_len_zeroed(bytes)
    }

    /// Ends writing: the first `bytes` bytes of a taken buffer, to be shared. The pool takes it back by
    /// itself.
    pub fn share(&self, buffer: MutableBuffer, bytes: usize) -> Buffer {
        let whole: Buffer = buffer.into();
        if whole.len() >= POOLED_BYTES {
            let mut shelf = self.0.lock();
            shelf.keep(whole.clone());
        }
        let bytes = bytes.min(whole.len());
        whole.slice_with_length(0, bytes)
    }

    /// Bytes of the buffers that nobody uses at the moment.
    pub fn idle_bytes(&self) -> usize {
        let shelf = self.0.lock();
        shelf.buffers.iter().filter(|b| b.strong_count() == 1).map(Buffer::len).sum()
    }
}

impl Shelf {
    fn remove(&mut self, index: usize) -> Option<Buffer> {
        let buffer = self.buffers.remove(index)?;
        self.bytes -= buffer.len();
        Some(buffer)
    }

    fn keep(&mut self, buffer: Buffer) {
        while self.bytes + buffer.len() > self.limit {
            // An idle one makes room; buffers in use are not ours to free, so then this one stays outside.
            match self.buffers.iter().position(|b| b.strong_count() == 1) {
                Some(i) => drop(self.remove(i)),
                None => return,
            }
        }
        self.bytes += buffer.len();
        self.buffers.push_back(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_used_again() {
        let pool = Pool::new(1 << 20);
        let mut taken = pool.take(100_000);
        taken.as_slice_mut()[99_999] = 7;
        let address = taken.as_ptr();
        let shared = pool.share(taken, 100_000);
        assert_eq!((shared.len(), shared[99_999]), (100_000, 7));
        let other = pool.take(100_000);
        assert_ne!(other.as_ptr(), address, "still in use");
        let slice = shared.slice(5);
        drop(shared);
        assert_eq!(pool.idle_bytes(), 0, "a slice keeps it in use");
        drop(slice);
        assert_eq!(pool.take(90_000).as_ptr(), address);
        assert_eq!(address.align_offset(64), 0);
    }

    #[test]
    fn keeps_no_more_than_its_limit() {
        let pool = Pool::new(300_000);
        let shared: Vec<_> = (0..10).map(|_| pool.share(pool.take(100_000), 100_000)).collect();
        drop(shared);
        assert!(pool.idle_bytes() <= 300_000);
        assert!(pool.idle_bytes() > 0);
        assert_eq!(pool.share(pool.take(10), 10).len(), 10, "small ones are ordinary");
    }
}
