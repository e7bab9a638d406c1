//! The flags of `forebay-train`, and what about them can be checked before anything starts.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::{Parser, ValueEnum, value_parser};
use forebay_client::DatasetSpec;
use forebay_client::args::{AccessArgs, SameHost};
use forebay_proto::plan::Shuffle;
use forebay_proto::view::{MixPart, Split};

use crate::checkpoint::args::CheckpointArgs;
use crate::model::args::ModelArgs;
use crate::report::args::{ObserveArgs, check_file};
use crate::train::gradients::GradientArgs;
use crate::train::hyperparams::Hyperparams;
use crate::train::optim::args::OptimArgs;
use crate::train::precision::Precision;

/// Train a model on a Parquet dataset that the cache streams, on one or several ranks.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-train", version)]
pub struct Settings {
    /// Where data comes from.
    #[command(flatten)]
    pub access: AccessArgs,

    /// Dataset to train on: s3://bucket/prefix or file:///folder
    #[arg(
        long,
        value_name = "URI",
        required_unless_present = "mix",
        conflicts_with = "mix",
        default_value = "",
        hide_default_value = true
    )]
    pub train: String,
    /// Train only on a stretch of its rows in file order: shares as in 0:0.9, or rows as in 1000:5000
    #[arg(long, value_name = "FROM:TO", conflicts_with = "mix")]
    pub split: Option<Split>,
    /// Train on several datasets in proportion, separated by commas, as in s3://b/x=0.7,s3://b/y=0.3
    #[arg(long, value_name = "URI=SHARE", value_delimiter = ',')]
    pub mix: Vec<MixPart>,
    /// Take the schema of this object (a key below the dataset's URI) instead of the union of all schemas
    #[arg(long, value_name = "OBJECT")]
    pub schema_of: Option<String>,
    /// Make no columns of directories such as year=2024/
    #[arg(long)]
    pub no_partitions: bool,
    /// Train only on rows for which this is true, as in 'price > 3 and country = "ch"'
    #[arg(long = "where", value_name = "FILTER")]
    pub filter: Option<String>,
    /// Dataset to evaluate on after the last epoch
    #[arg(long, value_name = "URI")]
    pub test: Option<String>,
    /// Evaluate after every N-th epoch as well
    #[arg(long, value_name = "N", requires = "test")]
    pub eval_every: Option<u64>,
    /// Evaluate only on a stretch of its rows
    #[arg(long, value_name = "FROM:TO", requires = "test")]
    pub test_split: Option<Split>,
    /// Evaluate only on rows for which this is true
    #[arg(long = "test-where", value_name = "FILTER", requires = "test")]
    pub test_filter: Option<String>,
    /// Which network, of which size, on which columns.
    #[command(flatten)]
    pub model: ModelArgs,
    /// How the parameters move.
    #[command(flatten)]
    pub optim: OptimArgs,
    /// What the network computes in
    #[arg(long, value_enum, default_value_t)]
    pub precision: Precision,

    /// Passes over the training dataset
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub epochs: u64,
    /// Samples per step over all ranks together, a multiple of the number of ranks; or auto: the fastest
    /// power of two per rank that fits into the memory
    #[arg(long, value_name = "G", default_value_t = 128, value_parser = batch)]
    pub batch: u64,
    /// With --batch auto on the CPU: the memory that each rank may take [default: its share of half of the
    /// free memory]
    #[arg(long, value_name = "SIZE", value_parser = forebay_proto::units::bytes)]
    pub batch_memory: Option<u64>,
    /// Seed of the order of samples and of the parameters
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    pub seed: u64,
    /// Shuffle rows among this number of segments at a time [default: 4]
    #[arg(long, value_name = "W", conflicts_with = "shuffle")]
    pub window: Option<u32>,
    /// Keep file order, or shuffle all rows uniformly
    #[arg(long, value_name = "HOW")]
    pub shuffle: Option<ShuffleAll>,
    /// Bytes of batches that each rank reads ahead, e.g. 64MB [default: 256MiB]; half of them are for inputs
    /// made of the batches where that is work (images, GPUs); each of its streams holds no more than that on
    /// the way
    #[arg(long, value_name = "BYTES", value_parser = forebay_proto::units::bytes)]
    pub prefetch_bytes: Option<u64>,
    /// How batches come from a node on this host: through shared memory where that works, or as bytes
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    pub same_host: SameHost,

    /// Ranks to start on this machine [default: 1]; not with torchrun, which starts them itself
    #[arg(long, value_name = "N")]
    pub nproc: Option<usize>,
    /// Restart all ranks, up to N times, if one fails; they go on from the newest checkpoint
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_restarts: u32,
    /// Where to compute; cuda needs the plugin that `make nccl` builds, auto takes it if it finds GPUs by it
    #[arg(long, value_enum, value_name = "WHERE", default_value_t)]
    pub device: DeviceName,
    /// Give up on a peer that stays silent for so long, in seconds
    #[arg(long, value_name = "S", default_value_t = 300, value_parser = value_parser!(u64).range(1..=SECONDS_MAX))]
    pub peer_timeout_s: u64,
    /// End the run when a peer has given no sign of life for so long, in seconds; 0 leaves it to the
    /// connections to it, which a machine that freezes or vanishes does not break [default: 5 with GPUs, 30
    /// with CPUs]
    #[arg(long, value_name = "S", value_parser = value_parser!(u64).range(..=SECONDS_MAX))]
    pub peer_silence_s: Option<u64>,
    /// Compute the content digest of each epoch: proof of the values that were trained on, as the order
    /// digest is of their order
    #[arg(long)]
    pub verify: bool,
    /// Read all batches, but train nothing: the loader alone
    #[arg(long)]
    pub data_only: bool,
    /// Train nothing, but let each step take this long, in milliseconds: stands in for an accelerator
    #[arg(long, value_name = "MS", conflicts_with = "test")]
    pub emulate_step_ms: Option<f64>,
    /// Write what happened to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// How gradients travel.
    #[command(flatten)]
    pub gradients: GradientArgs,
    /// Where a run is kept, and how often.
    #[command(flatten)]
    pub checkpoint: CheckpointArgs,
    /// TensorBoard, and a trace of some steps.
    #[command(flatten)]
    pub observe: ObserveArgs,
}

