//! Google Cloud Storage, Azure Blob Storage, AWS STS and the credentials of containers and instances, as far
//! as a reader asks for them: listings page by page, ranged and conditional GETs, and temporary keys. One
//! HTTP server on the loopback. It checks `If-Match`, who assumes a role ([`SOURCE_KEY`]), an instance's
//! token, and what requests for objects must carry, where a test says so ([`Required`]).
//!
//! It knows the services apart by the request: Azure's listings say `comp=list`, Google's `list-type=2`, and
//! STS is asked by POST. Who signs asks it for a role, who does not has a web identity.

mod instance;
mod listing;
mod required;

pub use required::Required;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_RANGE, ETAG, HeaderName, IF_MATCH, LAST_MODIFIED, RANGE};
use hyper::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;

use super::serve::{ResponseBody, Serving};
use listing::{MODIFIED, etag};

/// The path of the keys that a container is given, and that a program prints.
pub const KEYS: &str = "keys";

/// The id of the key that may assume a role.
pub const SOURCE_KEY: &str = "SOURCE";

/// Temporary keys, as STS gives them.
pub struct TemporaryKeys {
    /// The access key's id.
    pub id: String,
    /// Its secret.
    pub secret: String,
    /// How long it is valid.
    pub lifetime: Duration,
}

/// Makes the keys of each request to STS.
type Issue = Box<dyn Fn() -> TemporaryKeys + Send + Sync>;

/// What a server has, and how it answers.
#[derive(Default)]
struct CloudState {
    objects: BTreeMap<String, Bytes>,
    required: Required,
    /// How many requests for a path are still to be refused as too many.
    busy: HashMap<String, usize>,
}

/// A running server; stops when dropped.
pub struct CloudServer {
    /// `http://127.0.0.1:PORT`
    pub endpoint: String,
    state: Arc<Mutex<CloudState>>,
    _serving: Serving,
}

impl CloudServer {
    /// Starts a server without objects on a free port.
    pub fn start(issue: impl Fn() -> TemporaryKeys + Send + Sync + 'static) -> Self {
        let state = Arc::<Mutex<CloudState>>::default();
        let (served, issue): (_, Arc<Issue>) = (state.clone(), Arc::new(Box::new(issue)));
        let serving = Serving::start("cloud", move || {
            let (state, issue) = (served.clone(), issue.clone());
            Arc::new(move |request| {
                let answer = answer(&mut state.lock(), &issue, &request);
                Box::pin(async move { answer })
            })
        });
        let serving = serving.expect("start the cloud server");
        Self { endpoint: format!("http://{}", serving.address), state, _serving: serving }
    }

    /// Puts an object; `path` is its bucket or container, and its key.
    pub fn put(&self, path: &str, data: impl Into<Bytes>) {
        self.state.lock().objects.insert(path.to_owned(), data.into());
    }

    /// From now on requests for objects and listings are refused that do not carry this.
    pub fn require(&self, required: Required) {
        self.state.lock().required = required;
    }

    /// Refuses the next requests for a path by 503: those for an object, or for listings of a bucket.
    pub fn be_busy(&self, path: &str, times: usize) {
        self.state.lock().busy.insert(path.to_owned(), times);
    }

    /// How many of these refusals are still to come.
    pub fn busy_left(&self, path: &str) -> usize {
        self.state.lock().busy.get(path).copied().unwrap_or_default()
    }
}

fn answer(state: &mut CloudState, issue: &Issue, request: &Request<Incoming>) -> Response<ResponseBody> {
    if request.method() == Method::POST {
        return match signer(request) {
            None => text(StatusCode::OK, sts("AssumeRoleWithWebIdentity", &issue())),
            Some(SOURCE_KEY) => text(StatusCode::OK, sts("AssumeRole", &issue())),
            Some(_) => text(StatusCode::FORBIDDEN, refusal("AccessDenied")),
        };
    }
    if let Some(answer) = instance::answer(request, || document(&issue())) {
        return answer;
    }
    if let Some(token) = state.required.token(request) {
        return text(StatusCode::OK, token);
    }
    let path = decode(request.uri().path().trim_matches('/'));
    if path == KEYS {
        return text(StatusCode::OK, document(&issue()));
    }
    if let Some(left) = state.busy.get_mut(&path).filter(|left| **left > 0) {
        *left -= 1;
        return text(StatusCode::SERVICE_UNAVAILABLE, refusal("ServerBusy"));
    }
    if !state.required.is_met(request) {
        return text(StatusCode::FORBIDDEN, refusal("AuthenticationFailed"));
    }
    read(&state.objects, request, &path)
}

