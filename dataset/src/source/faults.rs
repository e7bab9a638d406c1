//! What an object store's error means for the caller, in one line.
//!
//! `object_store` keeps the status and the body of an answer only in the text of its errors, so that text is
//! read here.

use super::watch::Watch;
use forebay_proto::{Error, Kind};
use object_store::client::{HttpError, HttpErrorKind};
use std::io;
use std::time::Instant;

/// How the reason of an error begins for which there is nothing to sign with. Such a reason tells of the
/// machine that reads: a server whose callers are not to know that looks for these words.
pub const NO_CREDENTIALS: &str = "no credentials";

/// The name under which a provider of credentials reports that it failed.
pub(super) const CREDENTIALS: &str = "credentials";

/// What tells that it was the request for an instance's credentials that failed.
const INSTANCE: [&str; 4] = ["169.254.169.254", "metadata/", "InstanceCredential", "instance metadata"];

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

/// What to do about an object that is no longer what it was.
const AGAIN: &str =
    "open the dataset again; a snapshot needs the object as it was: restore it, or save a new snapshot";

/// How an error begins that says why a server's certificate is not good, as rustls has it.
const CERTIFICATE: &str = "invalid peer certificate";

/// What happened, and what to do about it.
type Verdict = (Kind, String);

impl Endpoint {
    /// The error for the caller of a request for `uri` that failed first at `since`, if not just now;
    /// `frozen`: the tag of the version asked for.
    pub(super) fn fault(
        &self,
        uri: &str,
        frozen: Option<&str>,
        since: Option<Instant>,
        e: &object_store::Error,
    ) -> Error {
        let f = Fault::new(e);
        let tried = format!("tried for {:.1} s", since.map_or(0.0, |since| since.elapsed().as_secs_f64()));
        let is_missing = f.status == Some(404)
            || self.bucket.is_none() && f.io == Some(io::ErrorKind::NotFound)
            || matches!(e, object_store::Error::NotFound { .. });
        let (kind, why) = if matches!(e, object_store::Error::Precondition { .. }) || f.status == Some(412) {
            let etag = frozen.unwrap_or("unknown");
            let why = format!("was overwritten since the dataset was frozen (etag {etag}): {AGAIN}");
            (Kind::Changed, why)
        } else if let Some(refused) = self.bucket.as_ref().and_then(|b| self.refusal(b, &tried, e, &f)) {
            refused
        } else if is_missing && frozen.is_some() {
            (Kind::NotFound, format!("was deleted since the dataset was frozen: {AGAIN}"))
        } else if is_missing {
            let what = if self.bucket.is_some() { "object" } else { "file or directory" };
            (Kind::NotFound, format!("no such {what}"))
        } else if self.bucket.is_some() {
            self.failure(frozen, &tried, &f)
        } else {
            file(e, &f)
        };
        Error::new(kind, format!("{uri}: {why}"))
    }

    /// The bucket or the credentials are refused.
    fn refusal(&self, bucket: &str, tried: &str, e: &object_store::Error, f: &Fault) -> Option<Verdict> {
        let (endpoint, said, root) = (&self.name, f.said(), &f.root);
        let code = f.code.as_deref().unwrap_or_default();
        if matches!(code, "NoSuchBucket" | "ContainerNotFound") {
            return Some((Kind::NotFound, format!("no such bucket '{bucket}' at {endpoint}")));
        }
        if let Some(redirected) = self.redirected(bucket, code, f) {
            return Some(redirected);
        }
        if code == "ExpiredToken" && self.renews {
            let why = "the session token has expired and is not renewed";
            return Some((Kind::Retry, format!("{why} ({tried}): check what renews it")));
        }
        if code == "RequestTimeTooSkewed" {
            let why = format!("{endpoint} refuses the request's time{said}: set this machine's clock");
            return Some((Kind::Denied, why));
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
            let advice = match code {
                "ExpiredToken" => "the credentials have expired: give new ones, or a source that renews them",
                _ => "check credentials and policy",
            };
            let region = self.other_region(bucket).map(|hint| format!("; or {hint}")).unwrap_or_default();
            return Some((Kind::Denied, format!("{endpoint} refuses {credentials}{said}: {advice}{region}")));
        }
        let public = "set s3_anonymous for a public bucket";
        match e {
            object_store::Error::Unauthenticated { .. } => {
                Some((Kind::Denied, format!("{NO_CREDENTIALS}: {root}; {public}")))
            }
            object_store::Error::Generic { store: CREDENTIALS, .. } => {
                Some((Kind::Retry, format!("{NO_CREDENTIALS} ({tried}): {root}")))
            }
            _ if self.key_id.is_none() && INSTANCE.iter().any(|sign| f.text.contains(sign)) => {
                let why = "none in the environment or the provider's files, and no metadata service answers";
                Some((Kind::Denied, format!("{NO_CREDENTIALS}: {why}; {public}")))
            }
            _ => None,
        }
    }

