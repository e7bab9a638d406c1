//! When checkpoints are written: every so many steps, at an epoch's end, when the run is told to stop.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use forebay_c10d::ProcessGroup;
use forebay_proto::state::LoaderState;

use crate::account::Tally;
use crate::checkpoint::args::CheckpointArgs;
use crate::checkpoint::{self, Checkpoint, EpochSeen, Folder, Identity, Meta, Writer};
use crate::place::Place;
use crate::standing::Standing;
use crate::train::Trainer;

/// One rank's part in keeping checkpoints.
#[derive(Debug)]
pub struct Keeper {
    /// On rank 0.
    writer: Option<Writer>,
    identity: Identity,
    every: Option<u64>,
    global_batch: u64,
}

impl Keeper {
    /// Takes the directory that the flags name, and gives every rank the checkpoint to go on from, if there is one;
    /// `None` without a directory. `say` tells people what happens, on rank 0. Collective.
    pub fn open(
        args: &CheckpointArgs,
        place: &Place,
        group: &ProcessGroup,
        identity: Identity,
        global_batch: u64,
        say: impl Fn(&str),
    ) -> Result<Option<(Self, Option<Checkpoint>)>> {
        let Some(path) = &args.checkpoint_dir else { return Ok(None) };
        let (mut writer, mut newest) = (None, None);
        let agents = agents(place, group)?;
        if place.is_first() {
            let folder = Folder::open(path)?;
            // Ranks that were started anew go on, though the run began afresh.
            let begun = match agents.is_empty() {
                true => place.restart > 0,
                false => folder.is_begun_by(&agents)?,
            };
            if args.fresh && !begun {
                if let Some(aside) = folder.set_aside()? {
                    say(&format!("starting anew: the checkpoints so far are now in {}", aside.display()));
                }
            } else {
                newest = folder.newest(&identity)?;
            }
            folder.note_agents(&agents, begun)?;
            writer = Some(Writer::new(folder, args.keep));
        }
        let newest = checkpoint::share(group, newest).context("share the checkpoint")?;
        Ok(Some((Self { writer, identity, every: args.checkpoint_every, global_batch }, newest)))
    }

    /// Whether a checkpoint is to be written after this step of the run.
    pub fn is_due(&self, step: u64) -> bool {
        self.every.is_some_and(|every| step.is_multiple_of(every))
    }

    /// Begins a checkpoint in mid-epoch; `tally` is this rank's count of the epoch so far. Collective.
    pub fn keep(
        &mut self,
        group: &ProcessGroup,
        standing: &Standing,
        (epoch, tally): (u64, &Tally),
        state: &LoaderState,
        trainer: Option<&Trainer>,
    ) -> Result<()> {
        let epochs = standing.epochs_with(group, epoch, tally)?;
        self.begin(standing.step, epochs, state, trainer, group.world())
    }

    /// Begins the checkpoint of an epoch's end.
    pub fn keep_epoch(
        &mut self,
        group: &ProcessGroup,
        standing: &Standing,
        state: &LoaderState,
        trainer: Option<&Trainer>,
    ) -> Result<()> {
        self.begin(standing.step, standing.epochs.clone(), state, trainer, group.world())
    }

    fn begin(
        &mut self,
        step: u64,
        epochs: Vec<EpochSeen>,
        state: &LoaderState,
        trainer: Option<&Trainer>,
        world: usize,
    ) -> Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let meta = Meta::new(self.identity.clone(), step, state, epochs, (world, self.global_batch))?;
        let (weights, training) = trainer.map_or_else(Default::default, |trainer| {
            (checkpoint::snapshot(trainer.weights()), checkpoint::snapshot(trainer.state()))
        });
        // The loss shows it a step later only: a run that went on from such weights would fail for ever.
        for (name, tensor) in &weights {
            ensure!(
                !tensor.is_floating_point() || bool::try_from(tensor.isfinite().all())?,
                "step {step}: `{name}` is not finite any more, no checkpoint of it is written: lower --lr, or use --clip-norm"
            );
        }
        writer.begin(Checkpoint { meta, weights, training })
    }

    /// Waits until what was begun is on disk; gives its directory, on rank 0.
    pub fn finish(&mut self) -> Result<Option<PathBuf>> {
        self.writer.as_mut().map_or(Ok(None), Writer::finish)
    }

    /// Seconds that training stood still for checkpoints that were not yet on disk; on rank 0.
    pub fn waited_s(&self) -> f64 {
        self.writer.as_ref().map_or(0.0, |writer| writer.waited().as_secs_f64())
    }
}

/// The processes that start and restart these ranks, each once; none if nobody does. Collective.
fn agents(place: &Place, group: &ProcessGroup) -> Result<Vec<String>> {
    let own = place.agent.as_deref().unwrap_or_default();
    let all = group.all_gather_bytes(own.as_bytes())?;
    let mut agents: Vec<_> = all.iter().map(|agent| String::from_utf8_lossy(agent).into_owned()).collect();
    agents.sort_unstable();
    agents.dedup();
    agents.retain(|agent| !agent.is_empty());
    Ok(agents)
}
