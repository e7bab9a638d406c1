//! Optimizers, over plain tensors: SGD, Adam and AdamW, with PyTorch's formulas and with state that can be
//! saved.
//!
//! tch's own optimizers hide their state in C++, where no checkpoint reaches it. These keep it as named
//! tensors: [`Optimizer::state`] and [`Optimizer::load_state`] give and take it exactly. Each operation is
//! the one that PyTorch's optimizers run on the CPU, in their order, so that the parameters come out alike
//! bit for bit.
//!
//! * [`schedule`]: the learning rate as a function of the step. [`args`]: the flags.
//! * Gradient clipping is [`clip_by_norm`].

pub(crate) mod args;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail, ensure};
use forebay_c10d::foreach;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

/// Which optimizer, and how it behaves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "optimizer", rename_all = "kebab-case", deny_unknown_fields)]
pub enum OptimizerSettings {
    /// Stochastic gradient descent.
    Sgd {
        /// How much of the last steps' direction is kept; 0 = none.
        momentum: f64,
        /// Look ahead by the momentum (Nesterov).
        nesterov: bool,
        /// Added to the gradient: this times the parameter.
        weight_decay: f64,
    },
    /// Kingma & Ba 2015.
    Adam {
        /// Decay of the running means of the gradient and of its square.
        betas: (f64, f64),
        /// Keeps the division finite.
        eps: f64,
        /// Added to the gradient: this times the parameter.
        weight_decay: f64,
    },
    /// Loshchilov & Hutter 2019: the decay is applied to the parameter, not to the gradient.
    AdamW {
        /// Decay of the running means of the gradient and of its square.
        betas: (f64, f64),
        /// Keeps the division finite.
        eps: f64,
        /// Each step shrinks parameters by this times the learning rate.
        weight_decay: f64,
        /// Shrink biases and the weights of norms too (parameters of one dimension).
        decay_all: bool,
    },
}

/// A tensor and the name that a checkpoint has for it.
pub type NamedTensor = (String, Tensor);

/// Moves the parameters of one model.
#[derive(Debug)]
pub struct Optimizer {
    settings: OptimizerSettings,
    slots: Vec<Slot>,
}

/// What belongs to one parameter.
#[derive(Debug)]
struct Slot {
    name: String,
    parameter: Tensor,
    /// Steps taken: those that found a gradient.
    steps: i64,
    /// In the order of [`OptimizerSettings::buffers`]; empty before the first step.
    buffers: Vec<Tensor>,
}

impl OptimizerSettings {
    /// Its name, as `--optimizer` takes it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sgd { .. } => "sgd",
            Self::Adam { .. } => "adam",
            Self::AdamW { .. } => "adamw",
        }
    }

    /// The names of the tensors kept for each parameter.
    pub(crate) fn buffers(&self) -> &'static [&'static str] {
        match self {
            Self::Sgd { momentum: 0.0, .. } => &[],
            Self::Sgd { .. } => &["momentum"],
            Self::Adam { .. } | Self::AdamW { .. } => &["mean", "square"],
        }
    }
}

impl Optimizer {
    /// For these parameters, whose names must differ; their order decides nothing.
    pub fn new(settings: OptimizerSettings, parameters: Vec<NamedTensor>) -> Result<Self> {
        let mut names = BTreeSet::new();
        for (name, _) in &parameters {
            ensure!(names.insert(name), "two parameters are named `{name}`");
        }
        let slot = |(name, parameter)| Slot { name, parameter, steps: 0, buffers: Vec::new() };
        Ok(Self { settings, slots: parameters.into_iter().map(slot).collect() })
    }

