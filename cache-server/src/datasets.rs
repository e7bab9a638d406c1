//! The datasets a node knows: manifests by digest, and which URIs it may read at all.
//!
//! A manifest is kept on disk too, so that a node that was restarted serves what it holds without asking the store.

mod known;

use crate::cache::blocking;
use crate::flight::Flights;
use crate::store::Store;
use arrow::datatypes::SchemaRef;
use forebay_proto::manifest::{Digest, Manifest, SEGMENT_BYTES};
use forebay_proto::{Error, Result, v1};
use forebay_segment::{Frozen, Source, View, schema, source, view};
use known::Known;
use prost::Message as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A frozen dataset with its decoded schema.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// The manifest.
    pub manifest: Arc<Manifest>,
    /// All columns.
    pub schema: SchemaRef,
}

impl Dataset {
    /// Whether it reads anything under a URI.
    fn is_of(&self, uri: &str) -> bool {
        self.manifest.parts().iter().any(|p| source::is_under(&p.uri, uri))
    }
}

/// The datasets of a node.
pub struct Datasets {
    source: Source,
    allow: Vec<String>,
    store: Arc<Store>,
    home: PathBuf,
    dir: PathBuf,
    known: Mutex<Known>,
    /// Datasets being frozen, by URI and segment size: the ranks of a job all open theirs at once.
    freezing: Flights<(String, u64), Arc<Frozen>>,
}

impl Datasets {
    /// Datasets under the `allow` roots, with manifests kept in a directory of the store. `Invalid` when a root cannot be
    /// one.
    pub fn open(source: Source, allow: &[String], store: Arc<Store>) -> Result<Self> {
        let allow = allow
            .iter()
            .map(|root| source::normalise(root).map_err(|e| e.context(format!("--allow {root}"))))
            .collect::<Result<Vec<_>>>()?;
        let home = store.home()?;
        let dir = home.join("v1/manifests");
        std::fs::create_dir_all(&dir)
            .map_err(|e| Error::denied(format!("cache directory {}: cannot be made: {e}", dir.display())))?;
        let datasets =
            Self { source, allow, store, home, dir, known: Mutex::default(), freezing: Flights::default() };
        datasets.recover();
        Ok(datasets)
    }

    /// Freezes a dataset anew. Answers with it and the compressed bytes of `columns` (none = all).
    pub async fn freeze(&self, spec: v1::DatasetSpec, columns: &[String]) -> Result<(Dataset, u64)> {
        let segment_bytes = if spec.segment_bytes == 0 { SEGMENT_BYTES } else { spec.segment_bytes };
        let uris = view::uris(&spec)?.into_iter().map(|u| self.allowed(u)).collect::<Result<Vec<_>>>()?;
        let mut frozen = Vec::with_capacity(uris.len());
        for uri in uris {
            let (source, place) = (self.source.clone(), uri.clone());
            let freeze = || async move { source.freeze(&place, segment_bytes).await };
            frozen.push(self.freezing.fly((uri, segment_bytes), freeze).await.1?);
        }
        let view = View::of(&spec, frozen)?;
        let (manifest, schema) = (view.manifest.clone(), view.schema.clone());
        let projection = schema::projection(&schema, columns).map_err(|e| e.context(manifest.uri()))?;
        let dataset = Dataset { manifest, schema };
        self.take(dataset.clone()).await?;
        Ok((dataset, view.projected_bytes(&projection)))
    }

    /// Gets to know a dataset version that another node froze. `Denied` unless all it reads is allowed here.
    pub async fn learn(&self, manifest: Manifest) -> Result<()> {
        manifest.parts().iter().try_for_each(|p| self.allowed(&p.uri).map(drop))?;
        let schema = schema::from_ipc(manifest.schema())?;
        self.take(Dataset { manifest: Arc::new(manifest), schema }).await
    }

