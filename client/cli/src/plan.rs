//! `forebay plan`: which rows a step holds. The tool for "which samples were in the batch that broke my
//! loss?".
//!
//! It computes what a loader with the same settings reads; nothing but the dataset's footers is read for it.

use crate::dataset_args::DatasetArgs;
use crate::failure::Failure;
use crate::figures;
use crate::output::{Out, write_json};
use clap::Args;
use forebay_client::Dataset;
use forebay_client::args::AccessArgs;
use forebay_client::loader::{Ending, Layout, Shuffle};
use forebay_proto::manifest::Manifest;
use forebay_proto::plan::Order;
use forebay_proto::plan::steps::{Cut, Slot, Steps};
use forebay_proto::{Error, Result as Outcome};
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    dataset: DatasetArgs,
    #[command(flatten)]
    access: AccessArgs,
    /// The run's seed
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// The epoch, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    epoch: u64,
    /// The step of the epoch, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    step: u64,
    /// How rows are shuffled: none, full, or a window of segments as in window(4)
    #[arg(long, value_name = "HOW", default_value = "window(4)")]
    shuffle: Shuffle,
    /// Segments mixed together: the same as --shuffle window(N)
    #[arg(long, value_name = "N", conflicts_with = "shuffle", value_parser = clap::value_parser!(u32).range(1..))]
    window: Option<u32>,
    /// Samples of one step over all ranks
    #[arg(long, value_name = "SAMPLES", default_value_t = 256)]
    batch: u64,
    /// What to do with an epoch's last, incomplete step: drop, pad or exact
    #[arg(long, value_name = "HOW", default_value = "pad")]
    ending: Ending,
    /// Ranks that share each step
    #[arg(long, value_name = "N", default_value_t = 1)]
    world: u32,
    /// Only this rank's rows [default: all ranks']
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,
    /// The epoch's position at which step 0 began: the samples done of the state that the run was resumed
    /// from
    #[arg(long, value_name = "SAMPLES", default_value_t = 0)]
    first_position: u64,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct PlanReport {
    uri: String,
    digest: String,
    epoch: u64,
    step: u64,
    steps: u64,
    samples_per_epoch: u64,
    slots: Vec<SlotReport>,
}

/// One slot of a rank's batch.
#[derive(Debug, Serialize)]
struct SlotReport {
    rank: u32,
    slot: u64,
    /// The sample's position in the epoch; null for padding.
    position: Option<u64>,
    /// The row in the dataset, in file order.
    row: u64,
    segment: u32,
    object: String,
    /// The row in the object; null if the manifest does not tell (a split that begins in the middle of an
    /// object).
    object_row: Option<u64>,
}

impl Plan {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let (first_position, global_batch, world, ending) =
            (self.first_position, self.batch, self.world, self.ending);
        let cut = Cut { first_position, global_batch, world, ending, layout: Layout::default() };
        cut.check()?;
        if let Some(rank) = self.rank.filter(|r| *r >= world) {
            return Err(Error::invalid(format!(
                "rank {rank} of {world}: ranks count from 0, pass --world too"
            ))
            .into());
        }
        let dataset = Dataset::open(&self.access.access()?, &self.dataset.spec()).await?;
        let manifest = dataset.manifest();
        let shuffle = self.window.map_or(self.shuffle, Shuffle::Window);
        let order = Order::new(manifest, self.seed, self.epoch, shuffle);
        let steps = Steps::new(&order, cut)?;
        let slots = self.slots(manifest, &steps)?;
        if self.json {
            let answer = PlanReport {
                uri: manifest.uri().to_owned(),
                digest: manifest.digest().to_string(),
                epoch: self.epoch,
                step: self.step,
                steps: steps.count(),
                samples_per_epoch: order.len(),
                slots,
            };
            return write_json(out, &answer);
        }
        let mut table = figures::table(
            &["rank", "slot", "position", "row", "segment", "object row", "object"],
            &[0, 1, 2, 3, 4, 5],
        );
        let known = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
        for s in slots {
            let (rank, slot, row, segment) =
                (s.rank.to_string(), s.slot.to_string(), s.row.to_string(), s.segment);
            let position = s.position.map_or_else(|| "padding".to_owned(), |p| p.to_string());
            table.add_row([rank, slot, position, row, segment.to_string(), known(s.object_row), s.object]);
        }
        writeln!(out, "{table}")?;
        Ok(())
    }

    /// The slots of the wanted ranks; `Invalid` if the epoch has no such step.
    fn slots(&self, manifest: &Manifest, steps: &Steps<'_>) -> Outcome<Vec<SlotReport>> {
        if self.step >= steps.count() {
            return Err(Error::invalid(format!(
                "{}: there is no step {}: the epoch has {} steps of {} samples, counted from 0",
                manifest.uri(),
                self.step,
                steps.count(),
                self.batch
            )));
        }
        let ranks = self.rank.map_or(0..self.world, |r| r..r + 1);
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        for rank in ranks {
            steps.batch(self.step, rank, &mut batch);
            for (slot, s) in batch.iter().enumerate() {
                all.push(row(manifest, rank, slot as u64, s, steps.is_real(s))?);
            }
        }
        Ok(all)
    }
}

fn row(manifest: &Manifest, rank: u32, slot: u64, s: &Slot, real: bool) -> Outcome<SlotReport> {
    let segment = manifest.segment(s.sample.segment)?;
    let object = &manifest.objects()[segment.object as usize];
    // The segments of the object before this one, if they reach back to its first row group.
    let (mut rows_before, mut group) = (0, segment.first_row_group);
    for before in manifest.segments()[..s.sample.segment as usize].iter().rev() {
        if before.object != segment.object || before.first_row_group + before.row_groups != group {
            break;
        }
        (rows_before, group) = (rows_before + before.total_rows, before.first_row_group);
    }
    let rows_before = (group == 0).then_some(rows_before);
    Ok(SlotReport {
        rank,
        slot,
        position: real.then_some(s.position),
        row: segment.first_row + u64::from(s.sample.row),
        segment: s.sample.segment,
        object: manifest.object_uri(object),
        object_row: rows_before.map(|rows| rows + segment.skip + u64::from(s.sample.row)),
    })
}
