//! Requests to an object store (S3) in its own words, for what a node answers as the object store does:
//! listings in all their forms, attributes, parts, keys that are no paths. Answers are short, and never of
//! more than [`BODY_BYTES_MAX`].

use super::described::Described;
use bytes::{Bytes, BytesMut};
use chrono::DateTime;
use forebay_proto::object::{BLOCK_BYTES, ObjectVersion, check_etag};
use forebay_proto::{Error, Result, v1};
use futures::TryStreamExt;
use http::header::{CONTENT_LENGTH, ETAG, LAST_MODIFIED};
use http::{HeaderMap, Method};
use object_store::aws::{AwsAuthorizer, AwsCredentialProvider};
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Bytes of an answer at most: 1000 keys of 1 KiB, each byte of them escaped, are not more.
pub const BODY_BYTES_MAX: u64 = 8 << 20;

/// What stays as it is in a URL, as AWS signs it.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PATH: &AsciiSet = &QUERY.remove(b'/');

/// A question to an object store, by the rules of S3.
#[derive(Debug, Clone)]
pub struct ObjectStoreRequest {
    /// GET or HEAD.
    pub method: Method,
    /// By its name.
    pub bucket: String,
    /// Empty: the bucket itself.
    pub key: String,
    /// Parameters, not escaped.
    pub query: Vec<(String, String)>,
    /// Of these, all are signed.
    pub headers: HeaderMap,
}

/// What the object store said, refusals too.
#[derive(Debug, Clone)]
pub struct ObjectStoreAnswer {
    /// The status code of HTTP.
    pub status: u16,
    /// As they came; that of the length only of a HEAD.
    pub headers: HeaderMap,
    /// Of 8 MiB at most.
    pub body: Bytes,
}

/// The way to a bucket.
pub(super) struct Verbatim {
    pub client: HttpClient,
    /// With the bucket, in the host's name or as the first part of the path.
    pub url: String,
    pub region: String,
    pub credentials: Option<AwsCredentialProvider>,
}

impl Verbatim {
    /// Asks once. No error is what the object store refuses; that it is busy is one.
    pub(super) async fn send(&self, wanted: &ObjectStoreRequest) -> object_store::Result<ObjectStoreAnswer> {
        let mut request = self.request(wanted)?;
        if let Some(credentials) = &self.credentials {
            let credential = credentials.get_credential().await?;
            AwsAuthorizer::new(&credential, "s3", &self.region).try_authorize(&mut request, None)?;
        }
        let (parts, body) = self.client.execute(request).await.map_err(generic)?.into_parts();
        let (status, mut headers) = (parts.status.as_u16(), parts.headers);
        let mut pieces = body.bytes_stream();
        let mut body = BytesMut::new();
        while let Some(piece) = pieces.try_next().await.map_err(generic)? {
            if (body.len() + piece.len()) as u64 > BODY_BYTES_MAX {
                return Err(generic(format!("its answer has more than {BODY_BYTES_MAX} bytes")));
            }
            body.extend_from_slice(&piece);
        }
        if matches!(status, 429 | 500 | 502..=504) {
            let text = String::from_utf8_lossy(&body[..body.len().min(4096)]).into_owned();
            return Err(generic(format!("Server returned non-2xx status code: {}: {text}", parts.status)));
        }
        if wanted.method != Method::HEAD {
            headers.remove(CONTENT_LENGTH);
        }
        Ok(ObjectStoreAnswer { status, headers, body: body.freeze() })
    }

    fn request(&self, wanted: &ObjectStoreRequest) -> object_store::Result<HttpRequest> {
        let mut url = format!("{}/{}", self.url, utf8_percent_encode(&wanted.key, PATH));
        for (n, (name, value)) in wanted.query.iter().enumerate() {
            url.push(if n == 0 { '?' } else { '&' });
            url.extend(utf8_percent_encode(name, QUERY));
            url.push('=');
            url.extend(utf8_percent_encode(value, QUERY));
        }
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = wanted.method.clone();
        *request.uri_mut() = url.parse().map_err(generic)?;
        *request.headers_mut() = wanted.headers.clone();
        Ok(request)
    }
}

impl ObjectStoreAnswer {
    /// The value of a header; `None` if there is none, or if it is no text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The version that the answer to a HEAD tells of. `Invalid` if it cannot be told from others.
    pub fn object(&self, uri: String) -> Result<ObjectVersion> {
        let etag = self.header(ETAG.as_str()).unwrap_or_default();
        let etag = etag.strip_prefix('"').and_then(|etag| etag.strip_suffix('"')).unwrap_or(etag);
        check_etag(etag).map_err(|e| e.context(&uri))?;
        let size = self.header(CONTENT_LENGTH.as_str()).and_then(|size| size.parse().ok());
        let size =
            size.ok_or_else(|| Error::invalid(format!("{uri}: the object store does not tell its size")))?;
        let modified =
            self.header(LAST_MODIFIED.as_str()).and_then(|at| DateTime::parse_from_rfc2822(at).ok());
        let wire = v1::ObjectVersion {
            uri,
            etag: etag.to_owned(),
            size,
            modified_ms: modified.map_or(0, |at| at.timestamp_millis()),
            block_bytes: BLOCK_BYTES,
            headers: Described::new(&self.headers).0,
        };
        wire.try_into()
    }
}

fn generic(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic { store: "S3", source: e.into() }
}
