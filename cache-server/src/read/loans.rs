//! Bytes of blocks that are sent as they lie in their files, without a copy.
//!
//! A file that is mapped can be changed by others while its bytes are sent. A block is verified before its
//! first bytes are lent; and a sender settles before the end of a body: waits until all that was lent is on
//! its way, and verifies the blocks again. If one is not sound any more, the body has no end, and its reader
//! throws it away.

use arrow::buffer::Buffer;
use bytes::Bytes;
use forebay_dataset::ReadySegment;
use forebay_dataset::ready::drop_aside;
use futures::task::AtomicWaker;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire};
use std::task::Poll;

/// Blocks, and bytes, that are lent between two settlements, about.
const BLOCKS_MAX: usize = 64;
const BYTES_MAX: usize = 64 << 20;

/// What a stream has lent since it settled last.
#[derive(Debug, Default)]
pub struct Loans {
    out: Arc<Out>,
    blocks: Vec<ReadySegment>,
    bytes: usize,
}

/// How many loans are not given back.
#[derive(Debug, Default)]
struct Out {
    count: AtomicUsize,
    none: AtomicWaker,
}

/// Bytes that are given back when they are dropped.
struct Loan {
    bytes: Buffer,
    out: Arc<Out>,
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if self.out.count.fetch_sub(1, AcqRel) == 1 {
            self.out.none.wake();
        }
    }
}

impl Loans {
    /// Lends bytes of a block; `None` if it is not sound.
    pub fn lend(&mut self, block: &ReadySegment, bytes: Buffer) -> Option<Bytes> {
        if self.blocks.last().is_none_or(|last| !Arc::ptr_eq(&last.batch, &block.batch)) {
            if !block.verify() {
                return None;
            }
            self.blocks.push(block.clone());
        }
        self.bytes += bytes.len();
        self.out.count.fetch_add(1, AcqRel);
        Some(Bytes::from_owner(Loan { bytes, out: self.out.clone() }))
    }

    /// Whether it is time to settle.
    pub fn are_many(&self) -> bool {
        self.blocks.len() > BLOCKS_MAX || self.bytes > BYTES_MAX
    }

    /// Waits until all is given back; whether it was sound all the time.
    pub async fn settle(&mut self) -> bool {
        poll_fn(|cx| {
            self.out.none.register(cx.waker());
            match self.out.count.load(Acquire) {
                0 => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .await;
        self.bytes = 0;
        let is_sound = self.blocks.iter().all(ReadySegment::verify);
        drop_aside(self.blocks.drain(..));
        is_sound
    }
}

impl Drop for Loans {
    fn drop(&mut self) {
        drop_aside(self.blocks.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::block::{batch_of, bytes_of};
    use forebay_dataset::ready::Verifier;
    use futures::FutureExt;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    #[derive(Debug, Default)]
    struct Changing(AtomicBool);

    impl Verifier for Changing {
        fn is_sound(&self) -> bool {
            !self.0.load(Relaxed)
        }

        fn is_in_memory(&self, _: &[u8]) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn loans_are_settled_when_all_are_back_and_sound() {
        let file = Arc::new(Changing::default());
        let batch = Arc::new(batch_of(&[Bytes::from_static(b"0123456789")]).unwrap());
        let block = ReadySegment::in_file(batch, file.clone());
        let mut loans = Loans::default();
        let lend = |loans: &mut Loans| loans.lend(&block, bytes_of(&block.batch, 2..5).unwrap());
        let (one, two) = (lend(&mut loans).unwrap(), lend(&mut loans).unwrap());
        assert_eq!(one, "234");
        let rest = one.slice(1..);
        drop((one, two));
        assert!(loans.settle().now_or_never().is_none(), "a part of one is not back");
        let (is_sound, ()) = tokio::join!(loans.settle(), async { drop(rest) });
        assert!(is_sound && loans.settle().await);
        drop(lend(&mut loans).unwrap());
        file.0.store(true, Relaxed);
        assert!(!loans.settle().await, "it was changed while it was lent");
        assert!(loans.settle().await, "and that was told");
        assert_eq!(lend(&mut loans), None, "it is not lent any more");
    }
}
