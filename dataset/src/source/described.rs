//! What an object store (S3) says of an object in the headers of a HEAD, beyond size, time and ETag.

use forebay_proto::object::HEADERS_BYTES_MAX;
use http::HeaderMap;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE,
    EXPIRES, HeaderName,
};

/// Those that S3 keeps with an object, besides its own.
const KEPT: [HeaderName; 7] = [
    ACCEPT_RANGES,
    CACHE_CONTROL,
    CONTENT_DISPOSITION,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_TYPE,
    EXPIRES,
];

/// Headers of the answer, not of the object.
const OF_THE_ANSWER: [&str; 3] = ["x-amz-request-id", "x-amz-id-2", "x-amz-bucket-region"];

/// Lines `name: value`, as an object's version has them.
#[derive(Debug, Clone)]
pub(super) struct Described(pub String);

impl Described {
    pub(super) fn new(headers: &HeaderMap) -> Self {
        let mut lines = String::new();
        for (name, value) in headers {
            let text = name.as_str();
            let is_own = text.starts_with("x-amz-") && !OF_THE_ANSWER.contains(&text);
            let Ok(value) = std::str::from_utf8(value.as_bytes()) else { continue };
            if is_own || KEPT.contains(name) {
                lines.extend([text, ": ", value, "\n"]);
            }
        }
        // More than S3 lets anybody write: the object is served without.
        lines.truncate(if lines.len() > HEADERS_BYTES_MAX { 0 } else { lines.len() });
        Self(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_the_object_is_kept() {
        let pairs = [
            ("content-type", "text/plain"),
            ("x-amz-meta-a", "b: c"),
            ("x-amz-request-id", "1"),
            ("date", "now"),
            ("content-length", "5"),
        ];
        let mut headers: HeaderMap = pairs
            .into_iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        assert_eq!(Described::new(&headers).0, "content-type: text/plain\nx-amz-meta-a: b: c\n");
        headers.insert("x-amz-meta-long", "x".repeat(HEADERS_BYTES_MAX).parse().unwrap());
        assert_eq!(Described::new(&headers).0, "");
    }
}
