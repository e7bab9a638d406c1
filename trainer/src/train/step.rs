//! The training step: forward, backward with the gradients averaged over the ranks, and the optimizer.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use forebay_c10d::{Ddp, DdpSettings, ProcessGroup, Span, zero_grads};
use tch::{Kind, Tensor};

use crate::checkpoint;
use crate::input::Input;
use crate::model::{self, Model};
use crate::report::timing::{Exchange, Part, Stopwatch};
use crate::train::hyperparams::Hyperparams;
use crate::train::optim::{NamedTensor, Optimizer, clip_by_norm};
use crate::train::precision::{Scaler, Scaling};

/// A model in training on one rank.
#[derive(Debug)]
pub struct Trainer {
    // Before the model: the reducer's hooks sit on its parameters.
    ddp: Ddp,
    parameters: Vec<Tensor>,
    optimizer: Optimizer,
    model: Model,
    settings: Hyperparams,
    /// Only where the precision needs it.
    scaler: Option<Scaler>,
    /// Steps taken, over the whole run.
    done: u64,
    world: u64,
}

/// The loss of a step is no number that one could go on with.
#[derive(Debug, thiserror::Error)]
#[error("epoch {} step {}: the loss is {}: the training diverged, try a lower --lr (now {lr:?})",
    at.epoch + 1, at.step + 1, if *nan { "NaN" } else { "infinite" })]
pub struct NotFinite {
    at: At,
    nan: bool,
    lr: f64,
}

/// Where a step stands.
#[derive(Debug, Clone, Copy)]
pub struct At {
    /// The epoch, counted from 0; people read it counted from 1.
    pub epoch: u64,
    /// The step within it, counted likewise.
    pub step: u64,
    /// Samples that all ranks together take in this step, padding apart.
    pub samples: u64,
}

impl Trainer {
    /// Takes the model into training; every rank starts from rank 0's parameters and buffers. [`Exchange`] is
    /// told of those passes that the settings of `ddp` have timed.
    pub fn new(group: &ProcessGroup, model: Model, settings: Hyperparams, ddp: &DdpSettings) -> Result<Self> {
        let parameters = model.vars().trainable_variables();
        let buffers: Vec<_> = model::buffers(model.vars()).into_iter().map(|(_, tensor)| tensor).collect();
        let ddp = Ddp::new(group, &parameters, &buffers, ddp)?;
        let optimizer = Optimizer::new(settings.optimizer, model::parameters(model.vars()))?;
        Ok(Self {
            ddp,
            parameters,
            optimizer,
            model,
            settings,
            scaler: settings.precision.scaler(),
            done: 0,
            world: group.world() as u64,
        })
    }

