//! Accuracy on the test split: every rank labels its share, and the counts are summed.

use anyhow::{Result, ensure};
use forebay_c10d::{Op, ProcessGroup};
use tch::{Kind, Tensor};

use crate::input::Input;
use crate::model::ConvNet;

/// Counts of one rank.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Score {
    right: i64,
    samples: i64,
}

impl Score {
    /// Adds a batch; padding does not count.
    pub fn add(&mut self, model: &ConvNet, input: &Input) {
        let right = tch::no_grad(|| model.logits(&input.images).argmax(-1, false).eq_tensor(&input.labels));
        let (right, samples) = match &input.mask {
            Some(mask) => {
                let real = mask.ne(0);
                (right.logical_and(&real), real.sum(Kind::Int64).int64_value(&[]))
            }
            None => (right, input.labels.numel() as i64),
        };
        self.right += right.sum(Kind::Int64).int64_value(&[]);
        self.samples += samples;
    }

    /// The accuracy over all ranks, whose samples must be those of the whole dataset.
    pub fn accuracy(&self, group: &ProcessGroup, samples: u64) -> Result<f64> {
        let mut counts = Tensor::from_slice(&[self.right, self.samples]);
        group.all_reduce(&mut counts, Op::Sum)?;
        let (right, seen) = (counts.int64_value(&[0]), counts.int64_value(&[1]));
        ensure!(seen as u64 == samples, "evaluated {seen} samples, but the test dataset has {samples}");
        Ok(right as f64 / seen.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn padding_is_not_counted() {
        let model = ConvNet::new(1);
        let images = Tensor::randint(256, [4, 784], (Kind::Uint8, Device::Cpu));
        let labels = tch::no_grad(|| model.logits(&images).argmax(-1, false));
        let mut score = Score::default();
        let mask = Some(Tensor::from_slice(&[1f32, 0., 1., 0.]));
        score.add(&model, &Input { images: images.shallow_clone(), labels: labels.shallow_clone(), mask });
        assert_eq!(score, Score { right: 2, samples: 2 });
        let wrong = (labels + 1).remainder(10);
        score.add(&model, &Input { images, labels: wrong, mask: None });
        assert_eq!(score, Score { right: 2, samples: 6 });
    }
}
