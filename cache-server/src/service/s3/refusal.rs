//! Refusals, as S3 says them.

use crate::auth::private_words::is_private;
use bytes::Bytes;
use forebay_proto::{Error, Kind};
use http::header::{CONNECTION, CONTENT_RANGE, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::Full;
use std::fmt::Write as _;

/// A refusal: an error document with a status.
#[derive(Debug, Clone)]
pub struct S3Refusal {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    /// More elements of the document.
    pub details: Vec<(&'static str, String)>,
    /// The size of an object of which a range is not there.
    pub size: Option<u64>,
    /// The connection ends after the answer: what the client still sends is not read.
    pub closes: bool,
}

pub type Answer<T> = std::result::Result<T, S3Refusal>;

impl S3Refusal {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), details: Vec::new(), size: None, closes: false }
    }

    /// 400: the request is wrong.
    pub fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// 403: the caller may not.
    pub fn denied(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code, message)
    }

    /// 501: nobody does this here.
    pub fn unknown(what: &str) -> Self {
        let message = format!("A header or a parameter asks for what this endpoint does not do: {what}");
        Self::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
    }

    /// 412: the object does not meet the condition.
    pub fn precondition(condition: &str) -> Self {
        let why = "At least one of the pre-conditions you specified did not hold";
        Self::new(StatusCode::PRECONDITION_FAILED, "PreconditionFailed", why).with("Condition", condition)
    }

    /// 416: an object of this size has nothing of the range.
    pub fn range(asked: &str, size: u64) -> Self {
        let why = "The requested range is not satisfiable";
        let refusal = Self::new(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange", why);
        let refusal = refusal.with("RangeRequested", asked).with("ActualObjectSize", size.to_string());
        Self { size: Some(size), ..refusal }
    }

    /// With one more element in the XML of the answer.
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.details.push((name, value.into()));
        self
    }

    /// The answer to a request for `resource`.
    pub fn response(&self, resource: &str, request_id: &str) -> Response<Full<Bytes>> {
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>");
        let code = [("Code", self.code), ("Message", &*self.message)];
        let details = self.details.iter().map(|(name, value)| (*name, &**value));
        let rest = [("Resource", resource), ("RequestId", request_id)];
        for (name, value) in code.into_iter().chain(details).chain(rest) {
            // Writing to a string does not fail.
            let _ = write!(xml, "<{name}>{}</{name}>", escaped(value));
        }
        xml.push_str("</Error>");
        let mut response = Response::new(Full::new(Bytes::from(xml)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.closes {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(range) = self.size.and_then(|size| HeaderValue::try_from(format!("bytes */{size}")).ok())
        {
            headers.insert(CONTENT_RANGE, range);
        }
        response
    }
}

impl From<Error> for S3Refusal {
    /// What a client is told of an error behind the endpoint. Where it is about the node and its object store
    /// the node's log has the words.
    fn from(e: Error) -> Self {
        let slow = |why: &str| Self::new(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", why);
        match e.kind {
            Kind::NotFound => {
                Self::new(StatusCode::NOT_FOUND, "NoSuchKey", "The specified key does not exist.")
            }
            Kind::Invalid if is_private(&e.message) => {
                tracing::info!(error = %e, "an S3 client is not told of the object store");
                let says = "The object store behind this endpoint refuses, or does not answer like S3";
                Self::bad("InvalidRequest", says)
            }
            Kind::Invalid => Self::bad("InvalidRequest", e.message),
            Kind::Denied => {
                tracing::debug!(error = %e, "an S3 client is refused");
                Self::denied("AccessDenied", "Access Denied")
            }
            Kind::Changed => slow("The object was overwritten while it was read: read it again."),
            Kind::Retry | Kind::Full | Kind::Closed => {
                tracing::debug!(error = %e, "an S3 client is told to come back");
                slow("Please reduce your request rate.")
            }
            Kind::Corrupt => {
                tracing::warn!(error = %e, "an object cannot be served to an S3 client");
                let why = "The object failed its checks; the node's log has the details.";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", why)
            }
        }
    }
}

/// Text as XML has it. Characters that XML does not have at all become `?`.
pub fn escaped(text: &str) -> String {
    let mut xml = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => xml.push_str("&amp;"),
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '"' => xml.push_str("&quot;"),
            '\t' | '\n' => xml.push(c),
            '\r' => xml.push_str("&#13;"),
            '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => xml.push('?'),
            _ => xml.push(c),
        }
    }
    xml
}
