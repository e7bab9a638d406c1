//! Buffers, used again: fresh memory of a batch's size costs more in page faults than the copy into it. An
//! allocator may also keep what one thread freed from another, so that a reader holds twice what it counts.
//!
//! A shared buffer comes back by itself when its last handle is dropped (the batch was). The one that came
//! back last is given away first: of all of them it is the likeliest to lie in the processor's cache. What
//! the pool keeps alive is bounded in bytes; beyond that, and below [`POOLED_BYTES`], buffers are ordinary
//! ones. Contents of a taken buffer are arbitrary: write every byte of a buffer before it is shared.
//!
//! A pool may have a [`Registrar`]: its buffers lie in pages of their own then, and those that are used again
//! are registered with a device, which can read them without a copy.

mod idle;
mod memory;

pub use memory::{PoolBuffer, Registrar, Registration};

use arrow::buffer::Buffer;
use bytes::Bytes;
use idle::IdleBuffers;
use memory::HUGE_PAGE;
use parking_lot::Mutex;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Buffers smaller than this are not worth keeping. Those of less than [`LARGE_BYTES`] have multiples of it.
pub const POOLED_BYTES: usize = 4 << 10;

/// Larger buffers have multiples of this. Smaller ones are not worth registering.
pub const LARGE_BYTES: usize = 64 << 10;

/// How many lengths there are from a power of two to the next, of buffers of 512 KiB and more.
const LENGTHS: usize = 4;

/// How often a buffer that comes back looks whether the pool is free, before it is freed instead.
const RETURN_TRIES: usize = 10_000;

/// A pool of buffers; clones share it.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Shelf>);

#[derive(Debug)]
struct Shelf {
    idle: Mutex<IdleBuffers>,
    /// Bytes of these, and of those that will come back. Grows only under the lock.
    bytes: AtomicUsize,
    limit: usize,
    registrar: Option<Arc<dyn Registrar>>,
}

/// A buffer that was shared: it comes back when it is dropped.
struct Lent {
    buffer: PoolBuffer,
    pool: Pool,
}

impl Pool {
    /// A pool that keeps at most `limit` bytes alive on its own account.
    pub fn new(limit: usize) -> Self {
        Self::with_registrar(limit, None)
    }

    /// The same; buffers that are used again are registered there.
    pub fn with_registrar(limit: usize, registrar: Option<Arc<dyn Registrar>>) -> Self {
        Self(Arc::new(Shelf { idle: Mutex::default(), bytes: AtomicUsize::new(0), limit, registrar }))
    }

    /// A buffer of at least `bytes` bytes with arbitrary contents, aligned for every Arrow type.
    pub fn take(&self, bytes: usize) -> PoolBuffer {
        if bytes < self.0.least() {
            return PoolBuffer::new(bytes);
        }
        let length = rounded(bytes);
        let (idle, registrar) = (self.0.take(length..=length.saturating_mul(2)), self.0.registrar.as_deref());
        match (idle, registrar) {
            (Some(mut buffer), Some(registrar)) => {
                buffer.register(registrar);
                buffer
            }
            (Some(buffer), None) => buffer,
            (None, None) if length < HUGE_PAGE || !self.0.has_room(length) => PoolBuffer::new(length),
            (None, _) => PoolBuffer::in_pages(length, bytes),
        }
    }

    /// Ends writing: the first `bytes` bytes of a taken buffer, to be shared. The pool takes it back by
    /// itself.
    pub fn share(&self, buffer: PoolBuffer, bytes: usize) -> Buffer {
        let bytes = bytes.min(buffer.len());
        let comes_back = buffer.len() >= self.0.least() && self.0.make_room(buffer.len());
        let whole: Buffer = match comes_back {
            true => Bytes::from_owner(Lent { buffer, pool: self.clone() }).into(),
            false => buffer.into_buffer(),
        };
        whole.slice_with_length(0, bytes)
    }

    /// Bytes that it keeps alive at most.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Whether its buffers are registered with a device.
    pub fn has_registrar(&self) -> bool {
        self.0.registrar.is_some()
    }

    /// Bytes of the buffers that nobody uses at the moment.
    #[cfg(test)]
    fn idle_bytes(&self) -> usize {
        self.0.idle.lock().bytes()
    }
}

impl Shelf {
    /// Bytes of the smallest buffer that comes back.
    fn least(&self) -> usize {
        if self.registrar.is_some() { LARGE_BYTES } else { POOLED_BYTES }
    }

