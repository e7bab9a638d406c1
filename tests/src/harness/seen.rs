//! Requests as the S3 server's log keeps them, and as fault plans see them.

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, IF_MATCH, IF_NONE_MATCH, RANGE};
use hyper::{Method, Request};
use std::ops::Range;
use std::time::Instant;

/// Below it a host's name says the bucket: `BUCKET.s3.forebay.test`. No resolver knows it: clients that are
/// to come here by it have the server as their proxy.
pub const DOMAIN: &str = "s3.forebay.test";

/// The domain of AWS in the region of the server.
pub const AWS_DOMAIN: &str = "s3.us-east-1.amazonaws.com";

/// One request, as the log keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenRequest {
    /// GET, HEAD, PUT, POST or DELETE.
    pub method: Method,
    /// The `Host` header as sent.
    pub host: String,
    /// The bucket, which the host's name says, or the path.
    pub bucket: String,
    /// The key, percent-decoded; empty for requests on the bucket itself.
    pub key: String,
    /// The query string as sent.
    pub query: String,
    /// The `Range` header as sent.
    pub range: Option<String>,
    /// The `If-Match` header as sent.
    pub if_match: Option<String>,
    /// The `If-None-Match` header as sent.
    pub if_none_match: Option<String>,
    /// The status of the answer (0 while it is not answered).
    pub status: u16,
    /// The bytes of the answer's body, as announced.
    pub bytes: u64,
    /// The access key that signed it; empty if none did.
    pub signed_by: String,
    /// When it came.
    pub at: Instant,
}

impl SeenRequest {
    pub(crate) fn of(request: &Request<Incoming>) -> Self {
        let path = percent_decode(request.uri().path().trim_start_matches('/'));
        let host = header(request, &HOST).unwrap_or_default();
        let (bucket, key) = match bucket_of(&host) {
            Some(bucket) => (bucket, path.as_str()),
            None => path.split_once('/').unwrap_or((&path, "")),
        };
        Self {
            method: request.method().clone(),
            host: host.clone(),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            query: request.uri().query().unwrap_or_default().to_owned(),
            range: header(request, &RANGE),
            if_match: header(request, &IF_MATCH),
            if_none_match: header(request, &IF_NONE_MATCH),
            status: 0,
            bytes: 0,
            signed_by: header(request, &AUTHORIZATION).and_then(|line| signer(&line)).unwrap_or_default(),
            at: Instant::now(),
        }
    }

    /// Is this a GET of (part of) an object, as opposed to a listing or a write?
    pub fn is_object_get(&self) -> bool {
        self.method == Method::GET && !self.key.is_empty()
    }

    /// The range as `first..end`, when it names both ends.
    pub fn range_bytes(&self) -> Option<Range<u64>> {
        let (first, last) = self.range.as_deref()?.strip_prefix("bytes=")?.split_once('-')?;
        Some(first.parse().ok()?..last.parse::<u64>().ok()? + 1)
    }
}

/// The bucket that a host's name says, if it says one.
pub(crate) fn bucket_of(host: &str) -> Option<&str> {
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    [DOMAIN, AWS_DOMAIN].into_iter().find_map(|domain| name.strip_suffix(domain)?.strip_suffix('.'))
}

fn header(request: &Request<Incoming>, name: &HeaderName) -> Option<String> {
    Some(request.headers().get(name)?.to_str().ok()?.to_owned())
}

/// The access key in an `Authorization` header.
fn signer(authorization: &str) -> Option<String> {
    let (key, _) = authorization.split_once("Credential=")?.1.split_once('/')?;
    Some(key.to_owned())
}

fn percent_decode(path: &str) -> String {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = match rest {
            [b'%', high, low, ..] => {
                std::str::from_utf8(&[*high, *low]).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok())
            }
            _ => None,
        };
        decoded.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &rest[3..] } else { tail };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
