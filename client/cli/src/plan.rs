//! `forebay plan`: which rows a step holds. The tool for "which samples were in the batch that broke my
//! loss?".
//!
//! It computes what a loader with the same settings reads; nothing but the dataset's footers is read for it.

use crate::failure::{Failure, usage};
use crate::figures;
use crate::open::open;
use crate::output::{Out, write_json};
use crate::run_args::RunArgs;
use clap::Args;
use forebay_client::DatasetSpec;
use forebay_client::args::AccessArgs;
use forebay_proto::manifest::Manifest;
use forebay_proto::plan::Order;
use forebay_proto::plan::steps::{Slot, Steps};
use forebay_proto::{Error, Result as Outcome};
use serde::Serialize;
use serde_json::json;

#[derive(Debug, Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    dataset: DatasetSpec,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    run: RunArgs,
    /// The epoch, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    epoch: u64,
    /// The step of the epoch, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    step: u64,
    /// The epoch's position at which step 0 began: the samples done of the state that the run was resumed
    /// from
    #[arg(long, value_name = "SAMPLES", default_value_t = 0)]
    first_position: u64,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
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
    /// object, and of a filter).
    object_row: Option<u64>,
}

impl Plan {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let cut = self.run.cut(self.first_position).map_err(usage)?;
        let dataset = open(&self.access.access().map_err(usage)?, &self.dataset).await?;
        let manifest = &dataset.manifest;
        let order = Order::new(manifest, self.run.seed, self.epoch, self.run.shuffle());
        let steps = Steps::new(&order, cut)?;
        let slots = self.slots(manifest, &steps)?;
        if self.json {
            let report = json!({
                "uri": manifest.uri(),
                "digest": manifest.digest().to_string(),
                "epoch": self.epoch,
                "step": self.step,
                "steps": steps.count(),
                "samples_per_epoch": order.len(),
                "slots": slots,
            });
            return write_json(out, &report);
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
        Ok(writeln!(out, "{}", table.trim_fmt())?)
    }

    /// The slots of the wanted ranks; `Invalid` if the epoch has no such step.
    fn slots(&self, manifest: &Manifest, steps: &Steps<'_>) -> Outcome<Vec<SlotReport>> {
        if self.step >= steps.count() {
            return Err(Error::invalid(format!(
                "{}: there is no step {}: the epoch has {} steps of {} samples, counted from 0",
                manifest.uri(),
                self.step,
                steps.count(),
                self.run.batch
            )));
        }
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        for rank in self.run.ranks() {
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
    let rows_before = (group == 0 && manifest.filter().is_none()).then_some(rows_before);
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
