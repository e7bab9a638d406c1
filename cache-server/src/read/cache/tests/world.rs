//! A cache over objects in a folder, each one segment, small enough to read thousands of times.

use super::super::*;
use crate::disk::DiskCacheSettings;
use crate::read::plans::Announced;
use crate::service::stalls::{Stalls, StreamOrigin};
use crate::service::stream::StreamSegments;
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use forebay_dataset::schema;
use forebay_dataset::stream::{BatchStream, PlanWalk, StreamBudget, StreamSetup};
use forebay_proto::plan::{Order, PlanKey, Shuffle};
use forebay_proto::v1;
use parquet::arrow::ArrowWriter;
use std::path::Path;
use tempfile::TempDir;

/// Rows of each segment.
pub const ROWS: u64 = 3900;

/// Decoded bytes of a segment.
pub const SEGMENT_BYTES: u64 = 8 * ROWS;

/// A dataset in a folder.
pub struct Dataset {
    pub reading: Reading,
    source: SegmentReader,
    _folder: TempDir,
}

impl Dataset {
    /// Of `segments` segments.
    pub async fn new(segments: u32) -> Self {
        Self::of((0..segments).map(batch)).await
    }

    /// Of these segments.
    pub async fn of(segments: impl IntoIterator<Item = RecordBatch>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let objects = segments.into_iter().enumerate();
        let segments =
            objects.map(|(i, batch)| object(&folder.path().join(format!("{i:04}.parquet")), &batch)).count();
        let source = SegmentReader::new(Default::default()).unwrap();
        let frozen = source.freeze(&format!("file://{}", folder.path().display()), 1).await.unwrap();
        let schema = schema::from_ipc(frozen.manifest.schema()).unwrap();
        let reading = Reading::new(Arc::new(frozen.manifest.clone()), &schema, &[]).unwrap();
        assert_eq!(reading.manifest.segments().len(), segments);
        Self { reading, source, _folder: folder }
    }

    pub fn ids(&self) -> Vec<SegmentId> {
        let segments = 0..self.reading.manifest.segments().len() as u32;
        segments.map(|s| self.reading.manifest.segment_id(s).unwrap()).collect()
    }

    /// A limit under which `fit` of its segments fit, wherever they lie, and no more.
    pub async fn limit_bytes(&self, fit: u32) -> u64 {
        let world = World::new(self, 1 << 30, 1 << 26);
        let all = self.reading.manifest.segments().len() as u32;
        for segment in 0..all {
            world.cache.get(&self.reading, segment).await.unwrap();
        }
        // Files take whole blocks; a file more needs room for its folder to grow.
        let file = (SEGMENT_BYTES + 1).next_multiple_of(4096);
        world.cache.disk.used_bytes() - u64::from(all - fit) * file + file / 2
    }
}

fn batch(i: u32) -> RecordBatch {
    // Not compressible: bytes read from the source are as many as those decoded.
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(
        (0..ROWS as i64).map(|r| (i64::from(i) * 4000 + r).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)),
    ));
    RecordBatch::try_from_iter([("id", ids)]).unwrap()
}

fn object(path: &Path, batch: &RecordBatch) {
    let mut writer =
        ArrowWriter::try_new(std::fs::File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

/// A node's cache.
pub struct World {
    pub cache: Arc<Cache>,
    pub events: Arc<Events>,
    _dir: TempDir,
}

impl World {
    pub fn new(dataset: &Dataset, limit_bytes: u64, memory_bytes: u64) -> Self {
        Self::with_dirs(dataset, 1, limit_bytes, memory_bytes)
    }

    /// With several directories, which share the limit.
    pub fn with_dirs(dataset: &Dataset, dirs: u32, limit_bytes: u64, memory_bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // A machine that stands still for a moment must not look like another policy.
        let plans = Arc::new(Plans::timeless());
        let mut settings = DiskCacheSettings::new(dir.path(), limit_bytes);
        settings.dirs = (0..dirs).map(|n| dir.path().join(n.to_string())).collect();
        let disk = DiskCache::open(&settings, plans.clone()).unwrap();
        let events = Arc::new(Events::default());
        let memory = Memory::new(memory_bytes);
        let cache = Cache::new(
            dataset.source.clone(),
            Arc::new(disk),
            events.clone(),
            plans,
            memory,
            Arc::new(Peers::none()),
        );
        Self { cache, events, _dir: dir }
    }

    /// Announces one rank's stream of an epoch.
    pub fn announce(&self, dataset: &Dataset, run: &Run, epoch: u64, rank: u32) -> Announced {
        let plans = &self.cache.plans;
        let ticket = run.ticket(dataset, epoch, rank);
        let walk = PlanWalk::new(&dataset.reading.manifest, &ticket, &plans.orders).unwrap();
        plans.announce(&dataset.reading, &walk).unwrap()
    }

    /// Reads one rank's rows of an epoch as a stream does, and counts them.
    pub async fn stream(&self, dataset: &Dataset, run: &Run, epoch: u64, rank: u32) -> u64 {
        let announced = self.announce(dataset, run, epoch, rank);
        let stalls = Stalls::new(&self.cache.memory, Arc::default());
        let watch = Arc::new(stalls.watch(StreamOrigin::default()));
        let mut segments = StreamSegments::new(self.cache.clone(), self.cache.memory.clone(), watch);
        segments.plan = Some(announced);
        let segments = Arc::new(segments);
        let message_bytes = SEGMENT_BYTES as usize / 4;
        let budget = StreamBudget { message_bytes, messages: 1, segments_ahead: None };
        let reading = dataset.reading.clone();
        let ticket = run.ticket(dataset, epoch, rank);
        let walk = PlanWalk::new(&reading.manifest, &ticket, &self.cache.plans.orders).unwrap();
        let pool = segments.pool();
        let setup = StreamSetup { reading, segments: segments.clone(), hooks: segments, budget, pool };
        let mut answer = BatchStream::plan(setup, walk);
        let mut rows = 0;
        while let Some(message) = answer.messages.recv().await {
            rows += message.unwrap().rows();
        }
        rows
    }
}

/// A run over a dataset.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub seed: u64,
    pub window: u32,
    pub world: u32,
    pub epochs: u64,
}

impl Run {
    pub fn order(&self, dataset: &Dataset, epoch: u64) -> Order {
        Order::new(&dataset.reading.manifest, self.seed, epoch, Shuffle::Window(self.window))
    }

    fn ticket(&self, dataset: &Dataset, epoch: u64, rank: u32) -> v1::PlanTicket {
        let key = PlanKey {
            manifest: dataset.reading.manifest.digest(),
            seed: self.seed,
            epoch,
            shuffle: Shuffle::Window(self.window),
        };
        v1::PlanTicket {
            plan: Some(key.into()),
            global_batch: 20 * u64::from(self.world),
            rank,
            world: self.world,
            epochs_after: Some(self.epochs - 1 - epoch),
            ..Default::default()
        }
    }
}