/// The answer to a request for an object or a listing.
fn read(
    objects: &BTreeMap<String, Bytes>,
    request: &Request<Incoming>,
    path: &str,
) -> Response<ResponseBody> {
    let query = request.uri().query().unwrap_or_default();
    let bucket = path.split('/').next().unwrap_or_default();
    let is_azure = query.contains("comp=list");
    if !objects.keys().any(|key| key.starts_with(&format!("{bucket}/"))) {
        let code = if is_azure { "ContainerNotFound" } else { "NoSuchBucket" };
        return text(StatusCode::NOT_FOUND, refusal(code));
    }
    if is_azure || query.contains("list-type=2") {
        return text(StatusCode::OK, listing::page(objects, bucket, query, is_azure));
    }
    let Some(data) = objects.get(path) else {
        return text(StatusCode::NOT_FOUND, refusal("NoSuchKey"));
    };
    get(request, data)
}

/// A ranged, conditional GET.
fn get(request: &Request<Incoming>, data: &Bytes) -> Response<ResponseBody> {
    let header = |name: &HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok());
    let etag = etag(data);
    if header(&IF_MATCH).is_some_and(|wanted| wanted != etag) {
        return text(StatusCode::PRECONDITION_FAILED, refusal("ConditionNotMet"));
    }
    let range = header(&RANGE).and_then(|range| {
        let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some(first.parse::<usize>().ok()?..last.parse::<usize>().ok()?.saturating_add(1).min(data.len()))
    });
    let (status, range) = match range {
        Some(range) => (StatusCode::PARTIAL_CONTENT, range),
        None => (StatusCode::OK, 0..data.len()),
    };
    let Some(body) = data.get(range.clone()).filter(|body| !body.is_empty()) else {
        return text(StatusCode::RANGE_NOT_SATISFIABLE, refusal("InvalidRange"));
    };
    let mut response = Response::new(whole(Bytes::copy_from_slice(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(ETAG, etag.parse().expect("an ETag"));
    headers.insert(LAST_MODIFIED, MODIFIED.parse().expect("a date"));
    let content_range = format!("bytes {}-{}/{}", range.start, range.end - 1, data.len());
    headers.insert(CONTENT_RANGE, content_range.parse().expect("a range"));
    response
}

/// The id of the key by which a request is signed, if it is.
fn signer(request: &Request<Incoming>) -> Option<&str> {
    let header = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
    header.split_once("Credential=")?.1.split('/').next()
}

/// Keys in JSON, as instances and containers get them (`Token`), and as programs print them (`SessionToken`).
fn document(keys: &TemporaryKeys) -> String {
    let document = serde_json::json!({
        "Code": "Success",
        "Version": 1,
        "AccessKeyId": keys.id,
        "SecretAccessKey": keys.secret,
        "Token": "session",
        "SessionToken": "session",
        "Expiration": utc(keys.lifetime),
    });
    document.to_string()
}

fn sts(action: &str, keys: &TemporaryKeys) -> String {
    format!(
        "<{action}Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
         <{action}Result><Credentials><AccessKeyId>{}</AccessKeyId>\
         <SecretAccessKey>{}</SecretAccessKey><SessionToken>session</SessionToken>\
         <Expiration>{}</Expiration></Credentials>\
         <AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/r/s</Arn><AssumedRoleId>A:s</AssumedRoleId>\
         </AssumedRoleUser></{action}Result></{action}Response>",
        keys.id,
        keys.secret,
        utc(keys.lifetime)
    )
}

/// The time when `lifetime` has passed, as `2025-08-05T12:00:00Z` (days to dates: H. Hinnant,
/// "chrono-compatible low-level date algorithms").
#[expect(clippy::disallowed_methods, reason = "credentials expire at a time of day")]
fn utc(lifetime: Duration) -> String {
    let end = SystemTime::now() + lifetime;
    let seconds = end.duration_since(SystemTime::UNIX_EPOCH).expect("a time after 1970").as_secs();
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (date, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Without percent signs: Google's client encodes all but letters and digits.
fn decode(text: &str) -> String {
    let mut parts = text.split('%');
    let mut decoded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (code, rest) = part.split_at(part.len().min(2));
        decoded.push(u8::from_str_radix(code, 16).map_or('?', char::from));
        decoded.push_str(rest);
    }
    decoded
}

fn refusal(code: &str) -> String {
    format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>refused</Message></Error>")
}

fn text(status: StatusCode, body: String) -> Response<ResponseBody> {
    let mut response = Response::new(whole(Bytes::from(body)));
    *response.status_mut() = status;
    response
}

fn whole(bytes: Bytes) -> ResponseBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}
