//! When checkpoints are written: every K steps, at an epoch's end, when the run is told to stop.

use std::path::PathBuf;

use anyhow::{Context, Result};
use forebay_c10d::{ProcessGroup, Span};
use forebay_proto::state::LoaderState;

use crate::checkpoint::{self, Checkpoint, EpochSeen, Folder, Identity, Meta, Writer};
use crate::rank::env::RankEnv;
use crate::rank::session::Session;
use crate::train::hyperparams::Hyperparams;
use crate::train::step::Trainer;

/// One rank's part in keeping checkpoints.
#[derive(Debug)]
pub struct CheckpointSchedule {
    /// On rank 0.
    writer: Option<Writer>,
    identity: Identity,
    hyperparams: Option<Hyperparams>,
    every: Option<u64>,
    global_batch: u64,
}

impl CheckpointSchedule {
    /// Takes the directory that the flags name, and gives every rank the checkpoint to go on from, if there
    /// is one; `None` without a directory. Later checkpoints are of a run of this identity that learns by
    /// `hyperparams`. Collective.
    pub fn open(
        session: &Session,
        identity: Identity,
        hyperparams: Option<Hyperparams>,
    ) -> Result<Option<(Self, Option<Checkpoint>)>> {
        let Session { settings, env, group, .. } = session;
        let args = &settings.checkpoint;
        let Some(path) = &args.checkpoint_dir else { return Ok(None) };
        let agents = agents(env, group)?;
        let open = || -> Result<_> {
            let (folder, mut newest) = (Folder::open(path)?, None);
            // Ranks that were started again go on, though the run itself began with --fresh.
            let begun = match agents.is_empty() {
                true => env.restart > 0,
                false => folder.is_begun_by(&agents)?,
            };
            if args.fresh && !begun {
                if let Some(aside) = folder.set_aside()? {
                    session.say(&format!(
                        "starting over: the checkpoints so far are now in {}",
                        aside.display()
                    ));
                }
            } else {
                newest = folder.newest(&identity)?;
            }
            folder.note_agents(&agents, begun)?;
            Ok((Writer::new(folder, args.keep), newest))
        };
        let (writer, newest) = match group.only(0, open)?.transpose()? {
            Some((writer, newest)) => (Some(writer), newest),
            None => (None, None),
        };
        let newest = checkpoint::share(group, newest).context("share the checkpoint")?;
        Ok(Some((
            Self {
                writer,
                identity,
                hyperparams,
                every: args.checkpoint_every,
                global_batch: settings.batch,
            },
            newest,
        )))
    }

    /// Whether a checkpoint is to be written after this step of the run.
    pub fn is_due(&self, step: u64) -> bool {
        self.every.is_some_and(|every| step.is_multiple_of(every))
    }

    /// Begins the checkpoint of a run that has seen this of each epoch, in mid-epoch or at an epoch's end.
    /// Collective.
    pub fn keep(
        &mut self,
        group: &ProcessGroup,
        step: u64,
        epochs: Vec<EpochSeen>,
        state: &LoaderState,
        trainer: Option<&Trainer>,
    ) -> Result<()> {
        self.finish(group)?;
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let meta = Meta::new(self.identity.clone(), step, state, epochs, (group.world(), self.global_batch))?;
        let meta = meta.with(self.hyperparams);
        let span = Span::new("snapshot")?;
        let (weights, training) = trainer.map_or_else(Default::default, |trainer| {
            (checkpoint::snapshot(trainer.weights()), checkpoint::snapshot(trainer.state()))
        });
        drop(span);
        writer.begin(Checkpoint { meta, weights, training })
    }

    /// Waits until what was begun is on disk; gives its directory, on rank 0. Collective: the disk may take
    /// longer than ranks wait for each other in what comes next.
    pub fn finish(&mut self, group: &ProcessGroup) -> Result<Option<PathBuf>> {
        let written = group.only(0, || self.writer.as_mut().map_or(Ok(None), Writer::finish))?;
        Ok(written.transpose()?.flatten())
    }

    /// Seconds that training stood still for checkpoints that were not yet on disk; on rank 0.
    pub fn waited_s(&self) -> f64 {
        self.writer.as_ref().map_or(0.0, |writer| writer.waited().as_secs_f64())
    }
}

/// The processes that start and restart these ranks, each once; none if nobody does. Collective.
fn agents(env: &RankEnv, group: &ProcessGroup) -> Result<Vec<String>> {
    let own = env.agent.as_deref().unwrap_or_default();
    let all = group.all_gather_bytes(own.as_bytes())?;
    let mut agents: Vec<_> = all.iter().map(|agent| String::from_utf8_lossy(agent).into_owned()).collect();
    agents.sort_unstable();
    agents.dedup();
    agents.retain(|agent| !agent.is_empty());
    Ok(agents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use forebay_c10d::Store;

    fn keeper(rank: usize, folder: &Path) -> CheckpointSchedule {
        let busy = || {
            let mut writer = Writer::new(Folder::open(folder).unwrap(), 3);
            // As if a checkpoint was being written.
            let path = folder.to_owned();
            writer.under_way = Some(std::thread::spawn(move || {
                std::thread::sleep(Duration::from_secs(12));
                Ok(path)
            }));
            writer
        };
        let [model, dataset, manifest_digest, shuffle] = [(); 4].map(|()| String::new());
        let identity = Identity { model, columns: Vec::new(), dataset, manifest_digest, seed: 1, shuffle };
        CheckpointSchedule {
            writer: (rank == 0).then(busy),
            identity,
            hyperparams: None,
            every: None,
            global_batch: 1,
        }
    }

    #[test]
    fn a_disk_slower_than_the_ranks_wait_for_each_other_ends_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let server = Store::serve(2, Duration::from_secs(60)).unwrap();
        let port = server.port().unwrap();
        let rank = |rank: usize| {
            let path = folder.path().to_owned();
            move || {
                let timeout = Duration::from_secs(5);
                let store = Store::tcp("127.0.0.1", port, 2, false, timeout).unwrap();
                let group = ProcessGroup::gloo(store, rank, 2, timeout).unwrap();
                let began = Instant::now();
                let written = keeper(rank, &path).finish(&group).unwrap();
                assert_eq!((written.is_some(), began.elapsed() > timeout), (rank == 0, true));
                group.barrier().unwrap();
            }
        };
        for thread in [0, 1].map(|number| std::thread::spawn(rank(number))) {
            thread.join().unwrap();
        }
    }
}
