//! What one stream sends: throttled by the node's limit, and counted.
//!
//! Bytes by segment are summed for each stream and told to the node once a second, so that streams do not
//! meet at one lock for every message.

use crate::auth::limiter::Limiter;
use crate::cluster::hot::HotSegments;
use crate::events::Events;
use forebay_dataset::stream::Message;
use forebay_proto::manifest::Manifest;
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
    manifest: Arc<Manifest>,
    /// Of the caller.
    limiter: Option<Arc<Limiter>>,
    /// Bytes sent by segment since they were last told.
    bytes: HashMap<u32, f64>,
    told: Instant,
}

impl StreamMeter {
    /// Counts a stream over `manifest`.
    pub fn new(hot: Arc<HotSegments>, events: Arc<Events>, manifest: Arc<Manifest>) -> Self {
        events.streams.fetch_add(1, Relaxed);
        Self { hot, events, manifest, limiter: None, bytes: HashMap::new(), told: Instant::now() }
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

    /// Counts a message. By segment only while the node has much to do.
    pub fn sent(&mut self, message: &Message) {
        let bytes = message.body_bytes() as u64;
        let rows = message.row_runs().map(|run| u64::from(run.rows)).sum::<u64>();
        self.events.bytes_served.fetch_add(bytes, Relaxed);
        self.events.rows_served.fetch_add(rows, Relaxed);
        if self.hot.is_counting() {
            let row_bytes = bytes as f64 / rows.max(1) as f64;
            for run in message.row_runs() {
                *self.bytes.entry(run.segment).or_default() += f64::from(run.rows) * row_bytes;
            }
        }
        if self.told.elapsed() >= TELL {
            self.tell();
        }
    }

    /// Counts what of a message the reader takes from shared memory.
    pub fn shared(&self, body: Option<&v1::SharedBody>) {
        let parts = || body.iter().flat_map(|body| &body.parts);
        let lent = parts().filter(|part| part.rows.is_some());
        self.events.bytes_shared.fetch_add(parts().map(|part| part.length).sum(), Relaxed);
        self.events.bytes_lent.fetch_add(lent.map(|part| part.length).sum(), Relaxed);
    }

    fn tell(&mut self) {
        self.told = Instant::now();
        let by_segment = self.bytes.drain();
        let heat = by_segment.filter_map(|(s, bytes)| Some((self.manifest.segment_id(s).ok()?, bytes)));
        let heat: Vec<_> = heat.collect();
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

    #[test]
    fn a_stream_is_counted_by_itself_and_told_when_it_ends() {
        let object = Object { key: "o".into(), etag: "e".into(), size: 1, ..Default::default() };
        let size = SegmentSize { object: 0, row_groups: 1, rows: 9, decoded_bytes: 90 };
        let manifest = Arc::new(Manifest::new("s3://b/p", 1, Vec::new(), vec![object], &[size; 2]).unwrap());
        let (hot, events) = (Arc::new(HotSegments::new(None)), Arc::new(Events::default()));
        let mut meter = StreamMeter::new(hot, events.clone(), manifest);
        let meta = v1::MessageMeta { runs: vec![0, 1, 2, 1, 0, 4], ..Default::default() };
        let message = Message {
            header: Bytes::new(),
            meta: Some(meta),
            body: vec![Bytes::from(vec![0; 60])],
            is_shared: false,
            lender: None,
        };
        meter.sent(&message);
        meter.sent(&message);
        drop(meter);
        let counts = (&events.streams, &events.rows_served, &events.bytes_served);
        assert_eq!((counts.0.load(Relaxed), counts.1.load(Relaxed), counts.2.load(Relaxed)), (1, 12, 120));
    }
}
