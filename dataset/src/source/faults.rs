//! What an object store's error means for the caller, in one line.
//!
//! `object_store` keeps the status and the body of an answer only in the text of its errors, so that text is
//! read here.

use super::watch::Watch;
use forebay_proto::{Error, Kind};
use object_store::client::{HttpError, HttpErrorKind};
use std::io;
use std::time::Instant;

/// The name under which a provider of credentials reports that it failed.
#[cfg(feature = "aws-config")]
pub(super) const CREDENTIALS: &str = "credentials";

/// An object store as errors name it; without a bucket it is the file system.
#[derive(Debug, Default)]
pub(super) struct Endpoint {
    pub bucket: Option<String>,
    pub name: String,
    /// Only S3 has one.
    pub region: Option<String>,
    pub key_id: Option<String>,
    /// Whether credentials are renewed: then expired ones are no reason to give up.
    pub renews: bool,
    pub watch: Watch,
}

impl Endpoint {
    /// The error for the caller of a request for `uri`, begun at `start`; `frozen`: the tag of the version
    /// asked for.
    pub(super) fn fault(
        &self,
        uri: &str,
        frozen: Option<&str>,
        start: Instant,
        e: object_store::Error,
    ) -> Error {
        let fault = Fault::new(&e);
        if matches!(e, object_store::Error::Precondition { .. }) || fault.status == Some(412) {
            let etag = frozen.unwrap_or("unknown");
            return Error::changed(format!(
                "{uri}: was overwritten since the dataset was frozen (etag {etag}): open the dataset again"
            ));
        }
        if self.bucket.is_none() {
            return file(uri, frozen, &e, &fault);
        }
        let tried = format!("tried for {:.1} s", start.elapsed().as_secs_f64());
        self.refusal(uri, &tried, &e, &fault).unwrap_or_else(|| self.failure(uri, frozen, &tried, &e, &fault))
    }

    /// The bucket or the credentials are refused.
    fn refusal(&self, uri: &str, tried: &str, e: &object_store::Error, f: &Fault) -> Option<Error> {
        let (bucket, endpoint, said) = (self.bucket.as_deref().unwrap_or_default(), &self.name, f.said());
        let code = f.code.as_deref().unwrap_or_default();
        if matches!(code, "NoSuchBucket" | "ContainerNotFound") {
            return Some(Error::not_found(format!("{uri}: no such bucket '{bucket}' at {endpoint}")));
        }
        let is_redirect =
            matches!(code, "AuthorizationHeaderMalformed" | "PermanentRedirect" | "TemporaryRedirect");
        if let Some(region) = &self.region
            && (is_redirect || f.bare_redirect || matches!(f.status, Some(301 | 307)))
        {
            let wanted = f.region.clone().or_else(|| self.watch.region());
            let hint = wanted.map_or_else(
                || format!("the bucket is not in it{said}: set s3_region"),
                |r| format!("the bucket is in '{r}': set s3_region to that"),
            );
            return Some(Error::invalid(format!("{uri}: {endpoint} refuses region '{region}': {hint}")));
        }
        if code == "ExpiredToken" && self.renews {
            let why = "the session token has expired and is not renewed";
            return Some(Error::retry(format!("{uri}: {why} ({tried}): check what renews it")));
        }
        let is_denied = matches!(
            code,
            "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken" | "InvalidToken" | "AccessDenied"
        );
        if is_denied || matches!(f.status, Some(401 | 403)) {
            let credentials = match (&self.key_id, self.renews) {
                (Some(id), _) => format!("access key {id}"),
                (None, true) => "its credentials".into(),
                (None, false) => "the request without keys".into(),
            };
            return Some(Error::denied(format!(
                "{uri}: {endpoint} refuses {credentials}{said}: check credentials and policy"
            )));
        }
        match e {
            object_store::Error::Unauthenticated { .. } => {
                Some(Error::denied(format!("{uri}: no credentials: {}", f.root)))
            }
            #[cfg(feature = "aws-config")]
            object_store::Error::Generic { store: CREDENTIALS, .. } => {
                Some(Error::retry(format!("{uri}: no credentials ({tried}): {}", f.root)))
            }
            _ if self.key_id.is_none() && f.instance => Some(Error::denied(format!(
                "{uri}: no credentials: none in settings, environment or the provider's files, and no metadata service \
                 answers; set s3_anonymous for a public bucket"
            ))),
            _ => None,
        }
    }

