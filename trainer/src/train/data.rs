//! The datasets of a run: opened alike on all ranks, with the model that fits them, and the batches of one.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use forebay_client::args::SameHost;
use forebay_client::loader::{Ending, Packing, RunStart, Shuffle};
use forebay_client::{Access, Dataset, DatasetSpec, LoaderSettings};
use forebay_proto::manifest::Digest;

use crate::checkpoint::Identity;
use crate::input::feed::{Feed, Teller};
use crate::input::schema::top_level;
use crate::input::transfer::Compute;
use crate::input::{Columns, Preparer};
use crate::model::{self, DataFacts, ModelSettings};
use crate::rank::session::Session;
use crate::train::survey;

/// A dataset and what a model takes of it.
pub struct ModelData {
    pub dataset: Dataset,
    pub model: ModelSettings,
    pub columns: Columns,
    preparer: Arc<Preparer>,
    /// How its documents are packed, if they are.
    packing: Option<Packing>,
}

/// A dataset that is open on all ranks in the same version, before it is known what a model takes of it.
pub struct OpenData {
    spec: DatasetSpec,
    dataset: Dataset,
}

/// What a version of a dataset says of what the flags leave open.
pub struct KnownFacts {
    version: Digest,
    pub facts: DataFacts,
}

/// Opens a dataset with the columns that the model reads. Collective.
pub fn open(session: &Session, spec: DatasetSpec) -> Result<OpenData> {
    let paths = session.settings.model.column_names();
    let spec = DatasetSpec { columns: Some(paths), ..spec };
    let dataset = session.runtime.block_on(open_columns(&session.access, &spec))?;
    dataset.notes.iter().for_each(|note| session.say(&format!("note: {note}")));
    let uri = dataset.manifest.uri();
    ensure!(dataset.epoch_samples() > 0, "{uri} has no rows");
    // Each rank opens it by itself: it may have been overwritten in between.
    let digest = dataset.manifest.digest().0;
    let versions = session.group.all_gather_i64(&[(digest >> 64) as i64, digest as i64])?;
    same_version(&versions).with_context(|| uri.to_owned())?;
    Ok(OpenData { spec, dataset })
}

/// Opens a dataset, some of whose columns may be named by a path: which of them are is known with the schema.
async fn open_columns(access: &Access, spec: &DatasetSpec) -> forebay_proto::Result<Dataset> {
    let paths = spec.columns.as_deref().unwrap_or_default();
    if !paths.iter().any(|path| path.contains('.')) {
        return Dataset::open(access, spec).await;
    }
    let whole = Dataset::open(access, &DatasetSpec { columns: None, ..spec.clone() }).await?;
    let mut columns: Vec<_> = paths.iter().map(|path| top_level(&whole.schema, path).to_owned()).collect();
    columns.sort_unstable();
    columns.dedup();
    Dataset::open(access, &DatasetSpec { columns: Some(columns), ..spec.clone() }).await
}

impl OpenData {
    /// What this training dataset says of what the flags leave open. It is not read again if `known` are the
    /// facts of this very version. Collective.
    pub fn facts(&self, session: &Session, known: Option<KnownFacts>) -> Result<KnownFacts> {
        let version = self.dataset.manifest.digest();
        match known.filter(|known| known.version == version) {
            Some(known) => Ok(known),
            None => Ok(KnownFacts { version, facts: survey::facts(session, &self.spec, &self.dataset)? }),
        }
    }

    /// With the model that fits it, and a check that there is one. `train`: the seed of a training, by which
    /// images are varied, and which packs documents if that was asked for.
    pub fn with_model(self, session: &Session, facts: &DataFacts, train: Option<u64>) -> Result<ModelData> {
        let (args, dataset) = (&session.settings.model, self.dataset);
        let (model, mut columns) = model::resolve(args, facts, &dataset.schema, dataset.manifest.uri())?;
        if train.is_none() {
            columns = columns.unpacked();
        }
        let packing = facts.packing.clone().filter(|_| train.is_some());
        let threads = std::thread::available_parallelism().map_or(1, usize::from) / session.env.local_world;
        let of = (dataset.manifest.uri().to_owned(), columns.clone());
        let preparer = Preparer::new(of, &args.image, threads, train)?;
        Ok(ModelData { dataset, model, columns, preparer: Arc::new(preparer), packing })
    }
}

