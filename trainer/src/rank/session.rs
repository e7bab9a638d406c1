//! One rank's run, from opening the datasets to the report.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use forebay_c10d::ProcessGroup;
use forebay_client::counters::Readings;
use forebay_client::loader::{Ending, LoaderState, Shuffle};
use forebay_client::stream::StreamSettings;
use forebay_client::{Access, Dataset, DatasetSpec, Event, LoaderSettings, survey};
use forebay_proto::Kind;
use tokio::runtime::{Handle, Runtime};

use crate::checkpoint::Identity;
use crate::input::feed::Feed;
use crate::input::{Columns, Preparer};
use crate::model::{self, Model, ModelSettings};
use crate::rank::device::Compute;
use crate::rank::env::RankEnv;
use crate::rank::failure;
use crate::rank::rendezvous;
use crate::rank::stop::Stop;
use crate::report::summary::{Report, SettingsReport};
use crate::report::timing::{Part, Stopwatch};
use crate::settings::{AUTO_BATCH, Settings};
use crate::train::batch_finder::{self, BatchFinder, SAMPLE_ROWS};
use crate::train::evaluate::{Evaluation, Score};
use crate::train::fit::Run;
use crate::train::hyperparams::Hyperparams;
use crate::train::step::Trainer;

/// Rows that each rank labels at a time, at most.
const TEST_ROWS: u64 = 250;

/// How long a peer may give no sign of life. The host of a GPU that waits for a lost peer waits as well, and so notices
/// in no other way; elsewhere the connections to a process break when it dies, though not when its machine does.
const GPU_SILENCE_S: u64 = 5;
const SILENCE_S: u64 = 30;

/// Runs this rank to its end.
pub fn run(settings: &Settings, env: &RankEnv) -> Result<()> {
    end_with_the_launcher(env)?;
    forebay_c10d::init_logging()?;
    keep_to_own_cores(env);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = Rank::join(settings, env, &runtime).and_then(|rank| match rank.fitting_batch()? {
        None => rank.run(),
        Some(batch) => Rank { settings: &Settings { batch, ..settings.clone() }, ..rank }.run(),
    });
    // What still prefetches has no reader any more.
    runtime.shutdown_background();
    result
}

/// A rank among its peers.
pub(crate) struct Rank<'a> {
    pub settings: &'a Settings,
    pub env: &'a RankEnv,
    pub group: ProcessGroup,
    pub compute: Compute,
    runtime: Handle,
    access: Access,
}

/// A dataset and what a model takes of it.
pub(crate) struct Fitted {
    pub dataset: Dataset,
    pub model: ModelSettings,
    columns: Columns,
    preparer: Arc<Preparer>,
}

impl<'a> Rank<'a> {
    fn join(settings: &'a Settings, env: &'a RankEnv, runtime: &Runtime) -> Result<Self> {
        let runtime = runtime.handle().clone();
        let access = {
            let _inside = runtime.enter();
            settings.access.access()?
        };
        let timeout = Duration::from_secs(settings.peer_timeout_s);
        let joining = "join the other ranks";
        let store = rendezvous::join(env, timeout).context(joining)?;
        let compute = Compute::open(settings.device, env, &store)?;
        let group = ProcessGroup::gloo(store, env.rank, env.world, timeout).context(joining)?;
        let silence =
            settings.peer_silence_s.unwrap_or(if compute.copies() { GPU_SILENCE_S } else { SILENCE_S });
        if silence > 0 {
            let env = env.clone();
            group.watch(Duration::from_secs(silence), move |lost| failure::end_now(&env, lost));
        }
        compute.enter(&group, env, timeout, &settings.gradients.nccl()).context(joining)?;
        Ok(Self { settings, env, compute, group, runtime, access })
    }

    fn run(&self) -> Result<()> {
        // The test dataset first: what is wrong with it should show before the training, not after.
        let test = self.settings.test_spec().map(|spec| self.open(spec, None)).transpose()?;
        self.group.barrier()?;
        let cost = self.counters(Duration::ZERO)?;
        self.group.barrier()?;
        let fitted = self.open(self.settings.train_spec(), Some(self.settings.seed))?;
        if let Some(test) = &test {
            same_model(&fitted, test)?;
        }
        let report = self.report(&fitted, test.as_ref());
        let mut run = Run::begin(self, &fitted, test.as_ref(), cost)?;
        let result = failure::caught(|| self.train(&mut run, report));
        // Before the run goes, which may write the rest of a checkpoint: the others end now, and not by a death.
        match &result {
            Ok(()) => self.group.rest(),
            Err(_) => self.group.abandon(),
        }
        result
    }

