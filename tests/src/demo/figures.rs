//! The reports of the trainer and the command line, as far as the demo reads them.

use serde::{Deserialize, Serialize};

/// The report of `forebay-train`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Training {
    pub(super) epochs: Vec<TrainedEpoch>,
    pub(super) test_accuracy: f64,
    /// One hash of all parameters per rank, after the last step.
    pub(super) parameter_hashes: Vec<String>,
    pub(super) world_size: u64,
    pub(super) global_batch: u64,
    pub(super) steps_per_epoch: u64,
}

/// One epoch of training, all ranks together. The S3 figures are those of the cache node.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct TrainedEpoch {
    pub(super) epoch: u64,
    /// Where the bytes came from, in the trainer's words.
    pub(super) source: String,
    pub(super) seconds: f64,
    pub(super) samples: u64,
    pub(super) samples_per_s: f64,
    /// The share of the time in which the ranks waited for data, 0 to 1.
    pub(super) data_wait_share: f64,
    /// Column data only; footers, heads and listings are counted apart.
    pub(super) s3_requests: u64,
    pub(super) s3_bytes: u64,
    pub(super) s3_footer_requests: u64,
    pub(super) s3_footer_bytes: u64,
    pub(super) parquet_bytes_decoded: u64,
    /// Compressed bytes of the columns read: one reading of the dataset.
    pub(super) projected_bytes: u64,
    pub(super) cache_hits: u64,
    pub(super) cache_misses: u64,
    pub(super) order_digest: String,
    /// `None` in front of an emulated accelerator, where there is no model.
    pub(super) loss: Option<f64>,
}

/// `forebay status --json`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Status {
    pub(super) counters: NodeCounters,
}

/// The cache node's counters since its start.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct NodeCounters {
    pub(super) s3_requests: u64,
    pub(super) s3_bytes: u64,
    pub(super) s3_footer_requests: u64,
    pub(super) s3_footer_bytes: u64,
    pub(super) s3_retries: u64,
}

impl Training {
    /// All epochs but the first.
    pub(super) fn warm(&self) -> &[TrainedEpoch] {
        self.epochs.get(1..).unwrap_or_default()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn training() -> Training {
        let cold = TrainedEpoch {
            epoch: 0,
            source: "S3".into(),
            seconds: 20.0,
            samples: 59_904,
            samples_per_s: 2995.2,
            data_wait_share: 0.12,
            s3_requests: 24,
            s3_bytes: 10_610_000,
            s3_footer_requests: 9,
            s3_footer_bytes: 524_288,
            parquet_bytes_decoded: 10_610_000,
            projected_bytes: 10_600_000,
            cache_hits: 0,
            cache_misses: 8,
            order_digest: "aa00".into(),
            loss: Some(0.25),
        };
        let warm = TrainedEpoch {
            epoch: 1,
            source: "cache".into(),
            seconds: 16.0,
            samples_per_s: 3744.0,
            data_wait_share: 0.01,
            s3_requests: 0,
            s3_bytes: 0,
            s3_footer_requests: 0,
            s3_footer_bytes: 0,
            parquet_bytes_decoded: 0,
            cache_hits: 16,
            cache_misses: 0,
            order_digest: "bb11".into(),
            loss: Some(0.07),
            ..cold.clone()
        };
        Training {
            epochs: vec![cold, warm],
            test_accuracy: 0.985,
            parameter_hashes: vec!["00ff".into(), "00ff".into()],
            world_size: 2,
            global_batch: 128,
            steps_per_epoch: 468,
        }
    }
}