    /// One step on this rank's rows; gives the sum of its samples' losses, and tells `watch` where its time
    /// went.
    ///
    /// The loss is the sum over this rank's samples, divided by the samples of all ranks and multiplied by
    /// their number: averaged over the ranks, as DDP does with the gradients, it is the mean over the samples
    /// of the step, however they and the padding are spread, and however many passes share the rows.
    pub fn step(&mut self, input: &Input, at: At, watch: &mut Stopwatch) -> Result<f64> {
        zero_grads(&self.parameters, true)?;
        let scale = self.scaler.map_or(1.0, |scaler| scaler.scale);
        let weight = self.world as f64 / at.samples.max(1) as f64 * scale;
        let parts = input.split(self.settings.accumulate);
        let mut sums = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            // The gradients travel once, with the last pass.
            sums.push(match index + 1 == parts.len() {
                true => self.pass(part, weight, watch)?,
                false => self.ddp.no_sync(|| self.pass(part, weight, watch))?,
            });
        }
        let sum = read(&sums, |sum| sum.double_value(&[]), watch);
        let span = Span::new("optimizer")?;
        if !sum.is_finite() {
            return Err(NotFinite { at, nan: sum.is_nan(), lr: self.settings.schedule.lr }.into());
        }
        if self.scaler.as_mut().map_or(Ok(true), |scaler| scaler.unscale(&self.parameters))? {
            if let Some(max) = self.settings.clip_norm {
                clip_by_norm(&self.parameters, max)?;
            }
            self.optimizer.step(self.settings.schedule.rate(self.done))?;
        }
        self.done += 1;
        drop(span);
        watch.lap(Part::Optimizer);
        if self.world > 1 {
            watch.exchanged(self.exchange()?);
            watch.skip();
        }
        Ok(sum)
    }

    /// Forward and backward of some rows; gives the sum of their samples' losses.
    fn pass(&self, input: &Input, weight: f64, watch: &mut Stopwatch) -> Result<Tensor> {
        let mut sum = Ok(Tensor::new());
        let span = Span::new("forward")?;
        let loss = self.ddp.forward(|| {
            sum = self.loss_sum(input);
            sum.as_ref().map_or_else(|_| Tensor::new(), |sum| sum * weight)
        });
        drop(span);
        // What went wrong in the model says more than what the reducer makes of it.
        let sum = sum?;
        watch.lap(Part::Forward);
        let _span = Span::new("backward")?;
        self.ddp.backward(&loss?)?;
        watch.lap(Part::Backward);
        Ok(sum.detach())
    }

    /// What of the last step was talking to the other ranks.
    fn exchange(&self) -> Result<Exchange> {
        let last = self.ddp.stats()?.last;
        let time = |ns: i64| Duration::from_nanos(u64::try_from(ns).unwrap_or(0));
        Ok(Exchange {
            communication: time(last.backward_comm_ns),
            overlap: time(last.backward_overlap_ns),
            buffers: self.ddp.take_buffers_time(),
        })
    }

    fn loss_sum(&self, input: &Input) -> Result<Tensor> {
        let (rows, needed) = (input.rows(), self.model.settings().rows_min());
        ensure!(
            rows >= needed,
            "a pass of {rows} rows is too small for the batch norms of the {}: a larger --batch or a smaller \
             --accumulate makes it at least {needed}",
            self.model.settings().name()
        );
        self.settings.precision.run(self.model.vars().device(), || {
            let output = self.model.forward(input, true)?;
            Ok(input.masked_sum(&self.model.row_losses(&output, input)?, Kind::Float))
        })?
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    /// How the loss is scaled now, if it is.
    pub fn scaling(&self) -> Option<Scaling> {
        self.scaler.map(|scaler| Scaling { loss_scale: scaler.scale, skipped: scaler.skipped })
    }

    /// The learning rate of the step that was last taken.
    pub fn lr(&self) -> f64 {
        self.settings.schedule.rate(self.done.saturating_sub(1))
    }

    /// The model's parameters and buffers, for a checkpoint: the living tensors.
    pub fn weights(&self) -> Vec<NamedTensor> {
        let mut weights = model::parameters(self.model.vars());
        weights.extend(model::buffers(self.model.vars()));
        weights
    }

    /// What else the next steps depend on, for a checkpoint: the living tensors.
    pub fn state(&self) -> Vec<NamedTensor> {
        let mut state = self.optimizer.state();
        state.extend(self.scaler.iter().flat_map(Scaler::state));
        state
    }

    /// Goes on from what [`Trainer::weights`] and [`Trainer::state`] gave, after `done` steps of the
    /// schedule.
    pub fn load(&mut self, weights: &[NamedTensor], state: &[NamedTensor], done: u64) -> Result<()> {
        checkpoint::restore("parameter", &self.weights(), weights)?;
        let clone = |(name, tensor): &NamedTensor| (name.clone(), tensor.shallow_clone());
        let (scaling, optimizer): (Vec<_>, Vec<_>) =
            state.iter().map(clone).partition(|(name, _)| Scaler::owns(name));
        self.optimizer.load_state(&optimizer).context("the optimizer's state")?;
        // A run that goes on in another precision restarts its scaling.
        if let (Some(scaler), false) = (&mut self.scaler, scaling.is_empty()) {
            scaler.load_state(&scaling)?;
        }
        self.done = done;
        Ok(())
    }
}

/// The sum of the passes' losses, each read by `value`. A device that only queues its work is waited for
/// here: what it does meanwhile is the passes' work.
fn read(sums: &[Tensor], value: impl Fn(&Tensor) -> f64, watch: &mut Stopwatch) -> f64 {
    let sum = sums.iter().map(value).sum();
    watch.lap(Part::Backward);
    sum
}

#[cfg(test)]
mod tests;
