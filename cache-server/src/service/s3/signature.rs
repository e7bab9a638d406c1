//! Signature Version 4, in the header or in the query: who asks, and whether the request is what was signed.
//!
//! The arithmetic is that of `aws-sigv4`. The signed text is put together here from the request as it came,
//! as AWS describes it ("Create a signed AWS API request"), whose examples are the tests. Version 2 is
//! refused.

mod canonical;
#[cfg(test)]
mod tests;

use super::refusal::{Answer, S3Refusal};
use super::request::Named;
use crate::settings::ClientKey;
use aws_sigv4::sign::v4::{calculate_signature, generate_signing_key};
use canonical::{hex_sha256, request_of};
use chrono::format::{Item, Parsed, StrftimeItems};
use chrono::{DateTime, Datelike, TimeDelta, Timelike, Utc};
use http::header::{AUTHORIZATION, DATE, HOST, HeaderMap};
use http::request;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use subtle::ConstantTimeEq as _;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// Of times, parsed once: that costs as much as a time itself.
static TIME: LazyLock<Vec<Item<'_>>> = LazyLock::new(|| StrftimeItems::new("%Y%m%dT%H%M%SZ").collect());

/// By how much a client's clock may be off.
const SKEW: TimeDelta = TimeDelta::minutes(15);

/// How long a signed URL may be good for, in seconds.
const EXPIRES_MAX: i64 = 604_800;

/// Bytes of a text that is signed, about.
const TEXT_BYTES: usize = 192;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signer {
    /// Somebody with the key of this id.
    Key(String),
    /// Somebody who signed nothing.
    Anonymous,
}

/// Checks signatures of AWS, version 4, made with the keys that the node was given.
pub struct Signatures {
    region: String,
    /// Secrets by id.
    keys: HashMap<String, String>,
    /// The signing keys that were used last, by id, each with its day: one costs four hashes.
    kept: Mutex<HashMap<String, KeyOfDay>>,
}

/// A day, and a signing key of it.
type KeyOfDay = (String, Arc<[u8]>);

/// What a client says of its signature.
struct Signed<'a> {
    key_id: &'a str,
    /// `DATE/REGION/SERVICE/aws4_request`.
    scope: &'a str,
    headers: Vec<&'a str>,
    signature: &'a str,
    at: DateTime<Utc>,
    payload: &'a str,
    is_in_query: bool,
}

impl Signatures {
    /// For requests to `region`, signed with these keys.
    pub fn new(keys: Vec<ClientKey>, region: &str) -> Self {
        let keys = keys.into_iter().map(|key| (key.id, key.secret)).collect();
        Self { region: region.to_owned(), keys, kept: Mutex::default() }
    }

    /// Who sent a request, at the time `now`.
    pub fn check(&self, head: &request::Parts, named: &Named, now: DateTime<Utc>) -> Answer<Signer> {
        let Some(signed) = said(head, named)? else { return Ok(Signer::Anonymous) };
        self.check_scope(&signed)?;
        check_time(&signed, named, now)?;
        check_headers(&signed, &head.headers)?;
        let Some(secret) = self.keys.get(signed.key_id) else {
            let why = "The AWS Access Key Id you provided does not exist in our records.";
            return Err(S3Refusal::denied("InvalidAccessKeyId", why).with("AWSAccessKeyId", signed.key_id));
        };
        let is_session =
            head.headers.contains_key("x-amz-security-token") || named.has("X-Amz-Security-Token");
        if is_session {
            return Err(S3Refusal::denied("InvalidToken", "Keys of this endpoint have no session tokens."));
        }
        let request = request_of(head, named, &signed.headers, signed.payload);
        let (at, scope) = (stamp(signed.at), signed.scope);
        let mut text = String::with_capacity(TEXT_BYTES);
        text.extend([ALGORITHM, "\n", &at, "\n", scope, "\n", &hex_sha256(&request)]);
        let signature = calculate_signature(self.signing_key(&signed, secret), text.as_bytes());
        match bool::from(signature.as_bytes().ct_eq(signed.signature.as_bytes())) {
            true => Ok(Signer::Key(signed.key_id.to_owned())),
            false => Err(S3Refusal::denied(
                "SignatureDoesNotMatch",
                "The request signature we calculated does not match the signature you provided. Check your key and \
                 signing method.",
            )),
        }
    }