/// What `--device` takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum DeviceName {
    /// The processor; ranks talk by Gloo
    #[default]
    Cpu,
    /// One GPU per rank, by its local rank; ranks talk by NCCL
    Cuda,
    /// cuda if every rank has a GPU, else cpu
    Auto,
}

/// The shuffles that are no window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShuffleAll {
    /// File order
    None,
    /// A uniform shuffle of the whole dataset
    Full,
}

/// Longer than anybody waits: a year, and an hour.
const SECONDS_MAX: u64 = 365 * 86_400;
const MS_MAX: f64 = 3_600_000.0;

/// Segments mixed unless told otherwise: enough for training, while a rank holds four segments' rows at most.
const WINDOW: u32 = 4;

/// `--batch auto`, which [`crate::train::batch_finder`] replaces before the training begins. No batch has as
/// many rows.
pub const AUTO_BATCH: u64 = u64::MAX;

impl Settings {
    /// Refuses what cannot work on `world` ranks, in one line.
    pub fn check(&self, world: usize) -> Result<()> {
        self.check_training(world)?;
        self.access.access().map(drop)?;
        Ok(())
    }

    /// The same of all but where data comes from.
    pub fn check_training(&self, world: usize) -> Result<()> {
        ensure!(world > 0, "the world size is 0: --nproc must be at least 1");
        ensure!(self.batch > 0, "the global batch is 0: --batch must be at least 1");
        let remainder = if self.batch == AUTO_BATCH { 0 } else { self.batch % world as u64 };
        ensure!(
            remainder == 0,
            "--batch {} cannot be shared evenly by {world} ranks: it leaves {remainder} over",
            self.batch
        );
        ensure!(self.epochs > 0, "--epochs must be at least 1");
        ensure!(self.eval_every != Some(0), "--eval-every must be at least 1 epoch");
        self.optim.check(self.batch / world as u64)?;
        ensure!(
            self.window != Some(0),
            "--window must be at least 1 segment; for file order use --shuffle none"
        );
        self.model.check()?;
        ensure!(
            self.batch != AUTO_BATCH || self.trains(),
            "--batch auto needs a model to try: it does not go with --data-only and --emulate-step-ms"
        );
        if self.data_only && self.test.is_some() {
            bail!(
                "--test and --data-only contradict each other: without a model there is nothing to evaluate"
            );
        }
        if let Some(ms) = self.emulate_step_ms {
            ensure!(
                (0.0..=MS_MAX).contains(&ms),
                "--emulate-step-ms must be a number from 0 to {MS_MAX}, not {ms}"
            );
        }
        self.gradients.check()?;
        // c10d's Reducer then leaves out what the passes before the first synchronised one have counted:
        // ranks part.
        ensure!(
            !self.gradients.static_graph || self.optim.accumulate == 1,
            "--static-graph does not go with --accumulate: every pass must be one in which gradients travel"
        );
        self.checkpoint.check()?;
        self.observe.check()?;
        Ok(())
    }

    /// Refuses a `--report` that cannot be written, better now than after the last epoch. For rank 0 and the
    /// launcher: the machines of other ranks need no such folder.
    pub fn check_report(&self) -> Result<()> {
        self.report.as_ref().map_or(Ok(()), |file| check_file("--report", file))
    }

    /// Whether there is a model: with the loader alone, or an emulated accelerator, there is none.
    pub fn trains(&self) -> bool {
        !self.data_only && self.emulate_step_ms.is_none()
    }