    /// One step with the gradients that the parameters hold. A parameter without one stays as it is.
    pub fn step(&mut self, lr: f64) -> Result<()> {
        let settings = self.settings;
        // Adam's correction depends on a parameter's own count of steps; as a rule there is just one count.
        let mut groups: BTreeMap<i64, Vec<(&mut Slot, Tensor)>> = BTreeMap::new();
        for slot in &mut self.slots {
            let gradient = slot.parameter.grad();
            if gradient.defined() {
                slot.steps += 1;
                groups.entry(slot.steps).or_default().push((slot, gradient));
            }
        }
        for (steps, group) in groups {
            match settings {
                OptimizerSettings::Sgd { momentum, nesterov, weight_decay } => {
                    sgd(group, lr, momentum, nesterov, weight_decay)?;
                }
                OptimizerSettings::Adam { betas, eps, weight_decay } => {
                    let group = decayed(group, weight_decay)?;
                    adam(group, lr, betas, eps, steps)?;
                }
                OptimizerSettings::AdamW { betas, eps, weight_decay, decay_all } => {
                    let shrinks = |parameter: &Tensor| decay_all || parameter.dim() > 1;
                    let shrunk = group.iter().map(|(slot, _)| slot.parameter.shallow_clone());
                    foreach::scale(&shrunk.filter(shrinks).collect::<Vec<_>>(), 1.0 - lr * weight_decay)?;
                    adam(group, lr, betas, eps, steps)?;
                }
            }
        }
        Ok(())
    }

    /// Everything that the next steps depend on besides the parameters, sorted by name. The tensors are those
    /// that the optimizer goes on using: write them down before the next step.
    pub fn state(&self) -> Vec<NamedTensor> {
        let mut state = Vec::new();
        for slot in &self.slots {
            state.push((format!("steps.{}", slot.name), Tensor::from_slice(&[slot.steps])));
            for (kind, buffer) in self.settings.buffers().iter().zip(&slot.buffers) {
                state.push((format!("{kind}.{}", slot.name), buffer.shallow_clone()));
            }
        }
        state.sort_by(|a, b| a.0.cmp(&b.0));
        state
    }

    /// Goes on from a state that [`Optimizer::state`] gave. It must be of the same optimizer over parameters
    /// of the same names and shapes; otherwise nothing is changed.
    pub fn load_state(&mut self, state: &[NamedTensor]) -> Result<()> {
        let optimizer = self.settings.name();
        let mut state: BTreeMap<_, _> = state.iter().map(|(name, tensor)| (name.clone(), tensor)).collect();
        let mut loaded = Vec::with_capacity(self.slots.len());
        for slot in &self.slots {
            let mut take = |kind: &str| state.remove(&format!("{kind}.{}", slot.name));
            let Some(steps) = take("steps") else {
                bail!("the state of {optimizer} has nothing for the parameter `{}`", slot.name)
            };
            ensure!(
                steps.numel() == 1 && steps.kind() == Kind::Int64,
                "the state of {optimizer} has no count of steps for `{}`",
                slot.name
            );
            let mut buffers = Vec::new();
            for kind in self.settings.buffers() {
                buffers.extend(take(kind).map(|buffer| fitting(kind, slot, buffer)).transpose()?);
            }
            let steps = steps.int64_value(&[0]);
            let wanted = if steps == 0 { 0 } else { self.settings.buffers().len() };
            ensure!(
                buffers.len() == wanted,
                "the state of {optimizer} has {} tensors for `{}` after {steps} steps, not {wanted}",
                buffers.len(),
                slot.name
            );
            loaded.push((steps, buffers));
        }
        if let Some(name) = state.keys().next() {
            bail!("the state has `{name}`, which {optimizer} over this model does not know");
        }
        for (slot, (steps, buffers)) in self.slots.iter_mut().zip(loaded) {
            (slot.steps, slot.buffers) = (steps, buffers);
        }
        Ok(())
    }
}

/// A copy of a saved buffer where its parameter is.
fn fitting(kind: &str, slot: &Slot, buffer: &Tensor) -> Result<Tensor> {
    let parameter = &slot.parameter;
    ensure!(
        buffer.size() == parameter.size() && buffer.kind() == parameter.kind(),
        "`{kind}.{}` is {:?} {:?}, but the parameter is {:?} {:?}",
        slot.name,
        buffer.kind(),
        buffer.size(),
        parameter.kind(),
        parameter.size()
    );
    Ok(buffer.f_to_device_(parameter.device(), parameter.kind(), false, true)?)
}

type Group<'a> = Vec<(&'a mut Slot, Tensor)>;

