//! A model's quality on a dataset: every rank scores its share, and the sums are merged.

use anyhow::{Context, Result, ensure};
use forebay_c10d::ProcessGroup;
use forebay_client::loader::Shuffle;
use forebay_client::{Event, LoaderSettings};
use serde::Serialize;
use tch::{Kind, Tensor};

use crate::input::Input;
use crate::model::{self, Metric, Model};
use crate::rank::session::Session;
use crate::rank::stop::Stop;
use crate::train::data::{self, ModelData};
use crate::train::precision::Precision;

/// Sums of one rank.
#[derive(Debug, Default, PartialEq)]
struct Score {
    loss: f64,
    score: f64,
    samples: i64,
}

/// What came out, over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Evaluation {
    /// Which measure `value` is.
    pub metric: Metric,
    /// The measure over all samples; an accuracy is 0 to 1.
    pub value: f64,
    /// Mean loss of the samples.
    pub loss: f64,
    /// Samples that were scored: all of the test dataset.
    pub samples: u64,
}

/// Rows that each rank labels at a time, at most.
const ROWS_MAX: u64 = 250;

/// Scores a model on a dataset; `None` if all ranks were told to stop meanwhile, which `stop` knows.
/// Collective.
pub fn evaluate(
    session: &Session,
    model: &Model,
    test: &ModelData,
    mut stop: Option<&mut Stop>,
) -> Result<Option<Evaluation>> {
    let (settings, group) = (&session.settings, &session.group);
    let world = session.env.world as u64;
    // As many rows as a pass of the training has at most: they fit.
    let pass = (settings.batch / world / settings.optim.accumulate).max(1);
    let loader = data::loader_settings(session, Shuffle::None, ROWS_MAX.min(pass) * world);
    let loader = LoaderSettings { content_digest: false, ..loader };
    // Each rank has running means of its own: those of rank 0 are the ones that a checkpoint keeps.
    for (_, mut buffer) in model::buffers(model.vars()) {
        group.broadcast(&mut buffer, 0)?;
    }
    let mut feed = test.feed(session, loader, session.compute)?;
    let mut score = Score::default();
    if let Some(stop) = &mut stop {
        stop.renew();
    }
    while let Event::Batch(batch) = feed.next_event().context("evaluation")? {
        let input = feed.input(&batch)?;
        score.add(model, settings.precision, &input)?;
        if stop.as_mut().map_or(Ok(false), |stop| stop.after_step(group))? {
            return Ok(None);
        }
    }
    if let Some(stop) = stop {
        stop.renew();
    }
    score.merge(group, model.metric(), test.dataset.epoch_samples()).map(Some)
}

impl Evaluation {
    /// For people.
    pub fn line(&self) -> String {
        let Self { metric, value, loss, samples } = self;
        format!("test {}: {} of {samples} samples, loss {loss:.4}", metric.name(), metric.say(*value))
    }
}

impl Score {
    /// Adds a batch; padding does not count.
    fn add(&mut self, model: &Model, precision: Precision, input: &Input) -> Result<()> {
        let scored = || -> Result<_> {
            let output = model.forward(input, false)?;
            Ok((model.row_losses(&output, input)?, model.row_scores(&output, input)?))
        };
        let (losses, scores) = tch::no_grad(|| precision.run(model.vars().device(), scored))??;
        let sum = |values: &Tensor| input.masked_sum(values, Kind::Double).double_value(&[]);
        self.loss += sum(&losses);
        self.score += sum(&scores);
        self.samples += match input.mask() {
            Some(mask) => mask.ne(0).sum(Kind::Int64).int64_value(&[]),
            None => input.rows(),
        };
        Ok(())
    }

    /// The measure over all ranks, whose samples must be those of the whole dataset.
    fn merge(&self, group: &ProcessGroup, metric: Metric, samples: u64) -> Result<Evaluation> {
        // Bits, not values: the sums below are in the order of ranks on every rank.
        let mine = [self.samples, self.score.to_bits() as i64, self.loss.to_bits() as i64];
        let ranks = group.all_gather_i64(&mine)?;
        let seen: i64 = ranks.iter().map(|rank| rank[0]).sum();
        ensure!(seen as u64 == samples, "evaluated {seen} samples, but the test dataset has {samples}");
        let mean = |index: usize| {
            ranks.iter().map(|rank| f64::from_bits(rank[index] as u64)).sum::<f64>() / seen.max(1) as f64
        };
        Ok(Evaluation { metric, value: metric.of_mean(mean(1)), loss: mean(2), samples })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Role;
    use crate::model::{ModelSettings, seeded};
    use tch::Device;

    #[test]
    fn padding_is_not_counted() {
        let model = ModelSettings::Convnet.build(1, Device::Cpu).unwrap();
        let images = seeded(2, || Tensor::randint(256, [4, 784], (Kind::Uint8, Device::Cpu)));
        let input = |labels: Tensor, mask| {
            Input::new(4, vec![(Role::Image, images.shallow_clone()), (Role::Label, labels)], mask)
        };
        let none = input(Tensor::zeros([4], (Kind::Int64, Device::Cpu)), None);
        let labels = tch::no_grad(|| model.forward(&none, false).unwrap().argmax(-1, false));
        let mut score = Score::default();
        let mask = Some(Tensor::from_slice(&[1f32, 0., 1., 0.]));
        score.add(&model, Precision::Fp32, &input(labels.shallow_clone(), mask)).unwrap();
        assert_eq!((score.score, score.samples), (2.0, 2));
        let loss = score.loss;
        assert!(loss > 0.0 && loss < 2.0 * 10f64.ln());
        let wrong = (labels + 1).remainder(10);
        score.add(&model, Precision::Fp32, &input(wrong, None)).unwrap();
        assert_eq!((score.score, score.samples), (2.0, 6));
        assert!(score.loss > loss);
    }
}
