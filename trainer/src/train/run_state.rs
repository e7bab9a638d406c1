//! Where a run stands, over all its restarts: how many steps, and what was seen of each epoch.

use anyhow::Result;
use forebay_c10d::ProcessGroup;
use forebay_proto::digest::OrderDigest;
use serde::Serialize;

use crate::checkpoint::{Digests, EpochSeen, Meta, digest_of};
use crate::report::epoch_stats::{Tally, merged, merged_content};

/// A run, from its first step to where it is.
#[derive(Debug, Clone, Default)]
pub struct RunState {
    /// Steps that were taken, before a resume too.
    pub step: u64,
    /// What was seen of each epoch by the end of its last stretch. Of the one under way, what this process
    /// has not seen itself: what its checkpoint says.
    pub epochs: Vec<EpochSeen>,
    /// Where this process began to go on, if the run was resumed.
    pub resumed: Option<Resumed>,
}

/// The place in a run from which it was resumed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Resumed {
    /// Steps of the run before.
    pub step: u64,
    /// The epoch that goes on, from 0.
    pub epoch: u64,
    /// Samples of it that were done.
    pub samples_done: u64,
    /// Ranks of the run before.
    pub world_size: usize,
    /// Samples per step of the run before.
    pub global_batch: u64,
}

impl RunState {
    /// A run that goes on from a checkpoint.
    pub fn of(meta: &Meta) -> Result<Self> {
        let state = meta.state()?;
        let resumed = Resumed {
            step: meta.step,
            epoch: state.key.epoch,
            samples_done: state.samples_done,
            world_size: meta.world_size,
            global_batch: meta.global_batch,
        };
        Ok(Self { step: meta.step, epochs: meta.epochs.clone(), resumed: Some(resumed) })
    }

    /// What was seen of an epoch before this process took it up.
    pub fn before(&self, epoch: u64) -> EpochSeen {
        EpochSeen::find(&self.epochs, epoch)
    }

    /// The epoch from which this process goes on, and the samples of it that are done.
    pub fn first(&self) -> (u64, u64) {
        self.resumed.as_ref().map_or((0, 0), |resumed| (resumed.epoch, resumed.samples_done))
    }

    /// An epoch is over: what was seen of it, earlier stretches included.
    pub fn end_epoch(&mut self, seen: EpochSeen) {
        self.epochs.retain(|other| other.epoch != seen.epoch);
        self.epochs.push(seen);
    }

    /// All epochs with the stretch of one that is under way. Collective.
    pub fn epochs_with(&self, group: &ProcessGroup, epoch: u64, tally: &Tally) -> Result<Vec<EpochSeen>> {
        let digests =
            Digests { order: merged(group, tally.digest)?, content: merged_content(group, tally.content)? };
        let sequences = tally.sequences.unwrap_or(0) as i64;
        let mine = [tally.samples as i64, tally.loss_sum.to_bits() as i64, sequences];
        let ranks = group.all_gather_i64(&mine)?;
        let sum = |index: usize| ranks.iter().map(|rank| rank[index] as u64).sum::<u64>();
        let samples = sum(0);
        let loss_sum = ranks.iter().map(|rank| f64::from_bits(rank[1] as u64)).sum();
        let mut seen = self.before(epoch);
        seen.add(samples, tally.steps, digests, loss_sum)?;
        seen.add_sequences(tally.sequences.map(|_| sum(2)));
        let mut all = self.clone();
        all.end_epoch(seen);
        Ok(all.epochs)
    }

    /// The sum of the order digests of all epochs that were ended.
    pub fn digest(&self) -> Result<OrderDigest> {
        digest_of(&self.epochs)
    }
}

impl Resumed {
    /// For people.
    pub fn line(&self) -> String {
        format!(
            "resumed after step {}: epoch {}, {} of its samples done (by {} ranks at a global batch of {})",
            self.step,
            self.epoch + 1,
            self.samples_done,
            self.world_size,
            self.global_batch
        )
    }
}