/// One epoch of this rank's share, from the beginning; the caller changes what it wants otherwise.
pub fn loader_settings(session: &Session, shuffle: Shuffle, global_batch: u64) -> LoaderSettings {
    let default = LoaderSettings::default();
    let prefetch_bytes = session.settings.prefetch_bytes.unwrap_or(default.prefetch_bytes);
    // What a stream holds is read ahead too.
    let window_bytes = u32::try_from(prefetch_bytes).unwrap_or(u32::MAX).min(default.window_bytes);
    LoaderSettings {
        seed: session.settings.seed,
        shuffle,
        ending: Ending::Pad,
        global_batch,
        rank: session.env.rank as u32,
        world: session.env.world as u32,
        first_epoch: 0,
        epochs: Some(1),
        prefetch_bytes,
        window_bytes,
        content_digest: session.settings.verify,
        same_host: session.settings.same_host == SameHost::Auto,
        ..default
    }
}

impl ModelData {
    /// Starts to read batches; their inputs are made for `compute`.
    pub fn feed(&self, session: &Session, settings: LoaderSettings, compute: Compute) -> Result<Feed> {
        let settings = self.packed(settings);
        let with_inputs = session.settings.trains();
        let teller = match session.env.is_first() {
            true => Teller::Of(session.access.clone()),
            false => Teller::Silent,
        };
        let how = (compute, teller);
        Feed::start(&session.runtime, &self.dataset, settings, &self.preparer, with_inputs, how)
    }

    /// The same, in sequences of documents if they are packed.
    fn packed(&self, settings: LoaderSettings) -> LoaderSettings {
        LoaderSettings { pack: self.packing.clone(), ..settings }
    }

    /// Rows of inputs in an epoch: its samples, or its sequences of documents, of a mix their mean number.
    pub fn input_rows(&self) -> u64 {
        match &self.packing {
            Some(packing) => packing.sequences(&self.dataset.manifest),
            None => self.dataset.epoch_samples(),
        }
    }

    /// Steps of an epoch; of a packed mix about.
    pub fn steps(&self, global_batch: u64) -> u64 {
        self.input_rows().div_ceil(global_batch)
    }

    /// Steps of all epochs that were done where a loader with these settings goes on, had they been taken at
    /// its batch.
    pub fn steps_done(&self, settings: &LoaderSettings) -> Result<u64> {
        Ok(RunStart::steps_done(&self.dataset, &self.packed(settings.clone()))?)
    }

    /// What a checkpoint of a run on this dataset belongs to.
    pub fn identity(&self, session: &Session) -> Identity {
        let (manifest, settings) = (&self.dataset.manifest, &session.settings);
        let model = match settings.trains() {
            // Settings are plain data, and JSON the form in which people may read them.
            true => serde_json::to_string(&self.model).unwrap_or_else(|_| self.model.name().to_owned()),
            false => "none".to_owned(),
        };
        Identity {
            model,
            columns: self.columns.describe(),
            dataset: manifest.uri().to_owned(),
            manifest_digest: manifest.digest().to_string(),
            seed: settings.seed,
            shuffle: settings.shuffle().to_string(),
        }
    }

    /// Refuses to evaluate on a dataset that the model was not trained on.
    pub fn check_same_model(&self, test: &Self) -> Result<()> {
        ensure!(
            self.model == test.model && self.columns.clone().unpacked() == test.columns,
            "{} and {} do not fit the same model: one makes it {:?} on {:?}, the other {:?} on {:?}",
            self.dataset.manifest.uri(),
            test.dataset.manifest.uri(),
            self.model,
            self.columns,
            test.model,
            test.columns
        );
        Ok(())
    }
}

/// Refuses ranks that opened different versions of a dataset: they would follow different orders.
fn same_version(versions: &[Vec<i64>]) -> Result<()> {
    if let Some(rank) = versions.iter().position(|version| *version != versions[0]) {
        bail!("rank {rank} opened another version than rank 0: it was overwritten just now, start again");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_must_have_opened_the_same_version() {
        assert!(same_version(&[vec![1, 2], vec![1, 2]]).is_ok());
        let error = same_version(&[vec![1, 2], vec![1, 2], vec![1, 3]]).unwrap_err().to_string();
        assert!(error.starts_with("rank 2 opened another version"), "{error}");
    }
}