    /// The object is not there, or no good answer came.
    fn failure(
        &self,
        uri: &str,
        frozen: Option<&str>,
        tried: &str,
        e: &object_store::Error,
        f: &Fault,
    ) -> Error {
        let (endpoint, said) = (&self.name, f.said());
        let is_missing = f.status == Some(404) || matches!(e, object_store::Error::NotFound { .. });
        match (f.status, f.http) {
            _ if is_missing && frozen.is_some() => Error::not_found(format!(
                "{uri}: was deleted since the dataset was frozen: open the dataset again"
            )),
            _ if is_missing => Error::not_found(format!("{uri}: no such object")),
            (Some(416), _) if frozen.is_none() => Error::corrupt(format!("{uri}: has 0 bytes: not Parquet")),
            (Some(416), _) => {
                Error::changed(format!("{uri}: is shorter than listed: open the dataset again"))
            }
            (Some(s @ (408 | 429 | 500..)), _) => Error::retry(format!(
                "{uri}: {endpoint} keeps answering {s}{said} ({tried}): try again later"
            )),
            (Some(s), _) => Error::invalid(format!("{uri}: {endpoint} answered {s}{said}")),
            (None, Some(HttpErrorKind::Connect)) => Error::retry(format!(
                "{uri}: cannot connect to {endpoint} ({tried}): {}: is the endpoint right, and up?",
                f.root
            )),
            (None, Some(_)) => {
                Error::retry(format!("{uri}: no complete answer from {endpoint} ({tried}): {}", f.root))
            }
            (None, None) => {
                let service = if self.region.is_some() { "S3" } else { "an object store" };
                Error::invalid(format!(
                    "{uri}: {endpoint} does not answer like {service} ({}): is the endpoint right?",
                    f.root
                ))
            }
        }
    }
}

fn file(uri: &str, frozen: Option<&str>, e: &object_store::Error, f: &Fault) -> Error {
    use object_store::Error as E;
    match (e, f.io) {
        (E::NotFound { .. }, _) | (_, Some(io::ErrorKind::NotFound)) => match frozen {
            Some(_) => Error::not_found(format!(
                "{uri}: was deleted since the dataset was frozen: open the dataset again"
            )),
            None => Error::not_found(format!("{uri}: no such file or directory")),
        },
        (_, Some(io::ErrorKind::PermissionDenied)) => {
            Error::denied(format!("{uri}: permission denied: let this user read it"))
        }
        _ if f.text.contains("Out of range") || f.text.contains("range was invalid") => {
            Error::changed(format!("{uri}: is shorter than it was: open the dataset again"))
        }
        (E::InvalidPath { .. }, _) => Error::invalid(format!("{uri}: {}", f.root)),
        (_, io) => {
            let kind = if io.is_some() { Kind::Retry } else { Kind::Invalid };
            Error::new(kind, format!("{uri}: cannot be read: {}", f.root))
        }
    }
}

/// What can be told from an error and its sources.
#[derive(Debug, Default)]
struct Fault {
    status: Option<u16>,
    /// `<Code>`, `<Message>` and `<Region>` of S3's error document.
    code: Option<String>,
    message: Option<String>,
    region: Option<String>,
    http: Option<HttpErrorKind>,
    io: Option<io::ErrorKind>,
    bare_redirect: bool,
    /// It was the request for an instance's credentials that failed.
    instance: bool,
    /// The whole text, and that of the innermost error.
    text: String,
    root: String,
}

