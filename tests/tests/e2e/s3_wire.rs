//! S3 as it is reached in earnest: by the names of hosts, by TLS, in another region, by keys that expire.
//!
//! * [`certificates`]: those of S3 that are not good.
//! * [`credentials`]: keys that a program, a role or an instance gives, and gives again when they expire.
//! * [`hosts`]: buckets in the names of hosts.
//! * [`refusals`]: buckets in another region, and sessions that have expired.

mod certificates;
mod credentials;
mod hosts;
mod refusals;

use crate::fixtures::{self, Comparison};
use forebay_tests::harness::process::Run;
use forebay_tests::harness::s3::{REGION, S3Server};

/// The dataset that all read.
const DATASET: &str = "good/many-files";

/// The patience of all who are refused, in seconds: far longer than a test waits. A refusal that comes in
/// time was not tried again.
const PATIENCE: &str = "600";

/// `forebay cat URI --direct` with S3's keys, as an Arrow stream.
fn straight(s3: &S3Server, uri: &str, settings: &[&str]) -> Run {
    let line = ["cat", uri, "--format", "arrow", "--direct", "--s3-region", REGION];
    Run::new("forebay").args(line).args(settings).envs(s3.credentials())
}

/// Holds an Arrow stream of [`DATASET`] against what pyarrow reads, value by value.
fn same_as_pyarrow(read: &[u8]) {
    let mut comparison = Comparison::new();
    comparison.add(fixtures::folder(DATASET), read);
    comparison.check(&[]);
}
