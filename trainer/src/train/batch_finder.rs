//! `--batch auto`: the batch that trains fastest among those that fit.
//!
//! Candidates are powers of two of rows per rank. Each is tried on real rows, forward, backward and
//! optimizer, on a model of its own that nobody keeps, and without talking to the other ranks: one that ran
//! out of memory could not answer them. What fits on all ranks is then compared by speed, the slowest rank's.
//! All ranks come to the same answer.

mod memory;

use std::time::Instant;

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use forebay_c10d::{Compression, DdpSettings, Op, ProcessGroup, zero_grads};
use forebay_client::Event;
use forebay_client::loader::Shuffle;
use tch::{Cuda, Device, Kind, Tensor};

use self::memory::{default_bytes, forget_peak, peak_bytes};
use crate::input::Input;
use crate::input::transfer::Compute;
use crate::model::{self, Model, ModelSettings};
use crate::rank::failure;
use crate::rank::session::Session;
use crate::settings::AUTO_BATCH;
use crate::train::data::{self, KnownFacts};
use crate::train::optim::{Optimizer, OptimizerSettings};
use crate::train::precision::Precision;

/// Rows per rank at most: beyond that a step is no longer one.
const ROWS_MAX: u64 = 1 << 14;
/// Times that each candidate is run; the first of them warms up, the median of the others counts.
const RUNS: usize = 4;

/// The training that candidates are tried on.
#[derive(Debug, Clone)]
struct BatchFinder<'a> {
    /// The ranks that must agree.
    pub group: &'a ProcessGroup,
    pub model: &'a ModelSettings,
    /// Where it computes.
    pub device: Device,
    pub precision: Precision,
    /// What moves it: its state needs memory too.
    pub optimizer: OptimizerSettings,
    /// Passes that share a rank's rows.
    pub accumulate: u64,
    /// How gradients travel: the buckets need memory too.
    pub ddp: &'a DdpSettings,
    /// Bytes of main memory that a rank may take, on the CPU.
    pub memory_bytes: u64,
}

/// The largest batch of which rows are read to try the model on.
const SAMPLE_ROWS: u64 = 64;

/// One candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Trial {
    /// Rows per rank and pass.
    pub rows: u64,
    /// Samples per second over all ranks; `None` = it does not fit.
    pub samples_per_s: Option<f64>,
}

/// The global batch that `--batch auto` stands for, and what was found out about the dataset on the way;
/// `None` if the flags give a number. Collective.
pub fn find(session: &Session) -> Result<Option<(u64, KnownFacts)>> {
    let settings = &session.settings;
    if settings.batch != AUTO_BATCH {
        return Ok(None);
    }
    let train = data::open(session, settings.train_spec())?;
    let known = train.facts(session, None)?;
    let train = train.with_model(session, &known.facts, Some(settings.seed))?;
    let world = session.env.world as u64;
    let rows = (train.input_rows() / world).max(1);
    let loader = data::loader_settings(session, Shuffle::None, rows.min(SAMPLE_ROWS) * world);
    let mut feed = train.feed(session, loader, Compute::CPU)?;
    let Event::Batch(batch) = feed.next_event()? else { bail!("the dataset gave no batch to try") };
    let finder = BatchFinder {
        group: &session.group,
        model: &train.model,
        device: session.compute.device(),
        precision: settings.precision,
        optimizer: settings.optim.settings(),
        accumulate: settings.optim.accumulate,
        ddp: &settings.gradients.ddp(),
        memory_bytes: settings.batch_memory.unwrap_or_else(|| default_bytes(session.env.local_world)),
    };
    let sample = feed.input(&batch)?;
    // It would read on beside the passes that are timed.
    drop(feed);
    // All passes of a step together have no more rows than an epoch.
    let tried = finder.try_all(&sample, (rows / settings.optim.accumulate).max(1))?;
    let chosen = finder.choose(&tried)?;
    session.say(&table(&tried, session.env.world, chosen));
    Ok(Some((chosen * world, known)))
}

