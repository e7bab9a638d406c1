//! The loader: one rank's batches of a dataset, epoch after epoch, in the plan's order.
//!
//! It promises the order of `forebay_proto::plan`: every sample of the epoch in its place, none lost, none repeated,
//! whatever streams break, and the digest of each epoch as proof. Batches are prepared ahead within
//! [`LoaderSettings::prefetch_bytes`], across the end of an epoch too. The way of a batch:
//!
//! * `sampler` says which rows a step holds and where they lie;
//! * `lane` keeps one stream for the segments of one node going (`feed`: from a node, or from the store itself), and
//!   checks with its `cursor` that each message brings what is next;
//! * `landing` takes a message apart (`shape`) and copies it into the batches;
//! * `merge` holds the batches that are being filled, and the byte budget;
//! * [`Batch`] is the result: one contiguous array per column.

mod batch;
mod cursor;
mod feed;
mod landing;
mod lane;
mod merge;
mod sampler;
mod shape;

use crate::access::Access;
use crate::dataset::Dataset;
use crate::pool::Pool;
use crate::routing::Cluster;
use crate::stream::StreamSettings;
pub use batch::Batch;
use forebay_dataset::jitter;
use forebay_dataset::stream::gather::plain_width;
use forebay_proto::digest::OrderDigest;
pub use forebay_proto::plan::Shuffle;
use forebay_proto::plan::steps::{Cut, Steps};
pub use forebay_proto::plan::steps::{Ending, Layout};
use forebay_proto::plan::{Order, PlanKey};
pub use forebay_proto::state::LoaderState;
use forebay_proto::{Error, Result};
use lane::{Lane, Supply, Work};
use merge::Window;
use sampler::Epoch;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use xxhash_rust::xxh3::xxh3_64;

/// What a loader reads and how.
#[derive(Debug, Clone, PartialEq)]
pub struct LoaderSettings {
    /// The run's seed.
    pub seed: u64,
    /// How rows are shuffled.
    pub shuffle: Shuffle,
    /// What becomes of the last, incomplete step.
    pub ending: Ending,
    /// Where rows lie in a batch.
    pub layout: Layout,
    /// Samples of one step over all ranks; a multiple of `world`.
    pub global_batch: u64,
    /// Which rank this is, from 0.
    pub rank: u32,
    /// Number of ranks.
    pub world: u32,
    /// The first epoch.
    pub first_epoch: u64,
    /// How many epochs, counted from `first_epoch` even when resumed; `None` = without end.
    pub epochs: Option<u64>,
    /// Bytes of batches that are ready or being filled. One batch is prepared even if it is larger.
    pub prefetch_bytes: u64,
    /// How long the rows may fail to come, however often it is tried, before that is an error.
    pub patience: Duration,
    /// How long no node of the cache may answer before rows are read from the store, if the access has that fallback. Each
    /// reader adds up to half of it at random, lest all readers of a cache that dies come to the store at once.
    pub fallback_after: Duration,
    /// Go on from here instead of the first epoch's beginning.
    pub resume: Option<LoaderState>,
    /// How streams behave. Each holds up to its window beyond `prefetch_bytes`.
    pub stream: StreamSettings,
}

impl Default for LoaderSettings {
    fn default() -> Self {
        Self {
            seed: 0,
            shuffle: Shuffle::Window(4),
            ending: Ending::default(),
            layout: Layout::default(),
            global_batch: 256,
            rank: 0,
            world: 1,
            first_epoch: 0,
            epochs: None,
            prefetch_bytes: 256 << 20,
            patience: Duration::from_secs(60),
            fallback_after: Duration::from_secs(5),
            resume: None,
            stream: StreamSettings::default(),
        }
    }
}

impl LoaderSettings {
    /// Goes on where [`Loader::state_dict`] was taken, on any number of ranks. `Corrupt` if the bytes are damaged; that
    /// they belong to the dataset is checked by [`Loader::start`].
    pub fn load_state_dict(&mut self, bytes: &[u8]) -> Result<()> {
        let state = LoaderState::from_bytes(bytes)?;
        (self.seed, self.shuffle, self.resume) = (state.key.seed, state.key.shuffle, Some(state));
        Ok(())
    }
}

