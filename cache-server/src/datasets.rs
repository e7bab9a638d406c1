//! The datasets a node knows, by version and URI, and which URIs it may read at all.
//!
//! Manifests are kept on disk too, so that a restarted node serves its segments without asking the object
//! store. So are frozen datasets: one that has not changed is opened without reading its footers.

mod dataset;
mod files;
mod frozen;
mod known;
mod segment_counter;

pub use dataset::Dataset;

use crate::allow::Allowed;
use crate::auth::caller::Caller;
use crate::cluster::ownership::Ownership;
use crate::disk::{DiskCache, SegmentsHeld};
use crate::read::single_flight::SingleFlight;
use crate::runtime::{blocking, given_up};
use files::ManifestFiles;
use forebay_dataset::source::{is_under, is_version, place_of};
use forebay_dataset::{Frozen, SegmentReader, Selection, View, schema, view};
use forebay_proto::manifest::{DatasetId, Digest, Manifest, SEGMENT_BYTES, SegmentId};
use forebay_proto::{Error, Result, v1};
use frozen::FrozenFiles;
use known::{Known, MadeBy};
use parking_lot::Mutex;
use segment_counter::SegmentCounter;
use std::collections::HashSet;
use std::sync::Arc;

/// A dataset as it was opened.
pub struct OpenDataset {
    pub dataset: Dataset,
    /// Compressed bytes of the columns that were asked for.
    pub projected_bytes: u64,
    /// For people: what was left out, and what else they may not expect.
    pub notes: Vec<String>,
}

/// The datasets that a node has frozen, or was told of by other nodes.
pub struct Datasets {
    source: SegmentReader,
    allow: Arc<Allowed>,
    files: ManifestFiles,
    frozen: FrozenFiles,
    ownership: Arc<Ownership>,
    known: Mutex<Known>,
    counter: Arc<SegmentCounter>,
    /// Datasets being frozen: the ranks of a job all open theirs at once.
    freezing: SingleFlight<Selection, Arc<Frozen>>,
}

impl Datasets {
    /// Datasets under the `allow` roots, with manifests kept in a directory of the disk cache; `peers` are
    /// told of them.
    pub fn open(
        source: SegmentReader,
        allow: Arc<Allowed>,
        disk: Arc<DiskCache>,
        ownership: Arc<Ownership>,
    ) -> Result<Self> {
        let (files, frozen) = (ManifestFiles::new(&disk), FrozenFiles::new(&disk));
        let (known, freezing) = (Mutex::default(), SingleFlight::default());
        let counter = Arc::new(SegmentCounter::new(disk, ownership.clone()));
        let datasets = Self { source, allow, files, frozen, ownership, known, counter, freezing };
        datasets.recover();
        Ok(datasets)
    }

    /// Freezes a dataset. While the object store does not answer, that is the state in which it was frozen
    /// last. `columns` (none = all) are those that will be read.
    ///
    /// # Errors
    /// `Denied` if the caller may not read all of it, beside those of the object store.
    pub async fn freeze(
        &self,
        caller: &Caller,
        spec: v1::DatasetSpec,
        columns: &[String],
    ) -> Result<OpenDataset> {
        let (view, made_by) = self.view(caller, spec).await?;
        self.opened(view.manifest.clone(), made_by, (&view, columns)).await
    }

    /// As [`Datasets::freeze`], with the ids that the object store has for the objects' versions, if it has
    /// any.
    pub async fn freeze_with_ids(
        &self,
        caller: &Caller,
        spec: v1::DatasetSpec,
        columns: &[String],
    ) -> Result<OpenDataset> {
        let (view, made_by) = self.view(caller, spec).await?;
        let manifest = match view.manifest.has_version_ids() {
            true => view.manifest.clone(),
            false => Arc::new(self.source.with_version_ids(&view.manifest).await?),
        };
        self.opened(manifest, made_by, (&view, columns)).await
    }