    /// The bucket is said to be in another region.
    fn redirected(&self, bucket: &str, code: &str, f: &Fault) -> Option<Verdict> {
        let is_redirect = f.text.contains("redirect without LOCATION")
            || matches!(code, "AuthorizationHeaderMalformed" | "PermanentRedirect" | "TemporaryRedirect")
            || matches!(f.status, Some(301 | 307));
        let region = self.region.as_ref().filter(|_| is_redirect)?;
        let hint = f.region.clone().or_else(|| self.watch.region()).map_or_else(
            || format!("the bucket '{bucket}' is not in it{}: set s3_region (--s3-region)", f.said()),
            |r| format!("the bucket '{bucket}' is in '{r}': set s3_region (--s3-region) to that"),
        );
        Some((Kind::Invalid, format!("{} refuses region '{region}': {hint}", self.name)))
    }

    /// What to do if the server has named another region than the one that is set. A redirect that was
    /// followed loses its keys on the way, and ends in a refusal of those.
    fn other_region(&self, bucket: &str) -> Option<String> {
        let set = self.region.as_ref()?;
        let named = self.watch.region().filter(|named| named != set)?;
        Some(format!(
            "the bucket '{bucket}' is in '{named}', not in '{set}': set s3_region (--s3-region) to that"
        ))
    }

    /// S3 answered 400 to a HEAD, whose answer has no room for the reason. Keys that are renewed may have
    /// expired just now.
    fn without_reason(&self, tried: &str) -> Verdict {
        let other = self.bucket.as_deref().and_then(|bucket| self.other_region(bucket));
        let kind = if self.renews && other.is_none() { Kind::Retry } else { Kind::Invalid };
        let advice =
            other.unwrap_or_else(|| "have the credentials expired, or is the region another?".into());
        (kind, format!("{} answered 400 without a reason ({tried}): {advice}", self.name))
    }

    /// No good answer came.
    fn failure(&self, frozen: Option<&str>, tried: &str, f: &Fault) -> Verdict {
        let (endpoint, said, root) = (&self.name, f.said(), &f.root);
        match (f.status, f.http) {
            (Some(416), _) if frozen.is_none() => (Kind::Corrupt, "has 0 bytes: not Parquet".into()),
            (Some(416), _) => (Kind::Changed, "is shorter than listed: open the dataset again".into()),
            (Some(s @ (408 | 429 | 500..)), _) => {
                (Kind::Retry, format!("{endpoint} keeps answering {s}{said} ({tried}): try again later"))
            }
            (Some(400), _) if f.code.is_none() && self.region.is_some() => self.without_reason(tried),
            (Some(s), _) => (Kind::Invalid, format!("{endpoint} answered {s}{said}")),
            (None, Some(_)) if root.starts_with(CERTIFICATE) => {
                let why = format!("the certificate of {endpoint} is not good ({root})");
                let advice = "is the endpoint right? s3_ca (--s3-ca) names the authorities that are believed";
                (Kind::Invalid, format!("{why}: {advice}"))
            }
            (None, Some(HttpErrorKind::Connect)) => {
                let why = format!("cannot connect to {endpoint} ({tried}): {root}");
                (Kind::Retry, format!("{why}: is the endpoint right, and up?"))
            }
            (None, Some(_)) => (Kind::Retry, format!("no complete answer from {endpoint} ({tried}): {root}")),
            (None, None) => {
                let service = if self.region.is_some() { "S3" } else { "an object store" };
                let why = format!("{endpoint} does not answer like {service} ({root})");
                (Kind::Invalid, format!("{why}: is the endpoint right?"))
            }
        }
    }
}