    /// `DATE/REGION/s3/aws4_request`, of the day of the signature and this region.
    fn check_scope(&self, signed: &Signed<'_>) -> Answer<()> {
        let mut parts = signed.scope.split('/');
        let (date, region, service, end) = (parts.next(), parts.next(), parts.next(), parts.next());
        let wrong = |why: String| Err(malformed(signed.is_in_query, why));
        if (service, end, parts.next()) != (Some("s3"), Some("aws4_request"), None) {
            return wrong("the credential is not ID/DATE/REGION/s3/aws4_request".into());
        }
        if region != Some(&self.region) {
            let region = region.unwrap_or_default();
            let refusal = malformed(
                signed.is_in_query,
                format!("the region '{region}' is wrong; expecting '{}'", self.region),
            );
            return Err(refusal.with("Region", &*self.region));
        }
        match date == stamp(signed.at).get(..8) {
            true => Ok(()),
            false => wrong("the credential is not of the day of the request".into()),
        }
    }

    fn signing_key(&self, signed: &Signed<'_>, secret: &str) -> Arc<[u8]> {
        let day = signed.scope.split('/').next().unwrap_or_default();
        if let Some((of, key)) = self.kept.lock().get(signed.key_id)
            && of == day
        {
            return key.clone();
        }
        let key: Arc<[u8]> =
            generate_signing_key(secret, signed.at.into(), &self.region, "s3").as_ref().into();
        self.kept.lock().insert(signed.key_id.to_owned(), (day.to_owned(), key.clone()));
        key
    }
}

/// What the request says of its signature; `None` if it says nothing.
fn said<'a>(head: &'a request::Parts, named: &'a Named) -> Answer<Option<Signed<'a>>> {
    let mut headers = head.headers.get_all(AUTHORIZATION).iter();
    let (header, second) = (headers.next(), headers.next());
    let is_in_query = named.has("X-Amz-Signature") || named.has("X-Amz-Algorithm");
    if second.is_some() || header.is_some() && is_in_query {
        return Err(S3Refusal::bad(
            "InvalidArgument",
            "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter or the Authorization header \
             should be specified",
        ));
    }
    if named.has("Signature") && named.has("AWSAccessKeyId") {
        return Err(version_2());
    }
    match header {
        Some(header) => of_header(header.to_str().unwrap_or_default(), &head.headers).map(Some),
        None if is_in_query => of_query(named).map(Some),
        None => Ok(None),
    }
}

/// `AWS4-HMAC-SHA256 Credential=.., SignedHeaders=.., Signature=..`
fn of_header<'a>(header: &'a str, headers: &'a HeaderMap) -> Answer<Signed<'a>> {
    let rest = match header.split_once(' ') {
        Some((ALGORITHM, rest)) => rest,
        _ => return Err(version_2()),
    };
    let part = |name: &str| {
        let mut found = rest.split(',').filter_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='));
        let only = found.next().filter(|_| found.next().is_none());
        only.ok_or_else(|| malformed(false, format!("{name} is not there once")))
    };
    let (key_id, scope) = credential(part("Credential")?, false)?;
    let (names, signature) = (part("SignedHeaders")?.split(';').collect(), part("Signature")?);
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let at = match (text("x-amz-date"), text(DATE.as_str())) {
        (Some(date), _) => time_of(date),
        (None, Some(date)) => httpdate::parse_http_date(date).ok().map(DateTime::from),
        (None, None) => None,
    };
    let at = at.ok_or_else(|| {
        S3Refusal::denied("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header")
    })?;
    let payload = text("x-amz-content-sha256").ok_or_else(|| {
        S3Refusal::bad("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
    })?;
    Ok(Signed { key_id, scope, headers: names, signature, at, payload, is_in_query: false })
}

fn of_query(named: &Named) -> Answer<Signed<'_>> {
    let part = |name: &str| {
        let mut found = named.query.iter().filter(|(given, _)| given == name);
        let only = found.next().filter(|_| found.next().is_none());
        only.map(|(_, value)| value.as_str())
            .ok_or_else(|| malformed(true, format!("{name} is not there once")))
    };
    if part("X-Amz-Algorithm")? != ALGORITHM {
        return Err(malformed(true, "X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\"".into()));
    }
    let at = time_of(part("X-Amz-Date")?)
        .ok_or_else(|| malformed(true, "X-Amz-Date must be in the ISO8601 Long Format".into()))?;
    let (key_id, scope) = credential(part("X-Amz-Credential")?, true)?;
    let headers = part("X-Amz-SignedHeaders")?.split(';').collect();
    let signature = part("X-Amz-Signature")?;
    Ok(Signed { key_id, scope, headers, signature, at, payload: "UNSIGNED-PAYLOAD", is_in_query: true })
}

