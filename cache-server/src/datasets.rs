//! The datasets a node knows, by version and URI, and which URIs it may read at all.
//!
//! Manifests are kept on disk too, so that a restarted node serves its segments without asking the object
//! store. So are frozen datasets: one that has not changed is opened without reading its footers.

mod dataset;
mod files;
mod frozen;
mod known;

pub use dataset::Dataset;

use crate::cluster::ownership::Ownership;
use crate::disk::DiskCache;
use crate::read::single_flight::SingleFlight;
use crate::runtime::blocking;
use files::ManifestFiles;
use forebay_dataset::{Frozen, SegmentReader, View, schema, source, view};
use forebay_proto::manifest::{DatasetId, Digest, Manifest, SEGMENT_BYTES};
use forebay_proto::{Error, Result, v1};
use frozen::FrozenFiles;
use known::{Known, MadeBy};
use parking_lot::Mutex;
use std::sync::Arc;

/// The datasets of a node.
pub struct Datasets {
    source: SegmentReader,
    allow: Arc<[String]>,
    files: ManifestFiles,
    frozen: FrozenFiles,
    ownership: Arc<Ownership>,
    known: Mutex<Known>,
    /// Datasets being frozen, by URI and segment size: the ranks of a job all open theirs at once.
    freezing: SingleFlight<(String, u64), Arc<Frozen>>,
}

impl Datasets {
    /// Datasets under the `allow` roots, with manifests kept in a directory of the disk cache; `peers` are
    /// told of them. `Invalid` when a root cannot be one.
    pub fn open(
        source: SegmentReader,
        allow: &[String],
        disk: Arc<DiskCache>,
        ownership: Arc<Ownership>,
    ) -> Result<Self> {
        let allow = allow
            .iter()
            .map(|root| source::normalise(root).map_err(|e| e.context(format!("--allow {root}"))))
            .collect::<Result<Arc<[_]>>>()?;
        let (files, frozen) = (ManifestFiles::new(&disk), FrozenFiles::new(&disk));
        let (known, freezing) = (Mutex::default(), SingleFlight::default());
        let datasets = Self { source, allow, files, frozen, ownership, known, freezing };
        datasets.recover();
        Ok(datasets)
    }

    /// Freezes a dataset. While the object store does not answer, that is the state in which it was frozen
    /// last. Returns it with the compressed bytes of `columns` (none = all).
    pub async fn freeze(&self, spec: v1::DatasetSpec, columns: &[String]) -> Result<(Dataset, u64)> {
        let segment_bytes = if spec.segment_bytes == 0 { SEGMENT_BYTES } else { spec.segment_bytes };
        let (allow, wanted) = (self.allow.clone(), spec.clone());
        let uris = blocking(move || {
            view::uris(&wanted)?.into_iter().map(|uri| allowed(&allow, uri)).collect::<Result<Vec<_>>>()
        })
        .await??;
        let mut all = Vec::with_capacity(uris.len());
        for uri in uris {
            let (source, files, place) = (self.source.clone(), self.frozen.clone(), uri.clone());
            let freeze = || frozen::freeze(source, files, place, segment_bytes);
            all.push(self.freezing.join_or_lead((uri, segment_bytes), (), freeze).1.value.await?);
        }
        // Of a split or a mix it makes a manifest of its own.
        let view = blocking(move || View::of(&spec, all)).await??;
        let (manifest, schema) = (view.manifest.clone(), view.schema.clone());
        let projection = schema::projection(&schema, columns).map_err(|e| e.context(manifest.uri()))?;
        let dataset = Dataset { manifest, schema };
        self.take(dataset.clone(), MadeBy::ThisNode).await?;
        Ok((dataset, view.projected_bytes(&projection)))
    }

    /// Gets to know a dataset version that another node froze, and that was [`Datasets::checked`].
    pub async fn learn(&self, dataset: Dataset) -> Result<()> {
        self.take(dataset, MadeBy::Another).await
    }

