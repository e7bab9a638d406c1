//! Snapshots: versions of datasets that are kept under a name, so that a run goes on with exactly its data
//! after objects were added.
//!
//! A snapshot is kept in a file ([`file`]) or by a cache in its etcd. Either way it is what
//! `forebay inspect --json` prints: the URI, the objects with their tags, and the digest that opening it must
//! give.

mod file;

pub(crate) use file::parse;

use crate::access::Access;
use crate::endpoints::Endpoints;
use crate::environment::variable;
use crate::node::Node;
use file::Folder;
use forebay_proto::snapshot::{SCHEME, check_name};
use forebay_proto::{Error, Kind, Result, v1};
use std::path::{Path, PathBuf};

/// The variable that names the directory of snapshots where no flag does.
pub const SNAPSHOT_DIR_VARIABLE: &str = "FOREBAY_SNAPSHOT_DIR";

/// Where snapshots are kept.
#[derive(Debug, Clone)]
pub enum Snapshots {
    /// A file for each, `NAME.json`, in this directory.
    Folder(PathBuf),
    /// A cache, which keeps them in its etcd.
    Cache(Endpoints),
}

/// A snapshot as a person names it: by its name alone, or by the path of its file without `.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotName {
    /// The directory of its file, if the path says it.
    pub folder: Option<PathBuf>,
    /// The name itself.
    pub name: String,
}

impl SnapshotName {
    /// `Invalid` if that cannot be the name of a snapshot. It may begin with `snapshot:`.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.strip_prefix(SCHEME).unwrap_or(text);
        let (folder, name) = match text.rsplit_once('/') {
            Some(("", name)) => (Some(PathBuf::from("/")), name),
            Some((folder, name)) => (Some(PathBuf::from(folder)), name),
            None => (None, text),
        };
        let name = if folder.is_some() { name.strip_suffix(".json").unwrap_or(name) } else { name };
        check_name(name)?;
        Ok(Self { folder, name: name.to_owned() })
    }

    /// The directory of its file: that of the name, of a flag, of the environment; else a cache keeps it.
    pub fn folder(&self, flag: Option<&Path>) -> Option<PathBuf> {
        self.folder.clone().or_else(|| folder(flag))
    }
}

/// The directory of snapshots that a flag or the environment names.
pub fn folder(flag: Option<&Path>) -> Option<PathBuf> {
    flag.map(Path::to_owned).or_else(|| variable(SNAPSHOT_DIR_VARIABLE).map(PathBuf::from))
}

/// The snapshot that a dataset's URI names, `snapshot:NAME`.
pub(crate) async fn named(access: &Access, uri: &str) -> Result<v1::Snapshot> {
    let name = SnapshotName::parse(uri)?;
    let snapshots = match (name.folder(None), access) {
        (Some(folder), _) => Snapshots::Folder(folder),
        (None, Access::Endpoint(endpoints)) => Snapshots::Cache(endpoints.clone()),
        (None, Access::Direct(_)) => {
            return Err(Error::invalid(format!(
                "{uri}: a cache keeps it, and --direct asks none: set {SNAPSHOT_DIR_VARIABLE} to a directory of snapshots, \
                 or write it to a file with `forebay snapshot show {} --json`, and read @FILE",
                name.name
            )));
        }
    };
    snapshots.get(&name.name).await
}

impl Snapshots {
    /// Keeps a snapshot. `Invalid` if another one has its name.
    pub async fn save(&self, snapshot: v1::Snapshot) -> Result<()> {
        match self {
            Snapshots::Folder(folder) => in_folder(folder, move |folder| folder.save(&snapshot)).await,
            Snapshots::Cache(endpoints) => {
                let save = |node: Node| {
                    let snapshot = snapshot.clone();
                    async move { node.save(snapshot).await }
                };
                endpoints.ask(save).await.map(drop)
            }
        }
    }

    /// A snapshot with its objects. `NotFound` if there is none of that name.
    pub async fn get(&self, name: &str) -> Result<v1::Snapshot> {
        let name = name.to_owned();
        match self {
            Snapshots::Folder(folder) => in_folder(folder, move |folder| folder.get(&name)).await,
            Snapshots::Cache(endpoints) => {
                let get = |node: Node| {
                    let request = v1::SnapshotRequest { name: name.clone() };
                    async move { node.reply(node.snapshots().get(request)).await }
                };
                endpoints.ask(get).await
            }
        }
    }

    /// All of them, by name. Of a cache's the objects are left out.
    pub async fn list(&self) -> Result<Vec<v1::Snapshot>> {
        match self {
            Snapshots::Folder(folder) => in_folder(folder, move |folder| folder.list()).await,
            Snapshots::Cache(endpoints) => {
                let list = |node: Node| async move {
                    node.reply(node.snapshots().list(v1::ListSnapshotsRequest {})).await
                };
                Ok(endpoints.ask(list).await?.snapshots)
            }
        }
    }

    /// Forgets a snapshot. `NotFound` if there is none of that name.
    pub async fn remove(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        match self {
            Snapshots::Folder(folder) => in_folder(folder, move |folder| folder.remove(&name)).await,
            Snapshots::Cache(endpoints) => {
                let remove = |node: Node| {
                    let request = v1::SnapshotRequest { name: name.clone() };
                    async move { node.reply(node.snapshots().remove(request)).await }
                };
                endpoints.ask(remove).await.map(drop)
            }
        }
    }
}

/// JSON for people and programs: what `@FILE` reads.
pub fn json(snapshot: &v1::Snapshot) -> serde_json::Value {
    file::json(snapshot)
}

/// Files are not for async threads.
async fn in_folder<T: Send + 'static>(
    folder: &Path,
    work: impl FnOnce(Folder) -> Result<T> + Send + 'static,
) -> Result<T> {
    let folder = Folder(folder.to_owned());
    let done = tokio::task::spawn_blocking(move || work(folder)).await;
    done.unwrap_or_else(|e| Err(Error::new(Kind::Closed, format!("a file's work broke off: {e}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_says_where_the_file_is() {
        let parse = |text: &str| SnapshotName::parse(text).map(|n| (n.folder, n.name));
        assert_eq!(parse("snapshot:july").unwrap(), (None, "july".into()));
        assert_eq!(parse("snapshot:/s/july.json").unwrap(), (Some("/s".into()), "july".into()));
        assert_eq!(parse("./july").unwrap(), (Some(".".into()), "july".into()));
        assert_eq!(parse("/july").unwrap(), (Some("/".into()), "july".into()));
        for bad in ["snapshot:", "snapshot:a b", "s/", "s/..", ".."] {
            assert!(parse(bad).unwrap_err().message.contains("cannot be a snapshot's name"), "{bad}");
        }
        let here = SnapshotName::parse("./july").unwrap();
        assert_eq!(here.folder(Some(Path::new("/flag"))), Some(".".into()), "a path goes before a flag");
    }
}
