//! Conditions of a GET or HEAD, as S3 decides them; and ranges.

use super::refusal::{Answer, S3Refusal};
use forebay_proto::object::ObjectVersion;
use http::header::{
    HeaderMap, HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use std::ops::Range;
use std::time::{Duration, SystemTime};

/// When a version was written, in whole seconds, as HTTP tells it.
pub fn modified(version: &ObjectVersion) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs((version.modified_ms.max(0) / 1000) as u64)
}

/// What conditions come to.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The object is wanted.
    Go,
    /// 304: the caller has it.
    NotModified,
}

/// Whether the conditions of a request hold of a version. `If-Match` stands above `If-Unmodified-Since`,
/// `If-None-Match` above `If-Modified-Since`. A date that is none is no condition.
pub fn check(headers: &HeaderMap, version: &ObjectVersion) -> Answer<Verdict> {
    let (text, modified) = (|name: &HeaderName| text(headers, name), modified(version));
    let date = |name| text(name).and_then(|date| httpdate::parse_http_date(&date).ok());
    match text(&IF_MATCH) {
        Some(wanted) if !names(&wanted, &version.etag) => return Err(S3Refusal::precondition("If-Match")),
        Some(_) => {}
        None if date(&IF_UNMODIFIED_SINCE).is_some_and(|since| modified > since) => {
            return Err(S3Refusal::precondition("If-Unmodified-Since"));
        }
        None => {}
    }
    let is_known = match text(&IF_NONE_MATCH) {
        Some(known) => names(&known, &version.etag),
        None => date(&IF_MODIFIED_SINCE).is_some_and(|since| modified <= since),
    };
    Ok(if is_known { Verdict::NotModified } else { Verdict::Go })
}

/// The range that a request asks for; `None` for all of it. A range that makes no sense is none, as are
/// several, and one of another version than `If-Range` says.
pub fn range(headers: &HeaderMap, version: &ObjectVersion) -> Answer<Option<Range<u64>>> {
    let Some(asked) = text(headers, &RANGE) else { return Ok(None) };
    if let Some(of) = text(headers, &IF_RANGE) {
        let is_of_now = match httpdate::parse_http_date(&of) {
            Ok(date) => date == modified(version),
            Err(_) => names(&of, &version.etag),
        };
        if !is_of_now {
            return Ok(None);
        }
    }
    let Some((first, last)) = asked.strip_prefix("bytes=").and_then(|range| range.trim().split_once('-'))
    else {
        return Ok(None);
    };
    let size = version.size;
    let range = match (number(first), number(last)) {
        (Some(first), Some(last)) if first > last => return Ok(None),
        (Some(first), Some(last)) => first..last.saturating_add(1).min(size),
        (Some(first), None) if last.is_empty() => first..size,
        (None, Some(count)) if first.is_empty() => size.saturating_sub(count)..size,
        _ => return Ok(None),
    };
    if range.start >= range.end { Err(S3Refusal::range(&asked, size)) } else { Ok(Some(range)) }
}

/// A number, the largest there is for one that is larger.
fn number(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_owned())
}

/// Whether a list of tags has this one: in quotes or without, as clients send it, or `*`.
fn names(list: &str, etag: &str) -> bool {
    let bare = |tag: &str| tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).unwrap_or(tag) == etag;
    list == "*" || list.split(',').any(|tag| bare(tag.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(size: u64) -> ObjectVersion {
        ObjectVersion {
            uri: "s3://b/k".into(),
            etag: "tag".into(),
            size,
            modified_ms: 1_700_000_000_900,
            block_bytes: 4 << 20,
            headers: "".into(),
        }
    }

    fn headers(all: &[(HeaderName, &str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn ranges_are_those_of_s3() {
        let of = |text: &str, size| range(&headers(&[(RANGE, text)]), &version(size)).map_err(|r| r.code);
        for (text, wanted) in [
            ("bytes=0-0", Some(0..1)),
            ("bytes=2-", Some(2..10)),
            ("bytes=-3", Some(7..10)),
            ("bytes=-30", Some(0..10)),
            ("bytes=9-99999999999999999999", Some(9..10)),
            ("bytes=5-4", None),
            ("bytes=0-1,3-4", None),
            ("bytes=a-b", None),
            ("bytes=--1", None),
            ("bytes=-", None),
            ("bytes=", None),
            ("bits=0-1", None),
            ("bytes=+1-2", None),
            ("0-1", None),
        ] {
            assert_eq!(of(text, 10), Ok(wanted), "{text}");
        }
        for text in ["bytes=10-", "bytes=10-11", "bytes=-0", "bytes=18446744073709551616-"] {
            assert_eq!(of(text, 10), Err("InvalidRange"), "{text}");
        }
        assert_eq!(of("bytes=0-", 0), Err("InvalidRange"));
        assert_eq!(of("bytes=-1", 0), Err("InvalidRange"));
    }

    #[test]
    fn conditions_have_their_order() {
        let (before, at, after) = (
            "Tue, 14 Nov 2023 22:13:19 GMT",
            "Tue, 14 Nov 2023 22:13:20 GMT",
            "Tue, 14 Nov 2023 22:13:21 GMT",
        );
        let verdict = |all: &[(HeaderName, &str)]| check(&headers(all), &version(1)).map_err(|_| ());
        for (all, wanted) in [
            (vec![(IF_MATCH, "\"tag\"")], Ok(Verdict::Go)),
            (vec![(IF_MATCH, "tag")], Ok(Verdict::Go)),
            (vec![(IF_MATCH, "*")], Ok(Verdict::Go)),
            (vec![(IF_MATCH, "\"a\", \"tag\"")], Ok(Verdict::Go)),
            (vec![(IF_MATCH, "\"a\"")], Err(())),
            (vec![(IF_MATCH, "W/\"tag\"")], Err(())),
            (vec![(IF_MATCH, "\"tag\""), (IF_UNMODIFIED_SINCE, before)], Ok(Verdict::Go)),
            (vec![(IF_UNMODIFIED_SINCE, before)], Err(())),
            (vec![(IF_UNMODIFIED_SINCE, at)], Ok(Verdict::Go)),
            (vec![(IF_UNMODIFIED_SINCE, "yesterday")], Ok(Verdict::Go)),
            (vec![(IF_NONE_MATCH, "\"tag\"")], Ok(Verdict::NotModified)),
            (vec![(IF_NONE_MATCH, "*")], Ok(Verdict::NotModified)),
            (vec![(IF_NONE_MATCH, "\"a\""), (IF_MODIFIED_SINCE, after)], Ok(Verdict::Go)),
            (vec![(IF_NONE_MATCH, "\"tag\""), (IF_MODIFIED_SINCE, before)], Ok(Verdict::NotModified)),
            (vec![(IF_MODIFIED_SINCE, at)], Ok(Verdict::NotModified)),
            (vec![(IF_MODIFIED_SINCE, before)], Ok(Verdict::Go)),
        ] {
            assert_eq!(verdict(&all), wanted, "{all:?}");
        }
    }

    #[test]
    fn a_range_of_another_version_is_all_of_this_one() {
        let of = |tag: &str| range(&headers(&[(RANGE, "bytes=0-0"), (IF_RANGE, tag)]), &version(9)).unwrap();
        assert_eq!(of("\"tag\""), Some(0..1));
        assert_eq!(of("\"gone\""), None);
        assert_eq!(of("Tue, 14 Nov 2023 22:13:20 GMT"), Some(0..1));
        assert_eq!(of("Tue, 14 Nov 2023 22:13:19 GMT"), None);
    }
}
