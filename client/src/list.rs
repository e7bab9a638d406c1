//! Lists of objects: a dataset that is not all that lies under a prefix.
//!
//! A list is a text with a URI on each line (`#` begins a comment), or the JSON of `forebay inspect --json`,
//! which also names the version of each object: opened again it is the same dataset, whatever was added
//! since.

use crate::snapshot;
use forebay_dataset::source::{normalise, place_of};
use forebay_proto::manifest::{Digest, Object};
use forebay_proto::{Error, Result, v1};

/// The dataset that a list or a snapshot is.
#[derive(Debug, Default)]
pub(crate) struct List {
    pub uri: String,
    pub objects: Vec<Object>,
    /// The rest as it was saved.
    pub segment_bytes: Option<u64>,
    pub schema_of: Option<String>,
    pub no_partitions: bool,
    pub filter: Option<String>,
    pub digest: Option<Digest>,
}

impl From<v1::Snapshot> for List {
    fn from(snapshot: v1::Snapshot) -> Self {
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        let dataset = snapshot.dataset.unwrap_or_default();
        Self {
            uri: dataset.uri,
            objects: dataset.objects,
            segment_bytes: Some(dataset.segment_bytes),
            schema_of: given(dataset.schema_of),
            no_partitions: dataset.no_partitions,
            filter: given(dataset.filter),
            digest: Digest::from_bytes(&snapshot.digest).ok(),
        }
    }
}

/// Reads a list. Follows links: not for an async thread.
pub(crate) fn read(list: &[u8]) -> Result<List> {
    let text = str::from_utf8(list).map_err(|_| Error::invalid("the list is not UTF-8"))?;
    match text.trim_start().starts_with('{') {
        true => snapshot::parse(text).map(List::from),
        false => lines(text),
    }
}

fn lines(text: &str) -> Result<List> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let uris = lines.map(normalise).collect::<Result<Vec<_>>>()?;
    if let Some(table) = uris.iter().find(|uri| place_of(uri) != uri.as_str()) {
        return Err(Error::invalid(format!("{table}: a list names objects, no tables: give it by its URI")));
    }
    let uri = common(&uris)?.to_owned();
    let key = |object: &String| object[uri.len()..].trim_start_matches('/').to_owned();
    let objects = uris.iter().map(|object| Object { key: key(object), ..Object::default() }).collect();
    Ok(List { uri, objects, ..List::default() })
}

/// The prefix of all objects, above directories that are columns (`year=2024`).
fn common(uris: &[String]) -> Result<&str> {
    let Some(first) = uris.first() else { return Err(Error::invalid("the list names no objects")) };
    let directory = |uri: &str| uri.rfind('/').unwrap_or(0);
    let root = first.find("://").map_or(0, |at| at + 3);
    let is_below =
        |uri: &str, end: usize| uri.strip_prefix(&first[..end]).is_some_and(|key| key.starts_with('/'));
    let mut end = directory(first);
    while let Some(other) = uris.iter().find(|uri| !is_below(uri, end)) {
        end = directory(&first[..end]);
        if end <= root {
            return Err(Error::invalid(format!(
                "{first} and {other} have no bucket or top directory in common: a list has one, --mix reads several"
            )));
        }
    }
    let bucket = first[root..].find('/').map_or(end, |at| root + at);
    let parts = first[..end].match_indices('/').map(|(at, _)| at).chain([end]);
    let mut before = bucket;
    for at in parts.filter(|at| *at > bucket) {
        if first[before..at].contains('=') {
            break;
        }
        before = at;
    }
    // The root of the file system is `file:///`.
    Ok(&first[..before.max(root + 1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str) -> Result<(String, Vec<String>)> {
        let spec = read(text.as_bytes())?;
        Ok((spec.uri, spec.objects.into_iter().map(|o| o.key).collect()))
    }

    #[test]
    fn a_list_lies_under_its_common_prefix() {
        let of = |uri: &str, keys: &[&str]| (uri.to_owned(), keys.iter().map(|k| k.to_string()).collect());
        let list = "# mine\n s3a://b/t/y/2.parquet\n\ns3://b/t/x/1.parquet\n";
        assert_eq!(listed(list).unwrap(), of("s3://b/t", &["y/2.parquet", "x/1.parquet"]));
        let list = "s3://b/t/year=1/m=2/a\ns3://b/t/year=1/m=2/b";
        assert_eq!(listed(list).unwrap(), of("s3://b/t", &["year=1/m=2/a", "year=1/m=2/b"]));
        assert_eq!(listed("s3://b/one").unwrap(), of("s3://b", &["one"]));
        assert_eq!(listed("s3://b/ab/x\ns3://b/a/x").unwrap(), of("s3://b", &["ab/x", "a/x"]));
        assert_eq!(listed("s3://b/a/x\ns3://b/a").unwrap(), of("s3://b", &["a/x", "a"]));
        assert_eq!(listed("s3://b/a\ns3://b/a/x").unwrap(), of("s3://b", &["a", "a/x"]));
        assert_eq!(listed("file:///no-x").unwrap(), of("file:///", &["no-x"]));
        assert_eq!(listed("file:///no=1/x").unwrap(), of("file:///", &["no=1/x"]));
        assert_eq!(listed("file:///no-a/b/x\nfile:///no-a/y").unwrap(), of("file:///no-a", &["b/x", "y"]));
        for (bad, says) in [
            ("", "no objects"),
            ("# x", "no objects"),
            ("s3://a/x\ns3://b/x", "--mix"),
            ("x", "not a URI"),
            ("delta+s3://b/t", "no tables"),
            ("file:///no-a/x\nfile:///no-b/x", "no bucket or top directory in common"),
            ("s3://a/x\ngs://a/x", "--mix"),
        ] {
            let e = listed(bad).unwrap_err();
            assert!(e.message.contains(says), "{e}");
        }
        assert!(read(b"\xff").unwrap_err().message.contains("UTF-8"));
    }

    #[test]
    fn a_version_is_what_inspect_prints() {
        let json = r#"{"uri": "s3://b/t", "segment_bytes": 5, "no_partitions": true, "where": "x > 3", "rows": 1,
            "objects": [{"key": "a", "etag": "e", "bytes": 9, "rows": 1}]}"#;
        let spec = read(json.as_bytes()).unwrap();
        assert_eq!((spec.uri.as_str(), spec.segment_bytes, spec.no_partitions), ("s3://b/t", Some(5), true));
        assert_eq!(spec.filter.as_deref(), Some("x > 3"));
        assert_eq!(
            spec.objects,
            [Object { key: "a".into(), etag: "e".into(), size: 9, ..Default::default() }]
        );
        for bad in ["{}", &json.replace("\"e\"", "\"\""), &json.replace("s3://b/t", "mix(s3://b/t=1)")] {
            assert!(read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
