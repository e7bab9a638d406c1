//! GET and HEAD of an object.

use super::conditions::{self, Verdict};
use super::endpoint::{Body, Endpoint, empty};
use super::refusal::{Answer, S3Refusal};
use super::request::Named;
use super::store;
use super::uncached::{self, UncachedPieces};
use super::visitor::Visitor;
use crate::auth::limiter::Limiter;
use crate::objects::{MissingAge, ObjectStream, Scope};
use crate::service::fetch_limit::toll;
use crate::service::gate::{GatePermit, draining};
use crate::service::meter::StreamMeter;
use bytes::Bytes;
use forebay_proto::object::ObjectVersion;
use forebay_proto::{Error, Kind, Result};
use futures::{StreamExt as _, stream};
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH,
    CONTENT_RANGE, CONTENT_TYPE, ETAG, EXPIRES, HeaderMap, HeaderName, HeaderValue, LAST_MODIFIED,
};
use http::{Method, Response, StatusCode, request as head};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Parameters that change headers of the answer.
const OVERRIDES: [(&str, HeaderName); 6] = [
    ("response-cache-control", CACHE_CONTROL),
    ("response-content-disposition", CONTENT_DISPOSITION),
    ("response-content-encoding", CONTENT_ENCODING),
    ("response-content-language", CONTENT_LANGUAGE),
    ("response-content-type", CONTENT_TYPE),
    ("response-expires", EXPIRES),
];

/// Headers that say something of a body, of which a 304 has none.
const OF_A_BODY: [HeaderName; 5] =
    [ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE];

/// Headers that say what the checksum of the whole object is.
const CHECKSUM: &str = "x-amz-checksum-";

/// How often an object is looked up that is overwritten before its first byte has come.
const TRIES: u32 = 3;

const PARTS_MAX: u32 = 10_000;

/// An object in one version, and the part of it that is wanted.
struct Target {
    version: Arc<ObjectVersion>,
    /// Its URI can be a name in the cache.
    is_cached: bool,
    part: Option<Part>,
}

/// A part of an object that was uploaded in parts.
struct Part {
    range: Range<u64>,
    /// How many the object has.
    count: Option<String>,
}