/// What comes next.
#[derive(Debug, Clone)]
pub enum Event {
    /// A batch.
    Batch(Batch),
    /// All batches of an epoch were handed out.
    EpochEnd(EpochSummary),
}

/// What this rank has read of an epoch since the loader started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochSummary {
    /// The epoch.
    pub epoch: u64,
    /// The order digest of the samples, checked against the plan.
    pub digest: OrderDigest,
    /// Samples, padding left out.
    pub samples: u64,
    /// Batches.
    pub steps: u64,
}

/// One rank's batches. Dropping it ends its streams.
#[derive(Debug)]
pub struct Loader {
    work: Arc<Work>,
    driver: JoinHandle<()>,
    course: Course,
    /// Number of the next batch.
    seq: u64,
    samples_done: u64,
    so_far: EpochSummary,
}

/// Which steps a loader takes.
#[derive(Debug, Clone)]
struct Course {
    settings: LoaderSettings,
    /// The first epoch and where it begins.
    first: (u64, u64),
    /// One past the last epoch.
    end: Option<u64>,
    /// Steps of the first epoch from there on, and of every other one.
    steps: (u64, u64),
}

impl Loader {
    /// Starts reading. `Invalid` if the settings do not fit each other or the dataset; `Changed` if the state to resume
    /// from is of another version of the dataset. Must be called within a Tokio runtime.
    pub fn start(dataset: &Dataset, settings: LoaderSettings) -> Result<Self> {
        let course = Course::new(dataset, settings)?;
        let settings = &course.settings;
        let supply = match dataset.access() {
            Access::Endpoint(nodes) => Supply::Cluster(Cluster::follow(nodes, offset(settings))),
            Access::Direct(direct) => Supply::Direct(direct.clone()),
        };
        // Batches in the caller's hands come back too; beyond that the pool keeps nothing.
        let pool = Pool::new(
            usize::try_from(settings.prefetch_bytes).unwrap_or(usize::MAX).saturating_add(64 << 20),
        );
        let schema = dataset.projected_schema().clone();
        let window = Window::new(schema, pool, settings.prefetch_bytes, row_bytes(dataset));
        let patience = settings.patience;
        let fallback_after = settings.fallback_after.mul_f64(1.0 + 0.5 * jitter());
        let stream = settings.stream.clone();
        let work = Work { dataset: dataset.clone(), window, supply, patience, fallback_after, stream };
        let work = Arc::new(work);
        let driver = tokio::spawn(watched(work.clone(), drive(work.clone(), course.clone())));
        let (epoch, samples_done) = course.first;
        Ok(Self { work, driver, course, seq: 0, samples_done, so_far: EpochSummary::of(epoch) })
    }

