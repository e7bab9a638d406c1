//! The training step: forward, backward with the gradients averaged over the ranks, and the optimizer.

use anyhow::{Result, bail};
use forebay_c10d::{Ddp, DdpSettings, ProcessGroup, zero_grads};
use tch::nn::{Optimizer, OptimizerConfig, Sgd};
use tch::{Kind, Tensor};

use crate::input::Input;
use crate::model::{ConvNet, row_losses};

/// SGD's momentum and weight decay: the usual values for networks of this kind.
const MOMENTUM: f64 = 0.9;
const WEIGHT_DECAY: f64 = 1e-4;
/// The share of all steps in which the learning rate rises.
const WARM_UP: f64 = 0.15;

/// A model in training on one rank.
#[derive(Debug)]
pub struct Trainer {
    // Before the model: the reducer's hooks sit on its parameters.
    ddp: Ddp,
    parameters: Vec<Tensor>,
    optimizer: Optimizer,
    model: ConvNet,
    schedule: Schedule,
    world: u64,
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
    /// Takes the model into training for `steps` steps; every rank starts from rank 0's parameters.
    pub fn new(group: &ProcessGroup, model: ConvNet, lr: f64, steps: u64) -> Result<Self> {
        let parameters = model.parameters();
        let ddp = Ddp::new(group, &parameters, &[], &DdpSettings::default())?;
        let sgd = Sgd { momentum: MOMENTUM, wd: WEIGHT_DECAY, nesterov: true, ..Default::default() };
        let optimizer = sgd.build(model.vars(), lr)?;
        let schedule = Schedule { lr, steps, done: 0 };
        Ok(Self { ddp, parameters, optimizer, model, schedule, world: group.world() as u64 })
    }

    /// One step on this rank's rows; gives the sum of its samples' losses.
    ///
    /// The loss is the sum over this rank's samples, divided by the samples of all ranks and multiplied by their
    /// number: averaged over the ranks, as DDP does with the gradients, it is the mean over the samples of the step,
    /// however they and the padding are spread.
    pub fn step(&mut self, input: &Input, at: At) -> Result<f64> {
        self.optimizer.set_lr(self.schedule.next_lr());
        zero_grads(&self.parameters, true)?;
        let weight = self.world as f64 / at.samples.max(1) as f64;
        let mut sum = Tensor::new();
        let loss = self.ddp.forward(|| {
            sum = masked_sum(
                &row_losses(&self.model.logits(&input.images), &input.labels),
                input.mask.as_ref(),
            );
            &sum * weight
        })?;
        let sum = sum.double_value(&[]);
        if !sum.is_finite() {
            bail!(
                "epoch {} step {}: the loss is {}: the training diverged, try a lower --lr (now {:?})",
                at.epoch + 1,
                at.step + 1,
                if sum.is_nan() { "NaN" } else { "infinite" },
                self.schedule.lr
            );
        }
        self.ddp.backward(&loss)?;
        self.optimizer.step();
        Ok(sum)
    }

    /// The model.
    pub fn model(&self) -> &ConvNet {
        &self.model
    }
}

/// The sum of `values`, those under a mask of 0 left out even if they are not finite.
fn masked_sum(values: &Tensor, mask: Option<&Tensor>) -> Tensor {
    match mask {
        Some(mask) => values.masked_fill(&mask.eq(0), 0).sum(Kind::Float),
        None => values.sum(Kind::Float),
    }
}

/// The learning rate: a straight rise from near 0, then a straight fall to 0 (Smith 2018, "super-convergence").
#[derive(Debug)]
struct Schedule {
    lr: f64,
    steps: u64,
    done: u64,
}

impl Schedule {
    fn next_lr(&mut self) -> f64 {
        // From the middle of the step: neither the first nor the last is wasted on a rate of 0.
        let progress = ((self.done as f64 + 0.5) / self.steps.max(1) as f64).min(1.0);
        self.done += 1;
        let share = if progress < WARM_UP { progress / WARM_UP } else { (1.0 - progress) / (1.0 - WARM_UP) };
        self.lr * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use forebay_c10d::Store;
    use tch::Device;

    fn group() -> ProcessGroup {
        let timeout = Duration::from_secs(10);
        ProcessGroup::gloo(Store::serve(1, timeout).unwrap(), 0, 1, timeout).unwrap()
    }

    fn input(rows: i64) -> Input {
        tch::manual_seed(5);
        Input {
            images: Tensor::randint(256, [rows, 784], (Kind::Uint8, Device::Cpu)),
            labels: Tensor::randint(10, [rows], (Kind::Int64, Device::Cpu)),
            mask: None,
        }
    }

    fn narrow(input: &Input, rows: i64) -> Input {
        Input { images: input.images.narrow(0, 0, rows), labels: input.labels.narrow(0, 0, rows), mask: None }
    }

    #[test]
    fn padding_changes_neither_loss_nor_parameters() {
        let group = group();
        let whole = input(8);
        let mut masked = narrow(&whole, 8);
        masked.mask = Some(Tensor::from_slice(&[1f32, 1., 1., 1., 1., 0., 0., 0.]));
        let at = At { epoch: 0, step: 0, samples: 5 };
        let mut results = [(masked, 0.0, Tensor::new()), (narrow(&whole, 5), 0.0, Tensor::new())];
        for (input, loss, parameter) in &mut results {
            let mut trainer = Trainer::new(&group, ConvNet::new(3), 0.1, 10).unwrap();
            *loss = trainer.step(input, at).unwrap();
            *parameter = trainer.parameters[0].detach().copy();
        }
        let [padded, real] = results;
        assert!((padded.1 - real.1).abs() < 1e-4, "{} {}", padded.1, real.1);
        assert!(padded.2.allclose(&real.2, 1e-5, 1e-6, false));
    }

    #[test]
    fn training_lowers_the_loss_and_is_reproducible() {
        let group = group();
        let input = input(16);
        let mut hashes = Vec::new();
        for _ in 0..2 {
            let mut trainer = Trainer::new(&group, ConvNet::new(3), 0.05, 20).unwrap();
            let at = |step| At { epoch: 0, step, samples: 16 };
            let losses: Vec<_> = (0..20).map(|step| trainer.step(&input, at(step)).unwrap()).collect();
            assert!(losses[19] < losses[0] * 0.8, "{losses:?}");
            hashes.push(trainer.model().parameter_hash());
        }
        assert_eq!(hashes[0], hashes[1]);
        assert_ne!(hashes[0], ConvNet::new(3).parameter_hash());
    }

    #[test]
    fn a_loss_that_is_not_finite_names_epoch_and_step() {
        let mut trainer = Trainer::new(&group(), ConvNet::new(3), 1e30, 10).unwrap();
        let input = input(8);
        let step = |step| trainer.step(&input, At { epoch: 2, step, samples: 8 });
        let error = (0..10).map(step).find_map(Result::err).unwrap().to_string();
        assert!(error.starts_with("epoch 3 step ") && error.contains("--lr (now 1e30)"), "{error}");
        assert!(error.contains("NaN") || error.contains("infinite"), "{error}");
    }

    #[test]
    fn the_learning_rate_rises_and_falls() {
        let mut schedule = Schedule { lr: 1.0, steps: 100, done: 0 };
        let rates: Vec<_> = (0..101).map(|_| schedule.next_lr()).collect();
        assert!(rates[..15].is_sorted() && rates[15..].is_sorted_by(|a, b| a >= b));
        assert!(rates[0] > 0.0 && rates[99] > 0.0 && rates[14] > 0.9);
        assert_eq!(rates[100], 0.0);
    }
}
