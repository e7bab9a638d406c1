//! The run in figures: one table for people, one JSON file for programs.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use forebay_proto::units::told_bytes;
use forebay_proto::v1::Counters;
use serde::Serialize;

use crate::checkpoint::EpochSeen;
use crate::input::rows::TextCount;
use crate::model::{Metric, ModelSettings};
use crate::report::epoch_stats::EpochTotal;
use crate::report::timing::{EpochTimes, Straggler};
use crate::train::evaluate::Evaluation;
use crate::train::gradients::GradientReport;
use crate::train::optim::OptimizerSettings;
use crate::train::precision::Scaling;
use crate::train::run_state::Resumed;

/// Everything worth keeping of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// `forebay-train`'s version.
    pub version: &'static str,
    /// What was asked for.
    pub settings: SettingsReport,
    /// Ranks of the run, on all machines.
    pub world_size: usize,
    /// Samples per step, over all ranks.
    pub global_batch: u64,
    /// Steps of each epoch.
    pub steps_per_epoch: u64,
    /// Samples of the training dataset.
    pub train_samples: u64,
    /// The training dataset's version, in hex.
    pub manifest_digest: String,
    /// Where it was taken up, if it was resumed.
    pub resumed: Option<Resumed>,
    /// What was seen before that, epoch by epoch.
    pub earlier_epochs: Vec<EpochSeen>,
    /// Each epoch that this process has ended, in order.
    pub epochs: Vec<EpochReport>,
    /// Whether it was told to stop before its end.
    pub stopped: bool,
    /// Steps of the whole run, what was before a resume included.
    pub steps: u64,
    /// The sum of the order digests of all epochs that were ended, in hex.
    pub order_digest: String,
    /// Seconds that training stood still because a checkpoint was not yet on disk.
    pub checkpoint_wait_s: f64,
    /// Samples of the test dataset.
    pub test_samples: Option<u64>,
    /// The share of them that the model labels rightly, if that is its measure.
    pub test_accuracy: Option<f64>,
    /// The model's quality on them.
    pub test: Option<Evaluation>,
    /// A hash of each rank's parameters, in hex; all are equal.
    pub parameter_hashes: Vec<String>,
}

/// The settings that decide what a run does.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SettingsReport {
    /// The cache's endpoint, or `direct`.
    pub access: String,
    /// URI of the training dataset.
    pub train: String,
    /// URI of the test dataset.
    pub test: Option<String>,
    /// The model; none with the loader alone.
    pub model: Option<ModelSettings>,
    /// The columns read.
    pub columns: Vec<String>,
    /// The optimizer; none with the loader alone.
    pub optimizer: Option<OptimizerSettings>,
    /// How gradients travel between the ranks; likewise.
    pub gradients: Option<GradientReport>,
    /// Passes over the training dataset.
    pub epochs: u64,
    /// Highest learning rate.
    pub lr: f64,
    /// Seed of order and parameters.
    pub seed: u64,
    /// As `none`, `full` or `window(4)`.
    pub shuffle: String,
}

/// One epoch, over all ranks.
#[derive(Debug, Clone, Default, Serialize)]
pub struct EpochReport {
    /// Counted from 0.
    pub epoch: u64,
    /// Where the bytes came from: `S3`, `cache` or `S3 + cache`; `memory` in place of `cache` without one.
    pub source: &'static str,
    /// From the first batch asked for to the last step done; of a resumed epoch, since then.
    pub seconds: f64,
    /// Samples taken, padding apart, before a resume too.
    pub samples: u64,
    /// How many of them were taken before the run was resumed in this epoch.
    pub samples_before_resume: u64,
    /// Samples per second, of those since.
    pub samples_per_s: f64,
    /// Tokens that the model read in these seconds, padding apart; of texts alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The same per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_s: Option<f64>,
    /// The part of the model's places for tokens that held padding, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub padding_share: Option<f64>,
    /// Sequences that the samples were packed to, before a resume too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequences: Option<u64>,
    /// The part of the ranks' time that went into waiting for data, 0 to 1.
    pub data_wait_share: f64,
    /// What it cost; none if the cache does not tell, as one with a policy does without the role `metrics`.
    #[serde(flatten)]
    pub cost: Option<CostReport>,
    /// Compressed bytes of the columns read: what one reading of the dataset must cost.
    pub projected_bytes: u64,
    /// The order digest of all samples, in hex.
    pub order_digest: String,
    /// The content digest of all samples, in hex; with --verify.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_digest: Option<String>,
    /// Mean loss of the samples; none with the loader alone.
    pub loss: Option<f64>,
    /// Where the time of its steps went.
    pub times: Option<EpochTimes>,
    /// The loss scaling at its end; with fp16 alone.
    pub scaling: Option<Scaling>,
    /// The model's quality after it, if it was evaluated.
    pub test: Option<Evaluation>,
}

