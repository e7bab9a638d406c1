//! Answers to callers whom the policy knows: they end when the caller may have them no more, and their errors
//! say no more than it may know.

use crate::auth::caller::Caller;
use crate::auth::private_words::is_private;
use crate::auth::session::{EndReason, OpenAnswer, Session};
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::body::Body;
use tonic::{Code, Status};

/// An answer to a caller whom the policy knows.
pub struct GuardedBody {
    body: Body,
    caller: Caller,
    end: Pin<Box<WaitForCancellationFutureOwned>>,
    has_ended: bool,
    _open: OpenAnswer,
}

impl GuardedBody {
    /// The same body; it ends with its caller's session.
    pub fn new(body: Body, caller: Caller, open: OpenAnswer) -> Self {
        let end = caller.session().map_or_else(CancellationToken::new, |session| session.end.clone());
        Self { body, caller, end: Box::pin(end.cancelled_owned()), has_ended: false, _open: open }
    }
}

impl HttpBody for GuardedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if self.end.as_mut().poll(cx).is_ready() {
            self.has_ended = true;
            let mut trailers = HeaderMap::new();
            if let Some(session) = self.caller.session() {
                // A text of ours fits into a header.
                ended(session).add_header(&mut trailers).ok();
            }
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        polled.map(|frame| {
            frame.map(|frame| {
                frame.map(|mut frame| {
                    if let Some(trailers) = frame.trailers_mut() {
                        told(&self.caller, trailers);
                    }
                    frame
                })
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Why an answer ends early.
pub fn ended(session: &Session) -> Status {
    match session.reason() {
        Some(EndReason::Changed) => Status::unavailable("the node's policy has changed: connect again"),
        Some(EndReason::Expired) => {
            Status::unavailable("your token has expired: connect again with one that is good")
        }
        _ => Status::unauthenticated("the node's policy does not know you any more"),
    }
}

/// Leaves out of an error what its caller is not to know; the node's log has it.
pub fn told(caller: &Caller, headers: &mut HeaderMap) {
    if caller.is_operator() {
        return;
    }
    let Some(status) = Status::from_header_map(headers).filter(|status| is_private(status.message())) else {
        return;
    };
    let request = caller.request();
    tracing::info!(request, error = status.message(), "a caller is not told of the object store");
    let why = match status.code() {
        Code::PermissionDenied => "the object store refuses this node",
        Code::Unavailable => "the object store does not answer this node: try again later",
        _ => "the object store does not give this node what it asks for",
    };
    let status = Status::new(status.code(), format!("{why} (request {request}: the node's log says more)"));
    // A text of ours fits into a header.
    status.add_header(headers).ok();
}
