//! URIs of Delta tables: `delta+s3://bucket/path`, with or without `@VERSION`.

use forebay_proto::manifest::DELTA;

/// A Delta table in one of its versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableUri<'a> {
    /// Where its log and its objects lie.
    pub root: &'a str,
    /// None = the latest.
    pub version: Option<u64>,
}

impl<'a> TableUri<'a> {
    /// The table that a URI names; none if it names none.
    pub(crate) fn of(uri: &'a str) -> Option<Self> {
        let rest = uri.strip_prefix(DELTA)?;
        let versioned = rest.rsplit_once('@').and_then(|(root, version)| {
            let is_number = !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit());
            // `s3://user:password@bucket` is refused as such.
            let is_host = root.split_once("://").is_some_and(|(_, host)| !host.contains(':'));
            Some((root, version.parse().ok().filter(|_| is_number && is_host)?))
        });
        Some(match versioned {
            Some((root, version)) => Self { root, version: Some(version) },
            None => Self { root: rest, version: None },
        })
    }
}

/// Whether a URI names one version of a table.
pub fn is_version(uri: &str) -> bool {
    TableUri::of(uri).is_some_and(|table| table.version.is_some())
}

/// Where the objects of a dataset lie whose URI is in normal form: below it, or below the table it names.
pub fn place_of(uri: &str) -> &str {
    TableUri::of(uri).map_or(uri, |table| table.root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_may_have_a_version() {
        for (uri, root, version) in [
            ("delta+s3://b/t", "s3://b/t", None),
            ("delta+s3://b/t@17", "s3://b/t", Some(17)),
            ("delta+s3://b@0", "s3://b", Some(0)),
            ("delta+s3://b/t@x", "s3://b/t@x", None),
            ("delta+s3://b/t@", "s3://b/t@", None),
            ("delta+s3://b/x@2/t", "s3://b/x@2/t", None),
            ("delta+s3://key:secret@123", "s3://key:secret@123", None),
        ] {
            assert_eq!(TableUri::of(uri), Some(TableUri { root, version }), "{uri}");
            assert_eq!((place_of(uri), is_version(uri)), (root, version.is_some()));
        }
        assert_eq!((TableUri::of("s3://b/t@1"), place_of("s3://b/t@1")), (None, "s3://b/t@1"));
    }
}