    /// Trains and evaluates, and says how that went.
    fn train(&self, run: &mut Run<'_>, mut report: Report) -> Result<()> {
        run.epochs(&mut report)?;
        if let Some(trainer) = run.trained() {
            report.parameter_hashes = self.parameter_hashes(trainer.model())?;
        }
        self.finish(&report)?;
        if report.stopped && self.env.has_elastic_agent() {
            // All have come this far, and may go at different times.
            self.group.rest();
            run.told()?;
        }
        Ok(())
    }

    /// The global batch that `--batch auto` stands for, if that is what was asked for. Collective.
    fn fitting_batch(&self) -> Result<Option<u64>> {
        let settings = self.settings;
        if settings.batch != AUTO_BATCH {
            return Ok(None);
        }
        let train = self.open(settings.train_spec(), Some(settings.seed))?;
        let world = self.env.world as u64;
        let rows = (train.dataset.epoch_samples() / world).max(1);
        let loader = self.loader(Shuffle::None, rows.min(SAMPLE_ROWS) * world);
        let mut feed = self.feed(&train, loader, Compute::CPU)?;
        let Event::Batch(batch) = feed.next_event()? else { bail!("the dataset gave no batch to try") };
        let finder = BatchFinder {
            group: &self.group,
            model: &train.model,
            device: self.compute.device(),
            precision: settings.precision,
            optimizer: settings.optim.settings(),
            accumulate: settings.optim.accumulate,
            ddp: &settings.gradients.ddp(),
            memory_bytes: settings
                .batch_memory
                .unwrap_or_else(|| batch_finder::memory::default_bytes(self.env.local_world)),
        };
        let sample = feed.input(&batch)?;
        // It would read on beside what is timed.
        drop(feed);
        // All passes of a step together have no more rows than an epoch.
        let tried = finder.try_all(&sample, (rows / settings.optim.accumulate).max(1))?;
        let chosen = finder.choose(&tried)?;
        if self.env.is_first() {
            say(&batch_finder::table(&tried, self.env.world, chosen));
        }
        Ok(Some(chosen * world))
    }

