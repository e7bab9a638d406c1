//! What a request is, and who answers it.

use super::endpoint::{Body, Endpoint, empty, now};
use super::refusal::{Answer, S3Refusal};
use super::request::Named;
use super::visitor::Visitor;
use super::{object, store};
use crate::auth::calls::S3Operation;
use crate::service::http1::has_body;
use crate::service::stalls::StreamOrigin;
use http::header::HeaderValue;
use http::{Method, Request, Response, StatusCode, request as head};
use http_body_util::BodyExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Parameters of a bucket that ask for something else than its objects.
const BUCKET_RESOURCES: [&str; 25] = [
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "lifecycle",
    "logging",
    "metadataConfiguration",
    "metadataTable",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "replication",
    "requestPayment",
    "session",
    "tagging",
    "uploads",
    "versions",
    "website",
];

/// The same of an object.
const OBJECT_RESOURCES: [&str; 9] =
    ["acl", "legal-hold", "restore", "retention", "select", "tagging", "torrent", "uploadId", "uploads"];

/// Answers a request, whatever it is.
pub async fn answer<B>(endpoint: &Arc<Endpoint>, request: Request<B>) -> Response<Body> {
    let request_id = format!("{:016X}", fastrand::u64(..));
    let head = request.into_parts().0;
    let answered = try_answer(endpoint, &head).await;
    let events = &endpoint.node.events;
    events.gateway_requests.fetch_add(1, Relaxed);
    let mut response = answered.unwrap_or_else(|refusal| {
        events.gateway_refused.fetch_add(1, Relaxed);
        tracing::debug!(method = %head.method, path = head.uri.path(), code = refusal.code, request_id, "an S3 client is refused");
        let response = refusal.response(head.uri.path(), &request_id);
        response.map(|body| match head.method == Method::HEAD {
            true => empty(),
            false => body.map_err(|never| match never {}).boxed_unsync(),
        })
    });
    if let Ok(id) = HeaderValue::try_from(request_id) {
        response.headers_mut().insert("x-amz-request-id", id);
    }
    response
}

async fn try_answer(endpoint: &Arc<Endpoint>, head: &head::Parts) -> Answer<Response<Body>> {
    check_method(head)?;
    let named = Named::of(head, &endpoint.domains)?;
    let signer = endpoint.signatures.check(head, &named, now())?;
    let (operation, origin) = (operation(head, &named), head.extensions.get::<StreamOrigin>());
    let visitor = Visitor::of(endpoint, signer, operation, origin).await?;
    let answered = answer_visitor(endpoint, head, &named, &visitor).await;
    endpoint.node.guard.note_denial(&visitor.caller, operation.name(), origin).await;
    let cut = origin.map(|origin| origin.cut.clone()).unwrap_or_default();
    answered.map(|response| visitor.guarded(response, cut))
}

/// What a request asks for.
fn operation(head: &head::Parts, named: &Named) -> S3Operation {
    let is_head = head.method == Method::HEAD;
    match (named.bucket.is_empty(), named.key.is_empty()) {
        (true, _) => S3Operation::ListBuckets,
        (false, true) if is_head => S3Operation::HeadBucket,
        (false, true) if named.has("location") => S3Operation::GetBucketLocation,
        (false, true) => S3Operation::ListObjects,
        (false, false) if named.has("attributes") => S3Operation::GetObjectAttributes,
        (false, false) if is_head => S3Operation::HeadObject,
        (false, false) => S3Operation::GetObject,
    }
}

async fn answer_visitor(
    endpoint: &Arc<Endpoint>,
    head: &head::Parts,
    named: &Named,
    visitor: &Visitor,
) -> Answer<Response<Body>> {
    let headers = &head.headers;
    let is_encrypted =
        headers.keys().any(|name| name.as_str().starts_with("x-amz-server-side-encryption-customer"));
    if is_encrypted {
        return Err(S3Refusal::bad("InvalidRequest", "Keys of the customer are not for this endpoint."));
    }
    if headers.contains_key("x-amz-expected-bucket-owner") {
        return Err(S3Refusal::unknown("x-amz-expected-bucket-owner"));
    }
    match (named.bucket.is_empty(), named.key.is_empty()) {
        (true, _) => store::buckets(endpoint, visitor),
        (false, true) => {
            check_resources(named, &BUCKET_RESOURCES)?;
            store::bucket(endpoint, head, named, visitor).await
        }
        (false, false) => {
            check_resources(named, &OBJECT_RESOURCES)?;
            let (bucket, key) = (named.bucket.as_str(), named.key.as_str());
            let (is_public, uri) = (endpoint.public.allows_key(bucket, key), format!("s3://{bucket}/{key}"));
            visitor.check(is_public, &uri, |caller| caller.allows_key(bucket, key))?;
            match named.has("attributes") {
                true => store::attributes(endpoint, head, named).await,
                false => object::answer(endpoint, head, named, visitor).await,
            }
        }
    }
}

/// Only GET and HEAD, and those without a body.
fn check_method(head: &head::Parts) -> Answer<()> {
    let has_body = has_body(&head.headers);
    let refusal = match head.method {
        Method::GET | Method::HEAD if !has_body => return Ok(()),
        Method::GET | Method::HEAD => S3Refusal::bad("InvalidRequest", "A request that reads has no body."),
        Method::PUT | Method::POST | Method::DELETE | Method::PATCH => S3Refusal::denied(
            "AccessDenied",
            "This endpoint is a cache that only reads: write to the object store itself.",
        ),
        _ => {
            let why = "The specified method is not allowed against this resource.";
            S3Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", why)
        }
    };
    Err(S3Refusal { closes: has_body, ..refusal })
}

fn check_resources(named: &Named, resources: &[&str]) -> Answer<()> {
    match named.query.iter().find(|(name, _)| resources.contains(&name.as_str())) {
        Some((name, _)) => Err(S3Refusal::unknown(name)),
        None => Ok(()),
    }
}
