//! The training loop: steps, epochs, and what happens between them.
//!
//! Each step is timed part by part. Between steps all ranks do the same in the same order, so that each can count on
//! the others in every collective: agree whether to stop, write a checkpoint if one is due.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use forebay_c10d::Span;
use forebay_client::counters::since;
use forebay_client::{Batch, Event, LoaderSettings};
use forebay_proto::state::LoaderState;
use forebay_proto::v1::Counters;

use crate::account::Tally;
use crate::feed::Feed;
use crate::keep::Keeper;
use crate::observe::Observer;
use crate::rank::{Fitted, Rank, say};
use crate::report::{EpochReport, Report};
use crate::standing::Standing;
use crate::stop::{Stop, Told};
use crate::suspect;
use crate::timing::{Ledger, Part, Stopwatch};
use crate::train::{At, NotFinite, Trainer};

/// One rank in training.
pub(crate) struct Run<'a> {
    rank: &'a Rank<'a>,
    train: &'a Fitted,
    feed: Feed,
    trainer: Option<Trainer>,
    standing: Standing,
    keeper: Option<Keeper>,
    /// Only with checkpoints: without them there is nothing to do before the end.
    stop: Option<Stop>,
    observer: Observer,
    /// The counters when the epoch began.
    cost: Counters,
}

/// How a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// All epochs are done.
    Done,
    /// It was told to stop, and kept a checkpoint.
    Stopped,
}

/// An epoch on this rank.
struct Stretch {
    epoch: u64,
    tally: Tally,
    ledger: Ledger,
    took: Duration,
}

impl<'a> Run<'a> {
    /// Takes up a run: from the newest checkpoint if there is one, else from the beginning. `cost` is what the
    /// counters said before the dataset was opened. Collective.
    pub fn begin(rank: &'a Rank<'a>, train: &'a Fitted, cost: Counters) -> Result<Self> {
        let settings = rank.settings;
        let identity = rank.identity(train);
        let stop = match settings.checkpoint.checkpoint_dir {
            Some(_) => Some(Stop::new(Told::listen()?)),
            None => None,
        };
        let opened =
            Keeper::open(&settings.checkpoint, rank.place, &rank.group, identity, settings.batch, |line| {
                say(line);
            })?;
        let (keeper, checkpoint) = opened.map_or((None, None), |(keeper, newest)| (Some(keeper), newest));
        let (mut standing, mut state) = (Standing::default(), None);
        if let Some(checkpoint) = &checkpoint {
            standing = Standing::of(&checkpoint.meta)?;
            state = Some(checkpoint.meta.state()?);
        }
        let feed = rank.training_feed(train, state)?;
        let mut trainer = rank.trainer(&train.model, train.steps(settings.batch))?;
        if let (Some(trainer), Some(checkpoint)) = (&mut trainer, &checkpoint) {
            let (epoch, samples_done) = standing.first();
            let done = epoch * train.steps(settings.batch) + samples_done.div_ceil(settings.batch);
            trainer
                .load(&checkpoint.weights, &checkpoint.training, done)
                .context("take up the checkpoint")?;
        }
        if let (true, Some(resumed)) = (rank.place.is_first(), &standing.resumed) {
            say(&resumed.line());
        }
        let observer = Observer::new(rank, train.steps(settings.batch), standing.step)?;
        Ok(Self { rank, train, feed, trainer, standing, keeper, stop, observer, cost })
    }

    /// Trains all epochs that are left, and reports each.
    pub fn epochs(&mut self, report: &mut Report) -> Result<End> {
        report.resumed = self.standing.resumed.clone();
        report.earlier_epochs = self.standing.epochs.clone();
        let (first, last) = (self.standing.first().0, self.rank.settings.epochs);
        let mut end = End::Done;
        for epoch in first..last {
            let Some(stretch) = self.epoch(epoch)? else {
                end = End::Stopped;
                break;
            };
            report.epochs.push(self.end_epoch(stretch)?);
            // After the last epoch there is nothing left to stop.
            let group = &self.rank.group;
            if epoch + 1 < last && self.stop.as_mut().map_or(Ok(false), |stop| stop.now(group))? {
                end = End::Stopped;
                break;
            }
        }
        self.finish(end, report)?;
        Ok(end)
    }

    /// What was trained, if anything, and how the ranks agree to stop, if they can.
    pub fn trained(&mut self) -> (Option<&Trainer>, Option<&mut Stop>) {
        (self.trainer.as_ref(), self.stop.as_mut())
    }

    /// One pass over the training dataset, or what is left of it; `None` if all ranks stop in the middle.
    fn epoch(&mut self, epoch: u64) -> Result<Option<Stretch>> {
        let samples = self.train.dataset.epoch_samples();
        let (first, done) = self.standing.first();
        let mut position = if epoch == first { done } else { 0 };
        let (mut tally, mut ledger, mut watch) = (Tally::default(), Ledger::default(), Stopwatch::start());
        loop {
            self.observer.begin_step()?;
            let event = {
                let _span = Span::new("data wait")?;
                let place = || format!("epoch {} after {position} samples", epoch + 1);
                self.feed.next_event().with_context(place)?
            };
            watch.lap(Part::DataWait);
            let batch = match event {
                Event::Batch(batch) => batch,
                Event::EpochEnd(_) => {
                    tally.waited = ledger.waited();
                    let took = tally.elapsed();
                    return Ok(Some(Stretch { epoch, tally, ledger, took }));
                }
            };
            let at = At { epoch, step: batch.step(), samples: batch.samples_done() - position };
            let loss = self.step(&batch, at, position, &mut watch)?;
            position = batch.samples_done();
            tally.add(&batch, loss);
            self.standing.step += 1;
            let times = watch.end();
            ledger.add(times);
            tally.waited = ledger.waited();
            let loss = loss.map(|sum| sum / batch.real_rows().max(1) as f64);
            let lr = self.trainer.as_ref().map(Trainer::lr);
            self.observer.step(self.standing.step, epoch, &tally, (loss, lr), &times)?;
            if position < samples && self.between_steps(epoch, &tally, &mut watch)? {
                return Ok(None);
            }
        }
    }

