//! The metadata service of an instance (IMDSv2): a token by PUT, then the role's name and its keys by GET.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode};

use crate::harness::serve::ResponseBody;

const TOKEN: &str = "/latest/api/token";
const TOKEN_VALUE: &str = "token-of-the-instance";
const LIFETIME: &str = "x-aws-ec2-metadata-token-ttl-seconds";
const ROLES: &str = "/latest/meta-data/iam/security-credentials/";
const ROLE: &str = "reader";

/// The answer to a request for metadata, with the document that `keys` makes; none if it is another request.
/// Without the token there are no keys.
pub(super) fn answer(
    request: &Request<Incoming>,
    keys: impl FnOnce() -> String,
) -> Option<Response<ResponseBody>> {
    let path = request.uri().path();
    if request.method() == Method::PUT && path == TOKEN {
        let Some(lifetime) = request.headers().get(LIFETIME) else {
            return Some(say(StatusCode::BAD_REQUEST, String::new()));
        };
        let mut response = say(StatusCode::OK, TOKEN_VALUE.to_owned());
        response.headers_mut().insert(LIFETIME, lifetime.clone());
        return Some(response);
    }
    let role = path.strip_prefix(ROLES)?;
    let token = request.headers().get("x-aws-ec2-metadata-token").map(HeaderValue::as_bytes);
    Some(match role {
        _ if token != Some(TOKEN_VALUE.as_bytes()) => say(StatusCode::UNAUTHORIZED, String::new()),
        "" => say(StatusCode::OK, ROLE.to_owned()),
        ROLE => say(StatusCode::OK, keys()),
        _ => say(StatusCode::NOT_FOUND, String::new()),
    })
}

fn say(status: StatusCode, body: String) -> Response<ResponseBody> {
    let mut response =
        Response::new(Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
}
