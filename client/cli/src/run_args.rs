//! The arguments that name a run: how its epochs are ordered and cut into steps.

use clap::Args;
use forebay_client::loader::{Ending, Layout, Shuffle};
use forebay_proto::plan::steps::Cut;
use forebay_proto::{Error, Result};
use std::ops::Range;

/// A run's order and steps.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// The run's seed
    #[arg(long, value_name = "SEED", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// How rows are shuffled: none, full, or a window of segments as in window(4)
    #[arg(long, value_name = "HOW", default_value = "window(4)")]
    shuffle: Shuffle,
    /// Segments mixed together: the same as --shuffle window(N)
    #[arg(long, value_name = "N", conflicts_with = "shuffle", value_parser = clap::value_parser!(u32).range(1..))]
    window: Option<u32>,
    /// Samples of one step over all ranks
    #[arg(long, value_name = "SAMPLES", default_value_t = 256)]
    pub(crate) batch: u64,
    /// What to do with an epoch's last, incomplete step: drop, pad or exact
    #[arg(long, value_name = "HOW", default_value = "pad")]
    pub(crate) ending: Ending,
    /// Ranks that share each step
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) world: u32,
    /// As this rank alone [default: as all ranks]
    #[arg(long, value_name = "RANK")]
    pub(crate) rank: Option<u32>,
}

impl RunArgs {
    pub(crate) fn shuffle(&self) -> Shuffle {
        self.window.map_or(self.shuffle, Shuffle::Window)
    }

    /// The steps from a position on; `Invalid` if the numbers do not fit each other.
    pub(crate) fn cut(&self, first_position: u64) -> Result<Cut> {
        let Self { batch: global_batch, ending, world, .. } = *self;
        let cut = Cut { first_position, global_batch, world, ending, layout: Layout::default() };
        cut.check()?;
        match self.rank.filter(|rank| *rank >= world) {
            Some(rank) => {
                Err(Error::invalid(format!("rank {rank} of {world}: ranks count from 0, pass --world too")))
            }
            None => Ok(cut),
        }
    }

    /// The one that was asked for, or all.
    pub(crate) fn ranks(&self) -> Range<u32> {
        self.rank.map_or(0..self.world, |rank| rank..rank + 1)
    }
}
