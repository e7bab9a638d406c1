//! Buckets in the names of hosts.

use s3s::S3Result;
use s3s::host::{S3Host, VirtualHost};

use crate::harness::seen::bucket_of;

/// Hosts below the server's domains name their bucket; to all others it is named in the path.
pub(super) struct Hosts;

impl S3Host for Hosts {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let named = VirtualHost::new(host);
        Ok(match bucket_of(host) {
            Some(bucket) => named.with_bucket(bucket),
            None => named,
        })
    }
}