    /// Opens a dataset and checks that it can be trained on. `vary`: the seed by which its images are varied.
    fn open(&self, spec: DatasetSpec, vary: Option<u64>) -> Result<Fitted> {
        let spec = DatasetSpec { columns: Some(self.settings.model.column_names()), ..spec };
        let dataset = self.runtime.block_on(Dataset::open(&self.access, &spec))?;
        let uri = dataset.manifest().uri();
        let (model, columns) = model::resolve(&self.settings.model, dataset.schema(), uri)?;
        ensure!(dataset.epoch_samples() > 0, "{uri} has no rows");
        // Each rank opens it by itself: it may have been overwritten in between.
        let digest = dataset.manifest().digest().0;
        let versions = self.group.all_gather_i64(&[(digest >> 64) as i64, digest as i64])?;
        same_version(&versions).with_context(|| uri.to_owned())?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from) / self.env.local_world;
        let preparer = Preparer::new(columns.clone(), &self.settings.model.image, threads, vary)?;
        Ok(Fitted { dataset, model, columns, preparer: Arc::new(preparer) })
    }

    /// The batches of the training, from `resume` on.
    pub fn training_feed(&self, train: &Fitted, resume: Option<LoaderState>) -> Result<Feed> {
        let settings = LoaderSettings { resume, ..self.loader(self.settings.shuffle(), self.settings.batch) };
        let settings = LoaderSettings { epochs: Some(self.settings.epochs), ..settings };
        self.feed(train, settings, self.compute)
    }

    fn feed(&self, of: &Fitted, settings: LoaderSettings, compute: Compute) -> Result<Feed> {
        Feed::start(&self.runtime, &of.dataset, settings, &of.preparer, self.settings.trains(), compute)
    }

    fn loader(&self, shuffle: Shuffle, global_batch: u64) -> LoaderSettings {
        let default = LoaderSettings::default();
        let prefetch_bytes = self.settings.prefetch_bytes.unwrap_or(default.prefetch_bytes);
        // What a stream holds is read ahead too.
        let window_bytes = u32::try_from(prefetch_bytes).unwrap_or(u32::MAX).min(default.stream.window_bytes);
        LoaderSettings {
            seed: self.settings.seed,
            shuffle,
            ending: Ending::Pad,
            global_batch,
            rank: self.env.rank as u32,
            world: self.env.world as u32,
            first_epoch: 0,
            epochs: Some(1),
            prefetch_bytes,
            stream: StreamSettings { window_bytes, ..default.stream },
            ..default
        }
    }

    /// What a checkpoint of this run belongs to.
    pub fn identity(&self, train: &Fitted) -> Identity {
        let manifest = train.dataset.manifest();
        let model = match self.settings.trains() {
            // Settings are plain data, and JSON the form in which people may read them.
            true => serde_json::to_string(&train.model).unwrap_or_else(|_| train.model.name().to_owned()),
            false => "none".to_owned(),
        };
        Identity {
            model,
            columns: self.settings.model.column_names(),
            dataset: manifest.uri().to_owned(),
            manifest_digest: manifest.digest().to_string(),
            seed: self.settings.seed,
            shuffle: self.settings.shuffle().to_string(),
        }
    }

    /// What an emulated accelerator would do with a batch: take its time, the same on all ranks. Meanwhile the host takes
    /// the next batch, as it does beside a real one.
    pub fn emulate(&self, feed: &mut Feed, watch: &mut Stopwatch) -> Result<()> {
        let Some(ms) = self.settings.emulate_step_ms else { return Ok(()) };
        watch.lap(Part::Copy);
        let end = Instant::now() + Duration::from_secs_f64(ms / 1e3);
        feed.look_ahead()?;
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        watch.lap(Part::Forward);
        // A step of DDP ends together.
        if self.env.world > 1 {
            self.group.barrier()?;
            watch.skip();
        }
        Ok(())
    }

    /// How the run learns; `None` if there is no model.
    pub fn hyperparams(&self, steps_per_epoch: u64) -> Option<Hyperparams> {
        let optim = &self.settings.optim;
        self.settings.trains().then(|| Hyperparams {
            optimizer: optim.settings(),
            schedule: optim.schedule(steps_per_epoch.saturating_mul(self.settings.epochs)),
            clip_norm: optim.clip_norm,
            accumulate: optim.accumulate,
            precision: self.settings.precision,
        })
    }

    /// The model in training, fresh.
    pub fn trainer(&self, model: &ModelSettings, settings: Hyperparams) -> Result<Trainer> {
        let model = model.build(self.settings.seed, self.compute.device())?;
        Trainer::new(&self.group, model, settings, &self.settings.gradients.ddp())
    }

    /// `None` if all ranks were told to stop meanwhile, which `stop` knows.
    pub fn evaluate(
        &self,
        model: &dyn Model,
        test: &Fitted,
        mut stop: Option<&mut Stop>,
    ) -> Result<Option<Evaluation>> {
        let world = self.env.world as u64;
        // As many rows as a pass of the training has at most: they fit.
        let pass = (self.settings.batch / world / self.settings.optim.accumulate).max(1);
        let settings = self.loader(Shuffle::None, TEST_ROWS.min(pass) * world);
        // Each rank has seen running means of its own: rank 0's are those that a checkpoint keeps.
        for (_, mut buffer) in model::buffers(model.vars()) {
            self.group.broadcast(&mut buffer, 0)?;
        }
        let mut feed = self.feed(test, settings, self.compute)?;
        let mut score = Score::default();
        if let Some(stop) = &mut stop {
            stop.renew();
        }
        while let Event::Batch(batch) = feed.next_event().context("evaluation")? {
            let input = feed.input(&batch)?;
            score.add(model, self.settings.precision, &input)?;
            if stop.as_mut().map_or(Ok(false), |stop| stop.after_step(&self.group))? {
                return Ok(None);
            }
        }
        if let Some(stop) = stop {
            stop.renew();
        }
        score.merge(&self.group, model.metric(), test.dataset.epoch_samples()).map(Some)
    }

    fn parameter_hashes(&self, model: &dyn Model) -> Result<Vec<String>> {
        let hashes = self.group.all_gather_i64(&[model::parameter_hash(model.vars()) as i64])?;
        Ok(hashes.iter().map(|hash| format!("{:016x}", hash[0])).collect())
    }

    /// What this rank has to add to the cost of an epoch: its own counters when it reads the store itself; the
    /// cache's on the first rank alone, as all ranks share them. The cache may be away for as long as `patience`; after
    /// that the cost is not known, which is no reason to lose the epoch. Without patience that is an error.
    pub fn counters(&self, patience: Duration) -> Result<Readings> {
        if !self.env.is_first() && !self.reads_itself() {
            return Ok(Readings::default());
        }
        match self.runtime.block_on(survey::readings_within(&self.access, patience)) {
            Err(error) if error.kind == Kind::Retry && !patience.is_zero() => {
                tracing::warn!("what the epoch cost the store is not known, and not counted: {error}");
                Ok(Readings::default())
            }
            readings => Ok(readings?),
        }
    }

    /// Whether each rank reads the store itself, without a cache.
    pub fn reads_itself(&self) -> bool {
        matches!(self.access, Access::Direct(_))
    }

    fn report(&self, fitted: &Fitted, test: Option<&Fitted>) -> Report {
        let settings = self.settings;
        let Fitted { dataset: train, model, columns, .. } = fitted;
        Report {
            version: env!("CARGO_PKG_VERSION"),
            settings: SettingsReport {
                access: match &self.access {
                    Access::Endpoint(node) => node.url().to_owned(),
                    Access::Direct(_) => "direct".to_owned(),
                },
                train: train.manifest().uri().to_owned(),
                test: settings.test.clone(),
                model: settings.trains().then(|| model.clone()),
                columns: columns.names(),
                optimizer: settings.trains().then(|| settings.optim.settings()),
                gradients: settings
                    .trains()
                    .then(|| settings.gradients.report(self.compute.device().is_cuda())),
                epochs: settings.epochs,
                lr: settings.optim.lr(),
                seed: settings.seed,
                shuffle: settings.shuffle().to_string(),
            },
            world_size: self.env.world,
            global_batch: settings.batch,
            steps_per_epoch: fitted.steps(settings.batch),
            train_samples: train.epoch_samples(),
            manifest_digest: train.manifest().digest().to_string(),
            resumed: None,
            earlier_epochs: Vec::new(),
            epochs: Vec::new(),
            stopped: false,
            steps: 0,
            order_digest: String::new(),
            checkpoint_wait_s: 0.0,
            test_samples: test.map(|test| test.dataset.epoch_samples()),
            test_accuracy: None,
            test: None,
            parameter_hashes: Vec::new(),
        }
    }

    fn finish(&self, report: &Report) -> Result<()> {
        if self.env.is_first() {
            say(&format!("\n{}", report.table()));
            say(&format!("order digest of the run: {} ({} steps)", report.order_digest, report.steps));
            if let Some(test) = &report.test {
                say(&test.line());
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
    /// Steps of an epoch.
    pub fn steps(&self, global_batch: u64) -> u64 {
        self.dataset.epoch_samples().div_ceil(global_batch)
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
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A rank must not outlive the launcher that would have stopped it, not even if that ended before it got here.
fn end_with_the_launcher(env: &RankEnv) -> Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    if let Some(launcher) = env.launcher {
        set_parent_process_death_signal(Some(Signal::KILL)).context("tie this rank to its launcher")?;
        let parent = getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
        ensure!(i64::from(parent) == i64::from(launcher), "the launcher (process {launcher}) has ended");
    }
    Ok(())
}

/// Ranks of one machine share its cores but one, which is left to the loaders: OpenMP's threads wait for each other by
/// spinning, so that one thread too many costs ten times what it brings. OMP_NUM_THREADS has the last word.
fn keep_to_own_cores(env: &RankEnv) {
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        tch::set_num_threads(((cores - 1) / env.local_world).max(1) as i32);
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
