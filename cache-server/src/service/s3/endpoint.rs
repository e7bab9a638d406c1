//! The endpoint of a node: what all who answer its requests need.

use super::signature::Signatures;
use crate::allow::Allowed;
use crate::node::Node;
use crate::settings::GatewaySettings;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use forebay_proto::{Error, Result};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// What an answer consists of.
pub type Body = UnsyncBoxBody<Bytes, Error>;

/// What all requests of S3 clients to a node share.
pub struct Endpoint {
    pub node: Arc<Node>,
    pub signatures: Signatures,
    pub domains: Vec<String>,
    /// What may be read without a key.
    pub public: Allowed,
    pub head_timeout: Duration,
    pub write_timeout: Duration,
    pub started: DateTime<Utc>,
}

impl Endpoint {
    /// Reads the file of keys: not for an async thread. `Invalid` names the setting.
    pub fn new(node: Arc<Node>, settings: &GatewaySettings) -> Result<Self> {
        let region = node.objects.region().to_owned();
        Ok(Self {
            signatures: Signatures::new(settings.keys()?, &region),
            domains: settings.s3_domain.clone(),
            public: Allowed::new(&settings.s3_public)?,
            head_timeout: Duration::from_secs_f64(settings.head_timeout_s),
            write_timeout: Duration::from_secs_f64(settings.write_timeout_s),
            started: now(),
            node,
        })
    }
}

/// A body of no bytes.
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// The time of day, by which signatures are good or are not.
#[expect(clippy::disallowed_methods, reason = "signatures are good for a time of day")]
pub fn now() -> DateTime<Utc> {
    SystemTime::now().into()
}
