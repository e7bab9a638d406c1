//! The loader: one rank's batches of a dataset, epoch after epoch, in the plan's order.
//!
//! It promises the order of `forebay_proto::plan`: every sample of the epoch in its place, none lost, none
//! repeated, whatever streams break, and the digest of each epoch as proof. Batches are prepared ahead within
//! [`LoaderSettings::prefetch_bytes`], across the end of an epoch too. The way of a batch:
//!
//! * `sampler` says which rows a step holds and where they lie;
//! * `driver` starts the workers of one epoch after the other;
//! * `worker` keeps one stream for the segments of one node going, from a node or from the object store
//!   itself, and checks with its `position` that each message brings the rows that the plan has next;
//! * `decoder` takes a message apart and copies it into the batches;
//! * `reorder` holds the batches that are being filled (`builder`), and the byte budget;
//! * [`Batch`] is the result: one contiguous array per column;
//! * [`EpochPlan`] says without reading what each step would hold.

mod batch;
mod builder;
mod byte_column;
mod decoder;
mod driver;
mod epoch_plan;
mod packed_rows;
mod position;
mod reorder;
mod row_splitter;
mod run_plan;
mod sampler;
mod settings;
mod worker;

use crate::access::Access;
use crate::dataset::Dataset;
use crate::routing::Cluster;
use crate::routing::policy::RetryPolicy;
pub use batch::{Batch, Sequences};
pub use epoch_plan::{EpochPlan, PlannedStep};
use forebay_dataset::pool::{Pool, Registrar};
use forebay_dataset::stream::gather::plain_width;
use forebay_proto::Result;
use forebay_proto::digest::{ContentDigest, OrderDigest};
use forebay_proto::hash::xxh3_64;
pub use forebay_proto::plan::Shuffle;
pub use forebay_proto::plan::packing::Packing;
pub use forebay_proto::plan::steps::{Ending, Layout};
pub use forebay_proto::state::LoaderState;
use reorder::ReorderBuffer;
use run_plan::RunPlan;
pub use run_plan::RunStart;
pub use settings::LoaderSettings;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use worker::{ReadContext, Wire};

/// What a loader hands out, in the order of the plan.
#[derive(Debug, Clone)]
pub enum Event {
    /// This rank's rows of the next step, all of them.
    Batch(Batch),
    /// All batches of an epoch were handed out.
    EpochEnd(EpochSummary),
}

/// What this rank has read of an epoch since the loader started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EpochSummary {
    /// Its number, from 0.
    pub epoch: u64,
    /// The order digest of the samples, checked against the plan.
    pub digest: OrderDigest,
    /// The content digest of the samples, if the settings ask for it.
    pub content: Option<ContentDigest>,
    /// Samples, padding left out.
    pub samples: u64,
    /// Batches that were handed out, one for each step.
    pub steps: u64,
}

/// One rank's batches. Dropping it ends its streams; its memory is kept for the dataset's next loader, for 10
/// seconds at most.
///
/// ```
/// use forebay_client::{Access, Dataset, DatasetSpec, Event, Loader, LoaderSettings, SourceSettings};
///
/// # #[tokio::main]
/// # async fn main() -> forebay_client::Result<()> {
/// # let access = Access::direct(SourceSettings::default())?;
/// # let folder = std::fs::canonicalize("../tests/data/mnist/test").expect("the test data");
/// # let dataset = Dataset::open(&access, &DatasetSpec::new(format!("file://{}", folder.display()))).await?;
/// let mut settings = LoaderSettings { seed: 1, global_batch: 1000, epochs: Some(1), ..Default::default() };
/// let mut loader = Loader::start(&dataset, settings.clone())?;
/// let Some(Event::Batch(first)) = loader.next().await? else { panic!("no batch") };
/// assert_eq!((first.rows(), first.mask.is_some()), (1000, false));
///
/// // Another loader goes on from here, on any number of ranks.
/// settings.load_state_dict(&loader.state_dict())?;
/// let mut resumed = Loader::start(&dataset, settings)?;
/// let Some(Event::Batch(second)) = resumed.next().await? else { panic!("no batch") };
/// assert_eq!(second.samples_done, 2000);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Loader {
    context: Arc<ReadContext>,
    _driver: AbortOnDropHandle<()>,
    runtime: Handle,
    plan: RunPlan,
    /// Number of the next batch.
    seq: u64,
    samples_done: u64,
    /// Of the next sample, by a run that packs.
    tokens_done: Option<u32>,
    so_far: EpochSummary,
}

impl Loader {
    /// Starts reading. `Invalid` if the settings do not fit each other or the dataset; `Changed` if the state
    /// to resume from is of another version of the dataset. Must be called within a Tokio runtime.
    pub fn start(dataset: &Dataset, settings: LoaderSettings) -> Result<Self> {
        Self::start_registered(dataset, settings, None)
    }

    /// The same. Memory of batches that is used again is registered there: a device reads it without a copy.
    /// Until it has, the batch must be kept.
    pub fn start_registered(
        dataset: &Dataset,
        settings: LoaderSettings,
        registrar: Option<Arc<dyn Registrar>>,
    ) -> Result<Self> {
        let plan = RunPlan::new(dataset, settings)?;
        let settings = &plan.settings;
        let cluster = match &dataset.access {
            Access::Endpoint(nodes) => Some(Cluster::follow(nodes, offset(settings))),
            Access::Direct(_) => None,
        };
        let pool = pool(dataset, settings.prefetch_bytes, registrar);
        let schema = dataset.projected_schema.clone();
        let context = Arc::new(ReadContext {
            dataset: dataset.clone(),
            buffer: ReorderBuffer::new(schema, pool, settings.prefetch_bytes, row_bytes(dataset)),
            cluster,
            policy: RetryPolicy {
                patience: settings.patience,
                fallback_after: settings.fallback_after.mul_f64(1.0 + 0.5 * fastrand::f64()),
            },
            wire: Wire { window_bytes: settings.window_bytes, same_host: settings.same_host },
        });
        let driver =
            tokio::spawn(driver::watched(context.clone(), driver::run(context.clone(), plan.clone())));
        let (epoch, samples_done) = plan.first;
        let (_driver, so_far) =
            (AbortOnDropHandle::new(driver), EpochSummary { epoch, ..Default::default() });
        let tokens_done = plan.tokens_done;
        Ok(Self {
            context,
            _driver,
            runtime: Handle::current(),
            plan,
            seq: 0,
            samples_done,
            tokens_done,
            so_far,
        })
    }