    /// A dataset whose manifest came from elsewhere: every object that it would have this node read must be
    /// allowed, or it is `Denied`. Looks at all of them: not for an async thread.
    pub fn checked(&self, manifest: Manifest) -> Result<Dataset> {
        let objects = manifest.objects().iter().map(|o| manifest.object_uri(o));
        let parts = manifest.parts().iter().map(|p| p.uri.clone());
        parts.chain(objects).try_for_each(|uri| self.allowed(&uri).map(drop))?;
        let schema = schema::from_ipc(manifest.schema())?;
        Ok(Dataset { manifest: Arc::new(manifest), schema })
    }

    /// Evens out which nodes own what of the datasets. Not for an async thread.
    pub fn balance(&self) {
        self.ownership.balance(self.list().iter().map(|d| &*d.manifest));
    }

    async fn take(&self, dataset: Dataset, made_by: MadeBy) -> Result<()> {
        let manifest = dataset.manifest.clone();
        let (new, gone) = self.known.lock().insert(dataset, made_by, known::LIMIT);
        if new || !gone.is_empty() {
            let (files, ownership, all) = (self.files.clone(), self.ownership.clone(), self.list());
            let kept = blocking(move || {
                ownership.balance(all.iter().map(|d| &*d.manifest));
                files.remove(&gone);
                if new { files.keep(&manifest) } else { Ok(()) }
            });
            if let Err(e) = kept.await? {
                tracing::warn!(error = %e, "a manifest could not be kept: after a restart its dataset is opened again");
            }
        }
        Ok(())
    }

    /// The dataset version `digest` at `uri`, from a ticket; with no URI the only one that this node knows.
    /// `NotFound` if it knows none, or knows it with sizes from another node that are not those of the
    /// ticket.
    pub fn get(&self, digest: &[u8], uri: &str, sizes_hash: Option<u64>) -> Result<Dataset> {
        let digest = Digest::from_bytes(digest)?;
        let unknown = || {
            Error::not_found(format!(
                "dataset version {digest} is not known to this node: open the dataset on it first"
            ))
        };
        let mut known = self.known.lock();
        let id = match uri {
            "" => known.only(digest)?.ok_or_else(unknown)?,
            uri => DatasetId::new(digest, uri),
        };
        known.get(id, sizes_hash).ok_or_else(unknown)
    }

    /// All known datasets.
    pub fn list(&self) -> Vec<Dataset> {
        let mut all = self.known.lock().list();
        all.sort_by(|a, b| a.manifest.uri().cmp(b.manifest.uri()));
        all
    }

    /// Forgets the datasets under a URI; returns its normal form. Removes files: not for an async
    /// thread.
    pub fn forget(&self, uri: &str) -> Result<String> {
        let uri = self.allowed(uri)?;
        let mut gone: Vec<_> =
            self.list().into_iter().filter(|d| d.is_of(&uri)).map(|d| d.manifest.id()).collect();
        gone.retain(|id| self.known.lock().remove(id));
        self.files.remove(&gone);
        self.frozen.forget(&uri);
        Ok(uri)
    }

    /// The normal form of a URI that the settings allow; `Denied` for any other. Follows links where it names
    /// a file: not for an async thread.
    pub fn allowed(&self, uri: &str) -> Result<String> {
        allowed(&self.allow, uri)
    }

    fn recover(&self) {
        for dataset in self.files.recover(|manifest| self.checked(manifest)) {
            let gone = self.known.lock().insert(dataset, MadeBy::Another, known::LIMIT).1;
            self.files.remove(&gone);
        }
    }
}

fn allowed(allow: &[String], uri: &str) -> Result<String> {
    let uri = source::normalise(uri)?;
    match allow.iter().any(|root| source::is_under(&uri, root)) {
        true => Ok(uri),
        false => Err(Error::denied(format!(
            "{uri}: this server may not read it; it reads under {} (see --allow)",
            allow.join(", ")
        ))),
    }
}
