//! One rank's run, from opening the datasets to the report.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use forebay_c10d::ProcessGroup;
use forebay_client::counters::since;
use forebay_client::loader::{Ending, Shuffle};
use forebay_client::{Access, Batch, Dataset, DatasetSpec, Event, LoaderSettings};
use forebay_proto::v1::Counters;
use tokio::runtime::{Handle, Runtime};

use crate::account::Tally;
use crate::device::Compute;
use crate::evaluate::{Evaluation, Score};
use crate::feed::Feed;
use crate::input::{Columns, Input};
use crate::model::{self, Model, ModelSettings};
use crate::place::Place;
use crate::progress::Progress;
use crate::report::{EpochReport, Report, SettingsReport};
use crate::settings::Settings;
use crate::train::{At, Trainer, TrainerSettings};

/// Rows that each rank labels at a time: without gradients there is room for more than in training.
const TEST_ROWS: u64 = 250;

/// Runs this rank to its end.
pub fn run(settings: &Settings, place: &Place) -> Result<()> {
    end_with_the_launcher(place)?;
    forebay_c10d::init_logging()?;
    keep_to_own_cores(place);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = Rank::join(settings, place, &runtime).and_then(|rank| rank.run());
    // What still prefetches has no reader any more.
    runtime.shutdown_background();
    result
}

/// A rank among its peers.
struct Rank<'a> {
    settings: &'a Settings,
    place: &'a Place,
    compute: Compute,
    group: ProcessGroup,
    runtime: Handle,
    access: Access,
}

/// A dataset and what a model takes of it.
struct Fitted {
    dataset: Dataset,
    model: ModelSettings,
    columns: Columns,
}

impl<'a> Rank<'a> {
    fn join(settings: &'a Settings, place: &'a Place, runtime: &Runtime) -> Result<Self> {
        let runtime = runtime.handle().clone();
        let access = {
            let _inside = runtime.enter();
            settings.access.access()?
        };
        let compute = Compute::open(settings.device, place)?;
        let timeout = Duration::from_secs(settings.peer_timeout_s);
        let joined = place.store(timeout).and_then(|store| compute.join(store, place, timeout));
        let group = joined.context("join the other ranks")?;
        Ok(Self { settings, place, compute, group, runtime, access })
    }

    fn run(&self) -> Result<()> {
        // The test dataset first: what is wrong with it should show before the training, not after.
        let test = self.settings.test_spec().map(|spec| self.open(spec)).transpose()?;
        self.group.barrier()?;
        let mut cost = self.counters(Duration::ZERO)?;
        self.group.barrier()?;
        let fitted = self.open(self.settings.train_spec())?;
        if let Some(test) = &test {
            same_model(&fitted, test)?;
        }
        let train = &fitted.dataset;
        let steps = train.epoch_samples().div_ceil(self.settings.batch);
        let mut feed =
            self.feed(train, self.settings.shuffle(), self.settings.batch, self.settings.epochs)?;
        let mut trainer = self.trainer(&fitted.model, steps)?;

        let mut report = self.report(&fitted, test.as_ref(), steps);
        let mut progress =
            self.place.is_first().then(|| Progress::new(self.settings.epochs, steps, self.settings.batch));
        for epoch in 0..self.settings.epochs {
            let tally = self.epoch(epoch, &fitted, &mut feed, trainer.as_mut(), progress.as_mut())?;
            let took = tally.elapsed();
            // The cost is read when every rank has its last batch, and before any of them goes on.
            self.group.barrier()?;
            let now = self.counters(LoaderSettings::default().patience)?;
            let total = tally.merge(&self.group, took, &since(&cost, &now))?;
            cost = now;
            ensure!(
                total.samples == train.epoch_samples(),
                "epoch {} gave {} samples, but the dataset has {}",
                epoch + 1,
                total.samples,
                train.epoch_samples()
            );
            let epoch = EpochReport::new(
                epoch,
                &total,
                train.projected_bytes(),
                self.reads_itself(),
                trainer.is_some(),
            );
            if let Some(progress) = &mut progress {
                progress.clear();
                say(&epoch.line(self.settings.epochs));
            }
            report.epochs.push(epoch);
        }
        drop(feed);
        if let Some(trainer) = &trainer {
            if let Some(test) = &test {
                report.set_test(self.evaluate(trainer.model(), test)?);
            }
            report.parameter_hashes = self.parameter_hashes(trainer.model())?;
        }
        self.finish(&report)
    }

