//! Precision: full, or matrix products and convolutions in 16 bits (autocast), with the loss scaled where
//! fp16 needs it.
//!
//! Parameters, their gradients and the optimizer stay in 32 bits. fp16 has a small range: gradients would
//! vanish in it, so the loss is multiplied by a large scale before the backward pass, and the gradients
//! divided by it afterwards. A scale too large shows as gradients that are not finite: that step is skipped
//! and the scale halved. As gradients are averaged over the ranks before they are looked at, all ranks skip
//! the same steps.

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use forebay_c10d::{autocast, foreach};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use crate::train::optim::NamedTensor;

/// PyTorch's defaults (torch.amp.GradScaler).
const FIRST_SCALE: f64 = 65536.0;
const GROWTH: f64 = 2.0;
const BACKOFF: f64 = 0.5;
const GROWTH_INTERVAL: i64 = 2000;

/// What the network computes in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// 32 bits throughout
    #[default]
    Fp32,
    /// Products in bfloat16: the range of 32 bits, 8 bits of precision
    Bf16,
    /// Products in 16 bits, with loss scaling
    Fp16,
}

impl Precision {
    /// Runs a forward pass in it.
    pub fn run<R>(self, device: Device, f: impl FnOnce() -> R) -> Result<R> {
        Ok(match self {
            Self::Fp32 => f(),
            Self::Bf16 => autocast(device, Kind::BFloat16, f)?,
            Self::Fp16 => autocast(device, Kind::Half, f)?,
        })
    }

    /// The loss scaling that it needs.
    pub fn scaler(self) -> Option<Scaler> {
        (self == Self::Fp16).then(Scaler::default)
    }
}

/// Scales the loss, so that small gradients are not lost in fp16: less after a step that overflowed, more
/// after many that did not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scaler {
    /// What the loss is multiplied by.
    pub scale: f64,
    /// Good steps since the scale was last changed.
    streak: i64,
    /// Steps skipped in all.
    pub skipped: i64,
    /// Steps skipped since the last good one, in this process.
    in_a_row: u32,
}

/// Steps skipped in a row after which there is no hope: the scale is then 2^100 times smaller than it was.
const SKIPPED_MAX: u32 = 100;

/// How the loss is scaled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Scaling {
    /// What it is multiplied by.
    pub loss_scale: f64,
    /// Steps skipped over the whole run, because their gradients overflowed.
    pub skipped: i64,
}

impl Default for Scaler {
    fn default() -> Self {
        Self { scale: FIRST_SCALE, streak: 0, skipped: 0, in_a_row: 0 }
    }
}

impl Scaler {
    /// Takes the scale out of the parameters' gradients. `false`: they are not finite, skip this step; the
    /// hundredth such step in a row is an error. Waits for the device.
    pub fn unscale(&mut self, parameters: &[Tensor]) -> Result<bool> {
        let gradients: Vec<_> = parameters.iter().map(Tensor::grad).filter(Tensor::defined).collect();
        let finite = foreach::unscale(&gradients, 1.0 / self.scale)?;
        self.update(finite);
        ensure!(
            self.in_a_row < SKIPPED_MAX,
            "the gradients of {SKIPPED_MAX} steps in a row were not finite, so all of them were skipped, and the loss \
             scale is down to {:e}: use --precision bf16, or lower --lr",
            self.scale
        );
        Ok(finite)
    }

    fn update(&mut self, finite: bool) {
        if !finite {
            // Below that its inverse, which gradients are multiplied by, is beyond the range of 32 bits.
            (self.scale, self.streak) = ((self.scale * BACKOFF).max(f64::from(f32::MIN_POSITIVE)), 0);
            (self.skipped, self.in_a_row) = (self.skipped + 1, self.in_a_row + 1);
            return;
        }
        (self.streak, self.in_a_row) = (self.streak + 1, 0);
        if self.streak == GROWTH_INTERVAL {
            // Beyond the range of 32 bits a scale would not come back.
            (self.scale, self.streak) = ((self.scale * GROWTH).min(f64::from(f32::MAX)), 0);
        }
    }

    /// Whether a tensor of a checkpoint is the loss scaling's.
    pub fn owns(name: &str) -> bool {
        name.starts_with("scaler.")
    }

    /// To keep in a checkpoint.
    pub fn state(&self) -> Vec<NamedTensor> {
        vec![
            ("scaler.scale".to_owned(), Tensor::from_slice(&[self.scale])),
            ("scaler.steps".to_owned(), Tensor::from_slice(&[self.streak, self.skipped])),
        ]
    }