impl Fault {
    fn new(e: &(dyn std::error::Error + 'static)) -> Self {
        let text = e.to_string();
        let mut fault = Self {
            status: text.split_once("status code: ").and_then(|(_, rest)| rest.get(..3)?.parse().ok()),
            code: element(&text, "Code"),
            message: element(&text, "Message"),
            region: element(&text, "Region"),
            bare_redirect: text.contains("redirect without LOCATION"),
            instance: ["169.254.169.254", "metadata/", "InstanceCredential", "instance metadata"]
                .iter()
                .any(|t| text.contains(t)),
            ..Default::default()
        };
        let mut next = Some(e);
        while let Some(e) = next {
            if let Some(h) = e.downcast_ref::<HttpError>() {
                fault.http.get_or_insert(h.kind());
            }
            if let Some(e) = e.downcast_ref::<io::Error>() {
                fault.io.get_or_insert(e.kind());
            }
            fault.root = e.to_string();
            next = e.source();
        }
        if fault.region.is_none()
            && let Some(m) = &fault.message
            && let Some((_, rest)) = m.split_once("expecting '")
        {
            fault.region = rest.split('\'').next().map(str::to_owned);
        }
        fault.root = fault.root.chars().take(300).collect();
        fault.text = text;
        fault
    }

    /// `" (Code: message)"` as far as known.
    fn said(&self) -> String {
        match (&self.code, &self.message) {
            (Some(c), Some(m)) => format!(" ({c}: {})", m.chars().take(200).collect::<String>()),
            (Some(c), None) => format!(" ({c})"),
            _ => String::new(),
        }
    }
}

fn element(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (value, _) = rest.split_once(&format!("</{name}>"))?;
    Some(value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            bucket: Some("b".into()),
            name: "http://h:1".into(),
            region: Some("us-east-1".into()),
            key_id: Some("AKID".into()),
            renews: false,
            watch: Watch::default(),
        }
    }

    #[test]
    fn expired_tokens_are_waited_for_only_if_something_renews_them() {
        let text =
            "status code: 400 Bad Request: <Error><Code>ExpiredToken</Code><Message>x</Message></Error>";
        for (renews, kind) in [(true, Kind::Retry), (false, Kind::Denied)] {
            let e = Endpoint { renews, ..endpoint() }.fault("s3://b/k", None, Instant::now(), generic(text));
            assert_eq!(e.kind, kind, "{e}");
        }
    }

    fn generic(text: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.to_owned().into() }
    }

    #[test]
    fn answers_are_classed() {
        let status = "Server returned non-2xx status code: ";
        let doc = |c: &str, m: &str| format!("<Error><Code>{c}</Code><Message>{m}</Message></Error>");
        let region = doc("AuthorizationHeaderMalformed", "the region 'a' is wrong; expecting 'eu-west-1'");
        for (text, kind, says) in [
            (
                format!("{status}404 Not Found: {}", doc("NoSuchBucket", "x")),
                Kind::NotFound,
                "no such bucket 'b'",
            ),
            (format!("{status}404 Not Found: {}", doc("NoSuchKey", "x")), Kind::NotFound, "no such object"),
            (format!("{status}403 Forbidden: {}", doc("InvalidAccessKeyId", "x")), Kind::Denied, "AKID"),
            (format!("{status}400 Bad Request: {region}"), Kind::Invalid, "'eu-west-1'"),
            ("Received redirect without LOCATION, this".into(), Kind::Invalid, "us-east-1"),
            (format!("{status}503 Slow: {}", doc("SlowDown", "x")), Kind::Retry, "503"),
            (format!("{status}416 Range: "), Kind::Corrupt, "0 bytes"),
            (format!("{status}412 Failed: "), Kind::Changed, "overwritten"),
            ("expected <html>".into(), Kind::Invalid, "not answer like S3"),
        ] {
            let e = endpoint().fault("s3://b/k", None, Instant::now(), generic(&text));
            assert_eq!(e.kind, kind, "{text} -> {e}");
            assert!(e.message.contains(says) && e.message.starts_with("s3://b/k: "), "{text} -> {e}");
        }
    }
}
