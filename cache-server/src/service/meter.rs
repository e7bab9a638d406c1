//! What one stream sends, batches of a dataset or bytes of an object: throttled by the limits, and counted.
//! Where the node has much to do it counts by segment or raw block too: those that are read much get further
//! copies.
//!
//! Bytes by segment are summed for each stream and told to the node once a second, so that streams do not
//! meet at one lock for every message.

use crate::auth::limiter::Limiter;
use crate::cluster::hot::HotSegments;
use crate::events::Events;
use crate::objects::ObjectPiece;
use forebay_dataset::stream::Message;
use forebay_proto::manifest::{Manifest, SegmentId};
use forebay_proto::object::ObjectVersion;
use forebay_proto::v1;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How often the bytes by segment are told.
const TELL: Duration = Duration::from_secs(1);

/// Counts what one stream sends.
pub struct StreamMeter {
    hot: Arc<HotSegments>,
    events: Arc<Events>,
    content: MeteredContent,
    /// Of the caller.
    limiter: Option<Arc<Limiter>>,
    /// Bytes sent by segment, or by block, since they were last told.
    bytes: HashMap<u64, f64>,
    told: Instant,
}

/// What a stream is of.
enum MeteredContent {
    Dataset(Arc<Manifest>),
    Object(Arc<ObjectVersion>),
}

impl MeteredContent {
    /// What names a segment, or a block, on every node.
    fn id(&self, index: u64) -> Option<SegmentId> {
        match self {
            Self::Dataset(manifest) => manifest.segment_id(index.try_into().ok()?).ok(),
            Self::Object(version) => Some(version.block_id(index)),
        }
    }
}

impl StreamMeter {
    /// Counts a batch stream over `manifest`.
    pub fn of_dataset(hot: Arc<HotSegments>, events: Arc<Events>, manifest: Arc<Manifest>) -> Self {
        events.streams.fetch_add(1, Relaxed);
        Self::new(hot, events, MeteredContent::Dataset(manifest))
    }

    /// Counts a stream of the bytes of an object.
    pub fn of_object(hot: Arc<HotSegments>, events: Arc<Events>, version: Arc<ObjectVersion>) -> Self {
        Self::new(hot, events, MeteredContent::Object(version))
    }

    fn new(hot: Arc<HotSegments>, events: Arc<Events>, content: MeteredContent) -> Self {
        Self { hot, events, content, limiter: None, bytes: HashMap::new(), told: Instant::now() }
    }

    /// The same, within the limits of a principal.
    pub fn limited(mut self, limiter: Option<&Arc<Limiter>>) -> Self {
        self.limiter = limiter.cloned();
        self
    }

    /// Waits until the limits allow it to serve these bytes too.
    pub async fn throttle(&self, bytes: u64) {
        self.hot.throttle(bytes).await;
        if let Some(limiter) = &self.limiter {
            limiter.send(bytes).await;
        }
    }

    /// Counts the bytes and rows of a message; on a busy node the bytes by segment too.
    pub fn sent(&mut self, message: &Message) {
        let bytes = message.body_bytes() as u64;
        let rows = message.rows();
        self.events.bytes_served.fetch_add(bytes, Relaxed);
        self.events.rows_served.fetch_add(rows, Relaxed);
        if self.hot.is_counting() {
            let row_bytes = bytes as f64 / rows.max(1) as f64;
            for (segment, rows) in message.segment_rows() {
                *self.bytes.entry(segment.into()).or_default() += rows * row_bytes;
            }
        }
        self.tell_when_due();
    }

    /// Waits until the limits allow it to send a piece of an object too, and counts it.
    pub async fn send_piece(&mut self, piece: &ObjectPiece) {
        let bytes = piece.bytes.len() as u64;
        self.throttle(bytes).await;
        self.events.bytes_served.fetch_add(bytes, Relaxed);
        if self.hot.is_counting() {
            *self.bytes.entry(piece.block).or_default() += bytes as f64;
        }
        self.tell_when_due();
    }

    /// Counts what of a message the reader takes from shared memory.
    pub fn shared(&self, body: Option<&v1::SharedBody>) {
        let parts = || body.iter().flat_map(|body| &body.parts);
        let lent = || parts().filter_map(|part| Some((part.length, part.rows.as_ref()?)));
        let planned = lent().filter(|(_, rows)| !rows.segments.is_empty());
        self.events.bytes_shared.fetch_add(parts().map(|part| part.length).sum(), Relaxed);
        self.events.bytes_lent.fetch_add(lent().map(|(bytes, _)| bytes).sum(), Relaxed);
        self.events.bytes_planned.fetch_add(planned.map(|(bytes, _)| bytes).sum(), Relaxed);
    }

    fn tell_when_due(&mut self) {
        if self.told.elapsed() >= TELL {
            self.tell();
        }
    }

    fn tell(&mut self) {
        self.told = Instant::now();
        let by_index = self.bytes.drain();
        let heat: Vec<_> =
            by_index.filter_map(|(index, bytes)| Some((self.content.id(index)?, bytes))).collect();
        if !heat.is_empty() {
            self.hot.detection().note(heat);
        }
    }
}

impl Drop for StreamMeter {
    fn drop(&mut self) {
        self.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use forebay_proto::manifest::{Object, SegmentSize};
    use forebay_proto::object::BLOCK_BYTES;

    #[test]
    fn a_stream_is_counted_by_itself_and_told_when_it_ends() {
        let object = Object { key: "o".into(), etag: "e".into(), size: 1, ..Default::default() };
        let size = SegmentSize { object: 0, row_groups: 1, rows: 9, decoded_bytes: 90 };
        let manifest = Arc::new(Manifest::new("s3://b/p", 1, Vec::new(), vec![object], &[size; 2]).unwrap());
        let (hot, events) = (Arc::new(HotSegments::new(None)), Arc::new(Events::default()));
        let mut meter = StreamMeter::of_dataset(hot, events.clone(), manifest);
        let meta = v1::MessageMeta { runs: vec![0, 1, 2, 1, 0, 4], ..Default::default() };
        let message = Message {
            header: Bytes::new(),
            meta: Some(meta),
            body: vec![Bytes::from(vec![0; 60])],
            is_shared: false,
            lender: None,
            planned: None,
        };
        meter.sent(&message);
        meter.sent(&message);
        drop(meter);
        let counts = (&events.streams, &events.rows_served, &events.bytes_served);
        assert_eq!((counts.0.load(Relaxed), counts.1.load(Relaxed), counts.2.load(Relaxed)), (1, 12, 120));
    }

    #[tokio::test]
    async fn pieces_of_objects_are_counted_and_are_no_batch_streams() {
        let version = ObjectVersion {
            uri: "s3://b/k".into(),
            etag: "e".into(),
            size: 60,
            modified_ms: 0,
            block_bytes: BLOCK_BYTES,
            headers: "".into(),
        };
        let (hot, events) = (Arc::new(HotSegments::new(None)), Arc::new(Events::default()));
        let mut meter = StreamMeter::of_object(hot, events.clone(), Arc::new(version));
        meter.send_piece(&ObjectPiece { offset: 0, block: 0, bytes: Bytes::from(vec![0; 60]) }).await;
        assert_eq!((events.streams.load(Relaxed), events.bytes_served.load(Relaxed)), (0, 60));
    }
}
