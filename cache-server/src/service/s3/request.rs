//! A request as S3 understands it: which bucket, which key, which parameters.

use super::refusal::{Answer, S3Refusal};
use http::header::HOST;
use http::{StatusCode, Version, request};
use percent_encoding::percent_decode_str;
use std::net::IpAddr;

/// Bytes of a key at most, as at S3.
const KEY_BYTES_MAX: usize = 1024;

/// What a request names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Empty: the endpoint itself.
    pub bucket: String,
    /// Empty: the bucket itself.
    pub key: String,
    /// As they stand, decoded.
    pub query: Vec<(String, String)>,
}

impl Named {
    /// What the head of a request names; in the host's name if it is below one of the domains.
    pub fn of(head: &request::Parts, domains: &[String]) -> Answer<Self> {
        let host = host_of(head)?;
        let path = decoded(head.uri.path())?;
        let path = path.strip_prefix('/').unwrap_or(&path);
        let (bucket, key) = match bucket_of(host, domains) {
            Some(bucket) => (bucket, path),
            None => path.split_once('/').unwrap_or((path, "")),
        };
        let query = query_of(head.uri.query().unwrap_or_default())?;
        if bucket.is_empty() && !key.is_empty() {
            return Err(S3Refusal::bad("InvalidBucketName", "The specified bucket is not valid."));
        }
        if !bucket.is_empty() && !is_bucket_name(bucket) {
            let refusal = S3Refusal::bad("InvalidBucketName", "The specified bucket is not valid.");
            return Err(refusal.with("BucketName", bucket));
        }
        if key.len() > KEY_BYTES_MAX {
            let refusal = S3Refusal::bad("KeyTooLongError", "Your key is too long");
            return Err(refusal.with("MaxSizeAllowed", KEY_BYTES_MAX.to_string()));
        }
        if key.contains('\0') {
            return Err(S3Refusal::bad("InvalidURI", "Keys with a NUL are not valid."));
        }
        Ok(Self { bucket: bucket.to_owned(), key: key.to_owned(), query })
    }

    /// The value of a parameter; the first one, if it is given twice.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find_map(|(given, value)| (given == name).then_some(value.as_str()))
    }

    /// Whether a parameter is there, with a value or without.
    pub fn has(&self, name: &str) -> bool {
        self.parameter(name).is_some()
    }
}

/// The host that the client speaks to, without a port.
fn host_of(head: &request::Parts) -> Answer<&str> {
    let wrong = |why: &str| S3Refusal::bad("InvalidRequest", why);
    let mut hosts = head.headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().map_err(|_| wrong("The Host header is no name."))?,
        (None, _) => return Err(wrong("The Host header is missing.")),
        (Some(_), Some(_)) => return Err(wrong("There is more than one Host header.")),
    };
    if head.uri.authority().is_some_and(|of_uri| of_uri.as_str() != host) || host.contains(['@', '/']) {
        return Err(wrong("The Host header and the URI do not name one host."));
    }
    if head.version > Version::HTTP_11 {
        return Err(S3Refusal::new(
            StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            "InvalidRequest",
            "Use HTTP/1.1.",
        ));
    }
    Ok(match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    })
}

/// The bucket that a host's name says.
fn bucket_of<'a>(host: &'a str, domains: &[String]) -> Option<&'a str> {
    domains.iter().find_map(|domain| {
        let (at, dot) = (host.len().checked_sub(domain.len())?, domain.len() + 1);
        let is_below =
            host.len() > dot && host.is_char_boundary(at) && host[at..].eq_ignore_ascii_case(domain);
        host[..at].strip_suffix('.').filter(|_| is_below)
    })
}

/// Names of buckets as S3 allows them today.
fn is_bucket_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    let ends = [name.as_bytes().first(), name.as_bytes().last()];
    (3..=63).contains(&name.len())
        && name.bytes().all(fits)
        && ends.into_iter().flatten().all(u8::is_ascii_alphanumeric)
        && !name.contains("..")
        && name.parse::<IpAddr>().is_err()
}

/// Parameters, in the order of the URI.
fn query_of(query: &str) -> Answer<Vec<(String, String)>> {
    let parts = query.split('&').filter(|part| !part.is_empty());
    let pair = |part: &str| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        Ok((decoded(&name.replace('+', " "))?, decoded(&value.replace('+', " "))?))
    };
    parts.map(pair).collect()
}

fn decoded(text: &str) -> Answer<String> {
    let wrong = || S3Refusal::bad("InvalidURI", "Couldn't parse the specified URI.");
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        let is_escape =
            rest.as_bytes().get(at + 1..at + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit));
        if !is_escape {
            return Err(wrong());
        }
        rest = &rest[at + 3..];
    }
    Ok(percent_decode_str(text).decode_utf8().map_err(|_| wrong())?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn named(host: &str, uri: &str) -> Result<(String, String), &'static str> {
        let request = Request::builder().uri(uri).header(HOST, host).body(()).unwrap();
        let domains = ["s3.example.org".to_owned()];
        let named = Named::of(&request.into_parts().0, &domains).map_err(|refusal| refusal.code)?;
        Ok((named.bucket, named.key))
    }

    #[test]
    fn buckets_and_keys_in_both_styles() {
        for (host, uri, bucket, key) in [
            ("h:1", "/", "", ""),
            ("h:1", "/buc", "buc", ""),
            ("h:1", "/buc/", "buc", ""),
            ("h:1", "/buc/a//b/", "buc", "a//b/"),
            ("h:1", "/buc//a", "buc", "/a"),
            ("h:1", "/buc/a%2Fb+c%20d%C3%A4", "buc", "a/b+c d\u{e4}"),
            ("buc.s3.example.org:80", "/k/l", "buc", "k/l"),
            ("b.u.c.S3.Example.org", "/", "b.u.c", ""),
            ("s3.example.org", "/buc/k", "buc", "k"),
            ("xs3.example.org", "/buc/k", "buc", "k"),
            ("[::1]:80", "/buc/k", "buc", "k"),
        ] {
            assert_eq!(named(host, uri), Ok((bucket.to_owned(), key.to_owned())), "{host} {uri}");
        }
    }

    #[test]
    fn what_names_nothing_is_refused() {
        let long = format!("/buc/{}", "k".repeat(1025));
        for (host, uri, code) in [
            ("h", "/Upper/k", "InvalidBucketName"),
            ("h", "/a..b/k", "InvalidBucketName"),
            ("h", "/10.0.0.1/k", "InvalidBucketName"),
            ("h", "//k", "InvalidBucketName"),
            (".s3.example.org", "/k", "InvalidBucketName"),
            ("h", "/buc/%zz", "InvalidURI"),
            ("h", "/buc/%f", "InvalidURI"),
            ("h", "/buc/%ff", "InvalidURI"),
            ("h", "/buc/%00", "InvalidURI"),
            ("h", "/buc?a=%", "InvalidURI"),
            ("h", &long, "KeyTooLongError"),
            ("u@h", "/buc/k", "InvalidRequest"),
            ("h", "http://other/buc/k", "InvalidRequest"),
        ] {
            assert_eq!(named(host, uri), Err(code), "{host} {uri}");
        }
    }
}
