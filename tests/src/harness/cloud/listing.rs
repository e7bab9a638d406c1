//! Listings of a bucket page by page, as Google and Azure write them, and what both say of an object: its
//! tag and its time.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use url::form_urlencoded;

/// Keys of a page at most. The services have 1,000 and 5,000.
const PAGE_KEYS: usize = 4;

/// When all objects were written.
pub(super) const MODIFIED: &str = "Tue, 05 Aug 2025 12:00:00 GMT";

/// The tag of an object with these bytes.
pub(super) fn etag(data: &Bytes) -> String {
    use md5::{Digest, Md5};
    format!("\"{}\"", forebay_proto::hex::encode(&Md5::digest(data)))
}

/// The page that a query asks for. The token of the next one is the last key of this one.
pub(super) fn page(objects: &BTreeMap<String, Bytes>, bucket: &str, query: &str, is_azure: bool) -> String {
    let parameters: HashMap<_, _> = form_urlencoded::parse(query.as_bytes()).collect();
    let parameter = |name: &str| parameters.get(name).map_or("", |value| &**value);
    let (token, limit) = if is_azure { ("marker", "maxresults") } else { ("continuation-token", "max-keys") };
    let start = format!("{bucket}/{}", parameter("prefix"));
    let after = format!("{bucket}/{}", parameter(token));
    let limit = parameter(limit).parse::<usize>().map_or(PAGE_KEYS, |limit| limit.min(PAGE_KEYS));
    let mut found = objects.iter().filter(|(path, _)| path.starts_with(&start) && **path > after);
    let key = |path: &str| path[bucket.len() + 1..].to_owned();
    let listed: Vec<(String, &Bytes)> =
        found.by_ref().take(limit).map(|(path, data)| (key(path), data)).collect();
    let next = found.next().and_then(|_| listed.last()).map_or("", |(key, _)| key.as_str());
    if is_azure { azure(&listed, next) } else { google(&listed, next) }
}

fn google(listed: &[(String, &Bytes)], next: &str) -> String {
    let entry = |(key, data): &(String, &Bytes)| {
        format!(
            "<Contents><Key>{key}</Key><Size>{}</Size><LastModified>2025-08-05T12:00:00.000Z</LastModified>\
             <ETag>{}</ETag></Contents>",
            data.len(),
            etag(data)
        )
    };
    let token = match next {
        "" => String::new(),
        next => format!("<NextContinuationToken>{next}</NextContinuationToken>"),
    };
    format!("<ListBucketResult>{}{token}</ListBucketResult>", listed.iter().map(entry).collect::<String>())
}

fn azure(listed: &[(String, &Bytes)], next: &str) -> String {
    let entry = |(key, data): &(String, &Bytes)| {
        format!(
            "<Blob><Name>{key}</Name><Properties><Last-Modified>{MODIFIED}</Last-Modified><Etag>{}</Etag>\
             <Content-Length>{}</Content-Length><Content-Type>application/octet-stream</Content-Type>\
             <ResourceType>file</ResourceType></Properties></Blob>",
            etag(data).trim_matches('"'),
            data.len()
        )
    };
    format!(
        "<EnumerationResults><Blobs>{}</Blobs><NextMarker>{next}</NextMarker></EnumerationResults>",
        listed.iter().map(entry).collect::<String>()
    )
}