/// `ID/DATE/REGION/SERVICE/aws4_request`
fn credential(text: &str, is_in_query: bool) -> Answer<(&str, &str)> {
    let wrong = || malformed(is_in_query, "the credential is not ID/DATE/REGION/s3/aws4_request".into());
    text.split_once('/').filter(|(id, _)| !id.is_empty()).ok_or_else(wrong)
}

fn time_of(text: &str) -> Option<DateTime<Utc>> {
    let mut parsed = Parsed::new();
    chrono::format::parse(&mut parsed, text, TIME.iter()).ok()?;
    parsed.to_naive_datetime_with_offset(0).ok().map(|time| time.and_utc())
}

/// The same as text: chrono's formats cost more than the hashes do.
fn stamp(at: DateTime<Utc>) -> String {
    let (year, month, day) = (at.year(), at.month(), at.day());
    let (hour, minute, second) = (at.hour(), at.minute(), at.second());
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// Whether the signature is of now, or of a URL that is still good.
fn check_time(signed: &Signed<'_>, named: &Named, now: DateTime<Utc>) -> Answer<()> {
    let age = now - signed.at;
    if !signed.is_in_query {
        return match age.abs() > SKEW {
            true => {
                let why = "The difference between the request time and the current time is too large.";
                Err(S3Refusal::denied("RequestTimeTooSkewed", why))
            }
            false => Ok(()),
        };
    }
    let expires = named.parameter("X-Amz-Expires").and_then(|text| text.parse::<i64>().ok());
    let Some(expires) = expires.filter(|expires| (0..=EXPIRES_MAX).contains(expires)) else {
        return Err(malformed(
            true,
            format!("X-Amz-Expires must be a number of seconds, 0 to {EXPIRES_MAX}"),
        ));
    };
    if age < -SKEW {
        return Err(S3Refusal::denied("AccessDenied", "Request is not valid yet"));
    }
    match expires == 0 || age > TimeDelta::seconds(expires) {
        true => Err(S3Refusal::denied("AccessDenied", "Request has expired")),
        false => Ok(()),
    }
}

/// Nobody on the way may add what changes a request: `host` and all `x-amz-*` must be signed.
fn check_headers(signed: &Signed<'_>, headers: &HeaderMap) -> Answer<()> {
    let is_signed = |name: &str| signed.headers.contains(&name);
    let mut unsigned = headers
        .keys()
        .map(|name| name.as_str())
        .filter(|name| (name.starts_with("x-amz-") || *name == HOST.as_str()) && !is_signed(name));
    if let Some(name) = unsigned.next() {
        let why = "There were headers present in the request which were not signed";
        return Err(S3Refusal::denied("AccessDenied", why).with("HeadersNotSigned", name));
    }
    match signed.headers.iter().all(|name| headers.contains_key(*name)) {
        true => Ok(()),
        false => Err(S3Refusal::denied("SignatureDoesNotMatch", "A header that was signed is not there.")),
    }
}

fn malformed(is_in_query: bool, why: String) -> S3Refusal {
    match is_in_query {
        true => S3Refusal::bad("AuthorizationQueryParametersError", why),
        false => S3Refusal::bad(
            "AuthorizationHeaderMalformed",
            format!("The authorization header is malformed; {why}"),
        ),
    }
}

fn version_2() -> S3Refusal {
    let why = "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.";
    S3Refusal::bad("InvalidRequest", why)
}
