//! The training loop: steps, epochs, and what happens between them.
//!
//! Each step is timed part by part. Between steps all ranks do the same in the same order, so that each can
//! count on the others in every collective: agree whether to stop, write a checkpoint if one is due.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use forebay_c10d::Span;
use forebay_client::counters::Readings;
use forebay_client::{Batch, Event, LoaderSettings, delay};
use forebay_proto::v1::Counters;

use crate::checkpoint::Digests;
use crate::checkpoint::schedule::CheckpointSchedule;
use crate::input::feed::Feed;
use crate::input::rows::TextCount;
use crate::rank::session::Session;
use crate::rank::stop::{Stop, StopSignals};
use crate::report::epoch_stats::Tally;
use crate::report::observer::Observer;
use crate::report::summary::{EpochReport, Report};
use crate::report::timing::{Ledger, Part, Stopwatch};
use crate::train::bad_step::{self, BadStep};
use crate::train::data::{self, ModelData};
use crate::train::evaluate::evaluate;
use crate::train::hyperparams::Hyperparams;
use crate::train::run_state::RunState;
use crate::train::step::{At, NotFinite, Trainer};

/// One rank in training.
pub struct Fit<'a> {
    session: &'a Session,
    train: &'a ModelData,
    test: Option<&'a ModelData>,
    feed: Feed,
    trainer: Option<Trainer>,
    run_state: RunState,
    schedule: Option<CheckpointSchedule>,
    /// Only with checkpoints: without them there is nothing to do before the end.
    stop: Option<Stop>,
    observer: Observer,
    /// The counters when the epoch began.
    cost: Readings,
    /// Whether it was said that the cache is too small.
    is_size_told: bool,
}

impl<'a> Fit<'a> {
    /// Takes up a run: from the newest checkpoint if there is one, else from the beginning. `cost` is what
    /// the counters said before the dataset was opened. Collective.
    pub fn begin(
        session: &'a Session,
        train: &'a ModelData,
        test: Option<&'a ModelData>,
        cost: Readings,
    ) -> Result<Self> {
        let settings = &session.settings;
        let stop = match settings.checkpoint.checkpoint_dir {
            Some(_) => Some(Stop::new(StopSignals::listen()?)),
            None => None,
        };
        let hyperparams = settings.hyperparams(train.steps(settings.batch));
        let opened = CheckpointSchedule::open(session, train.identity(session), hyperparams)?;
        let (schedule, checkpoint) =
            opened.map_or((None, None), |(schedule, newest)| (Some(schedule), newest));
        let (mut run_state, mut resume) = (RunState::default(), None);
        if let Some(checkpoint) = &checkpoint {
            run_state = RunState::of(&checkpoint.meta)?;
            resume = Some(checkpoint.meta.state()?);
        }
        let before = checkpoint.as_ref().and_then(|checkpoint| checkpoint.meta.settings);
        let changes = match (&before, &hyperparams) {
            (Some(before), Some(now)) => {
                before.check_state(now).context("the checkpoint is not for this run")?;
                before.changes(now)
            }
            _ => None,
        };
        let loader = LoaderSettings {
            resume,
            epochs: Some(settings.epochs),
            ..data::loader_settings(session, settings.shuffle(), settings.batch)
        };
        let done = match &checkpoint {
            Some(_) => train.steps_done(&loader)?,
            None => 0,
        };
        let feed = train.feed(session, loader, session.compute)?;
        let mut trainer = hyperparams.map(|settings| new_trainer(session, train, settings)).transpose()?;
        if let (Some(trainer), Some(checkpoint)) = (&mut trainer, &checkpoint) {
            trainer
                .load(&checkpoint.weights, &checkpoint.training, done)
                .context("take up the checkpoint")?;
        }
        if let Some(resumed) = &run_state.resumed {
            session.say(&resumed.line());
            if let Some(changes) = changes {
                session.say(&format!("other settings than before: {changes}"));
            }
        }
        let cuda = session.compute.device().is_cuda();
        let observer =
            Observer::new(settings, &session.env, cuda, train.steps(settings.batch), run_state.step)?;
        let is_size_told = false;
        Ok(Self {
            session,
            train,
            test,
            feed,
            trainer,
            run_state,
            schedule,
            stop,
            observer,
            cost,
            is_size_told,
        })
    }

    /// Trains all epochs that are left, reports each, and evaluates.
    pub fn epochs(&mut self, report: &mut Report) -> Result<()> {
        report.resumed = self.run_state.resumed.clone();
        report.earlier_epochs = self.run_state.epochs.clone();
        let (first, last) = (self.run_state.first().0, self.session.settings.epochs);
        for epoch in first..last {
            let Some((tally, ledger)) = self.epoch(epoch)? else {
                report.stopped = true;
                break;
            };
            report.epochs.push(self.end_epoch(epoch, &tally, &ledger)?);
            let every = self.session.settings.eval_every;
            if epoch + 1 < last && every.is_some_and(|every| (epoch + 1).is_multiple_of(every)) {
                if !self.evaluate(epoch + 1, report)? {
                    report.stopped = true;
                    break;
                }
                self.take_cost()?;
                self.session.group.barrier()?;
            }
            // After the last epoch there is nothing left to stop.
            let group = &self.session.group;
            if epoch + 1 < last && self.stop.as_mut().map_or(Ok(false), |stop| stop.now(group))? {
                report.stopped = true;
                break;
            }
        }
        self.finish(report)?;
        if !report.stopped && !self.evaluate(last, report)? {
            report.stopped = true;
            let by = self.stop.as_ref().map_or("SIGTERM", Stop::by);
            self.session
                .say(&format!("stopped by {by} in the evaluation: the same command takes it up again"));
        }
        Ok(())
    }

