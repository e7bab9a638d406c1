//! An S3 server inside the test process: real HTTP, SigV4, XML and aws-chunked bodies (by the `s3s` crate),
//! objects in memory.
//!
//! It does what Forebay and its tests ask of S3: buckets, put, ranged and conditional get, head, list-v2 with
//! pages, delete, multipart uploads. It keeps a log of every request, so a test can say "exactly one GET of
//! this range, with If-Match", and it breaks on demand ([`S3Server::inject`]). It stores no checksums,
//! versions or ACLs.

mod api;
mod edge;
mod objects;
#[cfg(test)]
pub(crate) mod tests;

use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

use bytes::Bytes;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;

pub use edge::SeenRequest;
pub use objects::Objects;

use crate::harness::fault::{Fault, Plan};
use crate::harness::serve::Serving;

/// The region that requests must be signed for, as with S3 itself.
pub const REGION: &str = "us-east-1";

/// A running S3 server with one bucket; stops when dropped.
pub struct S3Server {
    /// `http://127.0.0.1:PORT`
    pub endpoint: String,
    /// The bucket that exists from the start.
    pub bucket: String,
    /// The one access key that is known.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
    objects: Objects,
    edge: Arc<edge::Edge>,
    _serving: Serving,
}

impl S3Server {
    /// Starts a server on a free port with an empty bucket `forebay`.
    pub fn start() -> Self {
        let (bucket, access_key, secret_key) = ("forebay", "test-access", "test-secret-0123456");
        let objects = Objects::default();
        objects.create_bucket(bucket);
        let mut service = S3ServiceBuilder::new(api::Api::new(objects.clone()));
        service.set_auth(SimpleAuth::from_single(access_key, secret_key));
        let edge = Arc::new(edge::Edge::new(service.build()));
        let handler = edge.clone();
        let serving = Serving::start("s3", move || handler.clone().handler()).expect("start the S3 server");
        Self {
            endpoint: format!("http://{}", serving.address),
            bucket: bucket.to_owned(),
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
            objects,
            edge,
            _serving: serving,
        }
    }

    /// Puts an object into the server's bucket, past HTTP.
    pub fn put(&self, key: &str, data: impl Into<Bytes>) {
        self.objects.put(&self.bucket, key, data.into());
    }

    /// The objects themselves: a handle that closures can keep, to change them while a test runs.
    pub fn objects(&self) -> Objects {
        self.objects.clone()
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

/// A poisoned lock means that another test thread has panicked; what it guards is still good.
pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
