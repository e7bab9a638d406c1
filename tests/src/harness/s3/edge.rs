//! The HTTP edge of the S3 server: logs each request, applies the fault plan, checks the region and that
//! every `x-amz-*` header is signed, then hands over to `s3s`.

use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderName, IF_MATCH, IF_NONE_MATCH, RANGE};
use hyper::{Method, Request, Response, StatusCode};
use s3s::service::S3Service;

use super::{REGION, locked};
use crate::harness::fault::{self, Fault, Plan};
use crate::harness::serve::{Handler, ResponseBody};

/// One request, as the log keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenRequest {
    /// GET, HEAD, PUT, POST or DELETE.
    pub method: Method,
    /// The bucket, from a path-style URL.
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
}

impl SeenRequest {
    fn of(request: &Request<Incoming>) -> Self {
        let path = percent_decode(request.uri().path().trim_start_matches('/'));
        let (bucket, key) = path.split_once('/').unwrap_or((&path, ""));
        Self {
            method: request.method().clone(),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            query: request.uri().query().unwrap_or_default().to_owned(),
            range: header(request, &RANGE),
            if_match: header(request, &IF_MATCH),
            if_none_match: header(request, &IF_NONE_MATCH),
            status: 0,
            bytes: 0,
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

/// Logs, breaks and serves.
pub(super) struct Edge {
    service: S3Service,
    plan: Mutex<Option<Plan>>,
    log: Mutex<Vec<SeenRequest>>,
}

impl Edge {
    pub(super) fn new(service: S3Service) -> Self {
        Self { service, plan: Mutex::default(), log: Mutex::default() }
    }

    pub(super) fn handler(self: Arc<Self>) -> Handler {
        Arc::new(move |request| {
            let edge = self.clone();
            Box::pin(async move { edge.answer(request).await })
        })
    }

    pub(super) fn set_plan(&self, plan: Option<Plan>) {
        *locked(&self.plan) = plan;
    }

    pub(super) fn log(&self) -> Vec<SeenRequest> {
        locked(&self.log).clone()
    }

    pub(super) fn take_log(&self) -> Vec<SeenRequest> {
        std::mem::take(&mut locked(&self.log))
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let mut seen = SeenRequest::of(&request);
        let fault = locked(&self.plan).as_mut().and_then(|plan| plan(&seen));
        let response = match fault {
            Some(Fault::SlowDown) => fault::slow_down(),
            Some(Fault::Deny) => fault::refusal(StatusCode::FORBIDDEN, "AccessDenied", "Access Denied"),
            Some(Fault::Cut) => fault::cut(self.serve(request).await),
            Some(Fault::Garble) => fault::garble(self.serve(request).await),
            Some(Fault::Flip(offset, bits)) => fault::flip(self.serve(request).await, offset, bits),
            Some(Fault::Delay(delay)) => {
                tokio::time::sleep(delay).await;
                self.serve(request).await
            }
            None => self.serve(request).await,
        };
        seen.status = response.status().as_u16();
        seen.bytes = if seen.method == Method::HEAD { 0 } else { fault::body_bytes(&response) };
        locked(&self.log).push(seen);
        response
    }

    async fn serve(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        if let Some(region) = signed_region(&request)
            && region != REGION
        {
            let message = format!(
                "The authorization header is malformed; the region '{region}' is wrong; expecting '{REGION}'"
            );
            return fault::refusal(StatusCode::BAD_REQUEST, "AuthorizationHeaderMalformed", &message);
        }
        if let Some(name) = unsigned_header(&request) {
            let message = format!("There were headers present in the request which were not signed: {name}");
            return fault::refusal(StatusCode::FORBIDDEN, "AccessDenied", &message);
        }
        match self.service.call(request.map(s3s::Body::from)).await {
            Ok(response) => response.map(BodyExt::boxed_unsync),
            Err(error) => {
                fault::refusal(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &format!("{error:?}"))
            }
        }
    }
}

/// The region of `Authorization: AWS4-HMAC-SHA256 Credential=KEY/DATE/REGION/s3/aws4_request, ...`.
fn signed_region(request: &Request<Incoming>) -> Option<&str> {
    let header = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
    let (_, credential) = header.split_once("Credential=")?;
    credential.split('/').nth(2)
}

/// An `x-amz-*` header of a signed request that is not among those that `SignedHeaders=host;x-amz-date, ...`
/// names.
fn unsigned_header(request: &Request<Incoming>) -> Option<&str> {
    let header = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
    let (_, signed) = header.split_once("SignedHeaders=")?;
    let signed: Vec<&str> = signed.split(',').next()?.split(';').collect();
    let mut names = request.headers().keys().map(HeaderName::as_str);
    names.find(|name| name.starts_with("x-amz-") && !signed.contains(name))
}

fn header(request: &Request<Incoming>, name: &HeaderName) -> Option<String> {
    Some(request.headers().get(name)?.to_str().ok()?.to_owned())
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