    /// The model in training, if there is one.
    pub fn trainer(&self) -> Option<&Trainer> {
        self.trainer.as_ref()
    }

    /// Evaluates after this number of epochs, if there is a dataset to evaluate on; `false` if all ranks were
    /// told to stop meanwhile.
    fn evaluate(&mut self, epochs: u64, report: &mut Report) -> Result<bool> {
        let (Some(trainer), Some(test)) = (&self.trainer, self.test) else { return Ok(true) };
        let Some(evaluation) = evaluate(self.session, trainer.model(), test, self.stop.as_mut())? else {
            return Ok(false);
        };
        self.observer.evaluated(self.run_state.step, &evaluation);
        if let Some(epoch) = report.epochs.last_mut().filter(|epoch| epoch.epoch + 1 == epochs) {
            epoch.test = Some(evaluation);
        }
        if epochs == self.session.settings.epochs {
            report.set_test(evaluation);
        } else {
            self.session.say(&format!("after epoch {epochs}: {}", evaluation.line()));
        }
        Ok(true)
    }

    /// The cost since the last call; what comes from now on is the next epoch's. It is read when every rank
    /// has come, and before any of them goes on, if a collective follows.
    fn take_cost(&mut self) -> Result<Option<Counters>> {
        self.session.group.barrier()?;
        let now = self.session.counters(LoaderSettings::default().patience)?;
        let cost = now.since(&self.cost);
        self.cost = now.over(std::mem::take(&mut self.cost));
        Ok(cost)
    }

    /// After all ranks have stopped: an error if only others were told to.
    pub fn told(&self) -> Result<()> {
        Ok(self.stop.as_ref().map_or(Ok(()), Stop::told)?)
    }

