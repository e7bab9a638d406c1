//! An epoch's plan without its data: for samplers that let others read the rows, and for people who ask which
//! rows a step held.

use super::run_plan::RunPlan;
use super::sampler::Epoch;
use super::settings::LoaderSettings;
use crate::dataset::Dataset;
use forebay_dataset::pool::Pool;
use forebay_proto::{Error, Result};

/// Which samples each step of a rank holds, of an epoch or the rest of one. Nothing is read for it.
#[derive(Debug)]
pub struct EpochPlan(Epoch);

/// One rank's part of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedStep {
    /// The numbers of the samples in the dataset, in the order of the batch; padding repeats some.
    pub samples: Vec<u64>,
    /// Which of them are not padding; `None` when none is.
    pub mask: Option<Vec<bool>>,
    /// Samples of the epoch that all ranks have taken once this step is done.
    pub samples_done: u64,
}

impl EpochPlan {
    /// Of the first epoch of a loader with these settings; errors as [`Loader::start`](crate::Loader::start).
    pub fn new(dataset: &Dataset, settings: &LoaderSettings) -> Result<Self> {
        let plan = RunPlan::new(dataset, settings.clone())?;
        plan.epoch(dataset, plan.first.0, 0).map(Self)
    }

    /// The number of the epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.0.number()
    }

    /// Steps, the same on every rank.
    pub fn steps(&self) -> u64 {
        self.0.count
    }

    /// A step, counted from where the plan begins; `Invalid` if there is none.
    pub fn step(&self, step: u64) -> Result<PlannedStep> {
        if step >= self.steps() {
            let steps = self.steps();
            return Err(Error::invalid(format!("there is no step {step}: the plan has {steps}")));
        }
        let plan = self.0.plan(step, &Pool::new(0))?;
        Ok(PlannedStep {
            samples: plan.samples.to_vec(),
            mask: plan.mask.map(|mask| mask.iter().collect()),
            samples_done: plan.samples_done,
        })
    }
}