/// What was done for an epoch, by the cache or, without one, by the ranks.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CostReport {
    /// Requests for column data.
    pub s3_requests: u64,
    /// Bytes of column data.
    pub s3_bytes: u64,
    /// Requests for listings, heads and footers.
    pub s3_footer_requests: u64,
    pub s3_footer_bytes: u64,
    /// Compressed Parquet bytes decoded.
    pub parquet_bytes_decoded: u64,
    /// Segment reads answered from the disk cache, or by waiting for a fill under way.
    pub cache_hits: u64,
    /// Segment reads that had to be filled.
    pub cache_misses: u64,
}

impl CostReport {
    fn new(counters: &Counters) -> Self {
        Self {
            s3_requests: counters.s3_requests,
            s3_bytes: counters.s3_bytes,
            s3_footer_requests: counters.s3_footer_requests,
            s3_footer_bytes: counters.s3_footer_bytes,
            parquet_bytes_decoded: counters.parquet_bytes_decoded,
            cache_hits: counters.hits + counters.joins,
            cache_misses: counters.misses,
        }
    }
}

impl EpochReport {
    /// From the merged count of an epoch. `direct` says that there was no cache, `trained` that there was a
    /// model.
    pub fn new(epoch: u64, total: &EpochTotal, projected_bytes: u64, direct: bool, trained: bool) -> Self {
        let cost = total.counters.as_ref().map(CostReport::new);
        let TextCount { tokens, places } = total.text;
        let text = |value: f64| (places > 0).then_some(value);
        Self {
            epoch,
            source: source(cost.as_ref(), projected_bytes, direct),
            seconds: total.seconds,
            samples: total.samples,
            samples_per_s: total.samples as f64 / total.seconds.max(1e-9),
            tokens: (places > 0).then_some(tokens),
            tokens_per_s: text(tokens as f64 / total.seconds.max(1e-9)),
            padding_share: text(1.0 - tokens as f64 / places.max(1) as f64),
            sequences: total.sequences,
            data_wait_share: total.wait_share,
            cost,
            projected_bytes,
            order_digest: total.digest.to_string(),
            loss: trained.then(|| total.loss_sum / total.sequences.unwrap_or(total.samples).max(1) as f64),
            ..Self::default()
        }
    }

    /// Adds what was seen of the epoch before the run was resumed in it: `seen` is the whole.
    pub fn complete(&mut self, seen: &EpochSeen, samples_before: u64) {
        (self.samples, self.samples_before_resume) = (seen.samples, samples_before);
        self.order_digest = seen.order_digest.clone();
        self.content_digest = seen.content_digest.clone();
        self.sequences = seen.sequences;
        self.loss = self.loss.map(|_| seen.mean_loss());
    }

    fn utilisation(&self) -> Option<f64> {
        self.times.as_ref()?.accelerator_utilisation
    }

    /// One line, printed as soon as the epoch is over.
    pub fn line(&self, epochs: u64) -> String {
        let mut loss = self.loss.map(|loss| format!("  loss {loss:.4}")).unwrap_or_default();
        if let Some(utilisation) = self.utilisation() {
            loss = format!("  AU {:.1} %{loss}", 100.0 * utilisation);
        }
        if let (Some(tokens), Some(padding)) = (self.tokens_per_s, self.padding_share) {
            loss = format!("  {tokens:.0} tokens/s, {:.1} % padding{loss}", 100.0 * padding);
        }
        let cost = self.cost.as_ref();
        let cost =
            cost.map(|cost| format!("  S3 {} requests, {}", cost.s3_requests, told_bytes(cost.s3_bytes)));
        let cost = cost.unwrap_or_default();
        let mut end = String::new();
        if self.samples_before_resume > 0 {
            end = format!("  resumed at sample {}", self.samples_before_resume);
        }
        if let Some(digest) = &self.content_digest {
            end.push_str(&format!("  content digest {digest}"));
        }
        if let Some(Straggler { rank, part, slower_by_ms }) =
            self.times.as_ref().and_then(|times| times.straggler.as_ref())
        {
            end.push_str(&format!("  rank {rank} is slow: {part} +{slower_by_ms:.1} ms"));
        }
        if let Some(Scaling { skipped: skipped @ 1.., .. }) = self.scaling {
            end.push_str(&format!("  {skipped} steps skipped so far"));
        }
        format!(
            "epoch {}/{epochs}  from {}  {:.1} s  {:.0} samples/s  data wait {:.1} %{loss}{cost}{end}",
            self.epoch + 1,
            self.source,
            self.seconds,
            self.samples_per_s,
            100.0 * self.data_wait_share
        )
    }
}

impl Report {
    /// Takes an evaluation in: as the accuracy too, where it measures that.
    pub fn set_test(&mut self, test: Evaluation) {
        self.test_accuracy = (test.metric == Metric::Accuracy).then_some(test.value);
        self.test = Some(test);
    }

