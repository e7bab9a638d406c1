//! One rank's run, from joining the others to the report.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use forebay_client::Access;

use crate::model;
use crate::rank::env::RankEnv;
use crate::rank::failure;
use crate::rank::session::Session;
use crate::report::summary::{Report, SettingsReport};
use crate::settings::Settings;
use crate::train::batch_finder;
use crate::train::data::{self, KnownFacts, ModelData};
use crate::train::fit::Fit;

/// Runs this rank to its end.
pub fn run(settings: &Settings, env: &RankEnv) -> Result<()> {
    end_with_the_launcher(env)?;
    forebay_c10d::init_logging()?;
    keep_to_own_cores(env);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = Session::join(settings, env, runtime.handle()).and_then(|mut session| {
        let known = batch_finder::find(&session)?.map(|(batch, known)| {
            session.settings.batch = batch;
            known
        });
        open_and_fit(&session, known)
    });
    // Prefetches that still run have no reader any more.
    runtime.shutdown_background();
    result
}

fn open_and_fit(session: &Session, known: Option<KnownFacts>) -> Result<()> {
    let settings = &session.settings;
    // The test dataset first: an error in it should show before the training, not after.
    let test = settings.test_spec().map(|spec| data::open(session, spec)).transpose()?;
    session.group.barrier()?;
    let cost = session.counters(Duration::ZERO)?;
    session.group.barrier()?;
    let train = data::open(session, settings.train_spec())?;
    let facts = train.facts(session, known)?.facts;
    let test = test.map(|test| test.with_model(session, &facts, None)).transpose()?;
    let train = train.with_model(session, &facts, Some(settings.seed))?;
    if let Some(test) = &test {
        train.check_same_model(test)?;
    }
    let report = new_report(session, &train, test.as_ref());
    let mut fit = Fit::begin(session, &train, test.as_ref(), cost)?;
    let result = failure::caught(|| fit_and_report(session, &mut fit, report));
    // Before `fit` is dropped, which may write the rest of a checkpoint: the other ranks end now, and not by
    // a death.
    match &result {
        Ok(()) => session.group.rest(),
        Err(_) => session.group.abandon(),
    }
    result
}

fn fit_and_report(session: &Session, fit: &mut Fit<'_>, mut report: Report) -> Result<()> {
    fit.epochs(&mut report)?;
    if let Some(trainer) = fit.trainer() {
        let hash = model::parameter_hash(trainer.model().vars());
        let hashes = session.group.all_gather_i64(&[hash as i64])?;
        report.parameter_hashes = hashes.iter().map(|hash| format!("{:016x}", hash[0])).collect();
    }
    finish(session, &report)?;
    if report.stopped && session.env.has_elastic_agent() {
        // All ranks have come this far, and may go at different times.
        session.group.rest();
        fit.told()?;
    }
    Ok(())
}

/// The report of a run that has not begun.
fn new_report(session: &Session, train: &ModelData, test: Option<&ModelData>) -> Report {
    let settings = &session.settings;
    let ModelData { dataset, model, columns, .. } = train;
    Report {
        version: env!("CARGO_PKG_VERSION"),
        settings: SettingsReport {
            access: match &session.access {
                Access::Endpoint(node) => node.url().to_owned(),
                Access::Direct(_) => "direct".to_owned(),
            },
            train: dataset.manifest.uri().to_owned(),
            test: settings.test.clone(),
            model: settings.trains().then(|| model.clone()),
            columns: columns.describe(),
            optimizer: settings.trains().then(|| settings.optim.settings()),
            gradients: settings
                .trains()
                .then(|| settings.gradients.report(session.compute.device().is_cuda())),
            epochs: settings.epochs,
            lr: settings.optim.lr(),
            seed: settings.seed,
            shuffle: settings.shuffle().to_string(),
        },
        world_size: session.env.world,
        global_batch: settings.batch,
        steps_per_epoch: train.steps(settings.batch),
        train_samples: dataset.epoch_samples(),
        manifest_digest: dataset.manifest.digest().to_string(),
        test_samples: test.map(|test| test.dataset.epoch_samples()),
        ..Report::default()
    }
}

/// Shows and writes the report, and checks that all ranks came to the same parameters. Collective.
fn finish(session: &Session, report: &Report) -> Result<()> {
    if session.env.is_first() {
        session.say(&format!("\n{}", report.table()));
        session.say(&format!("order digest of the run: {} ({} steps)", report.order_digest, report.steps));
        if let Some(test) = &report.test {
            session.say(&test.line());
        }
        if let Some(file) = &session.settings.report {
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
    session.group.barrier()?;
    Ok(())
}

/// A rank must not outlive the launcher that would have stopped it, not even if that ended before it got
/// here.
fn end_with_the_launcher(env: &RankEnv) -> Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    if let Some(launcher) = env.launcher {
        set_parent_process_death_signal(Some(Signal::KILL)).context("tie this rank to its launcher")?;
        let parent = getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
        ensure!(i64::from(parent) == i64::from(launcher), "the launcher (process {launcher}) has ended");
    }
    Ok(())
}

/// Ranks of one machine share its cores but one, which is left to the loaders: OpenMP's threads wait for each
/// other by spinning, so that one thread too many costs ten times what it brings. OMP_NUM_THREADS has the
/// last word.
fn keep_to_own_cores(env: &RankEnv) {
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        tch::set_num_threads(((cores - 1) / env.local_world).max(1) as i32);
    }
}
