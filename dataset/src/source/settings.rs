//! The settings of a source: plain data, with a reason for each default.

use forebay_proto::{Error, Result};
use std::fmt;
use std::path::PathBuf;

/// How to reach object stores. Unset values come from the environment (`AWS_*`), then from the AWS files.
#[derive(Clone, serde::Deserialize, serde::Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SourceSettings {
    /// URL of the S3 service; unset: AWS.
    pub s3_endpoint: Option<String>,
    /// Region; `us-east-1` if nothing names one.
    pub s3_region: Option<String>,
    /// Access key id; goes with the secret.
    pub s3_access_key_id: Option<String>,
    /// Goes with the id; never written out.
    #[serde(skip_serializing)]
    pub s3_secret_access_key: Option<String>,
    /// Session token of temporary credentials.
    #[serde(skip_serializing)]
    pub s3_session_token: Option<String>,
    /// Profile of the AWS files; named here, it comes before the environment's keys.
    pub s3_profile: Option<String>,
    /// Bucket in the path instead of the host name; unset: yes exactly if there is an endpoint.
    pub s3_path_style: Option<bool>,
    /// Send no credentials: public buckets.
    pub s3_anonymous: bool,
    /// PEM file with the authorities that sign the service's certificate; unset: those of the system.
    pub s3_ca: Option<PathBuf>,
    /// Requests under way at once, at most: enough to fill a fast link with streams of 90 MB/s, few enough
    /// not to be throttled.
    pub s3_max_requests: usize,
    /// Bytes a second that all requests of this process read together, at most; unset: no limit of ours.
    pub s3_max_bytes_per_s: Option<u64>,
    /// A connection that delivers nothing for so long is dropped and its request retried, in seconds.
    pub request_timeout_s: f64,
    /// How long one request is retried, or waits while the object store answers nothing well, before it fails
    /// with `Retry`; in seconds.
    pub patience_s: f64,
    /// Memory that reading one segment may take: a row group is the least that can be read, and a footer may
    /// claim anything. 8 GiB is far beyond sensible row groups, and still an error rather than a machine out
    /// of memory.
    pub segment_memory_bytes: u64,
    /// Bytes of Parquet footers kept in memory. A larger footer is refused, unless it has at most 16 MiB:
    /// parsed, it takes several times its size.
    pub footer_cache_bytes: usize,
}

impl Default for SourceSettings {
    fn default() -> Self {
        Self {
            s3_endpoint: None,
            s3_region: None,
            s3_access_key_id: None,
            s3_secret_access_key: None,
            s3_session_token: None,
            s3_profile: None,
            s3_path_style: None,
            s3_anonymous: false,
            s3_ca: None,
            s3_max_requests: 32,
            s3_max_bytes_per_s: None,
            request_timeout_s: 30.0,
            patience_s: 60.0,
            segment_memory_bytes: 8 << 30,
            footer_cache_bytes: 256 << 20,
        }
    }
}

impl fmt::Debug for SourceSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Secrets are not serialised.
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl SourceSettings {
    /// `Invalid` if a value makes no sense.
    pub(super) fn check(&self) -> Result<()> {
        let (timeout, patience, requests) = (self.request_timeout_s, self.patience_s, self.s3_max_requests);
        let is_time = |seconds: f64| seconds > 0.0 && seconds <= 86_400.0;
        let why = if !is_time(timeout) {
            format!("request_timeout_s = {timeout}: must be more than 0 and at most 86400")
        } else if !is_time(patience) {
            format!("patience_s = {patience}: must be more than 0 and at most 86400")
        } else if !(1..=4096).contains(&requests) {
            format!("s3_max_requests = {requests}: must be 1 to 4096")
        } else if self.s3_max_bytes_per_s == Some(0) {
            "s3_max_bytes_per_s = 0: nothing could be read: leave it out for no limit".into()
        } else {
            return Ok(());
        };
        Err(Error::invalid(why))
    }
}
