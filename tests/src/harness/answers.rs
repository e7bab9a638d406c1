//! What the command `forebay` says in JSON, as far as tests and benchmarks read it.

use serde::{Deserialize, Serialize};

/// `forebay epoch --json`.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct EpochsReport {
    /// One after the other.
    pub epochs: Vec<EpochReport>,
}

/// One epoch of it; the reports of `forebay-train` have these fields too, but for those with a default.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
pub struct EpochReport {
    pub epoch: u64,
    pub samples: u64,
    pub samples_per_s: f64,
    #[serde(default)]
    pub mb_per_s: f64,
    pub s3_requests: u64,
    #[serde(default)]
    pub first_batch_s: f64,
    #[serde(default)]
    pub cpu_s: f64,
    pub order_digest: String,
}
