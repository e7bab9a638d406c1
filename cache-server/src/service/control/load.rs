//! Filling the cache with segments of a dataset, for those who wait for the whole.

use crate::auth::caller::Caller;
use crate::auth::limiter::Limiter;
use crate::disk::DiskCache;
use crate::node::Node;
use crate::read::fill::Ahead;
use crate::runtime::blocking;
use crate::service::fetch_limit::{segment_turn, throttle};
use forebay_dataset::Urgency;
use forebay_dataset::stream::Reading;
use forebay_proto::{Error, Manifest, Result, SegmentSet, v1};
use futures::StreamExt;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Segments that are filled at once; the source has limits of its own.
const CONCURRENCY: usize = 8;

/// Fills the segments of a request that are missing, with a report after each. The last report says how many
/// are held then: not all, if they are larger than the disk cache. `stop` ends it.
pub async fn load(
    node: Arc<Node>,
    caller: &Caller,
    request: v1::LoadRequest,
    stop: CancellationToken,
) -> Result<ReceiverStream<Result<v1::LoadProgress, Status>>> {
    let v1::LoadRequest { dataset, columns, segments, digest } = request;
    let spec = dataset.ok_or_else(|| Error::invalid("load: no dataset given"))?;
    if let Some(limiter) = caller.limiter() {
        limiter.open().await?;
    }
    let dataset = match digest.is_empty() {
        true => node.datasets.freeze(caller, spec, &columns).await?.dataset,
        false => node.datasets.get(caller, &digest, &spec.uri, (None, false))?,
    };
    let reading = Reading::new(dataset.manifest.clone(), &dataset.schema, &columns)?;
    let count = dataset.manifest.segments().len() as u32;
    let wanted: Vec<u32> = SegmentSet::from_wire(&segments, count).iter().collect();
    let (sender, progress) = mpsc::channel(4);
    let throttle = throttle(caller.limiter());
    tokio::spawn(async move {
        tokio::select! {
            done = fill(&node, &reading, wanted, throttle.as_ref(), &sender) => if let Err(e) = done {
                sender.send(Err(e.into())).await.ok();
            },
            () = stop.cancelled() => {
                sender.send(Err(Error::retry("this node is shutting down").into())).await.ok();
            }
            () = sender.closed() => {}
        }
    });
    Ok(ReceiverStream::new(progress))
}

/// Fills the `wanted` segments that are missing.
async fn fill(
    node: &Node,
    reading: &Reading,
    wanted: Vec<u32>,
    throttle: Option<&Arc<Limiter>>,
    sender: &mpsc::Sender<Result<v1::LoadProgress, Status>>,
) -> Result<()> {
    // Other loads and jobs read at the same time: only what this one fetches counts.
    let urgency = &Urgency::demand();
    let mut loaded = Loaded::new(node, reading, &wanted);
    let gone = |_| Error::closed("the caller has gone");
    sender.send(Ok(loaded.progress)).await.map_err(gone)?;
    let mut filled = futures::stream::iter(wanted)
        .map(|s| async move {
            let _turn = match throttle {
                Some(limiter) => segment_turn(limiter, &node.cache, reading, s).await?,
                None => None,
            };
            let demand = Ahead { urgency: urgency.clone(), ..Ahead::demand() };
            let ready = node.cache.read(reading, s, demand, None).await?;
            // It is looked at, and let go, off the async threads.
            let bytes = blocking(move || ready.batch.value_bytes() as u64).await?;
            Ok::<_, Error>((s, bytes))
        })
        .buffer_unordered(CONCURRENCY);
    while let Some(read) = filled.next().await {
        let (segment, bytes) = read?;
        loaded.add(segment, bytes);
        loaded.progress.s3_bytes = urgency.fetched_bytes();
        sender.send(Ok(loaded.progress)).await.map_err(gone)?;
    }
    let last = blocking(move || loaded.held_now()).await?;
    sender.send(Ok(last)).await.map_err(gone)
}

/// How far a load is.
struct Loaded {
    disk: Arc<DiskCache>,
    manifest: Arc<Manifest>,
    columns: Vec<String>,
    /// The segments read, and the decoded bytes of each.
    read: Vec<(u32, u64)>,
    /// Decoded bytes of those read, and as the manifest has them; and of all that are wanted.
    read_bytes: u64,
    announced_bytes: u64,
    wanted_bytes: u64,
    progress: v1::LoadProgress,
}

impl Loaded {
    fn new(node: &Node, reading: &Reading, wanted: &[u32]) -> Self {
        let (disk, manifest) = (node.disk.clone(), reading.manifest.clone());
        let wanted_bytes = wanted.iter().map(|&s| manifest.segments()[s as usize].decoded_bytes).sum();
        let segments_total = wanted.len() as u64;
        Self {
            disk,
            manifest,
            columns: reading.columns().cloned().collect(),
            read: Vec::new(),
            read_bytes: 0,
            announced_bytes: 0,
            wanted_bytes,
            progress: v1::LoadProgress {
                segments_total,
                decoded_bytes_total: wanted_bytes,
                ..Default::default()
            },
        }
    }

    /// A segment was read.
    fn add(&mut self, segment: u32, bytes: u64) {
        self.read.push((segment, bytes));
        self.read_bytes += bytes;
        self.announced_bytes += self.manifest.segments()[segment as usize].decoded_bytes;
        // Those to come are taken to be off by as much as those that came.
        let factor = self.read_bytes as f64 / self.announced_bytes.max(1) as f64;
        let left = self.wanted_bytes.saturating_sub(self.announced_bytes) as f64 * factor;
        let is_held = self.holds(segment);
        let p = &mut self.progress;
        p.segments_read += 1;
        p.decoded_bytes_total = self.read_bytes + left as u64;
        if is_held {
            p.segments_held += 1;
            p.decoded_bytes_held += bytes;
        }
    }

    /// Segments held now: one read before may have been evicted for a later one.
    fn held_now(&self) -> v1::LoadProgress {
        let held: Vec<u64> = self.read.iter().filter(|(s, _)| self.holds(*s)).map(|(_, n)| *n).collect();
        v1::LoadProgress {
            segments_held: held.len() as u64,
            decoded_bytes_held: held.iter().sum(),
            dirs_full: self.disk.dirs_full(),
            ..self.progress
        }
    }

    fn holds(&self, segment: u32) -> bool {
        self.manifest.segment_id(segment).is_ok_and(|id| self.disk.holds(id, &self.columns))
    }
}