    async fn take(&self, dataset: Dataset) -> Result<()> {
        let manifest = dataset.manifest.clone();
        let (new, gone) = self.known().insert(dataset, known::LIMIT);
        self.drop_files(gone);
        if new {
            let (path, wire) = (self.path(manifest.digest()), v1::Manifest::from(&*manifest));
            let (store, home) = (self.store.clone(), self.home.clone());
            let kept = blocking(move || keep(&store, &home, &path, &wire.encode_to_vec())).await?;
            if let Err(e) = kept {
                tracing::warn!(error = %e, "a manifest could not be kept: after a restart its dataset is opened anew");
            }
        }
        Ok(())
    }

    /// The dataset of a digest, from a ticket; `NotFound` if this node does not know it.
    pub fn get(&self, digest: &[u8]) -> Result<Dataset> {
        let digest = Digest::from_bytes(digest)?;
        self.known().get(&digest).ok_or_else(|| {
            Error::not_found(format!(
                "dataset version {digest} is not known to this node: open the dataset on it first"
            ))
        })
    }

    /// All known datasets.
    pub fn list(&self) -> Vec<Dataset> {
        let mut all = self.known().list();
        all.sort_by(|a, b| a.manifest.uri().cmp(b.manifest.uri()));
        all
    }

    /// Forgets the datasets under a URI.
    pub fn forget(&self, uri: &str) -> Result<String> {
        let uri = self.allowed(uri)?;
        let mut gone: Vec<_> =
            self.list().into_iter().filter(|d| d.is_of(&uri)).map(|d| d.manifest.digest()).collect();
        gone.retain(|digest| self.known().remove(digest));
        self.drop_files(gone);
        Ok(uri)
    }

    /// The normal form of a URI that the settings allow; `Denied` for any other.
    pub fn allowed(&self, uri: &str) -> Result<String> {
        let uri = source::normalise(uri)?;
        match self.allow.iter().any(|root| source::is_under(&uri, root)) {
            true => Ok(uri),
            false => Err(Error::denied(format!(
                "{uri}: this server may not read it; it reads under {} (see --allow)",
                self.allow.join(", ")
            ))),
        }
    }

    fn recover(&self) {
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return };
        for path in entries.flatten().map(|e| e.path()) {
            let read = || -> Result<Dataset> {
                let bytes = std::fs::read(&path).map_err(|e| Error::corrupt(e.to_string()))?;
                let wire = v1::Manifest::decode(&bytes[..]).map_err(|e| Error::corrupt(e.to_string()))?;
                let manifest = Arc::new(Manifest::try_from(wire)?);
                manifest.parts().iter().try_for_each(|p| self.allowed(&p.uri).map(drop))?;
                let schema = schema::from_ipc(manifest.schema())?;
                Ok(Dataset { manifest, schema })
            };
            match read() {
                Ok(d) => {
                    let gone = self.known().insert(d, known::LIMIT).1;
                    self.drop_files(gone);
                }
                Err(e) => {
                    tracing::info!(path = %path.display(), reason = %e, "a kept manifest is of no use: removed");
                    std::fs::remove_file(&path).ok();
                }
            }
        }
    }

    fn drop_files(&self, gone: Vec<Digest>) {
        for digest in gone {
            let path = self.path(digest);
            let bytes = std::fs::metadata(&path).map_or(0, |m| m.len());
            if std::fs::remove_file(&path).is_ok() {
                self.store.release_beside(&self.home, bytes);
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, digest: Digest) -> PathBuf {
        self.dir.join(format!("{digest}.manifest"))
    }
}

/// Writes a manifest where the store's limit has room for it.
fn keep(store: &Store, home: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |e: std::io::Error| Error::retry(format!("{}: write: {e}", path.display()));
    if !store.book_beside(home, bytes.len() as u64) {
        return Err(Error::full(format!("{}: the cache has no room for it", path.display())));
    }
    let tmp = path.with_extension("tmp");
    // The folder is made anew if the directory lost all it held.
    let written = std::fs::create_dir_all(path.parent().unwrap_or(home))
        .and_then(|()| std::fs::write(&tmp, bytes))
        .and_then(|()| std::fs::rename(&tmp, path));
    if written.is_err() {
        std::fs::remove_file(&tmp).ok();
        store.release_beside(home, bytes.len() as u64);
    }
    written.map_err(failed)
}