/// Answers a GET or a HEAD.
pub async fn answer(
    endpoint: &Arc<Endpoint>,
    head: &head::Parts,
    named: &Named,
    visitor: &Visitor,
) -> Answer<Response<Body>> {
    let part = part_number(head, named)?;
    if visitor.is_anonymous() && OVERRIDES.iter().any(|(name, _)| named.has(name)) {
        let why = "Request specific response headers cannot be used for anonymous GET requests.";
        return Err(S3Refusal::bad("InvalidRequest", why));
    }
    let mut tries = 0;
    loop {
        tries += 1;
        let (version, is_cached) = match find(endpoint, named).await {
            Ok(found) => found,
            Err(e) if e.kind == Kind::NotFound && head.method == Method::GET => {
                return store::missing_key(endpoint, named).await;
            }
            Err(e) => return Err(e.into()),
        };
        let answered = match find_part(endpoint, named, part, &version).await {
            Ok(part) => of(endpoint, head, named, Target { version, is_cached, part }, visitor).await?,
            Err(e) => Err(e),
        };
        match answered {
            Ok(response) => return Ok(response),
            Err(e) if e.kind == Kind::Changed && tries < TRIES => {}
            Err(e) if e.kind == Kind::NotFound && part.is_some() => {
                return store::missing_part(endpoint, head, named).await;
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// The part that is asked for, if one is.
fn part_number(head: &head::Parts, named: &Named) -> Answer<Option<u32>> {
    let Some(text) = named.parameter("partNumber") else { return Ok(None) };
    if head.headers.contains_key(http::header::RANGE) {
        let why = "Cannot specify both Range header and partNumber query parameter.";
        return Err(S3Refusal::bad("InvalidRequest", why));
    }
    match text.parse::<u32>().ok().filter(|number| (1..=PARTS_MAX).contains(number)) {
        Some(number) => Ok(Some(number)),
        None => {
            let why = "Part number must be an integer between 1 and 10000, inclusive";
            Err(S3Refusal::bad("InvalidArgument", why).with("ArgumentName", "partNumber"))
        }
    }
}

/// The version of now, and whether its URI can be a name in the cache.
async fn find(endpoint: &Arc<Endpoint>, named: &Named) -> Result<(Arc<ObjectVersion>, bool)> {
    Ok(match uncached::uri_of(named) {
        Some(uri) => (endpoint.node.objects.version(&uri, MissingAge::Second).await?, true),
        None => (uncached::version(endpoint, named).await?, false),
    })
}

/// Where a part lies, if one is asked for: only the object store knows. `None` if it does not tell.
async fn find_part(
    endpoint: &Endpoint,
    named: &Named,
    number: Option<u32>,
    version: &ObjectVersion,
) -> Result<Option<Part>> {
    let Some(number) = number else { return Ok(None) };
    let query = vec![("partNumber".to_owned(), number.to_string())];
    let request = forebay_dataset::source::ObjectStoreRequest {
        method: Method::HEAD,
        bucket: named.bucket.clone(),
        key: named.key.clone(),
        query,
        headers: HeaderMap::new(),
    };
    let answer = endpoint.node.objects.ask(&request, Scope::Key).await?;
    if answer.status >= 400 {
        // The caller asks for its words.
        return Err(Error::not_found(format!("{}: has no part {number}", version.uri)));
    }
    if answer.header(ETAG.as_str()).is_some_and(|tag| tag.trim_matches('"') != &*version.etag) {
        endpoint.node.objects.outdated(version).await;
        return Err(Error::changed(format!("{}: was overwritten while it was read", version.uri)));
    }
    let range = answer.header(CONTENT_RANGE.as_str()).and_then(|text| {
        let (range, _) = text.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        Some(first.parse::<u64>().ok()?..last.parse::<u64>().ok()?.checked_add(1)?)
    });
    let range = range.filter(|range| version.check_range(range).is_ok());
    let count = answer.header("x-amz-mp-parts-count").map(str::to_owned);
    Ok(range.map(|range| Part { range, count }))
}

/// The answer for one version; an inner error is one before the first byte.
async fn of(
    endpoint: &Arc<Endpoint>,
    head: &head::Parts,
    named: &Named,
    target: Target,
    visitor: &Visitor,
) -> Answer<Result<Response<Body>>> {
    let Target { version, is_cached, part } = target;
    check_version(named, &version)?;
    let verdict = conditions::check(&head.headers, &version)?;
    let range = match &part {
        Some(part) => Some(part.range.clone()),
        None => conditions::range(&head.headers, &version)?,
    };
    let is_whole = range.is_none();
    let mut response = Response::new(empty());
    *response.headers_mut() = described(head, named, &version, is_whole);
    if verdict == Verdict::NotModified {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        for name in OF_A_BODY {
            response.headers_mut().remove(name);
        }
        return Ok(Ok(response));
    }
    if let Some(range) = &range {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        let text = format!("bytes {}-{}/{}", range.start, range.end - 1, version.size);
        insert(response.headers_mut(), CONTENT_RANGE, &text);
    }
    if let Some(count) = part.and_then(|part| part.count) {
        insert(response.headers_mut(), HeaderName::from_static("x-amz-mp-parts-count"), &count);
    }
    let range = range.unwrap_or(0..version.size);
    response.headers_mut().insert(CONTENT_LENGTH, (range.end - range.start).into());
    if head.method == Method::HEAD || range.is_empty() {
        return Ok(Ok(response));
    }
    let body = async {
        let pieces = match is_cached {
            true => {
                let ranges = vec![range.clone()];
                let read = endpoint.node.objects.read(version.clone(), ranges);
                let stream = endpoint.node.stalls.looking(read).await?.lending();
                let stream = stream.paying(toll(visitor.limiter()));
                let (hot, events) = (endpoint.node.hot.clone(), endpoint.node.events.clone());
                let meter = StreamMeter::of_object(hot, events, version).limited(visitor.limiter());
                Pieces::Cached(Box::new((stream, meter)))
            }
            false => Pieces::Uncached(UncachedPieces::new(endpoint, named, &version, range.clone()).await?),
        };
        let permit = endpoint.node.gate.enter()?.limited(visitor.limiter())?;
        let limiter = visitor.limiter().cloned();
        let body = ObjectBody { endpoint: endpoint.clone(), pieces, permit, limiter };
        begin(body, range.end - range.start).await
    };
    Ok(body.await.map(|body| response.map(|_| body)))
}

/// `versionId` may name the version that there is.
fn check_version(named: &Named, version: &ObjectVersion) -> Answer<()> {
    match named.parameter("versionId") {
        Some(id) if id != version.header("x-amz-version-id").unwrap_or("null") => {
            Err(S3Refusal::unknown("versionId"))
        }
        _ => Ok(()),
    }
}

/// The headers that say what the object is.
fn described(head: &head::Parts, named: &Named, version: &ObjectVersion, is_whole: bool) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(16);
    let tells_checksum = is_whole
        && head
            .headers
            .get("x-amz-checksum-mode")
            .is_some_and(|mode| mode.as_bytes().eq_ignore_ascii_case(b"enabled"));
    for (name, value) in version.headers() {
        if (tells_checksum || !name.starts_with(CHECKSUM))
            && let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name), HeaderValue::from_bytes(value.as_bytes()))
        {
            headers.append(name, value);
        }
    }
    insert(&mut headers, ETAG, &format!("\"{}\"", version.etag));
    insert(&mut headers, LAST_MODIFIED, &httpdate::fmt_http_date(conditions::modified(version)));
    for (parameter, name) in OVERRIDES {
        if let Some(value) = named.parameter(parameter) {
            insert(&mut headers, name, value);
        }
    }
    headers
}

/// A value that no header can have is left out.
fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
        headers.insert(name, value);
    }
}

