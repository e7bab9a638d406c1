//! Who asks the endpoint, and what becomes of an answer when its caller may have it no more.

use super::endpoint::{Body, Endpoint};
use super::refusal::{Answer, S3Refusal};
use super::signature::Signer;
use crate::auth::authority::Shown;
use crate::auth::caller::Caller;
use crate::auth::calls::{Call, S3Operation};
use crate::auth::limiter::Limiter;
use crate::auth::session::OpenAnswer;
use crate::service::stalls::StreamOrigin;
use bytes::Bytes;
use forebay_proto::Error;
use http::Response;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Who asks, and whom the policy takes that for.
#[derive(Debug)]
pub struct Visitor {
    signer: Signer,
    pub caller: Caller,
}

impl Visitor {
    /// Whom the node's policy takes a signer for, who asks for an operation.
    pub async fn of(
        endpoint: &Endpoint,
        signer: Signer,
        operation: S3Operation,
        origin: Option<&StreamOrigin>,
    ) -> Answer<Self> {
        let guard = &endpoint.node.guard;
        let admitted = match &signer {
            Signer::Key(id) => guard.authority.admit(Shown::S3Key(id), Call::of(operation.name())),
            // Public objects need no key.
            Signer::Anonymous => Ok(Caller::everyone()),
        };
        match admitted {
            Ok(caller) => Ok(Self { signer, caller }),
            Err(refused) => {
                guard.refuse(operation.name(), origin, refused).await;
                Err(S3Refusal::denied("AccessDenied", "Access Denied"))
            }
        }
    }

    /// Refuses those without a key, unless they ask for public objects, and those who may not read what they
    /// ask for.
    pub fn check(&self, is_public: bool, uri: &str, may: impl FnOnce(&Caller) -> bool) -> Answer<()> {
        if is_public || !self.is_anonymous() && may(&self.caller) {
            return Ok(());
        }
        if !self.is_anonymous() {
            self.caller.deny(uri, format!("{uri}: lies where this key may not read"));
        }
        Err(S3Refusal::denied("AccessDenied", "Access Denied"))
    }

    /// Whether it signed nothing.
    pub fn is_anonymous(&self) -> bool {
        self.signer == Signer::Anonymous
    }

    /// Its limits, if it has any.
    pub fn limiter(&self) -> Option<&Arc<Limiter>> {
        self.caller.limiter()
    }

    /// The same answer; its body breaks off when the visitor's key is good no more. `cut` cuts the
    /// connection where it does not.
    pub fn guarded(&self, response: Response<Body>, cut: CancellationToken) -> Response<Body> {
        let Some(session) = self.caller.session() else { return response };
        let end = Box::pin(session.end.clone().cancelled_owned());
        let open = session.begin(cut);
        response.map(|body| VisitorBody { body, end, _open: open }.boxed_unsync())
    }
}

/// A body that breaks off when its visitor may have it no more.
struct VisitorBody {
    body: Body,
    end: Pin<Box<WaitForCancellationFutureOwned>>,
    _open: OpenAnswer,
}

impl HttpBody for VisitorBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match self.end.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err(Error::denied("the key is good here no more")))),
            Poll::Pending => Pin::new(&mut self.body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
