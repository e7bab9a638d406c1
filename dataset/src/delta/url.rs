//! URLs, as the kernel and the log write places, and URIs, as Forebay does: in URLs names are encoded.

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

/// The URI of a place.
pub(super) fn uri(url: &Url) -> Result<String> {
    let path = decoded(url.path())?;
    let scheme = if matches!(url.scheme(), "s3a" | "s3n") { "s3" } else { url.scheme() };
    let uri = format!("{scheme}://{}{path}", url.host_str().unwrap_or_default());
    Ok(uri.trim_end_matches('/').to_owned())
}

/// The key below `root` of an object that the log names; of one outside of it, as a shallow clone has, its
/// URI. `Denied` if that is in another kind of object store.
pub(super) fn key(root: &str, path: &str) -> Result<String> {
    let path = decoded(path)?;
    let uri = match path.split_once(':') {
        Some(("s3a" | "s3n", rest)) => format!("s3:{rest}"),
        // Spark writes `file:/path`.
        Some(("file", rest)) => format!("file:///{}", rest.trim_start_matches('/')),
        _ if path.starts_with('/') => format!("file://{path}"),
        _ if path.contains("://") => path,
        _ => return Ok(path),
    };
    match uri.strip_prefix(root).and_then(|key| key.strip_prefix('/')) {
        Some(key) => Ok(key.to_owned()),
        None => {
            check_store(root, &uri)?;
            Ok(uri)
        }
    }
}

/// `Denied` unless a place that the log of the table at `root` names is in the same kind of object store.
pub(super) fn check_store(root: &str, uri: &str) -> Result<()> {
    let scheme = |uri: &str| uri.split_once("://").map(|(scheme, _)| scheme.to_owned());
    match scheme(root) == scheme(uri) {
        true => Ok(()),
        false => Err(Error::denied(format!(
            "its log names {uri}, which lies in another object store than {root} (a shallow clone?): read the table that it is a \
             clone of, or clone it deeply"
        ))),
    }
}

fn decoded(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| Error::corrupt(format!("'{text}' in the log is not UTF-8")))?;
    Ok(decoded.into_owned())
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
            assert_eq!((found.as_str(), uri(&found).unwrap().as_str()), (url, root));
            let log = found.join("_delta_log/0.json").unwrap();
            assert_eq!(uri(&log).unwrap(), format!("{root}/_delta_log/0.json"));
        }
        assert_eq!(key("s3://b/t", "city=Z%25C3%25BC/a%20b.parquet").unwrap(), "city=Z%C3%BC/a b.parquet");
        assert_eq!(key("s3://b/t", "s3a://b/t/x/a").unwrap(), "x/a");
        assert_eq!(key("s3://b/t", "a:b=1/c").unwrap(), "a:b=1/c");
        assert_eq!(key("file:///t", "file:/t/x").unwrap(), "x");
        // What a shallow clone has.
        for (path, uri) in [
            ("s3://b/other/a%20b", "s3://b/other/a b"),
            ("s3a://c/tx/a", "s3://c/tx/a"),
            ("s3://b/tx/a", "s3://b/tx/a"),
        ] {
            assert_eq!(key("s3://b/t", path).unwrap(), uri);
        }
        assert_eq!(key("file:///t", "/u/a").unwrap(), "file:///u/a");
        for other in ["/etc/passwd", "file:///etc/passwd", "file:/etc/passwd", "gs://b/a"] {
            assert!(key("s3://b/t", other).unwrap_err().message.contains("clone"), "{other}");
        }
    }
}
