//! Faults of an S3 endpoint, and plans for when they strike.
//!
//! A plan is any closure from a request to a fault or none; [`first`], [`share`] and [`lasting`] make the
//! usual ones. Randomness is seeded: the same seed and the same sequence of requests give the same faults.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::{Response, StatusCode, Uri};

use crate::harness::seen::SeenRequest;
use crate::harness::serve::{BoxError, ResponseBody};

/// What goes wrong with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The answer comes this much later.
    Delay(Duration),
    /// 503 SlowDown.
    SlowDown,
    /// 403 AccessDenied.
    Deny,
    /// 301 PermanentRedirect: the bucket is in this region. S3 does not say where to go instead.
    Moved(&'static str),
    /// 307 TemporaryRedirect to another server.
    Redirect(SocketAddr),
    /// The connection breaks after half of the body.
    Cut,
    /// Every byte of the body is another.
    Garble,
    /// These bits of one byte of the body, at this offset, are others.
    Flip(usize, u8),
}

/// Decides the fault of each request.
pub type Plan = Box<dyn FnMut(&SeenRequest) -> Option<Fault> + Send>;

/// The first `n` GETs of objects fail so, the others succeed.
pub fn first(n: usize, fault: Fault) -> Plan {
    let mut left = n;
    Box::new(move |seen| {
        let strikes = left > 0 && seen.is_object_get();
        left -= usize::from(strikes);
        strikes.then_some(fault)
    })
}

/// This share (0 to 1) of all requests fails so.
pub fn share(probability: f64, seed: u64, fault: Fault) -> Plan {
    let mut dice = fastrand::Rng::with_seed(seed);
    Box::new(move |_| (dice.f64() < probability).then_some(fault))
}

/// Every request fails so until `duration` has passed since now.
pub fn lasting(duration: Duration, fault: Fault) -> Plan {
    let end = Instant::now() + duration;
    Box::new(move |_| (Instant::now() < end).then_some(fault))
}

/// The error document that S3 sends.
pub(crate) fn refusal(status: StatusCode, code: &str, message: &str) -> Response<ResponseBody> {
    let document = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
         <Error><Code>{code}</Code><Message>{message}</Message><RequestId>INJECTED</RequestId></Error>"
    );
    let body = Full::new(Bytes::from(document)).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

/// 301 PermanentRedirect, as S3 says it of a bucket in another region.
pub(crate) fn moved(region: &'static str) -> Response<ResponseBody> {
    let message = "The bucket you are attempting to access must be addressed using the specified endpoint. \
                   Please send all future requests to this endpoint.";
    let mut response = refusal(StatusCode::MOVED_PERMANENTLY, "PermanentRedirect", message);
    name_region(&mut response, region);
    response
}

/// 307 TemporaryRedirect: the same request to another server.
pub(crate) fn redirect(uri: &Uri, to: SocketAddr) -> Response<ResponseBody> {
    let message = "Please re-send this request to the specified temporary endpoint.";
    let mut response = refusal(StatusCode::TEMPORARY_REDIRECT, "TemporaryRedirect", message);
    let target = format!("http://{to}{}", uri.path_and_query().map_or("/", |target| target.as_str()));
    response.headers_mut().insert(LOCATION, target.parse().expect("a URL is a header's value"));
    response
}

/// Has an answer say which region the bucket is in.
pub(crate) fn name_region(response: &mut Response<ResponseBody>, region: &'static str) {
    response.headers_mut().insert("x-amz-bucket-region", HeaderValue::from_static(region));
}

/// 503 SlowDown, word for word as S3 says it.
pub(crate) fn slow_down() -> Response<ResponseBody> {
    refusal(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", "Please reduce your request rate.")
}

/// The same answer, but its body breaks off after half of the announced length.
pub(crate) fn cut(response: Response<ResponseBody>) -> Response<ResponseBody> {
    let left = body_bytes(&response) / 2;
    response.map(|inner| CutBody { inner, left }.boxed_unsync())
}

/// The same answer with all bits of its body turned over.
pub(crate) fn garble(response: Response<ResponseBody>) -> Response<ResponseBody> {
    let turned = |frame: Frame<Bytes>| frame.map_data(|data| data.iter().map(|byte| !byte).collect());
    response.map(|inner| inner.map_frame(turned).boxed_unsync())
}

/// The same answer with some bits turned over, of the byte of its body at `offset`.
pub(crate) fn flip(response: Response<ResponseBody>, offset: usize, bits: u8) -> Response<ResponseBody> {
    let mut before = 0;
    let flipped = move |frame: Frame<Bytes>| {
        frame.map_data(|data| {
            let mut data = data.to_vec();
            if let Some(byte) = offset.checked_sub(before).and_then(|at| data.get_mut(at)) {
                *byte ^= bits;
            }
            before += data.len();
            Bytes::from(data)
        })
    };
    response.map(|inner| inner.map_frame(flipped).boxed_unsync())
}

/// The length of a body, as its headers announce it.
pub(crate) fn body_bytes(response: &Response<ResponseBody>) -> u64 {
    let header = response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    header.unwrap_or_else(|| response.body().size_hint().lower())
}

struct CutBody {
    inner: ResponseBody,
    left: u64,
}

impl Body for CutBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.left == 0 {
            return Poll::Ready(Some(Err("body cut on purpose".into())));
        }
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx));
        Poll::Ready(frame.map(|frame| {
            frame.map(|frame| match frame.into_data() {
                Ok(mut data) => {
                    data.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
                    self.left -= data.len() as u64;
                    Frame::data(data)
                }
                Err(frame) => frame,
            })
        }))
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