impl BatchFinder<'_> {
    /// Tries candidates on the rows of `sample`, repeated as needed, for a dataset of which each rank has
    /// `rows` in an epoch. Gives all that were tried; collective.
    fn try_all(&self, sample: &Input, rows: u64) -> Result<Vec<Trial>> {
        let mut tried = Vec::new();
        let least = self.model.rows_min().max(1) as u64;
        let mut rows_now = least.next_power_of_two();
        while rows_now <= rows.min(ROWS_MAX).max(least) {
            let (seconds, peak) = self.attempt(sample, rows_now)?.unwrap_or((f64::INFINITY, u64::MAX));
            let seconds = self.agreed(seconds, Op::Max)?;
            let world = self.group.world() as f64;
            let samples_per_s = seconds.is_finite().then(|| world * rows_now as f64 / seconds);
            tried.push(Trial { rows: rows_now, samples_per_s });
            // On the CPU nothing fails before the machine does: the next one is not tried if it may be too
            // large. What does not grow with the rows is counted twice too.
            let next_fits = self.device != Device::Cpu || peak.saturating_mul(2) <= self.memory_bytes;
            if samples_per_s.is_none() || self.agreed(f64::from(u8::from(next_fits)), Op::Min)? == 0.0 {
                break;
            }
            rows_now *= 2;
        }
        Ok(tried)
    }

    /// The rows of a rank's step, all passes together.
    fn choose(&self, tried: &[Trial]) -> Result<u64> {
        let speed = |tried: &Trial| tried.samples_per_s.unwrap_or(0.0);
        let best = tried.iter().max_by(|a, b| speed(a).total_cmp(&speed(b)));
        let best = best.filter(|best| best.samples_per_s.is_some());
        let best = best.context("--batch auto: not even the smallest batch fits into the memory")?;
        Ok(best.rows * self.accumulate)
    }

    /// The median time of a pass, and the memory at its peak; `None` if there is too little.
    fn attempt(&self, sample: &Input, rows: u64) -> Result<Option<(f64, u64)>> {
        let run = || -> Result<(f64, u64)> {
            forget_peak();
            let model = self.model.build(1, self.device)?;
            let mut optimizer = Optimizer::new(self.optimizer, model::parameters(model.vars()))?;
            let input = repeated(sample, rows as i64, self.device)?;
            let _beside = self.beside(&model.vars().trainable_variables(), &input)?;
            let mut times = Vec::with_capacity(RUNS);
            for _ in 0..RUNS {
                let began = Instant::now();
                self.pass(&model, &mut optimizer, &input)?;
                times.push(began.elapsed().as_secs_f64());
            }
            times.remove(0);
            times.sort_by(f64::total_cmp);
            Ok((times[times.len() / 2], peak_bytes()))
        };
        match failure::without_panic(run) {
            Ok(measured) => Ok(Some(measured)),
            Err(error) if failure::lacks_memory(&error) => Ok(None),
            Err(error) => Err(error.context(format!("--batch auto: {rows} rows"))),
        }
    }

    /// What a training holds beside what a trial does: the buckets of gradients, rounded for the way too
    /// where they are, and on a GPU the next batch, which is on its way.
    fn beside(&self, parameters: &[Tensor], input: &Input) -> Result<Vec<Tensor>> {
        let kinds = [Some(Kind::Float), (self.ddp.compression != Compression::None).then_some(Kind::Half)];
        let mut beside = Vec::new();
        for kind in kinds.into_iter().flatten() {
            for parameter in parameters {
                // Written to: memory that nobody has touched is not taken yet.
                beside.push(Tensor::f_ones(parameter.size(), (kind, self.device))?);
            }
        }
        if self.device.is_cuda() {
            let copy = |tensor: &Tensor| tensor.f_to_device_(self.device, tensor.kind(), false, true);
            beside.extend(input.tensors().map(copy).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(beside)
    }

    fn pass(&self, model: &Model, optimizer: &mut Optimizer, input: &Input) -> Result<()> {
        zero_grads(&model.vars().trainable_variables(), true)?;
        let loss = self.precision.run(self.device, || -> Result<Tensor> {
            let output = model.forward(input, true)?;
            Ok(model.row_losses(&output, input)?.mean(Kind::Float))
        })??;
        loss.f_backward()?;
        // Without a rate nothing moves, but all memory is in use.
        optimizer.step(0.0)?;
        if let Device::Cuda(index) = self.device {
            Cuda::synchronize(index as i64);
        }
        Ok(())
    }

    fn agreed(&self, value: f64, op: Op) -> Result<f64> {
        let mut shared = Tensor::from_slice(&[value]);
        self.group.all_reduce(&mut shared, op)?;
        Ok(shared.double_value(&[0]))
    }
}

/// The table for people.
fn table(tried: &[Trial], world: usize, chosen: u64) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED).set_header(["rows per rank and pass", "samples/s", ""]);
    let most = tried.iter().filter_map(|tried| tried.samples_per_s).fold(0.0, f64::max);
    for Trial { rows, samples_per_s } in tried {
        let (speed, note) = match samples_per_s {
            None => ("-".to_owned(), "too large"),
            Some(speed) if *speed == most => (format!("{speed:.0}"), "chosen"),
            Some(speed) => (format!("{speed:.0}"), ""),
        };
        table.add_row([rows.to_string(), speed, note.to_owned()]);
    }
    for column in table.column_iter_mut().take(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n--batch auto: {chosen} rows on each of {world} ranks, {} in all", chosen * world as u64)
}

