//! The HTTP edge of the S3 server: logs each request, applies the fault plan, checks the region and that
//! every `x-amz-*` header is signed, then hands over to `s3s`.

use parking_lot::Mutex;
use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_RANGE, CONTENT_TYPE, HeaderName, RANGE};
use hyper::{Method, Request, Response, StatusCode};
use s3s::service::S3Service;

use crate::harness::fault::{self, Fault, Plan};
use crate::harness::seen::SeenRequest;
use crate::harness::serve::{Handler, ResponseBody};

/// The region that requests must be signed for, as with S3 itself, unless the server is told another one.
pub const REGION: &str = "us-east-1";

/// Logs, breaks and serves.
pub(super) struct Edge {
    service: S3Service,
    region: &'static str,
    plan: Mutex<Option<Plan>>,
    log: Mutex<Vec<SeenRequest>>,
}

impl Edge {
    pub(super) fn new(service: S3Service, region: &'static str) -> Self {
        Self { service, region, plan: Mutex::default(), log: Mutex::default() }
    }

    pub(super) fn handler(self: Arc<Self>) -> Handler {
        Arc::new(move |request| {
            let edge = self.clone();
            Box::pin(async move { edge.answer(request).await })
        })
    }

    pub(super) fn set_plan(&self, plan: Option<Plan>) {
        *self.plan.lock() = plan;
    }

    pub(super) fn log(&self) -> Vec<SeenRequest> {
        self.log.lock().clone()
    }

    pub(super) fn take_log(&self) -> Vec<SeenRequest> {
        std::mem::take(&mut self.log.lock())
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let mut seen = SeenRequest::of(&request);
        let fault = self.plan.lock().as_mut().and_then(|plan| plan(&seen));
        let mut response = match fault {
            Some(Fault::SlowDown) => fault::slow_down(),
            Some(Fault::Deny) => fault::refusal(StatusCode::FORBIDDEN, "AccessDenied", "Access Denied"),
            Some(Fault::Moved(region)) => fault::moved(region),
            Some(Fault::Redirect(to)) => fault::redirect(request.uri(), to),
            Some(Fault::Cut) => fault::cut(self.serve(request).await),
            Some(Fault::Garble) => fault::garble(self.serve(request).await),
            Some(Fault::Flip(offset, bits)) => fault::flip(self.serve(request).await, offset, bits),
            Some(Fault::Delay(delay)) => {
                tokio::time::sleep(delay).await;
                self.serve(request).await
            }
            None => self.serve(request).await,
        };
        if self.region != REGION && response.status().is_client_error() {
            fault::name_region(&mut response, self.region);
        }
        seen.status = response.status().as_u16();
        seen.bytes = if seen.method == Method::HEAD { 0 } else { fault::body_bytes(&response) };
        self.log.lock().push(seen);
        response
    }

    async fn serve(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        if let Some(region) = signed_region(&request)
            && region != self.region
        {
            let message = format!(
                "The authorization header is malformed; the region '{region}' is wrong; expecting '{}'",
                self.region
            );
            return fault::refusal(StatusCode::BAD_REQUEST, "AuthorizationHeaderMalformed", &message);
        }
        if let Some(name) = unsigned_header(&request) {
            let message = format!("There were headers present in the request which were not signed: {name}");
            return fault::refusal(StatusCode::FORBIDDEN, "AccessDenied", &message);
        }
        let mut request = request.map(s3s::Body::from);
        // `s3s` refuses ranges that make no sense. S3 takes no notice of them.
        if request.headers().get(RANGE).is_some_and(|range| !is_range(range.as_bytes())) {
            request.headers_mut().remove(RANGE);
        }
        let is_head = request.method() == Method::HEAD;
        match self.service.call(request).await {
            Ok(mut response) => {
                if response.status() == StatusCode::NOT_MODIFIED {
                    response.headers_mut().remove(CONTENT_TYPE);
                }
                // `s3s` knows 200 only for a HEAD.
                if is_head && response.status().is_success() && response.headers().contains_key(CONTENT_RANGE)
                {
                    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                }
                response.map(BodyExt::boxed_unsync)
            }
            Err(error) => {
                fault::refusal(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &format!("{error:?}"))
            }
        }
    }
}

/// Whether a range is one of S3's: `bytes=1-2`, `bytes=1-`, `bytes=-2`.
fn is_range(text: &[u8]) -> bool {
    let Some(range) = std::str::from_utf8(text).ok().and_then(|text| text.strip_prefix("bytes=")) else {
        return false;
    };
    let Some((first, last)) = range.split_once('-') else { return false };
    let number =
        |digits: &str| digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().unwrap_or(u64::MAX));
    match (number(first), number(last)) {
        (Some(a), Some(b)) => !range.eq("-") && (first.is_empty() || last.is_empty() || a <= b),
        _ => false,
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
