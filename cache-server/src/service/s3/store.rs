//! What the object store answers itself: listings, whether and where a bucket is, an object's attributes. Its
//! words are passed on as they are, but for refusals of the node's own keys.

use super::endpoint::{Body, Endpoint, empty};
use super::refusal::{Answer, S3Refusal, escaped};
use super::request::Named;
use super::visitor::Visitor;
use crate::objects::{Scope, StreamMemory};
use bytes::Bytes;
use chrono::SecondsFormat;
use forebay_dataset::source::{ObjectStoreAnswer, ObjectStoreRequest};
use http::header::{CONTENT_TYPE, HeaderName, RANGE};
use http::{HeaderMap, Method, Response, StatusCode, request as head};
use http_body_util::{BodyExt as _, Full};

/// Parameters of a listing.
const LISTING: [&str; 9] = [
    "continuation-token",
    "delimiter",
    "encoding-type",
    "fetch-owner",
    "list-type",
    "marker",
    "max-keys",
    "prefix",
    "start-after",
];

/// Bytes of a parameter of a listing at most: a key, each byte of it escaped.
const PARAMETER_BYTES_MAX: usize = 4096;

const ATTRIBUTES: [HeaderName; 3] = [
    HeaderName::from_static("x-amz-object-attributes"),
    HeaderName::from_static("x-amz-max-parts"),
    HeaderName::from_static("x-amz-part-number-marker"),
];

/// Headers of the object store's answers that are the caller's business.
const PASSED_ON: [&str; 4] = ["content-type", "last-modified", "x-amz-bucket-region", "x-amz-version-id"];

/// The refusals of the object store that are about the node's own keys, clock and region.
const OURS: [&str; 8] = [
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "PermanentRedirect",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "TemporaryRedirect",
];

/// An answer with the memory that it takes.
struct HeldAnswer {
    body: Bytes,
    _memory: StreamMemory,
}

impl AsRef<[u8]> for HeldAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// The buckets of which something may be read.
pub fn buckets(endpoint: &Endpoint, visitor: &Visitor) -> Answer<Response<Body>> {
    visitor.check(false, "", |_| true)?;
    let created = endpoint.started.to_rfc3339_opts(SecondsFormat::Millis, true);
    let bucket = |name: &String| {
        format!("<Bucket><Name>{}</Name><CreationDate>{created}</CreationDate></Bucket>", escaped(name))
    };
    let names = visitor.caller.buckets().unwrap_or_else(|| endpoint.node.objects.buckets());
    let all: String = names.iter().map(bucket).collect();
    let xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListAllMyBucketsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
         <Owner><ID>forebay</ID><DisplayName>forebay</DisplayName></Owner><Buckets>{all}</Buckets></ListAllMyBucketsResult>"
    );
    let mut response = Response::new(whole(xml.into()));
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/xml"));
    Ok(response)
}

/// Whether a bucket is there, where it is, or a page of its objects.
pub async fn bucket(
    endpoint: &Endpoint,
    head: &head::Parts,
    named: &Named,
    visitor: &Visitor,
) -> Answer<Response<Body>> {
    let (objects, bucket) = (&endpoint.node.objects, &named.bucket);
    let is_listing = head.method == Method::GET && !named.has("location");
    if is_listing {
        if named.has("versioning") {
            return Err(S3Refusal::unknown("versioning"));
        }
        check_listing(named)?;
        let prefix = named.parameter("prefix").unwrap_or_default();
        let (is_public, uri) =
            (endpoint.public.allows_prefix(bucket, prefix), format!("s3://{bucket}/{prefix}"));
        visitor.check(is_public, &uri, |caller| caller.allows_prefix(bucket, prefix))?;
    } else {
        let (is_public, uri) = (endpoint.public.allows_bucket(bucket), format!("s3://{bucket}"));
        visitor.check(is_public, &uri, |caller| caller.allows_bucket(bucket))?;
    }
    let passed = |(name, _): &&(String, String)| match is_listing {
        true => LISTING.contains(&name.as_str()),
        false => name == "location" && head.method == Method::GET,
    };
    let query = named.query.iter().filter(passed).cloned().collect();
    let request = request(head, named, query, HeaderMap::new());
    let scope = if is_listing { Scope::Listing } else { Scope::Bucket };
    // One of these may hold megabytes.
    let _turn = objects.listings.acquire().await;
    let answer = objects.ask(&request, scope).await.map_err(|e| bucket_refusal(e.into(), bucket))?;
    relay(endpoint, answer).await
}

fn bucket_refusal(refusal: S3Refusal, bucket: &str) -> S3Refusal {
    match refusal.code {
        "NoSuchKey" => {
            let why = "The specified bucket does not exist";
            S3Refusal::new(StatusCode::NOT_FOUND, "NoSuchBucket", why).with("BucketName", bucket)
        }
        _ => refusal,
    }
}

