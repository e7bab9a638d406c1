//! The bytes of a raw block while it is being fetched, for all who read it: each piece as it comes.
//!
//! The fill pushes, readers follow. When the block has its place, the pieces go, and readers go on there. A
//! fill that was begun ahead of its reader, who went away without coming to it, is given up.

use bytes::Bytes;
use forebay_dataset::Urgency;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// Where a fill puts what comes.
#[derive(Debug)]
pub struct Tail {
    /// By where in the block they begin.
    pieces: watch::Sender<BTreeMap<u64, Bytes>>,
    pub urgency: Urgency,
}

/// A reader's hold on a tail: as long as there is one, the fill goes on; once somebody waited for it, it does
/// in any case.
#[derive(Debug)]
pub struct Follow(watch::Receiver<BTreeMap<u64, Bytes>>);

impl Tail {
    /// An empty one, and the hold of its first reader.
    pub fn new(urgency: Urgency) -> (Arc<Self>, Follow) {
        let (pieces, receiver) = watch::channel(BTreeMap::new());
        (Arc::new(Self { pieces, urgency }), Follow(receiver))
    }

    /// The hold of another reader.
    pub fn follow(&self) -> Follow {
        Follow(self.pieces.subscribe())
    }

    /// A piece has come that begins `at` this byte of the block.
    pub fn push(&self, at: u64, piece: Bytes) {
        self.pieces.send_modify(|pieces| drop(pieces.insert(at, piece)));
    }

    /// All pieces in order.
    pub fn pieces(&self) -> Vec<Bytes> {
        self.pieces.borrow().values().cloned().collect()
    }

    /// Forgets the pieces: the bytes are to be had elsewhere, or not at all.
    pub fn clear(&self) {
        let gone = self.pieces.send_replace(BTreeMap::new());
        drop(gone);
    }

    /// Returns when nobody follows any more, and nobody ever waited for it.
    pub async fn abandoned(&self) {
        self.pieces.closed().await;
        if self.urgency.is_demand() {
            std::future::pending::<()>().await;
        }
    }
}

impl Follow {
    /// What has come from this byte of the block on, up to `end` at most; waits until there is any.
    pub async fn next(&mut self, at: u64, end: u64) -> Bytes {
        loop {
            let found = {
                let pieces = self.0.borrow_and_update();
                let piece = pieces.range(..=at).next_back().map(|(start, piece)| (at - start, piece));
                piece.filter(|(skip, piece)| *skip < piece.len() as u64).map(|(skip, piece)| {
                    let last = (skip + (end - at)).min(piece.len() as u64);
                    piece.slice(skip as usize..last as usize)
                })
            };
            if let Some(piece) = found {
                return piece;
            }
            if self.0.changed().await.is_err() {
                // The fill ended without telling: those who wait learn it from the fill itself.
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn readers_get_what_has_come_in_whatever_order() {
        let (tail, mut first) = Tail::new(Urgency::prefetch());
        tail.push(4, Bytes::from_static(b"efgh"));
        assert!(first.next(0, 8).now_or_never().is_none());
        assert_eq!(first.next(5, 7).await, "fg");
        let mut second = tail.follow();
        let (got, ()) = tokio::join!(second.next(1, 8), async { tail.push(0, Bytes::from_static(b"abcd")) });
        assert_eq!(got, "bcd");
        assert_eq!(tail.pieces().concat(), b"abcdefgh");
        drop(first);
        assert!(tail.abandoned().now_or_never().is_none());
        tail.clear();
        assert!(second.next(0, 8).now_or_never().is_none());
        drop(second);
        tail.abandoned().await;
        tail.urgency.raise();
        assert!(tail.abandoned().now_or_never().is_none(), "somebody waited for it");
    }
}