    /// Trains on a batch; gives the sum of its samples' losses.
    fn step(&mut self, batch: &Batch, at: At, position: u64, watch: &mut Stopwatch) -> Result<Option<f64>> {
        let Some(trainer) = &mut self.trainer else {
            self.rank.emulate(watch)?;
            return Ok(None);
        };
        let input = {
            let _span = Span::new("copy")?;
            self.feed.input(batch)?
        };
        watch.lap(Part::Copy);
        let sum = match trainer.step(&input, at) {
            Ok(sum) => sum,
            Err(error) if error.is::<NotFinite>() => {
                let step = suspect::Step {
                    epoch: at.epoch,
                    position,
                    rank: self.rank.place.rank,
                    world: self.rank.place.world,
                };
                let settings = self.rank.settings;
                let samples = suspect::describe(settings, &self.train.dataset, settings.shuffle(), step)?;
                bail!("{error}; {samples}");
            }
            Err(error) => return Err(error),
        };
        let times = trainer.take_times();
        watch.add(Part::Forward, times.forward);
        watch.add(Part::Backward, times.backward);
        watch.add(Part::Optimizer, times.optimizer);
        Ok(Some(sum))
    }

    /// Writes a checkpoint if one is due; `true` if all ranks stop here, after writing one.
    fn between_steps(&mut self, epoch: u64, tally: &Tally, watch: &mut Stopwatch) -> Result<bool> {
        let Some(keeper) = &mut self.keeper else { return Ok(false) };
        let group = &self.rank.group;
        let stopping = self.stop.as_mut().map_or(Ok(false), |stop| stop.after_step(group))?;
        if stopping || keeper.is_due(self.standing.step) {
            let state = self.feed.state();
            keeper.keep(group, &self.standing, (epoch, tally), &state, self.trainer.as_ref())?;
        }
        if stopping {
            // What is said at the end is what the checkpoint says: this epoch's own stretch counts.
            self.standing.epochs = self.standing.epochs_with(group, epoch, tally)?;
        }
        watch.skip();
        Ok(stopping)
    }

    /// Merges the ranks' counts of an epoch that is over, and writes its checkpoint.
    fn end_epoch(&mut self, stretch: Stretch) -> Result<EpochReport> {
        let Stretch { epoch, tally, ledger, took } = stretch;
        let (rank, dataset) = (self.rank, &self.train.dataset);
        // The cost is read when every rank has its last batch, and before any of them goes on.
        rank.group.barrier()?;
        let now = rank.counters(LoaderSettings::default().patience)?;
        let total = tally.merge(&rank.group, took, &since(&self.cost, &now))?;
        self.cost = now;
        let communication = self.trainer.as_ref().map(Trainer::communication).transpose()?;
        let times = ledger.merge(&rank.group, took, communication)?;
        let mut seen = self.standing.before(epoch);
        let samples_before = seen.samples;
        seen.add(total.samples, tally.steps, total.digest, total.loss_sum)?;
        ensure!(
            seen.samples == dataset.epoch_samples(),
            "epoch {} gave {} samples, but the dataset has {}",
            epoch + 1,
            seen.samples,
            dataset.epoch_samples()
        );
        let mut report = EpochReport::new(
            epoch,
            &total,
            dataset.projected_bytes(),
            rank.reads_itself(),
            self.trainer.is_some(),
        );
        report.complete(&seen, samples_before);
        report.times = Some(times);
        self.standing.end_epoch(seen);
        if let Some(keeper) = &mut self.keeper {
            let state: LoaderState = self.feed.state();
            keeper.keep_epoch(&rank.group, &self.standing, &state, self.trainer.as_ref())?;
        }
        self.observer.epoch(self.standing.step, &report, rank.settings.epochs);
        Ok(report)
    }

    /// Waits for the last checkpoint, and says how the run ended.
    fn finish(&mut self, end: End, report: &mut Report) -> Result<()> {
        let place = self.keeper.as_mut().map_or(Ok(None), Keeper::finish)?;
        self.observer.finish()?;
        report.order_digest = self.standing.digest()?.to_string();
        report.steps = self.standing.step;
        report.stopped = end == End::Stopped;
        report.checkpoint_wait_s = self.keeper.as_ref().map_or(0.0, Keeper::waited_s);
        if let (End::Stopped, Some(place)) = (end, place) {
            say(&format!(
                "stopped by SIGTERM after step {}: {} is written; the same command goes on from there",
                self.standing.step,
                place.display()
            ));
        }
        Ok(())
    }
}
