//! Objects whose keys are no paths (`a//b`, a slash at an end): the cache has no name for them, so their
//! bytes come from the object store each time, piece by piece, all of one version.

use super::endpoint::Endpoint;
use super::request::Named;
use crate::objects::{Scope, StreamMemory};
use bytes::Bytes;
use forebay_dataset::source::{ObjectStoreRequest, normalise_object};
use forebay_proto::object::ObjectVersion;
use forebay_proto::{Error, Result};
use http::Method;
use http::header::{HeaderMap, HeaderValue, IF_MATCH, RANGE};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are asked for at once.
const PIECE_BYTES: u64 = 512 << 10;

/// The URI of a key, if the cache can name it.
pub fn uri_of(named: &Named) -> Option<String> {
    let uri = format!("s3://{}/{}", named.bucket, named.key);
    normalise_object(&uri).is_ok_and(|normal| normal == uri).then_some(uri)
}

/// The version of now, which the object store is asked for.
pub async fn version(endpoint: &Arc<Endpoint>, named: &Named) -> Result<Arc<ObjectVersion>> {
    let uri = format!("s3://{}/{}", named.bucket, named.key);
    let ask = || ask_version(endpoint.clone(), named.bucket.clone(), named.key.clone());
    endpoint.node.objects.uncached_version(&uri, ask).await
}

async fn ask_version(endpoint: Arc<Endpoint>, bucket: String, key: String) -> Result<Arc<ObjectVersion>> {
    let uri = format!("s3://{bucket}/{key}");
    let request = ObjectStoreRequest {
        method: Method::HEAD,
        bucket,
        key,
        query: Vec::new(),
        headers: HeaderMap::from_iter([(
            http::HeaderName::from_static("x-amz-checksum-mode"),
            HeaderValue::from_static("ENABLED"),
        )]),
    };
    let answer = endpoint.node.objects.ask(&request, Scope::Key).await?;
    match answer.status {
        200 => answer.object(uri).map(Arc::new),
        404 => Err(Error::not_found(format!("{uri}: no such object"))),
        status => Err(Error::denied(format!("{uri}: the object store says {status}"))),
    }
}

/// Bytes of a version, as they come.
pub struct UncachedPieces {
    endpoint: Arc<Endpoint>,
    named: Named,
    if_match: HeaderValue,
    rest: Range<u64>,
    _memory: StreamMemory,
}

impl UncachedPieces {
    /// Waits until there is memory for what travels.
    pub async fn new(
        endpoint: &Arc<Endpoint>,
        named: &Named,
        version: &ObjectVersion,
        range: Range<u64>,
    ) -> Result<Self> {
        let if_match = HeaderValue::try_from(format!("\"{}\"", version.etag))
            .map_err(|_| Error::invalid(format!("{}: its ETag is none", version.uri)))?;
        let memory = endpoint.node.stalls.looking(endpoint.node.objects.stream_memory(&version.uri)).await?;
        Ok(Self { endpoint: endpoint.clone(), named: named.clone(), if_match, rest: range, _memory: memory })
    }

    /// How many bytes come next.
    pub fn next_bytes(&self) -> u64 {
        (self.rest.end - self.rest.start).min(PIECE_BYTES)
    }

    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (start, end) = (self.rest.start, self.rest.start + self.next_bytes());
        let range = HeaderValue::try_from(format!("bytes={start}-{}", end - 1));
        let range = range.map_err(|e| Error::invalid(e.to_string()))?;
        let Named { bucket, key, .. } = &self.named;
        let request = ObjectStoreRequest {
            method: Method::GET,
            bucket: bucket.clone(),
            key: key.clone(),
            query: Vec::new(),
            headers: HeaderMap::from_iter([(RANGE, range), (IF_MATCH, self.if_match.clone())]),
        };
        let answer = self.endpoint.node.objects.ask(&request, Scope::Key).await?;
        let has_all = answer.status == 206 && answer.body.len() as u64 == end - start;
        if !has_all {
            return Err(match answer.status {
                404 | 412 => {
                    Error::changed(format!("s3://{bucket}/{key}: was overwritten while it was read"))
                }
                status => {
                    Error::retry(format!("s3://{bucket}/{key}: the object store answers {status} to a range"))
                }
            });
        }
        self.rest.start = end;
        Ok(Some(answer.body))
    }
}