    /// Goes on from a state that [`Scaler::state`] gave.
    pub fn load_state(&mut self, state: &[NamedTensor]) -> Result<()> {
        let find = |name: &str, kind: Kind, count: usize| -> Result<&Tensor> {
            let found = state.iter().find(|(own, _)| own == name).map(|(_, tensor)| tensor);
            let tensor = found.with_context(|| format!("the state of the loss scaling lacks `{name}`"))?;
            ensure!(
                tensor.kind() == kind && tensor.numel() == count,
                "the state of the loss scaling has `{name}` as {:?} {:?}",
                tensor.kind(),
                tensor.size()
            );
            Ok(tensor)
        };
        let (scale, steps) = (find("scaler.scale", Kind::Double, 1)?, find("scaler.steps", Kind::Int64, 2)?);
        let scale = scale.double_value(&[0]);
        ensure!(scale.is_finite() && scale > 0.0, "the state of the loss scaling has the scale {scale}");
        *self =
            Self { scale, streak: steps.int64_value(&[0]), skipped: steps.int64_value(&[1]), in_a_row: 0 };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(gradient: f32) -> Tensor {
        let parameter = Tensor::from_slice(&[1f32]).set_requires_grad(true);
        (&parameter * f64::from(gradient)).sum(Kind::Float).backward();
        parameter
    }

    #[test]
    fn a_scale_shrinks_when_it_overflows_and_grows_when_it_has_not_for_long() {
        let mut scaler = Precision::Fp16.scaler().unwrap();
        assert_eq!(scaler.scale, 65536.0);
        let fine = parameter(65536.0 * 3.0);
        assert!(scaler.unscale(std::slice::from_ref(&fine)).unwrap());
        assert_eq!(fine.grad().double_value(&[0]), 3.0);
        assert!(!scaler.unscale(&[parameter(f32::INFINITY)]).unwrap());
        assert!(!scaler.unscale(&[fine, parameter(f32::NAN)]).unwrap());
        assert_eq!((scaler.scale, scaler.skipped), (16384.0, 2));
        for _ in 0..GROWTH_INTERVAL - 1 {
            scaler.update(true);
        }
        assert_eq!(scaler.scale, 16384.0);
        scaler.update(true);
        assert_eq!((scaler.scale, scaler.streak), (32768.0, 0));
        assert_eq!((Precision::Fp32.scaler(), Precision::Bf16.scaler()), (None, None));
    }

    #[test]
    fn steps_skipped_without_end_are_an_error_that_says_what_to_do() {
        let mut scaler = Precision::Fp16.scaler().unwrap();
        let bad = parameter(f32::NAN);
        for _ in 0..SKIPPED_MAX - 1 {
            assert!(!scaler.unscale(std::slice::from_ref(&bad)).unwrap());
        }
        // A good one in between restarts the count.
        assert!(scaler.unscale(&[parameter(1.0)]).unwrap());
        for _ in 0..SKIPPED_MAX - 1 {
            assert!(!scaler.unscale(std::slice::from_ref(&bad)).unwrap());
        }
        let error = scaler.unscale(&[bad]).unwrap_err().to_string();
        assert!(error.starts_with("the gradients of 100 steps in a row were not finite"), "{error}");
        assert!(error.ends_with("use --precision bf16, or lower --lr"), "{error}");
        assert_eq!(scaler.skipped, 199);
    }

    #[test]
    fn a_state_comes_back_whole_or_not_at_all() {
        let mut scaler = Scaler { scale: 12.5, streak: 7, skipped: 3, in_a_row: 0 };
        let state = scaler.state();
        let mut other = Scaler::default();
        other.load_state(&state).unwrap();
        assert_eq!(other, scaler);
        assert!(scaler.load_state(&state[..1]).unwrap_err().to_string().contains("lacks `scaler.steps`"));
        let wrong = vec![
            ("scaler.scale".to_owned(), Tensor::from_slice(&[0f64])),
            (state[1].0.clone(), state[1].1.shallow_clone()),
        ];
        assert!(scaler.load_state(&wrong).unwrap_err().to_string().contains("the scale 0"));
        assert_eq!(other, scaler);
    }

    #[test]
    fn products_run_in_the_precision_asked_for() {
        let kind = |precision: Precision| {
            let a = Tensor::ones([4, 4], (Kind::Float, Device::Cpu));
            precision.run(Device::Cpu, || a.matmul(&a).kind()).unwrap()
        };
        assert_eq!(kind(Precision::Fp32), Kind::Float);
        assert_eq!(kind(Precision::Bf16), Kind::BFloat16);
        assert_eq!(kind(Precision::Fp16), Kind::Half);
    }
}