/// `rows` rows: those of `sample`, again and again.
fn repeated(sample: &Input, rows: i64, device: Device) -> Result<Input> {
    let index = Tensor::arange(rows, (Kind::Int64, Device::Cpu)).remainder(sample.rows().max(1));
    let rows = sample.select(&index)?;
    rows.try_map(|tensor| Ok(tensor.f_to_device(device)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use forebay_c10d::Store;

    use crate::input::Role;

    fn group() -> ProcessGroup {
        let timeout = Duration::from_secs(30);
        ProcessGroup::gloo(Store::serve(1, timeout).unwrap(), 0, 1, timeout).unwrap()
    }

    /// The convnet with plain SGD, one pass a step, and all the memory that it wants.
    fn fit<'a>(group: &'a ProcessGroup, ddp: &'a DdpSettings) -> BatchFinder<'a> {
        BatchFinder {
            group,
            model: &ModelSettings::Convnet,
            device: Device::Cpu,
            precision: Precision::Fp32,
            optimizer: OptimizerSettings::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
            accumulate: 1,
            ddp,
            memory_bytes: u64::MAX,
        }
    }

    #[test]
    fn candidates_double_until_the_epoch_or_the_memory_ends() {
        let group = group();
        let images = crate::model::seeded(2, || Tensor::randint(256, [3, 784], (Kind::Uint8, Device::Cpu)));
        let labels = Tensor::from_slice(&[1i64, 2, 3]);
        let sample = Input::new(3, vec![(Role::Image, images), (Role::Label, labels)], None);
        let ddp = DdpSettings::default();
        let mut fit = fit(&group, &ddp);
        fit.accumulate = 3;
        fit.optimizer = OptimizerSettings::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.0 };
        let tried = fit.try_all(&sample, 20).unwrap();
        assert_eq!(tried.iter().map(|tried| tried.rows).collect::<Vec<_>>(), [1, 2, 4, 8, 16]);
        assert!(tried.iter().all(|tried| tried.samples_per_s > Some(0.0)));
        assert_eq!(BatchFinder { memory_bytes: 1, ..fit.clone() }.try_all(&sample, 20).unwrap().len(), 1);

        let tried = |rows, samples_per_s| Trial { rows, samples_per_s };
        let all = [tried(1, Some(10.0)), tried(2, Some(30.0)), tried(4, Some(20.0)), tried(8, None)];
        assert_eq!(fit.choose(&all).unwrap(), 6, "two rows in each of three passes");
        let text = table(&all, 2, 6);
        assert!(
            text.contains("too large") && text.contains("chosen") && text.ends_with("12 in all"),
            "{text}"
        );
        assert!(fit.choose(&all[3..]).unwrap_err().to_string().contains("not even the smallest"));
    }

    #[test]
    fn what_is_wrong_with_the_input_is_no_lack_of_memory() {
        let group = group();
        let sample = Input::new(2, vec![(Role::Label, Tensor::from_slice(&[1i64, 2]))], None);
        let ddp = DdpSettings::default();
        let error = format!("{:#}", fit(&group, &ddp).try_all(&sample, 4).unwrap_err());
        assert_eq!(error, "--batch auto: 1 rows: the batch has no image");
    }

    #[test]
    fn a_trial_holds_what_a_training_does() {
        let group = group();
        let bytes = |compression| {
            let ddp = DdpSettings { compression, ..Default::default() };
            let model = ModelSettings::Convnet.build(1, Device::Cpu).unwrap();
            let parameters = model.vars().trainable_variables();
            let size = |tensor: &Tensor| tensor.numel() * tensor.kind().elt_size_in_bytes();
            let input = Input::new(1, vec![(Role::Label, Tensor::from_slice(&[1i64]))], None);
            let beside: usize = fit(&group, &ddp).beside(&parameters, &input).unwrap().iter().map(size).sum();
            beside as f64 / parameters.iter().map(size).sum::<usize>() as f64
        };
        assert_eq!((bytes(Compression::None), bytes(Compression::Bf16)), (1.0, 1.5));
    }
}
