//! Dataset and object URIs: one spelling each, and nothing that could lead out of what a prefix allows.

use super::table_uri::TableUri;
use forebay_proto::manifest::DELTA;
use forebay_proto::{Error, Result};
use std::path::{Path, PathBuf};

/// The schemes of object stores. Azure's buckets are called containers.
const SCHEMES: [&str; 3] = ["s3", "gs", "az"];

/// What Hadoop calls S3.
const S3_ALIASES: [&str; 2] = ["s3a", "s3n"];

/// Bytes of a dataset's URI at most: it is taken apart piece by piece, and errors repeat it.
const BYTES_MAX: usize = 16 << 10;

/// A scheme and a bucket; `None` is the file system.
pub(super) type BucketName = Option<(&'static str, String)>;

/// What a URI points to.
pub(super) struct Location {
    pub bucket: BucketName,
    /// A key, a prefix, or a path below the root: no slash at either end, maybe empty.
    pub path: String,
}

/// The one spelling of a dataset's URI: no slash at the end, and for `file://` symbolic links resolved as far
/// as the path exists.
///
/// Two URIs name the same place if and only if their normal forms are equal, and one lies under the other if
/// and only if [`is_under`](crate::source::is_under) says so of the normal forms. An allow list compares
/// these.
///
/// # Errors
/// `Invalid` for an unknown scheme, `..`, an empty bucket, a query or credentials in the URI, and for one of
/// more than 16 KiB.
pub fn normalise(uri: &str) -> Result<String> {
    check_length(uri)?;
    if let Some(TableUri { root, version }) = TableUri::of(uri) {
        let root = normalise(root)?;
        if root.contains(['*', '{']) || root.starts_with(DELTA) {
            return Err(Error::invalid(format!(
                "{uri}: names no table: give {DELTA}s3://BUCKET/PATH@VERSION"
            )));
        }
        return Ok(match version {
            Some(version) => format!("{DELTA}{root}@{version}"),
            None => format!("{DELTA}{root}"),
        });
    }
    let location = locate(uri)?;
    // An object below may well have one in its key.
    if uri.contains('?') {
        return Err(Error::invalid(format!(
            "{uri}: a query (?) has no meaning here: remove it, or name the prefix above what has it in its key"
        )));
    }
    spell(uri, location)
}

/// The one spelling of an object's URI: as [`normalise`], but a `?` is a character of its key.
///
/// # Errors
/// `Invalid` as there, and for a slash at the end.
pub fn normalise_object(uri: &str) -> Result<String> {
    let location = locate(uri)?;
    if uri.ends_with('/') || location.path.is_empty() {
        return Err(Error::invalid(format!(
            "{}: names no object: it has no key, or a slash at its end",
            shown(uri)
        )));
    }
    spell(uri, location)
}

/// `Invalid` if a dataset's URI is too long.
pub(crate) fn check_length(uri: &str) -> Result<()> {
    match uri.len() {
        ..=BYTES_MAX => Ok(()),
        // It is not repeated: it may hold a secret.
        bytes => Err(Error::invalid(format!("a URI of {bytes} bytes: a dataset's may have {BYTES_MAX}"))),
    }
}

/// The normal form of a place.
pub(super) fn spell(uri: &str, location: Location) -> Result<String> {
    let Location { bucket, path } = location;
    match bucket {
        Some((scheme, bucket)) if path.is_empty() => Ok(format!("{scheme}://{bucket}")),
        Some((scheme, bucket)) => Ok(format!("{scheme}://{bucket}/{path}")),
        None => match resolve(&Path::new("/").join(path)).to_str() {
            Some(text) => Ok(format!("file://{text}")),
            None => Err(Error::invalid(format!("{uri}: resolves to a path that is not UTF-8"))),
        },
    }
}

/// Takes a URI apart, checking it; reads no file system.
pub(super) fn locate(uri: &str) -> Result<Location> {
    if uri.is_empty() {
        return Err(Error::invalid("the URI is empty: give s3://BUCKET/PREFIX or file:///PATH"));
    }
    let Some((scheme, rest)) = uri.split_once("://") else {
        let uri = shown(uri);
        return Err(Error::invalid(format!("{uri}: not a URI: give s3://BUCKET/PREFIX or file:///PATH")));
    };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.contains('@') {
        // The URI itself is not repeated: it holds a secret.
        return Err(Error::invalid(format!(
            "the {}:// URI holds credentials: give them as settings or in the environment",
            shown(scheme)
        )));
    }
    if uri.chars().any(char::is_control) {
        return Err(Error::invalid(format!("{}: holds control characters", uri.escape_debug())));
    }
    let path = path.trim_end_matches('/');
    let dots = |p: &str| p.split('/').any(|part| part == ".." || part == ".");
    if dots(path) {
        return Err(Error::invalid(format!("{uri}: '.' and '..' are not allowed in a URI")));
    }
    let scheme = if S3_ALIASES.contains(&scheme) { "s3" } else { scheme };
    if let Some(scheme) = SCHEMES.into_iter().find(|known| *known == scheme) {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let is_name = (1..=255).contains(&authority.len()) && authority.chars().all(fits) && !dots(authority);
        if !is_name {
            return Err(Error::invalid(format!("{uri}: '{authority}' is no bucket name")));
        }
        if path.starts_with('/') || path.contains("//") {
            return Err(Error::invalid(format!("{uri}: keys with empty parts (//) cannot be read")));
        }
        return Ok(Location { bucket: Some((scheme, authority.into())), path: path.into() });
    }
    match (scheme, authority) {
        ("file", "") if rest.starts_with('/') => {
            let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
            Ok(Location { bucket: None, path: parts.join("/") })
        }
        ("file", _) => {
            Err(Error::invalid(format!("{uri}: give an absolute path with three slashes: file:///PATH")))
        }
        _ => Err(Error::invalid(format!(
            "{uri}: unknown scheme '{scheme}': use s3://, gs://, az:// or file://, for a Delta table delta+s3:// and so on"
        ))),
    }
}

/// `path` with symbolic links resolved in the longest part of it that exists.
fn resolve(path: &Path) -> PathBuf {
    let head = |head: &Path| Some((head.canonicalize().ok()?, path.strip_prefix(head).ok()?));
    match path.ancestors().find_map(head) {
        Some((real, rest)) => real.components().chain(rest.components()).collect(),
        None => path.to_owned(),
    }
}

/// A piece of input fit for one line of an error message.
fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Kind;
    use forebay_proto::ring::is_under;

    #[test]
    fn one_spelling() {
        for (given, want) in [
            ("s3://b", "s3://b"),
            ("s3://b/", "s3://b"),
            ("s3://b/train//", "s3://b/train"),
            ("s3://my.bucket-1/a b/x.parquet", "s3://my.bucket-1/a b/x.parquet"),
            ("gs://b/train/", "gs://b/train"),
            ("az://container", "az://container"),
            ("s3a://b/x/*.parquet", "s3://b/x/*.parquet"),
            ("file:///no/such//dir/", "file:///no/such/dir"),
            ("file:///", "file:///"),
            ("delta+s3a://b/t/", "delta+s3://b/t"),
            ("delta+s3a://b/t/@007", "delta+s3://b/t@7"),
        ] {
            assert_eq!(normalise(given).unwrap(), want, "{given}");
        }
    }

    #[test]
    fn refused() {
        for uri in [
            "",
            "train",
            "/etc/passwd",
            "s3://",
            "s3:///x",
            "s3://b/../c",
            "s3://b/a//c",
            "s3://b//c",
            "s3://../c",
            "s3://b/x?versionId=1",
            "s3://b c/x",
            "gs:///x",
            "az://b/../c",
            "http://b/x",
            "file://etc/passwd",
            "file:///a/../etc",
            "file:///a/./b",
            "s3://b/\n",
            "delta+s3://b/*@1",
            "delta+delta+s3://b/t",
            "delta+t",
        ] {
            assert_eq!(normalise(uri).unwrap_err().kind, Kind::Invalid, "{uri}");
        }
        let long = format!("s3://b/{}", "x".repeat(16 << 10));
        assert!(normalise(&long).unwrap_err().message.contains("16391 bytes"));
        assert!(normalise(&long[7..]).is_err() && normalise(&long[..16 << 10]).is_ok());
        for uri in ["s3://AKIA:hunter2@b/x", "delta+s3://AKIA:hunter2@b/x", "delta+s3://AKIA:hunter2@123"] {
            let e = normalise(uri).unwrap_err();
            assert!(!e.message.contains("hunter2"), "{e}");
        }
    }

    #[test]
    fn objects_have_one_spelling_too() {
        assert_eq!(normalise_object("s3a://b/a?b").unwrap(), "s3://b/a?b");
        for bad in ["s3://b", "s3://b/", "s3://b/a/", "s3://b/a//b", "s3://b/../c", "file:///", "x"] {
            assert_eq!(normalise_object(bad).unwrap_err().kind, Kind::Invalid, "{bad}");
        }
    }

    #[test]
    fn links_are_resolved_and_prefixes_end_at_slashes() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("in")).unwrap();
        std::os::unix::fs::symlink("/etc", real.join("in/out")).unwrap();
        let uri = normalise(&format!("file://{}/in/out/passwd", real.display())).unwrap();
        assert_eq!(uri, "file:///etc/passwd");

        assert!(is_under("s3://b/train", "s3://b/train"));
        assert!(is_under("s3://b/train/x", "s3://b/train"));
        assert!(is_under("s3://b/train/x", "s3://b"));
        assert!(is_under("gs://b/train/x", "gs://b/train") && is_under("az://b/train", "az://b"));
        assert!(!is_under("gs://b/train", "s3://b") && !is_under("az://bb/x", "az://b"));
        assert!(is_under("file:///etc", "file:///"));
        assert!(!is_under("s3://b/training/x", "s3://b/train"));
        assert!(!is_under("s3://bb/x", "s3://b"));
    }
}