    /// Opens a dataset and checks that it can be trained on.
    fn open(&self, spec: DatasetSpec) -> Result<Fitted> {
        let spec = DatasetSpec { columns: Some(self.settings.model.column_names()), ..spec };
        let dataset = self.runtime.block_on(Dataset::open(&self.access, &spec))?;
        let uri = dataset.manifest().uri();
        let (model, columns) = model::resolve(&self.settings.model, dataset.schema(), uri)?;
        ensure!(dataset.epoch_samples() > 0, "{uri} has no rows");
        // Each rank opens it by itself: it may have been overwritten in between.
        let digest = dataset.manifest().digest().0;
        let versions = self.group.all_gather_i64(&[(digest >> 64) as i64, digest as i64])?;
        same_version(&versions).with_context(|| uri.to_owned())?;
        Ok(Fitted { dataset, model, columns })
    }

    fn feed(&self, dataset: &Dataset, shuffle: Shuffle, global_batch: u64, epochs: u64) -> Result<Feed> {
        let settings = LoaderSettings {
            seed: self.settings.seed,
            shuffle,
            ending: Ending::Pad,
            global_batch,
            rank: self.place.rank as u32,
            world: self.place.world as u32,
            first_epoch: 0,
            epochs: Some(epochs),
            ..Default::default()
        };
        Feed::start(&self.runtime, dataset, settings)
    }

    fn trainer(&self, model: &ModelSettings, steps_per_epoch: u64) -> Result<Option<Trainer>> {
        if self.settings.data_only {
            return Ok(None);
        }
        let optim = &self.settings.optim;
        let settings = TrainerSettings {
            optimizer: optim.settings(),
            schedule: optim.schedule(steps_per_epoch * self.settings.epochs),
            clip_norm: optim.clip_norm,
            accumulate: optim.accumulate,
        };
        let model = model.build(self.settings.seed, self.compute.device())?;
        Trainer::new(&self.group, model, settings).map(Some)
    }

    /// One pass over the training dataset.
    fn epoch(
        &self,
        epoch: u64,
        train: &Fitted,
        feed: &mut Feed,
        mut trainer: Option<&mut Trainer>,
        mut progress: Option<&mut Progress>,
    ) -> Result<Tally> {
        let samples = train.dataset.epoch_samples();
        let mut tally = Tally::default();
        loop {
            let event =
                feed.next_event().with_context(|| format!("epoch {} step {}", epoch + 1, tally.steps + 1))?;
            tally.waited += feed.take_waited();
            let batch = match event {
                Event::Batch(batch) => batch,
                Event::EpochEnd(_) => return Ok(tally),
            };
            tally.samples += batch.real_rows() as u64;
            tally.digest.merge(batch.digest());
            let mut loss = None;
            if let Some(trainer) = trainer.as_deref_mut() {
                let before = batch.step() * self.settings.batch;
                let at =
                    At { epoch, step: batch.step(), samples: (samples - before).min(self.settings.batch) };
                let sum = trainer.step(&self.compute.take(train.input(&batch)?)?, at)?;
                tally.loss_sum += sum;
                loss = Some(sum / batch.real_rows().max(1) as f64);
            }
            tally.steps += 1;
            if let Some(progress) = progress.as_deref_mut() {
                progress.step(epoch, &tally, loss);
            }
        }
    }

    fn evaluate(&self, model: &dyn Model, test: &Fitted) -> Result<Evaluation> {
        let mut feed = self.feed(&test.dataset, Shuffle::None, TEST_ROWS * self.place.world as u64, 1)?;
        let mut score = Score::default();
        while let Event::Batch(batch) = feed.next_event().context("evaluation")? {
            score.add(model, &self.compute.take(test.input(&batch)?)?)?;
        }
        score.merge(&self.group, model.metric(), test.dataset.epoch_samples())
    }

    fn parameter_hashes(&self, model: &dyn Model) -> Result<Vec<String>> {
        let hashes = self.group.all_gather_i64(&[model::parameter_hash(model.vars()) as i64])?;
        Ok(hashes.iter().map(|hash| format!("{:016x}", hash[0])).collect())
    }

    /// What this rank has to add to the cost of an epoch: its own counters when it reads the store itself; the
    /// cache's on the first rank alone, as all ranks share them. A node may be away for as long as `patience`.
    fn counters(&self, patience: Duration) -> Result<Counters> {
        if !self.place.is_first() && !self.reads_itself() {
            return Ok(Counters::default());
        }
        Ok(self.runtime.block_on(self.access.status_within(patience))?)
    }