/// Where an answer's bytes come from: the cache, or the object store past it.
enum Pieces {
    Cached(Box<(ObjectStream, StreamMeter)>),
    Uncached(UncachedPieces),
}

/// A body that is being sent.
struct ObjectBody {
    endpoint: Arc<Endpoint>,
    pieces: Pieces,
    permit: GatePermit,
    limiter: Option<Arc<Limiter>>,
}

impl ObjectBody {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        let (node, pieces, limiter) = (&self.endpoint.node, &mut self.pieces, &self.limiter);
        let next = async {
            match pieces {
                Pieces::Cached(cached) => {
                    let (stream, meter) = &mut **cached;
                    let piece = stream.next().await;
                    let piece = node.objects.noting_change(&stream.version, piece).await?;
                    let Some(piece) = piece else { return Ok(None) };
                    meter.send_piece(&piece).await;
                    Ok(Some(piece.bytes))
                }
                Pieces::Uncached(pieces) => {
                    if let Some(toll) = toll(limiter.as_ref()) {
                        toll(pieces.next_bytes()).await;
                    }
                    let Some(bytes) = pieces.next().await? else { return Ok(None) };
                    node.hot.throttle(bytes.len() as u64).await;
                    if let Some(limiter) = limiter {
                        limiter.send(bytes.len() as u64).await;
                    }
                    node.events.bytes_served.fetch_add(bytes.len() as u64, Relaxed);
                    Ok(Some(bytes))
                }
            }
        };
        tokio::select! {
            biased;
            () = self.permit.end.cancelled() => Err(draining()),
            piece = next => piece,
        }
    }
}

/// The body, once its first bytes are there: until then another answer is possible.
async fn begin(mut sending: ObjectBody, length: u64) -> Result<Body> {
    let first = sending.next().await?.unwrap_or_default();
    if first.len() as u64 == length {
        return Ok(Full::new(first).map_err(|never| match never {}).boxed_unsync());
    }
    let rest = stream::unfold(Some(sending), |sending| async move {
        let mut sending = sending?;
        let next = sending.next().await.transpose()?;
        if let Err(e) = &next {
            // The connection ends: the client sees that bytes are missing.
            tracing::debug!(error = %e, "an answer to an S3 client breaks off");
        }
        let rest = next.is_ok().then_some(sending);
        Some((next, rest))
    });
    let pieces = stream::once(async move { Ok(first) }).chain(rest);
    Ok(StreamBody::new(pieces.map(|piece| piece.map(Frame::data))).boxed_unsync())
}
