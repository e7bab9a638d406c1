//! A look at the object store when the node starts: wrong keys, a wrong endpoint or bucket, a folder that is
//! not there are in its log before the first reader meets them. It only tells; the node serves what it holds
//! in any case.

use crate::allow::is_all_buckets;
use crate::runtime::blocking;
use forebay_dataset::{SegmentReader, source};
use forebay_proto::{Error, Result};
use std::fs;
use std::time::Duration;
use tokio::time::timeout;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lists a little of each bucket, prefix and folder that may be read. Of all buckets there is none to ask
/// for.
pub async fn run(source: SegmentReader, allow: Vec<String>) {
    for root in allow.into_iter().filter(|root| !is_all_buckets(root)) {
        match timeout(PATIENCE, look_at(&source, &root)).await {
            Ok(Ok(())) => tracing::debug!(root, "the object store answers"),
            Ok(Err(e)) => tracing::warn!(error = %e, "readers of what --allow names will fail"),
            Err(_) => tracing::warn!(
                root,
                "readers will wait: the object store has not answered for {} s",
                PATIENCE.as_secs()
            ),
        }
    }
}

async fn look_at(source: &SegmentReader, root: &str) -> Result<()> {
    if !root.starts_with("file:") {
        return source.try_list(root).await;
    }
    let root = root.to_owned();
    blocking(move || look_at_folder(&root)).await?
}

/// `NotFound` or `Denied` of a folder or file that is not there or cannot be listed.
fn look_at_folder(root: &str) -> Result<()> {
    let uri = source::normalise(root)?;
    let path = uri.trim_start_matches("file://");
    let looked = match fs::metadata(path) {
        Ok(found) if found.is_dir() => fs::read_dir(path).map(drop),
        looked => looked.map(drop),
    };
    looked.map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::not_found(format!("--allow {root}: there is no such folder")),
        _ => Error::denied(format!("--allow {root}: {e}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Kind;

    #[test]
    fn a_folder_that_is_not_there_is_told_and_one_that_is_empty_is_none_of_those() {
        let temp = tempfile::tempdir().unwrap();
        let root = |name: &str| format!("file://{}/{name}", temp.path().display());
        fs::write(temp.path().join("object"), "one").unwrap();
        fs::create_dir(temp.path().join("empty")).unwrap();
        for fine in ["", "empty", "empty/", "object"] {
            look_at_folder(&root(fine)).unwrap();
        }
        let e = look_at_folder(&root("nope/")).unwrap_err();
        assert_eq!(e.kind, Kind::NotFound);
        assert_eq!(e.message, format!("--allow {}: there is no such folder", root("nope/")));
    }
}
