//! `forebay epoch`: read epochs without a trainer, and report where the bytes came from and how fast.
//!
//! Each epoch has loaders of its own, one for each rank, so that nothing of the next epoch is read ahead and
//! the counters' differences belong to the epoch alone (on a cache that nobody else uses meanwhile). What
//! opening the dataset cost is in the first epoch's figures, under footers.

mod ranks;
mod report;

use crate::dataset_args::DatasetArgs;
use crate::failure::Failure;
use crate::output::{Out, write_json};
use clap::Args;
use forebay_client::args::AccessArgs;
use forebay_client::loader::{Ending, Layout, LoaderSettings, Shuffle};
use forebay_client::{Access, Dataset, survey};
use forebay_proto::plan::steps::Cut;
use forebay_proto::{Error, Result as Outcome};
use report::{EpochRow, Place};
use serde::Serialize;

/// Ranks that one process reads as: each has loaders, streams and buffers of its own.
const RANKS_MAX: u32 = 256;

#[derive(Debug, Args)]
pub(crate) struct Epoch {
    #[command(flatten)]
    dataset: DatasetArgs,
    #[command(flatten)]
    access: AccessArgs,
    /// Epochs to read, one after the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,
    /// Samples of one step over all ranks
    #[arg(long, value_name = "SAMPLES", default_value_t = 256)]
    batch: u64,
    /// The run's seed
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// How rows are shuffled: none, full, or a window of segments as in window(4)
    #[arg(long, value_name = "HOW", default_value = "window(4)")]
    shuffle: Shuffle,
    /// Segments mixed together: the same as --shuffle window(N)
    #[arg(long, value_name = "N", conflicts_with = "shuffle", value_parser = clap::value_parser!(u32).range(1..))]
    window: Option<u32>,
    /// What to do with an epoch's last, incomplete step: drop, pad or exact
    #[arg(long, value_name = "HOW", default_value = "pad")]
    ending: Ending,
    /// Ranks that share each step; all of them are read in this process unless --rank says which
    #[arg(long, value_name = "N", default_value_t = 1)]
    world: u32,
    /// Read as this rank alone [default: as all ranks at the same time]
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,
    /// Answer in JSON, when done
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct EpochReport<'a> {
    uri: &'a str,
    digest: String,
    rows: u64,
    segments: u64,
    projected_bytes: u64,
    settings: Settings,
    epochs: Vec<EpochRow>,
}

#[derive(Serialize)]
struct Settings {
    batch: u64,
    seed: u64,
    shuffle: String,
    ending: String,
    world: u32,
    rank: Option<u32>,
    columns: Vec<String>,
}

impl Epoch {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let ranks = self.ranks()?;
        let access = self.access.access()?;
        let mut before = survey::readings(&access).await?;
        let dataset = Dataset::open(&access, &self.dataset.spec()).await?;
        let manifest = dataset.manifest();
        let place = Place {
            segments: manifest.segments().len() as u64,
            files: manifest.uri().starts_with("file:"),
            direct: matches!(access, Access::Direct(_)),
        };
        let mut rows = Vec::new();
        if !self.json {
            writeln!(out, "{}", report::head())?;
            out.flush()?;
        }
        for epoch in 0..self.epochs {
            let settings = self.settings(epoch);
            let read = ranks::read(&dataset, &settings, ranks.clone()).await?;
            let after = survey::readings_within(&access, settings.patience).await?;
            let row = EpochRow::new(epoch, &read, &after.since(&before), place);
            before = after.over(before);
            if !self.json {
                writeln!(out, "{}", row.line())?;
                out.flush()?;
            }
            rows.push(row);
        }
        match self.json {
            true => write_json(out, &self.answer(&dataset, rows)),
            false => Ok(()),
        }
    }

    /// The ranks to read as, once all numbers are known to fit each other.
    fn ranks(&self) -> Outcome<std::ops::Range<u32>> {
        let (global_batch, world, ending) = (self.batch, self.world, self.ending);
        Cut { first_position: 0, global_batch, world, ending, layout: Layout::default() }.check()?;
        match self.rank {
            None if world > RANKS_MAX => Err(Error::invalid(format!(
                "--world {world} would read as {world} ranks in one process, {RANKS_MAX} at most: pass --rank"
            ))),
            None => Ok(0..world),
            Some(rank) if rank < world => Ok(rank..rank + 1),
            Some(rank) => {
                Err(Error::invalid(format!("rank {rank} of {world}: ranks count from 0, pass --world too")))
            }
        }
    }

    fn shuffle(&self) -> Shuffle {
        self.window.map_or(self.shuffle, Shuffle::Window)
    }

    fn settings(&self, epoch: u64) -> LoaderSettings {
        LoaderSettings {
            seed: self.seed,
            shuffle: self.shuffle(),
            ending: self.ending,
            global_batch: self.batch,
            world: self.world,
            first_epoch: epoch,
            epochs: Some(1),
            ..Default::default()
        }
    }

    fn answer<'a>(&self, dataset: &'a Dataset, epochs: Vec<EpochRow>) -> EpochReport<'a> {
        let manifest = dataset.manifest();
        let columns = dataset.projected_schema().fields().iter().map(|f| f.name().clone());
        EpochReport {
            uri: manifest.uri(),
            digest: manifest.digest().to_string(),
            rows: manifest.rows(),
            segments: manifest.segments().len() as u64,
            projected_bytes: dataset.projected_bytes(),
            settings: Settings {
                batch: self.batch,
                seed: self.seed,
                shuffle: self.shuffle().to_string(),
                ending: format!("{:?}", self.ending).to_ascii_lowercase(),
                world: self.world,
                rank: self.rank,
                columns: columns.collect(),
            },
            epochs,
        }
    }
}
