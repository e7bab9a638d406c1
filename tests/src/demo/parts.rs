//! What the demo has started.

use super::options::DemoOptions;
use crate::harness::process::Server;
use crate::harness::s3::S3Server;
use crate::harness::slow::SlowProxy;
use std::path::Path;

/// What the demo has started, and where its files go.
pub(super) struct Parts<'a> {
    pub(super) options: &'a DemoOptions,
    pub(super) s3: &'a S3Server,
    pub(super) proxy: &'a SlowProxy,
    pub(super) server: &'a Server,
    pub(super) folder: &'a Path,
}

impl Parts<'_> {
    /// The dataset that is trained on.
    pub(super) fn train_uri(&self) -> String {
        self.s3.uri("mnist/train/")
    }
}