    /// One pass over the training dataset, or over the rest of it; `None` if all ranks stop in the middle.
    fn epoch(&mut self, epoch: u64) -> Result<Option<(Tally, Ledger)>> {
        let samples = self.train.dataset.epoch_samples();
        let (first, done) = self.run_state.first();
        let mut position = if epoch == first { done } else { 0 };
        let (mut tally, mut ledger, mut watch) = (Tally::default(), Ledger::default(), Stopwatch::start());
        loop {
            self.observer.begin_step()?;
            // What happened since the last step was no waiting for data.
            watch.skip();
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
                    return Ok(Some((tally, ledger)));
                }
            };
            // A loss is one of a sample, or of a sequence of several.
            let (rows, own_rows) = match &batch.sequences {
                Some(sequences) => (sequences.all, sequences.own),
                None => (batch.samples_done - position, batch.real_rows as u64),
            };
            let at = At { epoch, step: batch.step, samples: rows };
            let (loss, text) = self.step(&batch, at, position, &mut watch)?;
            position = batch.samples_done;
            tally.add(&batch, loss);
            tally.add_text(text);
            self.run_state.step += 1;
            let times = watch.end();
            ledger.add(times);
            tally.waited = ledger.waited();
            let loss = loss.map(|sum| sum / own_rows.max(1) as f64);
            self.observer.step(self.run_state.step, epoch, &tally, (loss, self.trainer.as_ref()), &times);
            if position < samples && self.between_steps(epoch, &tally)? {
                return Ok(None);
            }
        }
    }

    /// Trains on a batch; gives the sum of its rows' losses, and what it holds of texts.
    fn step(
        &mut self,
        batch: &Batch,
        at: At,
        position: u64,
        watch: &mut Stopwatch,
    ) -> Result<(Option<f64>, TextCount)> {
        let Some(trainer) = &mut self.trainer else {
            emulate_step(self.session, &mut self.feed, watch)?;
            return Ok((None, TextCount::default()));
        };
        let input = {
            let _span = Span::new("copy")?;
            self.feed.input(batch)?
        };
        let text = input.text();
        watch.lap(Part::Copy);
        let sum = match trainer.step(&input, at, watch) {
            Ok(sum) => sum,
            Err(error) if error.is::<NotFinite>() => {
                let Session { settings, env, .. } = self.session;
                let (epoch, rank, world) = (at.epoch, env.rank, env.world);
                let step = match &batch.sequences {
                    // The rows that this rank took are a step by themselves.
                    Some(sequences) => {
                        let (position, batch) = (sequences.first, batch.rows() as u64);
                        BadStep { epoch, position, batch, rank: 0, world: 1 }
                    }
                    None => BadStep { epoch, position, batch: settings.batch, rank, world },
                };
                let samples = bad_step::describe(settings, &self.train.dataset, settings.shuffle(), step)?;
                bail!("{error}; {samples}");
            }
            Err(error) => return Err(error),
        };
        watch.shift(Part::Backward, Part::Copy, self.feed.stalled()?);
        Ok((Some(sum), text))
    }

    /// Writes a checkpoint if one is due; `true` if all ranks stop here, after writing one.
    fn between_steps(&mut self, epoch: u64, tally: &Tally) -> Result<bool> {
        let Some(schedule) = &mut self.schedule else { return Ok(false) };
        let (group, step) = (&self.session.group, self.run_state.step);
        let stopping = self.stop.as_mut().map_or(Ok(false), |stop| stop.after_step(group))?;
        if stopping || schedule.is_due(step) {
            let epochs = self.run_state.epochs_with(group, epoch, tally)?;
            schedule.keep(group, step, epochs.clone(), &self.feed.state(), self.trainer.as_ref())?;
            if stopping {
                // The end of the run says what the checkpoint says: this epoch's own stretch counts.
                self.run_state.epochs = epochs;
            }
        }
        Ok(stopping)
    }

    /// Merges the ranks' counts of an epoch that is over, and writes its checkpoint.
    fn end_epoch(&mut self, epoch: u64, tally: &Tally, ledger: &Ledger) -> Result<EpochReport> {
        let took = tally.elapsed();
        let (session, dataset) = (self.session, &self.train.dataset);
        let cost = self.take_cost()?;
        let total = tally.merge(&session.group, took, cost.as_ref())?;
        if let Some(cost) = &cost {
            self.tell_of_size(epoch, cost);
        }
        let times = ledger.merge(&session.group, took)?;
        let mut seen = self.run_state.before(epoch);
        let samples_before = seen.samples;
        let digests = Digests { order: total.digest, content: total.content };
        seen.add(total.samples, tally.steps, digests, total.loss_sum)?;
        seen.add_sequences(total.sequences);
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
            dataset.projected_bytes,
            session.reads_itself(),
            self.trainer.is_some(),
        );
        report.complete(&seen, samples_before);
        report.times = Some(times);
        report.scaling = self.trainer.as_ref().and_then(Trainer::scaling);
        self.run_state.end_epoch(seen);
        if let Some(schedule) = &mut self.schedule {
            let (step, epochs) = (self.run_state.step, self.run_state.epochs.clone());
            schedule.keep(&session.group, step, epochs, &self.feed.state(), self.trainer.as_ref())?;
        }
        self.observer.epoch(self.run_state.step, &report, session.settings.epochs);
        Ok(report)
    }

    /// Says once that the cache is too small, of the first epoch that should have come from it.
    fn tell_of_size(&mut self, epoch: u64, cost: &Counters) {
        if epoch == 0 || self.is_size_told || !self.session.env.is_first() {
            return;
        }
        let looking = delay::too_small(&self.session.access, cost.bytes_served, cost);
        if let Some(note) = self.session.runtime.block_on(looking) {
            self.is_size_told = true;
            tracing::warn!("{note}");
        }
    }

    /// Waits for the last checkpoint, and says how the run ended.
    fn finish(&mut self, report: &mut Report) -> Result<()> {
        let group = &self.session.group;
        let place = self.schedule.as_mut().map_or(Ok(None), |schedule| schedule.finish(group))?;
        self.observer.finish()?;
        report.order_digest = self.run_state.digest()?.to_string();
        report.steps = self.run_state.step;
        report.checkpoint_wait_s = self.schedule.as_ref().map_or(0.0, CheckpointSchedule::waited_s);
        if let (true, Some(place)) = (report.stopped, place) {
            self.session.say(&format!(
                "stopped by {} after step {}: {} is written; the same command goes on from there",
                self.stop.as_ref().map_or("SIGTERM", Stop::by),
                self.run_state.step,
                place.display()
            ));
        }
        Ok(())
    }
}

/// The model, fresh, in training.
fn new_trainer(session: &Session, train: &ModelData, hyperparams: Hyperparams) -> Result<Trainer> {
    let model = train.model.build(session.settings.seed, session.compute.device())?;
    Trainer::new(&session.group, model, hyperparams, &session.settings.gradients.ddp())
}

/// Stands in for the step of an accelerator: takes its time, the same on all ranks. Meanwhile the host takes
/// the next batch, as it does beside a real one.
fn emulate_step(session: &Session, feed: &mut Feed, watch: &mut Stopwatch) -> Result<()> {
    let Some(ms) = session.settings.emulate_step_ms else { return Ok(()) };
    watch.lap(Part::Copy);
    let end = Instant::now() + Duration::from_secs_f64(ms / 1e3);
    feed.look_ahead()?;
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
    watch.lap(Part::Forward);
    // A step of DDP ends together.
    if session.env.world > 1 {
        session.group.barrier()?;
        watch.skip();
    }
    Ok(())
}
