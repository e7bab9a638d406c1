//! The flags of every program that reads an object store. Secrets come from the environment or the usual
//! files only: there is no flag for them, so they never show in a process list or a help text.

use super::settings::SourceSettings;
use forebay_proto::units::bytes;
use serde::Serialize;
use std::path::PathBuf;

/// Where help lists these. Set flag by flag, lest it swallow the flags that follow them.
const HEADING: &str = "Reading the object store";

/// How to reach the object store.
#[derive(Debug, Clone, Default, clap::Args, Serialize)]
pub struct SourceArgs {
    /// URL of an S3-compatible service, such as http://127.0.0.1:9000 [default: AWS]
    #[arg(help_heading = HEADING, long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3_endpoint: Option<String>,
    /// Region to sign for [default: AWS_REGION, the profile's region, or us-east-1]
    #[arg(help_heading = HEADING, long, value_name = "REGION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3_region: Option<String>,
    /// Profile of ~/.aws/credentials and ~/.aws/config [default: AWS_PROFILE, or `default`]
    #[arg(help_heading = HEADING, long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3_profile: Option<String>,
    /// Bucket in the path rather than in the host name [default: true exactly with an endpoint]
    #[arg(help_heading = HEADING, long, value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3_path_style: Option<bool>,
    /// Send no credentials: for public buckets
    #[arg(help_heading = HEADING, long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub s3_anonymous: bool,
    /// PEM file with the authorities that sign the object store's certificate [default: those of the system]
    #[arg(help_heading = HEADING, long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3_ca: Option<PathBuf>,
    /// Requests to the object store under way at once [default: 32]
    #[arg(help_heading = HEADING, long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3_max_requests: Option<usize>,
    /// Bytes a second read from the object store by all requests of this process, e.g. 500MB [default: no
    /// limit]
    #[arg(help_heading = HEADING, long, value_name = "BYTES", value_parser = bytes)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3_max_bytes_per_s: Option<u64>,
    /// How long a request that fails is tried again, in seconds [default: 60]
    #[arg(help_heading = HEADING, long, value_name = "S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience_s: Option<f64>,
}

impl SourceArgs {
    /// The settings of a source. Values that no flag gives are left to the environment and the AWS files.
    pub fn settings(&self) -> SourceSettings {
        let default = SourceSettings::default();
        SourceSettings {
            s3_endpoint: self.s3_endpoint.clone(),
            s3_region: self.s3_region.clone(),
            s3_profile: self.s3_profile.clone(),
            s3_path_style: self.s3_path_style,
            s3_anonymous: self.s3_anonymous,
            s3_ca: self.s3_ca.clone(),
            s3_max_requests: self.s3_max_requests.unwrap_or(default.s3_max_requests),
            s3_max_bytes_per_s: self.s3_max_bytes_per_s,
            patience_s: self.patience_s.unwrap_or(default.patience_s),
            ..default
        }
    }

    /// One of these flags, if any was given.
    pub fn given(&self) -> Option<String> {
        let given = serde_json::to_value(self).ok()?;
        given.as_object()?.keys().next().map(|name| format!("--{}", name.replace('_', "-")))
    }
}
