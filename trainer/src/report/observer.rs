//! What people and tools see while a run goes on: the live line, TensorBoard, a trace of some steps.

use std::path::{Path, PathBuf};

use anyhow::Result;
use forebay_c10d::{Profiler, ProfilerSettings};

use crate::rank::env::RankEnv;
use crate::report::epoch_stats::Tally;
use crate::report::events::Events;
use crate::report::progress::{Progress, say};
use crate::report::summary::EpochReport;
use crate::report::timing::{Part, StepTimes};
use crate::settings::Settings;
use crate::train::evaluate::Evaluation;
use crate::train::precision::Scaling;
use crate::train::step::Trainer;

/// One rank's eyes and ears; all but rank 0's are shut.
#[derive(Debug)]
pub struct Observer {
    progress: Option<Progress>,
    events: Option<Events>,
    profile: Option<Profile>,
    global_batch: u64,
}

/// The trace of this rank.
#[derive(Debug)]
struct Profile {
    file: PathBuf,
    /// Steps that this process has done.
    done: u64,
    /// Those before the trace, and those in it.
    before: u64,
    steps: u64,
    settings: ProfilerSettings,
    profiler: Option<Profiler>,
}

impl Observer {
    /// For a run that goes on after `step` steps; with `cuda` the trace holds the GPU's kernels too.
    pub fn new(
        settings: &Settings,
        env: &RankEnv,
        cuda: bool,
        steps_per_epoch: u64,
        step: u64,
    ) -> Result<Self> {
        let first = env.is_first();
        let events = settings.observe.tensorboard.as_ref().filter(|_| first);
        Ok(Self {
            progress: first.then(|| Progress::new(settings.epochs, steps_per_epoch, settings.batch)),
            events: events.map(|folder| Events::create(folder, step + u64::from(step > 0))).transpose()?,
            profile: settings.observe.profile.as_ref().map(|file| Profile {
                file: rank_file(file, env.rank),
                done: 0,
                // The first step is like no other, but better than none.
                before: u64::from(steps_per_epoch.saturating_mul(settings.epochs).saturating_sub(step) > 1),
                steps: settings.observe.profile_steps,
                settings: ProfilerSettings { cuda, ..Default::default() },
                profiler: None,
            }),
            global_batch: settings.batch,
        })
    }

    /// A step begins, or an epoch ends: the trace begins with the second step, and ends when it has as many
    /// as it should.
    pub fn begin_step(&mut self) -> Result<()> {
        let Some(profile) = &mut self.profile else { return Ok(()) };
        if profile.done >= profile.before.saturating_add(profile.steps) {
            return self.finish();
        }
        if profile.done == profile.before && profile.profiler.is_none() {
            profile.profiler = Some(Profiler::start(profile.settings)?);
        }
        Ok(())
    }

    /// The run is over, or the trace has all its steps: it is written.
    pub fn finish(&mut self) -> Result<()> {
        match self.profile.take() {
            Some(Profile { file, profiler: Some(profiler), .. }) => Ok(profiler.stop(&file)?),
            Some(Profile { file, done, .. }) => {
                let file = file.display();
                tracing::warn!(
                    "--profile: no {file} is written: the trace begins with the second step, and this run had {done}"
                );
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Step number `step` of the run is over. `loss` is the step's, of a sample.
    pub fn step(
        &mut self,
        step: u64,
        epoch: u64,
        tally: &Tally,
        (loss, trainer): (Option<f64>, Option<&Trainer>),
        times: &StepTimes,
    ) {
        if let Some(profile) = &mut self.profile {
            profile.done += 1;
        }
        if let Some(progress) = &mut self.progress {
            progress.step(epoch, tally, loss);
        }
        let Some(events) = &mut self.events else { return };
        let ms = |part| times.of(part).as_secs_f64() * 1e3;
        let total = times.total.as_secs_f64();
        let mut scalars = vec![
            ("step/data_wait_ms", ms(Part::DataWait)),
            ("step/copy_ms", ms(Part::Copy)),
            ("step/forward_ms", ms(Part::Forward)),
            ("step/backward_ms", ms(Part::Backward)),
            ("step/optimizer_ms", ms(Part::Optimizer)),
            ("step/communication_ms", times.exchange.communication.as_secs_f64() * 1e3),
            ("step/overlap_ms", times.exchange.overlap.as_secs_f64() * 1e3),
            ("step/total_ms", total * 1e3),
        ];
        let rows = if tally.sequences.is_some() { "step/sequences_per_s" } else { "step/samples_per_s" };
        scalars.push((rows, self.global_batch as f64 / total.max(1e-9)));
        scalars.extend(loss.map(|loss| ("train/loss", loss)));
        scalars.extend(trainer.map(|trainer| ("train/lr", trainer.lr())));
        if let Some(Scaling { loss_scale, skipped }) = trainer.and_then(Trainer::scaling) {
            scalars.extend([("step/loss_scale", loss_scale), ("step/skipped", skipped as f64)]);
        }
        events.scalars(step, &scalars);
    }

    /// An epoch is over.
    pub fn epoch(&mut self, step: u64, report: &EpochReport, epochs: u64) {
        if let Some(progress) = &mut self.progress {
            progress.clear();
            say(&report.line(epochs));
        }
        let Some(events) = &mut self.events else { return };
        let mut scalars = vec![
            ("epoch/seconds", report.seconds),
            ("epoch/samples_per_s", report.samples_per_s),
            ("epoch/data_wait_share", report.data_wait_share),
        ];
        scalars.extend(report.cost.as_ref().map(|cost| ("epoch/s3_bytes", cost.s3_bytes as f64)));
        scalars.extend(report.loss.map(|loss| ("epoch/loss", loss)));
        scalars.extend(report.tokens_per_s.map(|tokens| ("epoch/tokens_per_s", tokens)));
        scalars.extend(report.padding_share.map(|share| ("epoch/padding_share", share)));
        let au = report.times.as_ref().and_then(|times| times.accelerator_utilisation);
        scalars.extend(au.map(|au| ("epoch/accelerator_utilisation", au)));
        events.scalars(step, &scalars);
    }

    /// The model was evaluated after `step` steps.
    pub fn evaluated(&mut self, step: u64, test: &Evaluation) {
        let Some(events) = &mut self.events else { return };
        let metric = format!("epoch/test_{}", test.metric.name().replace(' ', "_"));
        events.scalars(step, &[(metric.as_str(), test.value), ("epoch/test_loss", test.loss)]);
    }
}

/// The file of a rank's own trace: `trace.json` for rank 0, `trace.rank1.json` for rank 1.
fn rank_file(file: &Path, rank: usize) -> PathBuf {
    if rank == 0 {
        return file.to_owned();
    }
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let ending = file.extension().map(|ending| format!(".{}", ending.to_string_lossy())).unwrap_or_default();
    file.with_file_name(format!("{stem}.rank{rank}{ending}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_its_own_trace() {
        let named = |file: &str, rank| rank_file(Path::new(file), rank).to_string_lossy().into_owned();
        assert_eq!(named("a/trace.json", 0), "a/trace.json");
        assert_eq!(named("a/trace.json", 2), "a/trace.rank2.json");
        assert_eq!(named("trace", 1), "trace.rank1");
    }
}