    /// Whether each rank reads the store itself, without a cache.
    fn reads_itself(&self) -> bool {
        matches!(self.access, Access::Direct(_))
    }

    fn report(&self, train: &Fitted, test: Option<&Fitted>, steps_per_epoch: u64) -> Report {
        let settings = self.settings;
        let Fitted { dataset: train, model, columns } = train;
        Report {
            version: env!("CARGO_PKG_VERSION"),
            settings: SettingsReport {
                access: match &self.access {
                    Access::Endpoint(node) => node.url().to_owned(),
                    Access::Direct(_) => "direct".to_owned(),
                },
                train: train.manifest().uri().to_owned(),
                test: settings.test.clone(),
                model: (!settings.data_only).then(|| model.clone()),
                columns: columns.names(),
                optimizer: (!settings.data_only).then(|| settings.optim.settings()),
                epochs: settings.epochs,
                lr: settings.optim.lr(),
                seed: settings.seed,
                shuffle: settings.shuffle().to_string(),
            },
            world_size: self.place.world,
            global_batch: settings.batch,
            steps_per_epoch,
            train_samples: train.epoch_samples(),
            manifest_digest: train.manifest().digest().to_string(),
            epochs: Vec::new(),
            test_samples: test.map(|test| test.dataset.epoch_samples()),
            test_accuracy: None,
            test: None,
            parameter_hashes: Vec::new(),
        }
    }

    fn finish(&self, report: &Report) -> Result<()> {
        if self.place.is_first() {
            say(&format!("\n{}", report.table()));
            if let Some(Evaluation { metric, value, loss, samples }) = &report.test {
                let (name, value) = (metric.name(), metric.say(*value));
                say(&format!("test {name}: {value} of {samples} samples, loss {loss:.4}"));
            }
            if let Some(file) = &self.settings.report {
                report.write(file)?;
            }
        }
        let hashes = &report.parameter_hashes;
        ensure!(
            hashes.windows(2).all(|pair| pair[0] == pair[1]),
            "the ranks' parameters differ after the training, which DDP should make impossible: {}",
            hashes.join(", ")
        );
        // Nobody leaves while a peer still needs the connection.
        self.group.barrier()?;
        Ok(())
    }
}

impl Fitted {
    fn input(&self, batch: &Batch) -> Result<Input> {
        self.columns.tensors(&batch.to_record_batch(), batch.mask())
    }
}

/// Refuses to evaluate on what the model was not trained on.
fn same_model(train: &Fitted, test: &Fitted) -> Result<()> {
    ensure!(
        train.model == test.model && train.columns == test.columns,
        "{} and {} do not fit the same model: one makes it {:?} on {:?}, the other {:?} on {:?}",
        train.dataset.manifest().uri(),
        test.dataset.manifest().uri(),
        train.model,
        train.columns,
        test.model,
        test.columns
    );
    Ok(())
}

/// Refuses ranks that opened different versions of a dataset: they would follow different orders.
fn same_version(versions: &[Vec<i64>]) -> Result<()> {
    let other = versions.iter().position(|version| *version != versions[0]);
    match other {
        None => Ok(()),
        Some(rank) => {
            bail!("rank {rank} opened another version than rank 0: it was overwritten just now, start again")
        }
    }
}

/// Prints a line; a reader who has seen enough and closed the pipe is no reason to stop training.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A rank must not outlive the launcher that would have stopped it, not even if that ended before it got here.
fn end_with_the_launcher(place: &Place) -> Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    if let Some(launcher) = place.launcher {
        set_parent_process_death_signal(Some(Signal::KILL)).context("tie this rank to its launcher")?;
        let parent = getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
        ensure!(i64::from(parent) == i64::from(launcher), "the launcher (process {launcher}) has ended");
    }
    Ok(())
}

/// Ranks of one machine share its cores but one, which is left to the loaders: OpenMP's threads wait for each other by
/// spinning, so that one thread too many costs ten times what it brings. OMP_NUM_THREADS has the last word.
fn keep_to_own_cores(place: &Place) {
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        tch::set_num_threads(((cores - 1) / place.local_world).max(1) as i32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_must_have_opened_the_same_version() {
        assert!(same_version(&[vec![1, 2], vec![1, 2]]).is_ok());
        let error = same_version(&[vec![1, 2], vec![1, 2], vec![1, 3]]).unwrap_err().to_string();
        assert!(error.starts_with("rank 2 opened another version"), "{error}");
    }
}