/// A file cannot be read.
fn file(e: &object_store::Error, f: &Fault) -> Verdict {
    let is_short = f.text.contains("Out of range") || f.text.contains("range was invalid");
    match (e, f.io) {
        (object_store::Error::PermissionDenied { .. }, _) => {
            (Kind::Denied, "leads to where this server may not read (see --allow)".into())
        }
        (_, Some(io::ErrorKind::PermissionDenied)) => {
            (Kind::Denied, "permission denied: let this user read it".into())
        }
        _ if is_short => (Kind::Changed, "is shorter than it was: open the dataset again".into()),
        (object_store::Error::InvalidPath { .. }, _) => (Kind::Invalid, f.root.clone()),
        (_, Some(_)) => (Kind::Retry, format!("cannot be read: {}", f.root)),
        (_, None) => (Kind::Invalid, format!("cannot be read: {}", f.root)),
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
            region: element(&text, "Region").or_else(|| {
                let (_, rest) = text.split_once("expecting '")?;
                Some(rest.split_once('\'')?.0.to_owned())
            }),
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
            let e = Endpoint { renews, ..endpoint() }.fault("s3://b/k", None, None, &generic(text));
            assert_eq!(e.kind, kind, "{e}");
        }
    }

    fn generic(text: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.to_owned().into() }
    }

    #[test]
    fn a_certificate_that_is_not_good_is_not_waited_for() {
        let said = io::Error::other("invalid peer certificate: UnknownIssuer");
        let source = Box::new(HttpError::new(HttpErrorKind::Connect, said));
        let e = object_store::Error::Generic { store: "S3", source };
        let e = endpoint().fault("s3://b/k", None, None, &e);
        assert!(e.kind == Kind::Invalid && e.message.contains("http://h:1"), "{e}");
        assert!(e.message.contains("UnknownIssuer") && e.message.contains("--s3-ca"), "{e}");
    }

    #[test]
    fn a_lack_of_credentials_is_told_in_the_words_that_servers_look_for() {
        let source = || Box::<dyn std::error::Error + Send + Sync>::from("no such profile");
        let keyless = Endpoint { key_id: None, ..endpoint() };
        for (e, kind) in [
            (object_store::Error::Unauthenticated { path: "p".into(), source: source() }, Kind::Denied),
            (object_store::Error::Generic { store: CREDENTIALS, source: source() }, Kind::Retry),
            (generic("http://169.254.169.254/latest: timed out"), Kind::Denied),
        ] {
            let e = keyless.fault("s3://b/k", None, None, &e);
            assert_eq!(e.kind, kind, "{e}");
            assert!(e.message.starts_with(&format!("s3://b/k: {NO_CREDENTIALS}")), "{e}");
        }
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
            (
                format!("{status}403 Forbidden: {}", doc("RequestTimeTooSkewed", "x")),
                Kind::Denied,
                "set this machine's clock",
            ),
            (format!("{status}403 Forbidden: {}", doc("ExpiredToken", "x")), Kind::Denied, "have expired"),
            (format!("{status}400 Bad Request: {region}"), Kind::Invalid, "'b' is in 'eu-west-1'"),
            (format!("{status}400 Bad Request: "), Kind::Invalid, "have the credentials expired"),
            ("Received redirect without LOCATION, this".into(), Kind::Invalid, "us-east-1"),
            (format!("{status}503 Slow: {}", doc("SlowDown", "x")), Kind::Retry, "503"),
            (format!("{status}416 Range: "), Kind::Corrupt, "0 bytes"),
            (format!("{status}412 Failed: "), Kind::Changed, "overwritten"),
            ("expected <html>".into(), Kind::Invalid, "not answer like S3"),
        ] {
            let e = endpoint().fault("s3://b/k", None, None, &generic(&text));
            assert_eq!(e.kind, kind, "{text} -> {e}");
            assert!(e.message.contains(says) && e.message.starts_with("s3://b/k: "), "{text} -> {e}");
        }
    }
}
