//! What a URI names, for commands that would take a slip for an order: whether it is one that they take, and
//! whether anything lies there.

use forebay_client::Access;
use forebay_client::objects::Objects;
use forebay_dataset::source;
use forebay_proto::{Error, Kind, Result, v1};
use std::time::Duration;
use tokio::time::timeout;

/// How long the object store may take to say what lies somewhere.
const PATIENCE: Duration = Duration::from_secs(10);

/// `Invalid` unless it is a URI. Nodes would say the same, each of them.
pub(crate) fn check_uri(uri: &str) -> Result<()> {
    match uri.starts_with("snapshot:") || uri.starts_with('@') {
        true => Err(Error::invalid(format!(
            "{uri}: give the URI of the dataset, not a version of it: pin, unpin, free and replicas are of all that lies \
             under a URI"
        ))),
        false => source::normalise(uri).map(drop),
    }
}

/// Whether nothing lies at or under a URI; `None` where the object store does not say.
pub(crate) async fn is_empty(access: &Access, uri: &str) -> Option<bool> {
    let request =
        v1::ListObjectsRequest { uri: uri.to_owned(), recursive: true, limit: 1, ..Default::default() };
    match timeout(PATIENCE, Objects::new(access).list(&request)).await {
        Ok(Ok(page)) => Some(page.objects.is_empty() && page.token.is_empty()),
        Ok(Err(e)) if e.kind == Kind::NotFound => Some(true),
        Ok(Err(_)) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_uris_are_told_before_any_node_is_asked() {
        for (bad, says) in
            [("snapshot:july", "the URI of the dataset"), ("@list", "@list"), ("x", "not a URI")]
        {
            let e = check_uri(bad).unwrap_err();
            assert!(e.kind == Kind::Invalid && e.message.contains(says), "{bad}: {e}");
        }
        for good in ["s3://b/d", "s3://b/t/*/x.parquet", "delta+s3://b/t"] {
            check_uri(good).unwrap();
        }
    }
}
