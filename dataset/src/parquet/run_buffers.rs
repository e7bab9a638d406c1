//! Where the bytes of a run land: each segment's in memory of its own, which is sent on when it is full.

use crate::parquet::chunks::{Chunks, FetchedRange};
use crate::parquet::fetch::{GAP_BYTES, coalesce};
use forebay_proto::{Error, Result};
use parking_lot::Mutex;
use std::ops::Range;
use tokio::sync::oneshot;

/// The bytes of consecutive segments of one object, while they come.
pub(super) struct RunBuffers {
    /// Where all of them lie, in ascending order.
    ranges: Vec<Range<u64>>,
    segments: Vec<Mutex<SegmentBuffer>>,
}

struct SegmentBuffer {
    object_bytes: u64,
    ranges: Vec<(u64, Vec<u8>)>,
    /// Bytes that have not come.
    missing: u64,
    /// None once they were sent.
    done: Option<oneshot::Sender<Result<Chunks>>>,
}

impl RunBuffers {
    /// For the column chunks of segments of an object of `object_bytes`, each of which is told by its sender.
    pub fn new(
        object_bytes: u64,
        chunks: impl IntoIterator<Item = Vec<Range<u64>>>,
        senders: Vec<oneshot::Sender<Result<Chunks>>>,
    ) -> Self {
        let of_each: Vec<_> = chunks.into_iter().map(|chunks| coalesce(chunks, GAP_BYTES)).collect();
        let ranges = coalesce(of_each.concat(), GAP_BYTES);
        let buffer = |(ranges, done): (Vec<Range<u64>>, _)| {
            let ranges: Vec<_> =
                ranges.into_iter().map(|r| (r.start, vec![0; (r.end - r.start) as usize])).collect();
            let missing = ranges.iter().map(|(_, bytes)| bytes.len() as u64).sum();
            let mut buffer = SegmentBuffer { object_bytes, ranges, missing, done: Some(done) };
            buffer.send_if_full();
            Mutex::new(buffer)
        };
        Self { ranges, segments: of_each.into_iter().zip(senders).map(buffer).collect() }
    }

    /// The ranges to fetch.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Puts bytes of the object from `at` on, each of which comes once.
    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.segments.iter().for_each(|segment| segment.lock().put(at, bytes));
    }

    /// Tells all that did not get their bytes why.
    pub fn fail(&self, e: &Error) {
        for segment in &self.segments {
            if let Some(done) = segment.lock().done.take() {
                done.send(Err(e.clone())).ok();
            }
        }
    }
}

impl SegmentBuffer {
    fn put(&mut self, at: u64, bytes: &[u8]) {
        if self.done.is_none() {
            return;
        }
        for (start, own) in &mut self.ranges {
            let (from, to) = (at.max(*start), (at + bytes.len() as u64).min(*start + own.len() as u64));
            if from < to {
                own[(from - *start) as usize..(to - *start) as usize]
                    .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
                self.missing -= to - from;
            }
        }
        self.send_if_full();
    }

    fn send_if_full(&mut self) {
        if self.missing > 0 {
            return;
        }
        let Some(done) = self.done.take() else { return };
        let ranges = std::mem::take(&mut self.ranges).into_iter();
        let ranges = ranges.map(|(start, bytes)| FetchedRange { start, bytes: bytes.into() }).collect();
        // Who waited may have gone.
        done.send(Ok(Chunks { size: self.object_bytes, ranges })).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(chunks: &Chunks, range: Range<u64>) -> Vec<u8> {
        chunks.bytes(range).unwrap().to_vec()
    }

    /// An object of 30,000 bytes, of which each says where it lies.
    fn object(range: Range<u64>) -> Vec<u8> {
        range.map(|at| (at * 7 % 251) as u8).collect()
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "lists of ranges are under test")]
    fn each_segment_is_sent_when_its_last_byte_has_come() {
        let (senders, mut got): (Vec<_>, Vec<_>) = (0..3).map(|_| oneshot::channel()).unzip();
        // The first lies in two places, with a gap that is read along; between the others lies too much.
        let chunks = [vec![10..100, 200..300], vec![300..1000], vec![20_000..20_010]];
        let buffers = RunBuffers::new(30_000, chunks, senders);
        assert_eq!(buffers.ranges(), [10..1000, 20_000..20_010]);
        // Two requests take turns; pieces end anywhere.
        buffers.put(500, &object(500..1000));
        buffers.put(10, &object(10..299));
        assert!(got.iter_mut().all(|got| got.try_recv().is_err()), "none is complete");
        buffers.put(299, &object(299..301));
        let first = got[0].try_recv().unwrap().unwrap();
        assert_eq!(bytes(&first, 10..100), object(10..100));
        assert_eq!(bytes(&first, 200..300), object(200..300));
        assert!(got[1].try_recv().is_err());
        buffers.put(301, &object(301..500));
        assert_eq!(bytes(&got[1].try_recv().unwrap().unwrap(), 300..1000), object(300..1000));
        // The last fails, and it alone.
        buffers.fail(&Error::changed("gone"));
        assert_eq!(got[2].try_recv().unwrap().err().unwrap().message, "gone");
        buffers.put(20_000, &object(20_000..20_010));
    }

    #[test]
    fn a_segment_without_bytes_waits_for_none() {
        let (sender, mut got) = oneshot::channel();
        let buffers = RunBuffers::new(9, [vec![]], vec![sender]);
        assert!(buffers.ranges().is_empty());
        assert!(got.try_recv().unwrap().is_ok_and(|chunks| chunks.ranges.is_empty()));
    }
}