/// Those tensors of a group's slots that `pick` names.
fn column(group: &Group<'_>, pick: impl Fn(&Slot) -> &Tensor) -> Vec<Tensor> {
    group.iter().map(|(slot, _)| pick(slot).shallow_clone()).collect()
}

fn gradients(group: &Group<'_>) -> Vec<Tensor> {
    group.iter().map(|(_, gradient)| gradient.shallow_clone()).collect()
}

/// The group with gradients that pull parameters towards 0, in tensors of their own.
fn decayed<'a>(mut group: Group<'a>, weight_decay: f64) -> Result<Group<'a>> {
    if weight_decay != 0.0 {
        let parameters = column(&group, |slot| &slot.parameter);
        let sums = foreach::sums(&gradients(&group), &parameters, weight_decay)?;
        for ((_, gradient), sum) in group.iter_mut().zip(sums) {
            *gradient = sum;
        }
    }
    Ok(group)
}

/// As `torch.optim.SGD`, without dampening.
fn sgd(group: Group<'_>, lr: f64, momentum: f64, nesterov: bool, weight_decay: f64) -> Result<()> {
    let mut group = decayed(group, weight_decay)?;
    let parameters = column(&group, |slot| &slot.parameter);
    let mut directions = gradients(&group);
    if momentum != 0.0 {
        let (old, new): (Vec<_>, Vec<_>) = group.iter_mut().partition(|(slot, _)| !slot.buffers.is_empty());
        let momenta: Vec<_> = old.iter().map(|(slot, _)| slot.buffers[0].shallow_clone()).collect();
        let latest: Vec<_> = old.iter().map(|(_, gradient)| gradient.shallow_clone()).collect();
        foreach::scale(&momenta, momentum)?;
        foreach::add_scaled(&momenta, &latest, 1.0)?;
        for (slot, gradient) in new {
            slot.buffers = vec![gradient.detach().copy()];
        }
        let momenta = column(&group, |slot| &slot.buffers[0]);
        directions = match nesterov {
            // In new tensors: the gradients may be views of DDP's buckets, and stay as they are.
            true => foreach::sums(&directions, &momenta, momentum)?,
            false => momenta,
        };
    }
    Ok(foreach::add_scaled(&parameters, &directions, -lr)?)
}

/// As `torch.optim.Adam` from its gradients on, without amsgrad.
fn adam(mut group: Group<'_>, lr: f64, betas: (f64, f64), eps: f64, steps: i64) -> Result<()> {
    for (slot, _) in &mut group {
        if slot.buffers.is_empty() {
            let zeros = || tch::no_grad(|| slot.parameter.zeros_like());
            slot.buffers = vec![zeros(), zeros()];
        }
    }
    let (parameters, gradients) = (column(&group, |slot| &slot.parameter), gradients(&group));
    let (means, squares) = (column(&group, |slot| &slot.buffers[0]), column(&group, |slot| &slot.buffers[1]));
    foreach::lerp(&means, &gradients, 1.0 - betas.0)?;
    foreach::scale(&squares, betas.1)?;
    foreach::add_product(&squares, &gradients, &gradients, 1.0 - betas.1)?;
    // As PyTorch has it: powers and roots in double precision, the rest in the tensors' own.
    let correction = |beta: f64| 1.0 - beta.powf(steps as f64);
    let denominators = foreach::adam_denominators(&squares, correction(betas.1).sqrt(), eps)?;
    Ok(foreach::add_quotient(&parameters, &means, &denominators, -(lr / correction(betas.0)))?)
}

/// Shrinks the gradients so that the norm of all of them together is at most `max`; gives the norm before
/// that. Waits for the device.
pub fn clip_by_norm(parameters: &[Tensor], max: f64) -> Result<f64> {
    let gradients: Vec<_> = parameters.iter().map(Tensor::grad).filter(Tensor::defined).collect();
    let norm = foreach::global_norm(&gradients)?;
    let factor = max / (norm + 1e-6);
    // Not a number compares as false: a gradient that is not finite is left for others to judge.
    if factor < 1.0 {
        foreach::scale(&gradients, factor)?;
    }
    Ok(norm)
}

#[cfg(test)]
mod tests;