    /// An idle buffer of such a length.
    fn take(&self, lengths: RangeInclusive<usize>) -> Option<PoolBuffer> {
        let mut idle = self.idle.lock();
        let buffer = idle.latest(lengths)?;
        self.bytes.fetch_sub(buffer.len(), Relaxed);
        Some(buffer)
    }

    /// Whether a buffer of so much would come back if idle ones made room: pages of its own are dear for one
    /// that does not.
    fn has_room(&self, bytes: usize) -> bool {
        let idle = self.idle.lock();
        self.bytes.load(Relaxed) - idle.bytes() + bytes <= self.limit
    }

    /// Counts a buffer of so much that will come back; idle ones make room, the oldest first. Buffers in use
    /// are not the pool's to free: false if they leave no room.
    fn make_room(&self, bytes: usize) -> bool {
        let mut idle = self.idle.lock();
        while self.bytes.load(Relaxed) + bytes > self.limit {
            let Some(oldest) = idle.oldest() else { return false };
            self.bytes.fetch_sub(oldest.len(), Relaxed);
        }
        self.bytes.fetch_add(bytes, Relaxed);
        true
    }

    /// Takes a buffer back, or frees it where the lock is not to be had: a child of `fork` may find it held
    /// for ever, by a thread that it does not have.
    fn put(&self, buffer: PoolBuffer) {
        let idle = (0..RETURN_TRIES).find_map(|_| self.idle.try_lock().or_else(pause));
        match idle {
            Some(mut idle) => idle.push(buffer),
            None => {
                self.bytes.fetch_sub(buffer.len(), Relaxed);
            }
        }
    }
}

/// The length of a buffer for that many bytes. Batches differ a little; few lengths are to fit them all.
fn rounded(bytes: usize) -> usize {
    match bytes < LARGE_BYTES {
        true => bytes.next_multiple_of(POOLED_BYTES),
        false => bytes.next_multiple_of(LARGE_BYTES.max(bytes.next_power_of_two() / (2 * LENGTHS))),
    }
}

