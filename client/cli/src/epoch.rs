//! `forebay epoch`: read epochs without a trainer, and report where the bytes came from and how fast.
//!
//! Each epoch has loaders of its own, one for each rank, so that nothing of the next epoch is read ahead and
//! the counters' differences belong to the epoch alone (on a cache that nobody else uses meanwhile). What
//! opening the dataset cost is in the first epoch's figures, under footers.

mod ranks;
mod report;

use crate::failure::{Failure, usage};
use crate::open::open;
use crate::output::{Out, write_json};
use crate::run_args::RunArgs;
use clap::Args;
use forebay_client::args::{AccessArgs, SameHost};
use forebay_client::loader::LoaderSettings;
use forebay_client::{Access, Dataset, DatasetSpec, delay, survey};
use forebay_proto::plan::steps::Cut;
use forebay_proto::{Error, Result as Outcome};
use report::{EpochRow, Place};
use serde_json::{Value, json};
use std::io::Write;
use std::ops::Range;

/// Ranks that one process reads as: each has loaders, streams and buffers of its own.
const RANKS_MAX: usize = 256;

#[derive(Debug, Args)]
pub(crate) struct Epoch {
    #[command(flatten)]
    dataset: DatasetSpec,
    #[command(flatten)]
    access: AccessArgs,
    /// Epochs to read, one after the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,
    #[command(flatten)]
    run: RunArgs,
    /// Compute the content digest of each epoch: proof of the values, as the order digest is of the order
    #[arg(long)]
    verify: bool,
    /// How batches come from a node on this host: through shared memory where that works, or as bytes
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    same_host: SameHost,
    /// Answer in JSON, when done
    #[arg(long)]
    json: bool,
}

impl Epoch {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let ranks = self.ranks().map_err(usage)?;
        let access = self.access.access().map_err(usage)?;
        let mut before = survey::readings(&access).await?;
        let dataset = open(&access, &self.dataset).await?;
        let manifest = &dataset.manifest;
        if let Some(split) = self.dataset.split.filter(|_| manifest.rows() == 0) {
            let why = format!("{}: --split {split} has no rows", self.dataset.uri);
            return Err(Error::invalid(why).into());
        }
        let place = Place {
            segments: manifest.segments().len() as u64,
            files: manifest.uri().starts_with("file:"),
            direct: matches!(access, Access::Direct(_)),
        };
        let mut rows = Vec::new();
        if !self.json {
            writeln!(out, "{}", report::head(self.verify))?;
            out.flush()?;
        }
        for epoch in 0..self.epochs {
            let settings = self.settings(epoch);
            let read = ranks::read(&dataset, &settings, ranks.clone()).await?;
            let after = survey::readings_within(&access, settings.patience).await?;
            let row = EpochRow::new(epoch, read, after.since(&before), place);
            before = after.over(before);
            if !self.json {
                writeln!(out, "{}", row.line())?;
                out.flush()?;
            }
            rows.push(row);
        }
        // The last of several should have come from the cache.
        if let Some(last) = rows.last().filter(|_| self.epochs > 1)
            && let Some(cost) = &last.cost
            && let Some(note) = delay::too_small(&access, last.read.bytes, cost).await
        {
            // Standard error may be closed: then there is nobody to tell.
            writeln!(std::io::stderr(), "forebay: note: {note}").ok();
        }
        match self.json {
            true => write_json(out, &self.report(&dataset, &rows)),
            false => Ok(()),
        }
    }

    /// The ranks to read as, once all numbers are known to fit each other.
    fn ranks(&self) -> Outcome<Range<u32>> {
        let Cut { world, .. } = self.run.cut(0)?;
        match self.run.ranks() {
            ranks if ranks.len() > RANKS_MAX => Err(Error::invalid(format!(
                "--world {world} would read as {world} ranks in one process, {RANKS_MAX} at most: pass --rank"
            ))),
            ranks => Ok(ranks),
        }
    }

    fn settings(&self, epoch: u64) -> LoaderSettings {
        LoaderSettings {
            seed: self.run.seed,
            shuffle: self.run.shuffle(),
            ending: self.run.ending,
            global_batch: self.run.batch,
            world: self.run.world,
            first_epoch: epoch,
            epochs: Some(1),
            content_digest: self.verify,
            same_host: self.same_host == SameHost::Auto,
            ..Default::default()
        }
    }

    fn report(&self, dataset: &Dataset, epochs: &[EpochRow]) -> Value {
        let (manifest, run) = (&dataset.manifest, &self.run);
        let columns: Vec<_> = dataset.projected_schema.fields().iter().map(|f| f.name()).collect();
        json!({
            "uri": manifest.uri(),
            "digest": manifest.digest().to_string(),
            "rows": manifest.rows(),
            "segments": manifest.segments().len(),
            "projected_bytes": dataset.projected_bytes,
            "settings": {
                "batch": run.batch,
                "seed": run.seed,
                "shuffle": run.shuffle().to_string(),
                "ending": run.ending.as_str_name().to_lowercase(),
                "world": run.world,
                "rank": run.rank,
                "columns": columns,
            },
            "epochs": epochs,
        })
    }
}
