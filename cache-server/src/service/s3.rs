//! The endpoint for clients of S3: objects through the cache, everything else in the store's own words.
//!
//! It reads only. GET and HEAD of objects are answered from a version and its blocks ([`object`]); listings,
//! locations and attributes are the object store's own answers ([`store`]), so they are right in all that
//! this program does not know. There is no S3 server library below: those parse documents that are only
//! passed on, and answer otherwise than S3 where it matters (ranges that make no sense, parts, versions).
//!
//! Promises: nothing is served that `--allow` does not name; every request is signed, or for public objects;
//! a write is refused before its body; memory is bounded whatever clients send ([`serve`]).

mod conditions;
mod object;
mod refusal;
mod request;
mod serve;
mod signature;
mod store;
mod uncached;

use crate::allow::Allowed;
use crate::node::Node;
use crate::settings::GatewaySettings;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use forebay_proto::{Error, Result};
use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::{HeaderMap, Method, Request, Response, StatusCode, request as head};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty};
use refusal::{Answer, S3Refusal};
use request::Named;
use signature::{Caller, Signatures};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

pub use serve::run;

/// What an answer consists of.
type Body = UnsyncBoxBody<Bytes, Error>;

/// Parameters of a bucket that ask for something else than its objects.
const BUCKET_RESOURCES: [&str; 25] = [
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "lifecycle",
    "logging",
    "metadataConfiguration",
    "metadataTable",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "replication",
    "requestPayment",
    "session",
    "tagging",
    "uploads",
    "versions",
    "website",
];

/// The same of an object.
const OBJECT_RESOURCES: [&str; 9] =
    ["acl", "legal-hold", "restore", "retention", "select", "tagging", "torrent", "uploadId", "uploads"];

/// The endpoint of a node.
pub struct Endpoint {
    node: Arc<Node>,
    signatures: Signatures,
    domains: Vec<String>,
    /// What may be read without a key.
    public: Allowed,
    connections_max: usize,
    head_timeout: Duration,
    write_timeout: Duration,
    started: DateTime<Utc>,
}

impl Endpoint {
    /// Reads the file of keys: not for an async thread. `Invalid` names the setting.
    pub fn new(node: Arc<Node>, settings: &GatewaySettings) -> Result<Self> {
        let region = node.objects.region().to_owned();
        Ok(Self {
            signatures: Signatures::new(settings.keys()?, &region),
            domains: settings.s3_domain.clone(),
            public: Allowed::new(&settings.s3_public)?,
            connections_max: settings.connections_max,
            head_timeout: Duration::from_secs_f64(settings.head_timeout_s),
            write_timeout: Duration::from_secs_f64(settings.write_timeout_s),
            started: now(),
            node,
        })
    }

    /// Answers a request, whatever it is.
    async fn answer<B>(self: &Arc<Self>, request: Request<B>) -> Response<Body> {
        let request_id = format!("{:016X}", fastrand::u64(..));
        let head = request.into_parts().0;
        let answered = self.try_answer(&head).await;
        let events = &self.node.events;
        events.gateway_requests.fetch_add(1, Relaxed);
        let mut response = answered.unwrap_or_else(|refusal| {
            events.gateway_refused.fetch_add(1, Relaxed);
            tracing::debug!(method = %head.method, path = head.uri.path(), code = refusal.code, request_id, "an S3 client is refused");
            let response = refusal.response(head.uri.path(), &request_id);
            response.map(|body| match head.method == Method::HEAD {
                true => empty(),
                false => body.map_err(|never| match never {}).boxed_unsync(),
            })
        });
        if let Ok(id) = HeaderValue::try_from(request_id) {
            response.headers_mut().insert("x-amz-request-id", id);
        }
        response
    }

    async fn try_answer(self: &Arc<Self>, head: &head::Parts) -> Answer<Response<Body>> {
        check_method(head)?;
        let named = Named::of(head, &self.domains)?;
        let caller = self.signatures.check(head, &named, now())?;
        let headers = &head.headers;
        let is_encrypted =
            headers.keys().any(|name| name.as_str().starts_with("x-amz-server-side-encryption-customer"));
        if is_encrypted {
            return Err(S3Refusal::bad("InvalidRequest", "Keys of the customer are not for this endpoint."));
        }
        if headers.contains_key("x-amz-expected-bucket-owner") {
            return Err(S3Refusal::unknown("x-amz-expected-bucket-owner"));
        }
        match (named.bucket.is_empty(), named.key.is_empty()) {
            (true, _) => store::buckets(self, caller),
            (false, true) => {
                check_resources(&named, &BUCKET_RESOURCES)?;
                store::bucket(self, head, &named, caller).await
            }
            (false, false) => {
                check_resources(&named, &OBJECT_RESOURCES)?;
                let is_public = self.public.allows_key(&named.bucket, &named.key);
                self.let_in(caller, is_public)?;
                match named.has("attributes") {
                    true => store::attributes(self, head, &named).await,
                    false => object::answer(self, head, &named, caller).await,
                }
            }
        }
    }

    /// Refuses those without a key, unless they ask for public objects.
    fn let_in(&self, caller: Caller, is_public: bool) -> Answer<()> {
        match caller == Caller::Known || is_public {
            true => Ok(()),
            false => Err(S3Refusal::denied("AccessDenied", "Access Denied")),
        }
    }
}

/// Only GET and HEAD, and those without a body.
fn check_method(head: &head::Parts) -> Answer<()> {
    let has_body = has_body(&head.headers);
    let refusal = match head.method {
        Method::GET | Method::HEAD if !has_body => return Ok(()),
        Method::GET | Method::HEAD => S3Refusal::bad("InvalidRequest", "A request that reads has no body."),
        Method::PUT | Method::POST | Method::DELETE | Method::PATCH => S3Refusal::denied(
            "AccessDenied",
            "This endpoint is a cache that only reads: write to the object store itself.",
        ),
        _ => {
            let why = "The specified method is not allowed against this resource.";
            S3Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", why)
        }
    };
    Err(S3Refusal { closes: has_body, ..refusal })
}

fn has_body(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH);
    headers.contains_key(TRANSFER_ENCODING) || length.is_some_and(|length| length.as_bytes() != b"0")
}

fn check_resources(named: &Named, resources: &[&str]) -> Answer<()> {
    match named.query.iter().find(|(name, _)| resources.contains(&name.as_str())) {
        Some((name, _)) => Err(S3Refusal::unknown(name)),
        None => Ok(()),
    }
}

fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

#[expect(clippy::disallowed_methods, reason = "signatures are good for a time of day")]
fn now() -> DateTime<Utc> {
    SystemTime::now().into()
}