    async fn opened(
        &self,
        manifest: Arc<Manifest>,
        made_by: MadeBy,
        (view, columns): (&View, &[String]),
    ) -> Result<OpenDataset> {
        let projection = view.projection(columns)?;
        let dataset = Dataset { manifest, schema: view.schema.clone() };
        self.take(dataset.clone(), made_by).await?;
        let projected_bytes = view.projected_bytes(&projection);
        Ok(OpenDataset { dataset, projected_bytes, notes: view.notes() })
    }

    async fn view(&self, caller: &Caller, spec: v1::DatasetSpec) -> Result<(View, MadeBy)> {
        let segment_bytes = if spec.segment_bytes == 0 { SEGMENT_BYTES } else { spec.segment_bytes };
        let (allow, who, wanted) = (self.allow.clone(), caller.clone(), spec.clone());
        let selections = blocking(move || {
            let all = view::selections(&wanted)?;
            // First: who may not read it is not told whether the node may.
            all.iter().try_for_each(|selection| who.may_use_selection(selection))?;
            let all = all.into_iter();
            all.map(|selection| allowed_selection(&allow, selection)).collect::<Result<Vec<_>>>()
        })
        .await??;
        let mut all = Vec::with_capacity(selections.len());
        for selection in &selections {
            let selection = Selection { segment_bytes, ..selection.clone() };
            let (source, files, wanted) = (self.source.clone(), self.frozen.clone(), selection.clone());
            let freeze = || frozen::freeze(source, files, wanted);
            all.push(self.freezing.join_or_lead(selection, (), freeze).1.value.await?);
        }
        // A version that was named makes no other one old.
        let is_named = !spec.objects.is_empty() || selections.iter().any(|s| is_version(&s.uri));
        let made_by = if is_named { MadeBy::ThisNodeOfList } else { MadeBy::ThisNode };
        // Of a split or a mix it makes a manifest of its own.
        let (uri, who) = (spec.uri.clone(), caller.clone());
        let made = blocking(move || {
            let view = View::of(&spec, all)?;
            let is_within = who.reads(&view.manifest);
            Ok::<_, Error>((view, is_within))
        });
        match made.await?? {
            (view, true) => Ok((view, made_by)),
            // A table's log may name objects anywhere.
            (_, false) => {
                Err(caller.deny(&uri, format!("{uri}: some of its objects lie where you may not read")))
            }
        }
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
            let counter = self.counter.clone();
            let kept = blocking(move || {
                ownership.balance(all.iter().map(|d| &*d.manifest));
                counter.forget(&gone);
                files.remove(&gone);
                if new { files.keep(&manifest) } else { Ok(()) }
            });
            if let Err(e) = given_up(kept.await, Err(Error::retry("its disk hangs")))? {
                tracing::warn!(error = %e, "a manifest could not be kept: after a restart its dataset is opened again");
            }
        }
        Ok(())
    }

    /// The dataset version `digest` at `uri`, from a ticket; with no URI the only one that this node knows.
    /// `NotFound` if it knows none, or knows it with sizes from another node that are not those of the
    /// ticket, or without the ids of versions that the ticket's has; in the same words if the caller may not
    /// read all of it.
    pub fn get(
        &self,
        caller: &Caller,
        digest: &[u8],
        uri: &str,
        (sizes_hash, needs_ids): (Option<u64>, bool),
    ) -> Result<Dataset> {
        let digest = Digest::from_bytes(digest)?;
        let unknown = || {
            Error::not_found(format!(
                "dataset version {digest} is not known to this node: open the dataset on it first"
            ))
        };
        let mut known = self.known.lock();
        let forbidden = |uri: &str| {
            caller.deny(uri, format!("dataset version {digest} is not for this caller"));
            unknown()
        };
        let id = match uri {
            "" => match known.only(digest, |manifest| caller.reads(manifest))? {
                None if !matches!(known.only(digest, |_| true), Ok(None)) => return Err(forbidden("")),
                id => id.ok_or_else(unknown)?,
            },
            uri => DatasetId::new(digest, uri),
        };
        let dataset = known.get(id, sizes_hash, needs_ids).ok_or_else(unknown)?;
        drop(known);
        match caller.reads(&dataset.manifest) {
            true => Ok(dataset),
            false => Err(forbidden(uri)),
        }
    }

    /// Whether there is a newer version of the same dataset.
    pub fn is_superseded(&self, dataset: &Dataset) -> bool {
        self.known.lock().is_superseded(dataset)
    }

    /// All known datasets, ordered by URI.
    pub fn list(&self) -> Vec<Dataset> {
        let mut all = self.known.lock().list();
        all.sort_by(|a, b| a.manifest.uri().cmp(b.manifest.uri()));
        all
    }

    /// All known datasets, and how many segments of each are held. Looks at all segments of those that it was
    /// not asked about before: not for an async thread.
    pub fn held(&self) -> Vec<(Dataset, SegmentsHeld)> {
        self.counter.held(|| self.list())
    }

    /// Forgets the datasets under a URI; returns where that is. Removes files: not for an async thread.
    pub fn forget(&self, uri: &str) -> Result<String> {
        let uri = place_of(&self.allowed(uri)?).to_owned();
        let mut gone: Vec<_> =
            self.list().into_iter().filter(|d| d.is_of(&uri)).map(|d| d.manifest.id()).collect();
        gone.retain(|id| self.known.lock().remove(id));
        self.counter.forget(&gone);
        self.files.remove(&gone);
        self.frozen.forget(|m| is_under(m.uri(), &uri));
        Ok(uri)
    }

    /// Forgets versions under a URI: that of a digest, or else those with newer versions. Returns the
    /// segments that no other known dataset has. Removes files: not for an async thread.
    pub fn forget_versions(&self, uri: &str, digest: Option<Digest>) -> Result<Vec<SegmentId>> {
        let uri = place_of(&self.allowed(uri)?).to_owned();
        let is_gone = |d: &Dataset| {
            let is_such =
                digest.map_or_else(|| self.is_superseded(d), |digest| d.manifest.digest() == digest);
            is_such && d.is_of(&uri)
        };
        let (gone, left): (Vec<_>, Vec<_>) = self.list().into_iter().partition(is_gone);
        let ids: Vec<_> = gone.iter().map(|d| d.manifest.id()).collect();
        for id in &ids {
            self.known.lock().remove(id);
        }
        self.counter.forget(&ids);
        self.files.remove(&ids);
        self.frozen.forget(|m| gone.iter().any(|d| d.manifest.digest() == m.digest()));
        let kept: HashSet<SegmentId> = left.iter().flat_map(Dataset::segment_ids).collect();
        Ok(gone.iter().flat_map(Dataset::segment_ids).filter(|id| !kept.contains(id)).collect())
    }

    /// The normal form of a URI that the settings allow; `Denied` for any other. Follows links where it names
    /// a file: not for an async thread.
    pub fn allowed(&self, uri: &str) -> Result<String> {
        self.allow.check(uri)
    }

    fn recover(&self) {
        for dataset in self.files.recover(|manifest| self.checked(manifest)) {
            let gone = self.known.lock().insert(dataset, MadeBy::Another, known::LIMIT).1;
            self.files.remove(&gone);
        }
    }
}

/// A selection with its URI in normal form; `Denied` if it, or an object of its list, is not allowed.
fn allowed_selection(allow: &Allowed, selection: Selection) -> Result<Selection> {
    let selection = Selection { uri: allow.check(&selection.uri)?, ..selection };
    let mut listed = selection.objects.iter().map(|object| selection.object_uri(&object.key));
    listed.try_for_each(|uri| allow.check(&uri).map(drop))?;
    Ok(selection)
}