    /// The next batch or the end of an epoch; `None` after the last epoch. An error is final. May be cancelled.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        match self.is_between() {
            true => Ok(self.end_epoch()),
            false => {
                let batch = self.work.window.take(self.seq).await?;
                Ok(Some(self.hand_out(batch)))
            }
        }
    }

    /// What [`Loader::next`] gives, if it is there already: for a look ahead while a device computes. `None` as well when
    /// there is nothing more, or an error, which `next` then tells.
    pub fn ready(&mut self) -> Option<Event> {
        if self.is_between() {
            return self.end_epoch();
        }
        let batch = self.work.window.try_take(self.seq).ok()??;
        Some(self.hand_out(batch))
    }

    /// Whether the next event is the end of an epoch, or of all.
    fn is_between(&self) -> bool {
        let epoch = self.so_far.epoch;
        self.is_over() || self.so_far.steps == self.course.steps_of(epoch)
    }

    fn is_over(&self) -> bool {
        self.course.end.is_some_and(|end| self.so_far.epoch >= end)
    }

    fn end_epoch(&mut self) -> Option<Event> {
        if self.is_over() {
            return None;
        }
        self.samples_done = 0;
        let next = EpochSummary::of(self.so_far.epoch + 1);
        Some(Event::EpochEnd(std::mem::replace(&mut self.so_far, next)))
    }

    fn hand_out(&mut self, batch: Batch) -> Event {
        self.seq += 1;
        self.samples_done = batch.samples_done();
        self.so_far.steps += 1;
        self.so_far.samples += batch.real_rows() as u64;
        self.so_far.digest.merge(batch.digest());
        Event::Batch(batch)
    }

    /// Where the run stands after what was handed out so far: the same on every rank at the same step.
    pub fn state(&self) -> LoaderState {
        let key = self.course.key(&self.work.dataset, self.so_far.epoch);
        LoaderState { key, samples_done: self.samples_done }
    }

    /// The same as bytes to keep in a checkpoint: fewer than 100. [`LoaderSettings::load_state_dict`] reads them.
    pub fn state_dict(&self) -> Vec<u8> {
        self.state().to_bytes().to_vec()
    }

    /// The dataset.
    pub fn dataset(&self) -> &Dataset {
        &self.work.dataset
    }

    /// Steps of an epoch, the same on every rank; of the one that was resumed, those that were left.
    pub fn steps(&self, epoch: u64) -> u64 {
        self.course.steps_of(epoch)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl EpochSummary {
    fn of(epoch: u64) -> Self {
        Self { epoch, digest: OrderDigest::default(), samples: 0, steps: 0 }
    }
}

impl Course {
    fn new(dataset: &Dataset, settings: LoaderSettings) -> Result<Self> {
        let manifest = dataset.manifest();
        if settings.rank >= settings.world.max(1) {
            let (rank, world) = (settings.rank, settings.world);
            return Err(Error::invalid(format!("rank {rank} of {world}: ranks count from 0")));
        }
        let first = match &settings.resume {
            None => (settings.first_epoch, 0),
            Some(state) => resume(state, &settings, dataset)?,
        };
        let end = settings.epochs.map(|n| settings.first_epoch.saturating_add(n));
        let mut course = Self { settings, first, end, steps: (0, 0) };
        // Only the number of samples matters here, so file order will do.
        let order = Order::new(manifest, 0, 0, Shuffle::None);
        let left = Steps::new(&order, course.cut(first.1))?.count();
        course.steps = (left, Steps::new(&order, course.cut(0))?.count());
        match course.steps.1 {
            0 if manifest.rows() == 0 => Err(Error::invalid(format!("{} has no rows", manifest.uri()))),
            0 => Err(Error::invalid(format!(
                "{} has {} rows, fewer than the global batch {}, and the incomplete step is dropped: nothing is left",
                manifest.uri(),
                manifest.rows(),
                course.settings.global_batch
            ))),
            _ => Ok(course),
        }
    }

    fn key(&self, dataset: &Dataset, epoch: u64) -> PlanKey {
        let LoaderSettings { seed, shuffle, .. } = self.settings;
        PlanKey { manifest: dataset.manifest().digest(), seed, epoch, shuffle }
    }

    fn cut(&self, first_position: u64) -> Cut {
        let LoaderSettings { global_batch, world, ending, layout, .. } = self.settings;
        Cut { first_position, global_batch, world, ending, layout }
    }

    fn steps_of(&self, epoch: u64) -> u64 {
        if epoch == self.first.0 { self.steps.0 } else { self.steps.1 }
    }

    /// An epoch, its steps numbered from `first_seq`.
    fn epoch(&self, dataset: &Dataset, epoch: u64, first_seq: u64) -> Result<Epoch> {
        let manifest = dataset.manifest();
        let LoaderSettings { seed, shuffle, rank, .. } = self.settings;
        let first_position = if epoch == self.first.0 { self.first.1 } else { 0 };
        let order = Order::new(manifest, seed, epoch, shuffle);
        let mut this = Epoch::new(manifest.clone(), order, self.cut(first_position), rank, first_seq)?;
        this.epochs_after = self.end.map(|end| end.saturating_sub(epoch + 1));
        Ok(this)
    }
}

/// Epoch and position to resume from, if the state belongs to this dataset and these settings.
fn resume(state: &LoaderState, settings: &LoaderSettings, dataset: &Dataset) -> Result<(u64, u64)> {
    let (uri, digest) = (dataset.manifest().uri(), dataset.manifest().digest());
    let key = &state.key;
    if key.manifest != digest {
        return Err(Error::changed(format!(
            "the loader state is of dataset version {}, {uri} has {digest}: resume with the dataset it was saved from",
            key.manifest
        )));
    }
    if (key.seed, key.shuffle) != (settings.seed, settings.shuffle) {
        return Err(Error::invalid(format!(
            "the loader state is of seed {} and shuffle {}, the settings say seed {} and shuffle {}: use the state's",
            key.seed, key.shuffle, settings.seed, settings.shuffle
        )));
    }
    Ok((key.epoch, state.samples_done))
}

/// Sets this reader apart from others where they are to spread over copies: ranks of one job by turns, jobs by chance.
fn offset(settings: &LoaderSettings) -> u64 {
    xxh3_64(&settings.seed.to_le_bytes()).wrapping_add(settings.rank.into())
}

/// Bytes of a row of a batch: exact for fixed-width columns, else the manifest's estimate for all columns.
fn row_bytes(dataset: &Dataset) -> f64 {
    let widths = dataset.projected_schema().fields().iter().map(|f| plain_width(f.data_type()));
    if let Some(widths) = widths.collect::<Option<Vec<_>>>() {
        return widths.iter().sum::<usize>() as f64;
    }
    let segments = dataset.manifest().segments().iter().take(64);
    let (bytes, rows) = segments.fold((0, 0), |(b, r), s| (b + s.decoded_bytes, r + s.rows));
    bytes as f64 / rows.max(1) as f64
}

/// Runs the driver. Should it panic, the reader gets an error: it would wait for ever.
async fn watched(work: Arc<Work>, driver: impl Future<Output = ()>) {
    struct OnPanic(Arc<Work>);
    impl Drop for OnPanic {
        fn drop(&mut self) {
            if std::thread::panicking() {
                self.0.window.fail(Error::corrupt("the loader panicked: its message is above"));
            }
        }
    }
    let _guard = OnPanic(work);
    driver.await;
}

/// Keeps the lanes of one epoch after the other going.
async fn drive(work: Arc<Work>, course: Course) {
    if let Supply::Cluster(cluster) = &work.supply {
        cluster.ready().await;
    }
    let (mut epoch, mut seq) = (course.first.0, 0);
    while course.end.is_none_or(|end| epoch < end) {
        if let Err(e) = one_epoch(&work, &course, epoch, seq).await {
            work.window.fail(e);
            return;
        }
        seq += course.steps_of(epoch);
        epoch += 1;
    }
}

async fn one_epoch(work: &Arc<Work>, course: &Course, epoch: u64, seq: u64) -> Result<()> {
    let epoch = Arc::new(course.epoch(&work.dataset, epoch, seq)?);
    let mut lanes = JoinSet::new();
    for lane in Lane::all(work, &epoch)? {
        lanes.spawn(lane.run());
    }
    while let Some(ended) = lanes.join_next().await {
        let successors = ended.map_err(|e| Error::corrupt(format!("reading a stream failed: {e}")))??;
        for lane in successors {
            lanes.spawn(lane.run());
        }
    }
    // Each lane checks that it brought all it owed; if together they did not, waiting would be without end.
    match work.window.is_complete() {
        true => Ok(()),
        false => {
            Err(Error::corrupt(format!("epoch {}: all streams ended but a batch lacks rows", epoch.number())))
        }
    }
}

#[cfg(test)]
mod tests;
