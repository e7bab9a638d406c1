//! Which steps a loader takes: its epochs, where the first one begins, and how each is cut.

use super::sampler::Epoch;
use super::settings::LoaderSettings;
use crate::dataset::Dataset;
use forebay_proto::plan::packing::{PackedSteps, Packing};
use forebay_proto::plan::steps::{Cut, Ending, Layout, Steps};
use forebay_proto::plan::{Order, PlanKey, Shuffle};
use forebay_proto::state::LoaderState;
use forebay_proto::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Which steps a loader takes.
#[derive(Debug, Clone)]
pub(super) struct RunPlan {
    pub settings: LoaderSettings,
    /// The first epoch and where it begins.
    pub first: (u64, u64),
    /// Of a run that packs: tokens of the first sample that are done.
    pub tokens_done: Option<u32>,
    /// One past the last epoch.
    pub end: Option<u64>,
    /// Steps of the first epoch from there on, and of a whole one.
    steps: (u64, u64),
    /// Where epochs differ in their steps: those of whole epochs, as far as they are known.
    steps_by_epoch: Arc<Mutex<HashMap<u64, u64>>>,
    /// The first epoch's, of a run that packs.
    packed: Option<Arc<PackedSteps>>,
}

/// Where a run begins, and how many steps its epochs have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunStart {
    /// The first epoch: the one after a resumed state's if that one was complete.
    pub epoch: u64,
    /// Samples of it that all ranks together have taken already.
    pub samples_done: u64,
    /// From there to its end.
    pub steps_left: u64,
    /// Of the whole epoch, and of every other one, unless the run packs a mix.
    pub steps: u64,
}

impl RunStart {
    /// Of a loader with these settings, without starting it; errors as
    /// [`Loader::start`](crate::Loader::start).
    pub fn of(dataset: &Dataset, settings: &LoaderSettings) -> Result<Self> {
        Ok(RunPlan::new(dataset, settings.clone())?.start())
    }

    /// Steps of all epochs that lie before the place where a loader with these settings begins, had they been
    /// taken at its batch; errors as [`Loader::start`](crate::Loader::start).
    pub fn steps_done(dataset: &Dataset, settings: &LoaderSettings) -> Result<u64> {
        Ok(RunPlan::new(dataset, settings.clone())?.steps_done(dataset))
    }
}

impl RunPlan {
    /// `Invalid` if the settings do not fit each other or the dataset.
    pub fn new(dataset: &Dataset, mut settings: LoaderSettings) -> Result<Self> {
        let manifest = &dataset.manifest;
        if settings.rank >= settings.world.max(1) {
            let (rank, world) = (settings.rank, settings.world);
            return Err(Error::invalid(format!("rank {rank} of {world}: ranks count from 0")));
        }
        if settings.pack.is_some() {
            (settings.ending, settings.layout) = (Ending::Pad, Layout::Position);
        }
        let first = match &settings.resume {
            None => (settings.first_epoch, 0),
            Some(state) => resume(state, &settings, dataset)?,
        };
        let done = settings.resume.and_then(|state| state.tokens_done).unwrap_or(0);
        let tokens_done = settings.pack.as_ref().map(|_| done);
        let end = settings.epochs.map(|n| settings.first_epoch.saturating_add(n));
        let (steps_by_epoch, packed) = Default::default();
        let mut plan = Self { settings, first, tokens_done, end, steps: (0, 0), steps_by_epoch, packed };
        if let Some(packing) = plan.settings.pack.clone() {
            return plan.packed(dataset, &packing);
        }
        // Only the number of samples matters here, so file order will do.
        let order = Order::new(manifest, 0, 0, Shuffle::None);
        let left = Steps::new(&order, plan.cut(first.1))?.count();
        plan.steps = (left, Steps::new(&order, plan.cut(0))?.count());
        // The state was taken with the epoch's last batch in hand: the run goes on with the next epoch.
        if plan.settings.resume.is_some() && left == 0 {
            (plan.first, plan.steps.0) = ((first.0 + 1, 0), plan.steps.1);
        }
        match plan.steps.1 {
            0 if manifest.rows() == 0 => Err(Error::invalid(format!("{} has no rows", manifest.uri()))),
            0 => Err(Error::invalid(format!(
                "{} has {} rows, fewer than the global batch {}, and the incomplete step is dropped: nothing is left",
                manifest.uri(),
                manifest.rows(),
                plan.settings.global_batch
            ))),
            _ => Ok(plan),
        }
    }

    /// The same, its steps cut by tokens.
    fn packed(mut self, dataset: &Dataset, packing: &Packing) -> Result<Self> {
        let order = self.order(dataset, self.first.0);
        let packed = self.cut_packed(dataset, packing, &order)?;
        self.steps = (packed.steps.len() as u64, packed.epoch_steps);
        self.packed = Some(Arc::new(packed));
        if self.settings.resume.is_some() && self.steps.0 == 0 {
            (self.first, self.tokens_done) = ((self.first.0 + 1, 0), Some(0));
            self.steps.1 = self.whole_steps(dataset, packing, self.first.0);
            (self.steps.0, self.packed) = (self.steps.1, None);
        }
        Ok(self)
    }