/// Lets the one that holds a lock go on for a moment.
fn pause<T>() -> Option<T> {
    std::hint::spin_loop();
    None
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_slice()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.0.put(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    #[test]
    fn a_dropped_buffer_is_used_again() {
        let pool = Pool::new(1 << 20);
        let mut taken = pool.take(100_000);
        taken.as_slice_mut()[99_999] = 7;
        let address = taken.as_slice().as_ptr();
        let shared = pool.share(taken, 100_000);
        assert_eq!((shared.len(), shared[99_999]), (100_000, 7));
        let other = pool.take(100_000);
        assert_ne!(other.as_slice().as_ptr(), address, "still in use");
        let slice = shared.slice(5);
        drop(shared);
        assert_eq!(pool.idle_bytes(), 0, "a slice keeps it in use");
        drop(slice);
        let later = pool.share(other, 100_000);
        let latest = later.as_ptr();
        drop(later);
        assert_eq!(pool.take(90_000).as_slice().as_ptr(), latest, "the one that came back last");
        assert_eq!(pool.take(90_000).as_slice().as_ptr(), address);
        assert_eq!(address.align_offset(64), 0);
    }

    /// Keeps the ranges that are registered.
    #[derive(Debug, Default)]
    struct Counting {
        registered: Arc<Mutex<Vec<Range<usize>>>>,
        refuses: bool,
        asked: AtomicUsize,
    }

    impl Registrar for Counting {
        fn register(&self, bytes: &[u8]) -> Option<Registration> {
            self.asked.fetch_add(1, Relaxed);
            let range = bytes.as_ptr() as usize..bytes.as_ptr_range().end as usize;
            let registered = self.registered.clone();
            registered.lock().push(range.clone());
            let end = move || registered.lock().retain(|other| *other != range);
            (!self.refuses).then(|| Registration::new(end))
        }
    }

    #[test]
    fn what_is_used_again_is_registered_until_it_is_freed() {
        let registrar = Arc::new(Counting::default());
        let registered = registrar.registered.clone();
        let pool = Pool::with_registrar(300_000, Some(registrar.clone()));
        let take = |bytes: usize| pool.share(pool.take(bytes), bytes);
        let first = take(100_000);
        assert!(registered.lock().is_empty(), "it may never come back");
        drop(first);
        for _ in 0..3 {
            let again = take(100_000);
            let range = again.as_ptr() as usize..again.as_ptr() as usize + (128 << 10);
            assert_eq!(*registered.lock(), [range], "whole pages, once");
            assert_eq!(again.as_ptr() as usize % 4096, 0);
        }
        drop(pool.take(100_000));
        assert!(registered.lock().is_empty(), "a buffer that was taken and not shared is freed");
        drop([take(100_000), take(100_000)]);
        drop([take(100_000), take(100_000)]);
        assert_eq!(registered.lock().len(), 2);
        drop(take(250_000));
        assert_eq!(registered.lock().len(), 0, "the pool had to make room");
        let small = take(100);
        assert_eq!((small.len(), registered.lock().len()), (100, 0));
        drop(take(250_000));
        let last = take(250_000);
        drop(pool);
        assert_eq!(registered.lock().len(), 1, "it is in use");
        drop(last);
        assert!(registered.lock().is_empty());
    }

    #[test]
    fn what_cannot_be_registered_is_not_tried_again() {
        let registrar = Arc::new(Counting { refuses: true, ..Default::default() });
        let pool = Pool::with_registrar(1 << 20, Some(registrar.clone()));
        for _ in 0..5 {
            drop(pool.share(pool.take(100_000), 100_000));
        }
        assert_eq!(registrar.asked.load(Relaxed), 1);
    }

    #[test]
    fn small_buffers_come_back_too_but_are_not_registered() {
        let pool = Pool::new(1 << 20);
        let address = |pool: &Pool, bytes: usize| pool.share(pool.take(bytes), bytes).as_ptr();
        assert_eq!(address(&pool, 50_176), address(&pool, 50_176));
        assert_eq!(pool.idle_bytes(), 52 << 10, "whole steps of 4 KiB");
        assert_ne!(address(&pool, 5000), address(&pool, 50_176), "not one that is ten times as large");
        assert_eq!(pool.idle_bytes(), (52 << 10) + (8 << 10));
        let registered = Pool::with_registrar(1 << 20, Some(Arc::new(Counting::default())));
        drop(registered.share(registered.take(50_176), 50_176));
        assert_eq!(registered.idle_bytes(), 0);
    }

    #[test]
    fn lengths_are_few_and_not_much_larger_than_asked_for() {
        for power in 12..30 {
            let (low, high) = ((1usize << power) + 1, 1usize << (power + 1));
            let asked = (low..=high).step_by(1 + (high - low) / 1000).chain([high]);
            let mut lengths: Vec<usize> = asked.inspect(|&n| assert!(rounded(n) >= n)).map(rounded).collect();
            lengths.dedup();
            assert!(lengths.is_sorted() && lengths.len() <= 8, "{lengths:?}");
            assert_eq!(lengths.last(), Some(&high));
            assert!(power < 16 || lengths[0] <= (low - 1) / 4 * 5 + LARGE_BYTES, "{lengths:?}");
        }
    }

    #[test]
    fn huge_buffers_are_like_others() {
        let pool = Pool::new(64 << 20);
        for bytes in [2 << 20, 5_000_001] {
            let mut taken = pool.take(bytes);
            taken.as_slice_mut()[bytes - 1] = 7;
            let shared = pool.share(taken, bytes);
            assert_eq!((shared.len(), shared[bytes - 1], shared[0]), (bytes, 7, 0));
            let address = shared.as_ptr();
            assert_eq!(address.align_offset(64), 0);
            drop(shared);
            assert_eq!(pool.take(bytes).as_slice().as_ptr(), address);
        }
        let none = Pool::new(0);
        let mut taken = none.take(3 << 20);
        taken.as_slice_mut().fill(9);
        let shared = none.share(taken, 3 << 20);
        assert!(
            shared.len() == 3 << 20 && shared.iter().all(|&byte| byte == 9),
            "one that does not come back"
        );
    }

    #[test]
    fn a_buffer_that_cannot_come_back_is_an_ordinary_one() {
        let pool = Pool::new(7 << 20);
        let shared = [3 << 20, 3 << 20].map(|bytes| {
            let taken = pool.take(bytes);
            assert!(taken.has_pages());
            pool.share(taken, bytes)
        });
        assert!(!pool.take(3 << 20).has_pages(), "those in use leave no room");
        drop(shared);
        assert!(pool.take(5 << 20).has_pages(), "idle ones make room");
        assert!(!pool.take(8 << 20).has_pages());
        // Others that are shared first may leave no room after all.
        let taken = [(); 3].map(|()| pool.take(3 << 20));
        let shared = taken.map(|mut buffer| {
            assert!(buffer.has_pages());
            buffer.as_slice_mut().fill(9);
            pool.share(buffer, 3 << 20)
        });
        assert!(shared.iter().all(|all| all.len() == 3 << 20 && all.iter().all(|byte| *byte == 9)));
        drop(shared);
        assert!(pool.idle_bytes() <= 7 << 20);
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
