//! The dataset that is read: MNIST in small segments.

use forebay_client::{Access, Dataset, DatasetSpec};

/// Small, so that 47 MB of MNIST make 40 segments.
pub const SEGMENT_BYTES: u64 = 1 << 20;

/// Opens it.
pub async fn open(endpoint: &str, uri: &str) -> anyhow::Result<Dataset> {
    let spec = DatasetSpec { segment_bytes: Some(SEGMENT_BYTES), ..DatasetSpec::new(uri) };
    Ok(Dataset::open(&Access::endpoint(endpoint)?, &spec).await?)
}