    /// The dataset to train on.
    pub fn train_spec(&self) -> DatasetSpec {
        DatasetSpec {
            split: self.split,
            mix: self.mix.clone(),
            schema_of: self.schema_of.clone(),
            no_partitions: self.no_partitions,
            filter: self.filter.clone(),
            ..DatasetSpec::new(&self.train)
        }
    }

    /// The dataset to evaluate on; `None` without `--test`.
    pub fn test_spec(&self) -> Option<DatasetSpec> {
        let uri = self.test.as_ref()?;
        let no_partitions = self.no_partitions;
        let filter = self.test_filter.clone();
        Some(DatasetSpec { split: self.test_split, no_partitions, filter, ..DatasetSpec::new(uri) })
    }

    /// How the run learns; `None` if there is no model.
    pub fn hyperparams(&self, steps_per_epoch: u64) -> Option<Hyperparams> {
        let optim = &self.optim;
        self.trains().then(|| Hyperparams {
            optimizer: optim.settings(),
            schedule: optim.schedule(steps_per_epoch.saturating_mul(self.epochs)),
            clip_norm: optim.clip_norm,
            accumulate: optim.accumulate,
            precision: self.precision,
        })
    }

    /// The shuffle that the flags ask for; windows of segments if they ask for none.
    pub fn shuffle(&self) -> Shuffle {
        match self.shuffle {
            Some(ShuffleAll::None) => Shuffle::None,
            Some(ShuffleAll::Full) => Shuffle::Full,
            None => Shuffle::Window(self.window.unwrap_or(WINDOW)),
        }
    }
}

fn batch(text: &str) -> Result<u64, String> {
    match text {
        "auto" => Ok(AUTO_BATCH),
        number => number.parse().map_err(|error| format!("a number or `auto`: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(line: &str) -> Result<Settings> {
        let all = format!("forebay-train --direct --train file:///data {line}");
        Ok(Settings::try_parse_from(all.split_whitespace())?)
    }

    fn refused(line: &str, world: usize) -> String {
        settings(line).and_then(|settings| settings.check(world)).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_work_is_refused_in_one_line() {
        for (line, world, expected) in [
            ("", 0, "the world size is 0: --nproc must be at least 1"),
            ("--batch 0", 1, "the global batch is 0: --batch must be at least 1"),
            ("--batch 128", 3, "--batch 128 cannot be shared evenly by 3 ranks: it leaves 2 over"),
            ("--epochs 0", 1, "--epochs must be at least 1"),
            ("--test file:///t --eval-every 0", 1, "--eval-every must be at least 1 epoch"),
            (
                "--accumulate 65",
                2,
                "--accumulate 65 passes cannot share the 64 rows that a rank has of a step",
            ),
            (
                "--static-graph --accumulate 2",
                1,
                "--static-graph does not go with --accumulate: every pass must be one in which gradients travel",
            ),
            ("--lr 0", 1, "--lr must be a number above 0, not 0"),
            ("--window 0", 1, "--window must be at least 1 segment; for file order use --shuffle none"),
            ("--label-column image", 1, "--image-column and --label-column name the same column"),
            (
                "--model mlp --feature-columns a,label",
                1,
                "--feature-columns and --label-column name the same column",
            ),
        ] {
            assert_eq!(refused(line, world), expected);
        }
        assert!(refused("--data-only --test file:///t", 1).contains("contradict each other"));
        assert!(refused("--endpoint http://127.0.0.1:1", 1).contains("contradict each other"));
        assert!(settings("--window 2 --shuffle full").is_err());
        assert!(settings("--nproc x").is_err());
        for line in
            ["--peer-timeout-s 0", "--peer-timeout-s 18446744073709551615", "--peer-silence-s 99999999999"]
        {
            assert!(settings(line).is_err(), "{line}");
        }
        for ms in ["-1", "NaN", "1e30"] {
            assert!(refused(&format!("--emulate-step-ms={ms}"), 1).contains("from 0 to 3600000"), "{ms}");
        }
    }

    #[test]
    fn the_report_is_checked_where_it_is_written() {
        for (line, expected) in [
            ("--report /nowhere/r.json", "--report /nowhere/r.json: there is no folder /nowhere"),
            ("--report /tmp", "--report /tmp is a folder"),
        ] {
            settings(line).unwrap().check(1).unwrap();
            assert_eq!(settings(line).unwrap().check_report().unwrap_err().to_string(), expected);
        }
        settings("--report r.json").unwrap().check_report().unwrap();
    }

    #[test]
    fn the_default_shuffle_is_a_window() {
        assert_eq!(settings("").unwrap().shuffle(), Shuffle::Window(4));
        assert_eq!(settings("--window 9").unwrap().shuffle(), Shuffle::Window(9));
        assert_eq!(settings("--shuffle none").unwrap().shuffle(), Shuffle::None);
        assert_eq!(settings("--shuffle full").unwrap().shuffle(), Shuffle::Full);
        settings("--batch 128").unwrap().check(4).unwrap();
    }
}