    fn cut_packed(&self, dataset: &Dataset, packing: &Packing, order: &Order) -> Result<PackedSteps> {
        let is_first = order.key().epoch == self.first.0;
        let (position, offset) = match is_first {
            true => (self.first.1, self.tokens_done.unwrap_or(0)),
            false => (0, 0),
        };
        let manifest = &dataset.manifest;
        let packed = packing.cut(manifest, order, self.cut(position), offset, self.settings.rank);
        packed.map_err(|e| e.context(manifest.uri()))
    }

    fn order(&self, dataset: &Dataset, epoch: u64) -> Order {
        let LoaderSettings { seed, shuffle, .. } = self.settings;
        Order::new(&dataset.manifest, seed, epoch, shuffle)
    }

    /// Where the run begins.
    pub fn start(&self) -> RunStart {
        let ((epoch, samples_done), (steps_left, steps)) = (self.first, self.steps);
        RunStart { epoch, samples_done, steps_left, steps }
    }

    pub fn key(&self, dataset: &Dataset, epoch: u64) -> PlanKey {
        let LoaderSettings { seed, shuffle, .. } = self.settings;
        PlanKey { manifest: dataset.manifest.digest(), seed, epoch, shuffle }
    }

    fn cut(&self, first_position: u64) -> Cut {
        let LoaderSettings { global_batch, world, ending, layout, .. } = self.settings;
        Cut { first_position, global_batch, world, ending, layout }
    }

    /// Steps of an epoch. Of a packed mix's later epochs it looks at each document, unless the epoch was cut
    /// before.
    pub fn steps_of(&self, dataset: &Dataset, epoch: u64) -> u64 {
        match &self.settings.pack {
            _ if epoch == self.first.0 => self.steps.0,
            Some(packing) if !packing.is_alike(&dataset.manifest) => {
                self.whole_steps(dataset, packing, epoch)
            }
            _ => self.steps.1,
        }
    }

    /// Steps of a whole epoch of a run that packs.
    fn whole_steps(&self, dataset: &Dataset, packing: &Packing, epoch: u64) -> u64 {
        let known = self.steps_by_epoch.lock().get(&epoch).copied();
        known.unwrap_or_else(|| {
            let order = self.order(dataset, epoch);
            let steps = packing.steps(&dataset.manifest, &order, self.settings.global_batch);
            self.steps_by_epoch.lock().insert(epoch, steps);
            steps
        })
    }

    /// Steps of all epochs before the place where the run begins, had they been taken at its batch.
    fn steps_done(&self, dataset: &Dataset) -> u64 {
        let of_this = self.steps.1.saturating_sub(self.steps.0);
        match &self.settings.pack {
            Some(packing) if !packing.is_alike(&dataset.manifest) => {
                let before = (0..self.first.0).map(|epoch| self.whole_steps(dataset, packing, epoch));
                before.fold(of_this, u64::saturating_add)
            }
            _ => self.first.0.saturating_mul(self.steps.1).saturating_add(of_this),
        }
    }

    /// An epoch, its steps numbered from `first_seq`.
    pub fn epoch(&self, dataset: &Dataset, epoch: u64, first_seq: u64) -> Result<Epoch> {
        let manifest = &dataset.manifest;
        let rank = self.settings.rank;
        let first_position = if epoch == self.first.0 { self.first.1 } else { 0 };
        let order = self.order(dataset, epoch);
        let packed = match (&self.settings.pack, &self.packed) {
            (Some(_), Some(packed)) if epoch == self.first.0 => Some(packed.clone()),
            (Some(packing), _) => {
                let packed = self.cut_packed(dataset, packing, &order)?;
                self.steps_by_epoch.lock().insert(epoch, packed.epoch_steps);
                Some(Arc::new(packed))
            }
            (None, _) => None,
        };
        let mut this = Epoch::new(manifest.clone(), order, self.cut(first_position), rank, first_seq)?;
        this.epochs_after = self.end.map(|end| end.saturating_sub(epoch + 1));
        this.keeps_positions = self.settings.content_digest;
        Ok(match packed {
            Some(packed) => this.packed(packed),
            None => this,
        })
    }
}

/// Epoch and position to resume from, if the state belongs to this dataset and these settings.
fn resume(state: &LoaderState, settings: &LoaderSettings, dataset: &Dataset) -> Result<(u64, u64)> {
    let (uri, digest) = (dataset.manifest.uri(), dataset.manifest.digest());
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
    if state.tokens_done.is_some() && settings.pack.is_none() {
        return Err(Error::invalid(
            "the loader state is of a run that packs, and may stand within a row: pack as that run did",
        ));
    }
    Ok((key.epoch, state.samples_done))
}
