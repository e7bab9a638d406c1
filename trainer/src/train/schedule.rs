//! The learning rate: a pure function of the step, so that a resumed run goes on exactly where it was.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The share of all steps in which one-cycle's learning rate rises, unless `--warmup-steps` says otherwise.
const ONE_CYCLE_RISE: f64 = 0.15;

/// The shape of the curve after the warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// A straight rise over 15 % of the steps, then a straight fall to 0 (Smith 2018, "super-convergence")
    #[default]
    OneCycle,
    /// The highest rate to the end
    Constant,
    /// A straight fall to 0
    Linear,
    /// Half a cosine down to 0 (Loshchilov & Hutter 2017)
    Cosine,
}

/// The learning rate of each step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// The highest rate.
    pub lr: f64,
    /// What follows the warm-up.
    pub shape: Shape,
    /// Steps in which the rate rises straight from near 0; `None` = the shape's own: 15 % for one-cycle, else
    /// 0.
    pub warmup_steps: Option<u64>,
    /// Steps of the whole run, warm-up included.
    pub steps: u64,
}

impl Schedule {
    /// The rate of step `done`, counted from 0 over the whole run. Steps beyond the end have the last one's
    /// or 0.
    ///
    /// Each is taken from the middle of the step: neither the first nor the last is wasted on a rate of 0.
    pub fn rate(&self, done: u64) -> f64 {
        let steps = self.steps.max(1) as f64;
        let at = done as f64 + 0.5;
        // Shares of the whole run, in one-cycle's own terms.
        let rise = match (self.warmup_steps, self.shape) {
            (Some(warmup), _) => (warmup as f64 / steps).min(1.0),
            (None, Shape::OneCycle) => ONE_CYCLE_RISE,
            (None, _) => 0.0,
        };
        let progress = (at / steps).min(1.0);
        let share = if progress < rise {
            progress / rise
        } else if self.shape == Shape::Constant {
            1.0
        } else if rise >= 1.0 {
            0.0
        } else {
            let left = (1.0 - progress) / (1.0 - rise);
            match self.shape {
                Shape::Cosine => 0.5 * (1.0 - (std::f64::consts::PI * left).cos()),
                _ => left,
            }
        };
        self.lr * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(shape: Shape, warmup_steps: Option<u64>) -> Vec<f64> {
        let schedule = Schedule { lr: 2.0, shape, warmup_steps, steps: 100 };
        (0..101).map(|step| schedule.rate(step)).collect()
    }

    #[test]
    fn one_cycle_rises_and_falls() {
        let rates = rates(Shape::OneCycle, None);
        assert!(rates[..15].is_sorted() && rates[15..].is_sorted_by(|a, b| a >= b));
        assert!(rates[0] > 0.0 && rates[99] > 0.0 && rates[14] > 1.8);
        assert_eq!(rates[100], 0.0);
    }

    #[test]
    fn each_shape_after_its_warm_up() {
        for shape in [Shape::OneCycle, Shape::Constant, Shape::Linear, Shape::Cosine] {
            let rates = rates(shape, Some(10));
            assert!(rates[..10].is_sorted() && (rates[0] - 0.1).abs() < 1e-12, "{shape:?}: {rates:?}");
            assert!(rates[10] > 1.95 && rates[10] <= 2.0, "{shape:?}: {rates:?}");
        }
        assert!(rates(Shape::Constant, Some(10))[10..].iter().all(|rate| *rate == 2.0));
        assert_eq!(rates(Shape::Constant, None)[0], 2.0);
        assert!((rates(Shape::Linear, None)[49] - 1.01).abs() < 1e-9);
        let cosine = rates(Shape::Cosine, None);
        assert!((cosine[0] - 2.0).abs() < 1e-3 && (cosine[50] - 1.0).abs() < 0.02 && cosine[99] < 1e-3);
        // Above the straight line in the first half, below it in the second.
        let linear = rates(Shape::Linear, None);
        assert!(cosine[25] > linear[25] && cosine[75] < linear[75]);
    }

    #[test]
    fn odd_numbers_of_steps_are_no_trouble() {
        for shape in [Shape::OneCycle, Shape::Constant, Shape::Linear, Shape::Cosine] {
            for (warmup_steps, steps) in [(None, 0), (Some(0), 1), (Some(5), 3), (Some(3), 3)] {
                let schedule = Schedule { lr: 1.0, shape, warmup_steps, steps };
                let rates: Vec<_> = (0..6).map(|step| schedule.rate(step)).collect();
                assert!(rates.iter().all(|rate| (0.0..=1.0).contains(rate)), "{shape:?} {steps}: {rates:?}");
            }
        }
    }
}