    /// The next batch or the end of an epoch; `None` after the last epoch. An error is final. May be
    /// cancelled.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        match self.is_between() {
            true => Ok(self.end_epoch()),
            false => {
                let batch = self.context.buffer.take(self.seq).await?;
                Ok(Some(self.hand_out(batch)))
            }
        }
    }

    /// What [`Loader::next`] gives, if it is there already: for a look ahead while a device computes. `None`
    /// as well when there is nothing more, or an error, which `next` then tells.
    pub fn ready(&mut self) -> Option<Event> {
        if self.is_between() {
            return self.end_epoch();
        }
        let batch = self.context.buffer.try_take(self.seq).ok()??;
        Some(self.hand_out(batch))
    }

    /// Whether the next event is the end of an epoch, or of all.
    fn is_between(&self) -> bool {
        let epoch = self.so_far.epoch;
        // Each epoch has a step; how many is known once one of them is there.
        let steps = self.so_far.steps;
        self.is_over() || steps > 0 && steps == self.plan.steps_of(&self.context.dataset, epoch)
    }

    fn is_over(&self) -> bool {
        self.plan.end.is_some_and(|end| self.so_far.epoch >= end)
    }

    fn end_epoch(&mut self) -> Option<Event> {
        if self.is_over() {
            return None;
        }
        self.samples_done = 0;
        self.tokens_done = self.tokens_done.map(|_| 0);
        let next = EpochSummary { epoch: self.so_far.epoch + 1, ..Default::default() };
        Some(Event::EpochEnd(std::mem::replace(&mut self.so_far, next)))
    }

    fn hand_out(&mut self, batch: Batch) -> Event {
        self.seq += 1;
        self.samples_done = batch.samples_done;
        self.tokens_done = batch.sequences.map(|sequences| sequences.tokens_done);
        self.so_far.steps += 1;
        self.so_far.samples += batch.real_rows as u64;
        self.so_far.digest.merge(batch.digest);
        if let Some(content) = batch.content {
            self.so_far.content.get_or_insert_default().merge(content);
        }
        Event::Batch(batch)
    }

    /// Where the run stands after what was handed out so far: the same on every rank at the same step.
    pub fn state(&self) -> LoaderState {
        let key = self.plan.key(&self.context.dataset, self.so_far.epoch);
        LoaderState { key, samples_done: self.samples_done, tokens_done: self.tokens_done }
    }

    /// The same as bytes to keep in a checkpoint: fewer than 100. [`LoaderSettings::load_state_dict`] reads
    /// them.
    pub fn state_dict(&self) -> Vec<u8> {
        self.state().to_bytes().to_vec()
    }

    /// The dataset, as it was opened.
    pub fn dataset(&self) -> &Dataset {
        &self.context.dataset
    }

    /// Steps of an epoch, the same on every rank; of the one that was resumed, those that were left. Where a
    /// mix is packed epochs differ, and of one to come each document is looked at.
    pub fn steps(&self, epoch: u64) -> u64 {
        self.plan.steps_of(&self.context.dataset, epoch)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let ReadContext { dataset, buffer, .. } = &*self.context;
        if !buffer.pool().has_registrar() {
            dataset.left.keep(buffer.pool().clone(), &self.runtime);
        }
    }
}

/// Memory for batches: the last loader's, if it is as much as this one may keep. Registered memory is new
/// each time: its device may be gone by the next one.
fn pool(dataset: &Dataset, prefetch_bytes: u64, registrar: Option<Arc<dyn Registrar>>) -> Pool {
    // Batches in the caller's hands come back too; beyond that the pool keeps nothing.
    let limit = usize::try_from(prefetch_bytes).unwrap_or(usize::MAX).saturating_add(64 << 20);
    if registrar.is_some() {
        return Pool::with_registrar(limit, registrar);
    }
    dataset.left.take(|pool| pool.limit() == limit).unwrap_or_else(|| Pool::new(limit))
}

/// Sets this reader apart from others where they are to spread over copies: ranks of one job by turns, jobs
/// by chance.
fn offset(settings: &LoaderSettings) -> u64 {
    xxh3_64(&settings.seed.to_le_bytes()).wrapping_add(settings.rank.into())
}

/// Bytes of a row of a batch: exact for fixed-width columns, else the manifest's estimate for all columns.
fn row_bytes(dataset: &Dataset) -> f64 {
    let widths = dataset.projected_schema.fields().iter().map(|f| plain_width(f.data_type()));
    if let Some(widths) = widths.collect::<Option<Vec<_>>>() {
        return widths.iter().sum::<usize>() as f64;
    }
    let segments = dataset.manifest.segments().iter().take(64);
    let (bytes, rows) = segments.fold((0, 0), |(b, r), s| (b + s.decoded_bytes, r + s.rows));
    bytes as f64 / rows.max(1) as f64
}

#[cfg(test)]
mod tests;
