//! URLs, as the kernel and the log write places, and URIs, as Forebay does: in URLs names are encoded.

use forebay_proto::ring::is_under;
use forebay_proto::{Error, Result};
use percent_encoding::percent_decode_str;
use url::Url;

/// The URL of a directory; ends in a slash.
pub(super) fn of_directory(uri: &str) -> Result<Url> {
    let bad = || Error::invalid(format!("{uri}: is no URL"));
    let (scheme, rest) = uri.split_once("://").ok_or_else(bad)?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut url = Url::parse(&format!("{scheme}://{host}/")).map_err(|_| bad())?;
    let names = path.split('/').filter(|name| !name.is_empty());
    url.path_segments_mut().map_err(|()| bad())?.pop_if_empty().extend(names).push("");
    Ok(url)
}

/// The URI of a place below `root`.
pub(super) fn uri(root: &str, url: &Url) -> Result<String> {
    let path = decoded(url.path())?;
    let uri = format!("{}://{}{path}", url.scheme(), url.host_str().unwrap_or_default());
    match is_under(&uri, root) {
        true => Ok(uri.trim_end_matches('/').to_owned()),
        false => Err(outside(root, &uri)),
    }
}

/// The key below `root` of an object that the log names.
pub(super) fn key(root: &str, path: &str) -> Result<String> {
    let path = decoded(path)?;
    if !path.contains("://") && !path.starts_with('/') {
        return Ok(path);
    }
    let uri = path.replace("s3a://", "s3://").replace("s3n://", "s3://");
    let uri = if uri.starts_with('/') { format!("file://{uri}") } else { uri };
    match uri.strip_prefix(root).and_then(|key| key.strip_prefix('/')) {
        Some(key) => Ok(key.to_owned()),
        None => Err(outside(root, &uri)),
    }
}

fn decoded(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| Error::corrupt(format!("'{text}' in the log is not UTF-8")))?;
    Ok(decoded.into_owned())
}

fn outside(root: &str, uri: &str) -> Error {
    Error::denied(format!(
        "its log names {uri}, which lies outside of {root} (a shallow clone?): read the table that it is a clone of, or \
         clone it deeply"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_in_urls_only() {
        for (root, url) in [
            ("s3://b/a t/x=1%2F", "s3://b/a%20t/x=1%252F/"),
            ("s3://b", "s3://b/"),
            ("file:///tmp/t", "file:///tmp/t/"),
        ] {
            let found = of_directory(root).unwrap();
            assert_eq!((found.as_str(), uri(root, &found).unwrap().as_str()), (url, root));
            let log = found.join("_delta_log/0.json").unwrap();
            assert_eq!(uri(root, &log).unwrap(), format!("{root}/_delta_log/0.json"));
        }
        assert_eq!(key("s3://b/t", "city=Z%25C3%25BC/a%20b.parquet").unwrap(), "city=Z%C3%BC/a b.parquet");
        assert_eq!(key("s3://b/t", "s3a://b/t/x/a").unwrap(), "x/a");
        for other in ["s3://b/other/a", "s3://b/tx/a", "/etc/passwd", "file:///etc/passwd"] {
            assert!(key("s3://b/t", other).unwrap_err().message.contains("clone"), "{other}");
        }
        assert!(uri("s3://b/t", &Url::parse("s3://b/u/a").unwrap()).is_err());
    }
}
