//! An S3 server inside the test process: real HTTP, SigV4, XML and aws-chunked bodies (by the `s3s` crate),
//! objects in memory.
//!
//! Buckets are in the path, or in the host's name ([`DOMAIN`](super::seen::DOMAIN)).
//!
//! It does what Forebay and its tests ask of S3: buckets, put, get and head with ranges, conditions and
//! parts, listings of both versions with pages, delete, multipart uploads, versions in buckets that
//! are told so. It keeps content types and users' metadata, but no checksums or ACLs. It keeps a log of every
//! request, so a test can say "exactly one GET of this range, with If-Match", and it breaks on demand
//! ([`S3Server::inject`]).

mod api;
mod connect;
mod edge;
mod hosts;
mod object;
mod objects;
mod read;
#[cfg(test)]
pub(crate) mod tests;
mod versions;

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use s3s::auth::{S3Auth, SecretKey};
use s3s::service::S3ServiceBuilder;
use s3s::{S3Result, s3_error};

pub use connect::ConnectProxy;
pub use edge::REGION;
pub use objects::Objects;

use crate::harness::fault::{Fault, Plan};
use crate::harness::made::MadeObject;
use crate::harness::seen::SeenRequest;
use crate::harness::serve::Serving;

/// A running S3 server with one bucket; stops when dropped.
pub struct S3Server {
    /// `http://127.0.0.1:PORT`
    pub endpoint: String,
    /// The same as an address.
    pub address: SocketAddr,
    /// The bucket that exists from the start.
    pub bucket: String,
    /// The one access key that is known.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
    objects: Objects,
    keys: AccessKeys,
    edge: Arc<edge::Edge>,
    _serving: Serving,
}

impl S3Server {
    /// Starts a server on a free port with an empty bucket `forebay`.
    pub fn start() -> Self {
        Self::start_in(REGION)
    }

    /// The same in another region, which it names in what it refuses.
    pub fn start_in(region: &'static str) -> Self {
        let (bucket, access_key, secret_key) = ("forebay", "test-access", "test-secret-0123456");
        let objects = Objects::default();
        objects.create_bucket(bucket);
        let mut service = S3ServiceBuilder::new(api::Api::new(objects.clone()));
        let keys = AccessKeys::default();
        keys.add(access_key, secret_key, None);
        service.set_auth(keys.clone());
        service.set_host(hosts::Hosts);
        let edge = Arc::new(edge::Edge::new(service.build(), region));
        let handler = edge.clone();
        let serving = Serving::start("s3", move || handler.clone().handler()).expect("start the S3 server");
        Self {
            endpoint: format!("http://{}", serving.address),
            address: serving.address,
            bucket: bucket.to_owned(),
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
            objects,
            keys,
            edge,
            _serving: serving,
        }
    }

    /// Puts an object into the server's bucket, past HTTP.
    pub fn put(&self, key: &str, data: impl Into<Bytes>) {
        self.objects.put(&self.bucket, key, data.into());
    }

    /// The same of one whose bytes are made when they are asked for.
    pub fn put_made(&self, key: &str, object: MadeObject) {
        self.objects.put_made(&self.bucket, key, object);
    }

    /// The objects themselves: a handle that closures can keep, to change them while a test runs.
    pub fn objects(&self) -> Objects {
        self.objects.clone()
    }

    /// Has the server's bucket keep versions from now on, past HTTP.
    pub fn keep_versions(&self) {
        self.objects.keep_versions(&self.bucket);
    }

    /// The keys that are let in.
    pub fn keys(&self) -> AccessKeys {
        self.keys.clone()
    }

    /// `s3://bucket/key`
    pub fn uri(&self, key: &str) -> String {
        format!("s3://{}/{key}", self.bucket)
    }

    /// What a child process needs in its environment to be let in.
    pub fn credentials(&self) -> Vec<(String, String)> {
        vec![
            ("AWS_ACCESS_KEY_ID".to_owned(), self.access_key.clone()),
            ("AWS_SECRET_ACCESS_KEY".to_owned(), self.secret_key.clone()),
        ]
    }

    /// A stock client of it, by way of `endpoint`.
    pub fn client(&self, endpoint: &str) -> object_store::Result<AmazonS3> {
        AmazonS3Builder::new()
            .with_endpoint(endpoint)
            .with_allow_http(true)
            .with_region(REGION)
            .with_bucket_name(&self.bucket)
            .with_access_key_id(&self.access_key)
            .with_secret_access_key(&self.secret_key)
            .build()
    }

    /// From now on `plan` decides which requests fail and how; it sees each request before it is served.
    pub fn inject(&self, plan: Plan) {
        self.edge.set_plan(Some(plan));
    }

    /// Replaces object `key` just before the `nth` GET (from 1) that reads it: a change in mid-read.
    pub fn overwrite_before_get(&self, nth: usize, key: &str, data: impl Into<Bytes>) {
        let (objects, bucket, key) = (self.objects(), self.bucket.clone(), key.to_owned());
        let mut data = Some(data.into());
        let mut count = 0;
        self.inject(Box::new(move |seen: &SeenRequest| -> Option<Fault> {
            if seen.is_object_get() && seen.key == key {
                count += 1;
                if count == nth
                    && let Some(data) = data.take()
                {
                    objects.put(&bucket, &key, data);
                }
            }
            None
        }));
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.edge.set_plan(None);
    }

    /// Every request answered so far, in the order of the answers.
    pub fn log(&self) -> Vec<SeenRequest> {
        self.edge.log()
    }

    /// The log since the last call, which empties it.
    pub fn take_log(&self) -> Vec<SeenRequest> {
        self.edge.take_log()
    }
}

/// The access keys of a server; clones share them.
#[derive(Clone, Default)]
pub struct AccessKeys(Arc<Mutex<HashMap<String, AccessKey>>>);

struct AccessKey {
    secret: String,
    expires_at: Option<Instant>,
}

impl AccessKeys {
    /// Lets a key in, for a time if one is given; then it is an expired one.
    pub fn add(&self, id: &str, secret: &str, lifetime: Option<Duration>) {
        let expires_at = lifetime.map(|lifetime| Instant::now() + lifetime);
        self.0.lock().insert(id.to_owned(), AccessKey { secret: secret.to_owned(), expires_at });
    }
}

#[async_trait]
impl S3Auth for AccessKeys {
    async fn get_secret_key(&self, id: &str) -> S3Result<SecretKey> {
        match self.0.lock().get(id) {
            None => Err(s3_error!(InvalidAccessKeyId, "The access key is not known.")),
            Some(AccessKey { expires_at: Some(at), .. }) if *at <= Instant::now() => {
                Err(s3_error!(ExpiredToken, "The provided token has expired."))
            }
            Some(key) => Ok(SecretKey::from(key.secret.as_str())),
        }
    }
}
