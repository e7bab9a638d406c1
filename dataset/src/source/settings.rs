//! The settings of a source: plain data, with a reason for each default.

use forebay_proto::{Error, Result};
use std::fmt;

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
        let hidden = |v: &Option<String>| v.as_ref().map(|_| "(hidden)");
        f.debug_struct("SourceSettings")
            .field("s3_endpoint", &self.s3_endpoint)
            .field("s3_region", &self.s3_region)
            .field("s3_access_key_id", &self.s3_access_key_id)
            .field("s3_secret_access_key", &hidden(&self.s3_secret_access_key))
            .field("s3_session_token", &hidden(&self.s3_session_token))
            .field("s3_profile", &self.s3_profile)
            .field("s3_path_style", &self.s3_path_style)
            .field("s3_anonymous", &self.s3_anonymous)
            .field("s3_max_requests", &self.s3_max_requests)
            .field("s3_max_bytes_per_s", &self.s3_max_bytes_per_s)
            .field("request_timeout_s", &self.request_timeout_s)
            .field("patience_s", &self.patience_s)
            .field("segment_memory_bytes", &self.segment_memory_bytes)
            .field("footer_cache_bytes", &self.footer_cache_bytes)
            .finish()
    }
}

impl SourceSettings {
    /// `Invalid` if a value makes no sense.
    pub(super) fn check(&self) -> Result<()> {
        for (name, value) in [("request_timeout_s", self.request_timeout_s), ("patience_s", self.patience_s)]
        {
            if !(value > 0.0 && value <= 86_400.0) {
                return Err(Error::invalid(format!(
                    "{name} = {value}: must be more than 0 and at most 86400"
                )));
            }
        }
        if self.s3_max_requests == 0 || self.s3_max_requests > 4096 {
            return Err(Error::invalid(format!(
                "s3_max_requests = {}: must be 1 to 4096",
                self.s3_max_requests
            )));
        }
        if self.s3_max_bytes_per_s == Some(0) {
            return Err(Error::invalid(
                "s3_max_bytes_per_s = 0: nothing could be read: leave it out for no limit".to_owned(),
            ));
        }
        Ok(())
    }
}