    /// The table that ends a run.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_FULL_CONDENSED).set_header([
            "epoch",
            "bytes from",
            "seconds",
            "samples/s",
            "data wait",
            "AU",
            "S3 requests",
            "S3 bytes",
            "footers apart",
            "Parquet decoded",
            "loss",
            "order digest",
        ]);
        for epoch in &self.epochs {
            let cost = |figure: fn(&CostReport) -> String| epoch.cost.as_ref().map_or_else(untold, figure);
            table.add_row([
                (epoch.epoch + 1).to_string(),
                epoch.source.to_owned(),
                format!("{:.2}", epoch.seconds),
                format!("{:.0}", epoch.samples_per_s),
                format!("{:.1} %", 100.0 * epoch.data_wait_share),
                epoch.utilisation().map_or_else(untold, |au| format!("{:.1} %", 100.0 * au)),
                cost(|cost| cost.s3_requests.to_string()),
                cost(|cost| told_bytes(cost.s3_bytes)),
                cost(|cost| format!("{} in {}", told_bytes(cost.s3_footer_bytes), cost.s3_footer_requests)),
                cost(|cost| told_bytes(cost.parquet_bytes_decoded)),
                epoch.loss.map_or_else(untold, |loss| format!("{loss:.4}")),
                epoch.order_digest.clone(),
            ]);
        }
        for column in table.column_iter_mut().filter(|column| ![1, 11].contains(&column.index)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }

    /// Writes the report beside its place and moves it there, so that nobody reads half of it.
    pub fn write(&self, file: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let write = || -> std::io::Result<()> {
            // As readable as other files, which those for passing use are not.
            let readable = std::fs::Permissions::from_mode(0o666);
            let mut temporary = tempfile::Builder::new().permissions(readable).tempfile_in(folder)?;
            std::io::Write::write_all(&mut temporary, text.as_bytes())?;
            temporary.persist(file)?;
            Ok(())
        };
        write().with_context(|| format!("write the report {}", file.display()))
    }
}

/// In place of a figure that there is not.
fn untold() -> String {
    "-".to_owned()
}

/// Where an epoch's bytes came from, judged by the requests to the object store. Without a cache, bytes that
/// are not read again are in the ranks' own memory still, or were prefetched in the epoch before.
fn source(cost: Option<&CostReport>, projected_bytes: u64, direct: bool) -> &'static str {
    match cost.map_or((0, 0), |cost| (cost.s3_requests, cost.s3_bytes)) {
        (0, _) if direct => "memory",
        (0, _) => "cache",
        // A cold epoch reads the projection once; a request more or less for alignment does not change the
        // word.
        (_, read) if read as f64 >= 0.95 * projected_bytes as f64 => "S3",
        _ if direct => "S3 + memory",
        _ => "S3 + cache",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::digest::OrderDigest;

    fn epoch() -> EpochReport {
        let counters =
            Counters { s3_requests: 16, s3_bytes: 9_900_000, hits: 3, joins: 2, ..Default::default() };
        let digest = OrderDigest::default();
        let total = EpochTotal {
            samples: 60_000,
            seconds: 4.0,
            wait_share: 0.125,
            sequences: None,
            text: TextCount::default(),
            loss_sum: 15_000.0,
            digest,
            content: None,
            counters: Some(counters),
        };
        EpochReport::new(0, &total, 9_900_000, false, true)
    }

    #[test]
    fn an_epoch_in_one_line() {
        assert_eq!(
            epoch().line(3),
            "epoch 1/3  from S3  4.0 s  15000 samples/s  data wait 12.5 %  loss 0.2500  S3 16 requests, 9.90 MB"
        );
        assert_eq!(epoch().cost.unwrap().cache_hits, 5);
        let untold = EpochReport { cost: None, ..epoch() };
        assert!(untold.line(3).ends_with("loss 0.2500"), "{}", untold.line(3));
        assert_eq!(serde_json::to_value(&untold).unwrap().get("s3_bytes"), None);
        let table = Report { epochs: vec![untold], ..Report::default() }.table();
        assert_eq!(table.matches(" - ").count(), 5, "of AU and of S3 nothing is known: {table}");
        let text = EpochReport { tokens_per_s: Some(1234.5), padding_share: Some(0.25), ..epoch() };
        assert!(
            text.line(3).contains("12.5 %  1234 tokens/s, 25.0 % padding  loss 0.2500"),
            "{}",
            text.line(3)
        );
    }

    #[test]
    fn the_source_follows_from_what_the_store_was_asked_for() {
        let from = |s3_requests, s3_bytes, direct| {
            source(Some(&CostReport { s3_requests, s3_bytes, ..Default::default() }), 100, direct)
        };
        assert_eq!(from(0, 0, false), "cache");
        assert_eq!(from(3, 100, false), "S3");
        assert_eq!(from(3, 50, false), "S3 + cache");
        assert_eq!(from(0, 0, true), "memory");
        assert_eq!(source(None, 100, false), "cache", "which told nothing");
    }
}