/// Parts, checksum and so on of an object.
pub async fn attributes(endpoint: &Endpoint, head: &head::Parts, named: &Named) -> Answer<Response<Body>> {
    if head.method != Method::GET || named.has("versionId") {
        return Err(S3Refusal::unknown("attributes"));
    }
    let mut headers = HeaderMap::new();
    for name in ATTRIBUTES {
        for value in head.headers.get_all(&name) {
            headers.append(&name, value.clone());
        }
    }
    let request = request(head, named, vec![("attributes".into(), String::new())], headers);
    let _turn = endpoint.node.objects.listings.acquire().await;
    let answer = endpoint.node.objects.ask(&request, Scope::Key).await?;
    relay(endpoint, answer).await
}

/// The object store's own refusal of a key that is not there. It is asked for once a second.
pub async fn missing_key(endpoint: &Endpoint, named: &Named) -> Answer<Response<Body>> {
    let (bucket, key) = (named.bucket.clone(), named.key.clone());
    // Should it be there now, a byte of it is enough to know.
    let headers = HeaderMap::from_iter([(RANGE, http::HeaderValue::from_static("bytes=0-0"))]);
    let request = ObjectStoreRequest { method: Method::GET, bucket, key, query: Vec::new(), headers };
    let answer = endpoint.node.objects.ask_of_missing(request).await?;
    refusal(endpoint, answer).await
}

/// The object store's own refusal of a part that an object has not.
pub async fn missing_part(endpoint: &Endpoint, head: &head::Parts, named: &Named) -> Answer<Response<Body>> {
    let part = named.query.iter().filter(|(name, _)| name == "partNumber").cloned().collect();
    let _turn = endpoint.node.objects.listings.acquire().await;
    let request = request(head, named, part, HeaderMap::new());
    refusal(endpoint, endpoint.node.objects.ask(&request, Scope::Key).await?).await
}

async fn refusal(endpoint: &Endpoint, answer: ObjectStoreAnswer) -> Answer<Response<Body>> {
    match answer.status {
        400..500 => relay(endpoint, answer).await,
        _ => Err(S3Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "SlowDown",
            "The object has just come: ask again.",
        )),
    }
}

/// A request for the bucket or key that is named, in the method of the caller's.
pub fn request(
    head: &head::Parts,
    named: &Named,
    query: Vec<(String, String)>,
    headers: HeaderMap,
) -> ObjectStoreRequest {
    let (method, bucket, key) = (head.method.clone(), named.bucket.clone(), named.key.clone());
    ObjectStoreRequest { method, bucket, key, query, headers }
}

fn check_listing(named: &Named) -> Answer<()> {
    for (n, (name, value)) in named.query.iter().enumerate() {
        if !LISTING.contains(&name.as_str()) {
            continue;
        }
        let argument = |why: &str| {
            let refusal = S3Refusal::bad("InvalidArgument", why);
            Err(refusal
                .with("ArgumentName", name.as_str())
                .with("ArgumentValue", value.chars().take(100).collect::<String>()))
        };
        if named.query[..n].iter().any(|(other, _)| other == name) {
            return argument("A parameter is there twice.");
        }
        if value.len() > PARAMETER_BYTES_MAX {
            return argument("A parameter is too long.");
        }
        match name.as_str() {
            "max-keys" if value.parse::<i32>().is_err() => {
                return argument("Provided max-keys not an integer or within integer range");
            }
            "max-keys" if value.starts_with('-') => {
                return argument("Argument maxKeys must be an integer between 0 and 2147483647");
            }
            "encoding-type" if value != "url" => {
                return argument("Invalid Encoding Method specified in Request");
            }
            "list-type" if value != "2" => return argument("Invalid list type"),
            _ => {}
        }
    }
    Ok(())
}

/// The object store's answer as ours. Its memory counts until the client has taken it.
async fn relay(endpoint: &Endpoint, answer: ObjectStoreAnswer) -> Answer<Response<Body>> {
    let (status, text) =
        (answer.status, String::from_utf8_lossy(&answer.body[..answer.body.len().min(4096)]));
    let is_ours = status == 403 || (300..400).contains(&status) && status != 304 || is_error(&text, &OURS);
    if is_ours && status != 200 {
        tracing::debug!(status, answer = %text, "the object store refuses this node");
        return Err(S3Refusal::denied("AccessDenied", "Access Denied"));
    }
    let memory = endpoint.node.objects.answer_memory(answer.body.len() as u64).await?;
    let body = Bytes::from_owner(HeldAnswer { body: answer.body, _memory: memory });
    let mut response = Response::new(whole(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    for name in PASSED_ON {
        if let Some(value) = answer.headers.get(name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    Ok(response)
}

fn is_error(text: &str, codes: &[&str]) -> bool {
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    code.is_some_and(|(code, _)| codes.contains(&code))
}

fn whole(body: Bytes) -> Body {
    match body.is_empty() {
        true => empty(),
        false => Full::new(body).map_err(|never| match never {}).boxed_unsync(),
    }
}
