//! What a checkpoint says about itself.

use anyhow::{Context, Result, ensure};
use forebay_proto::digest::{ContentDigest, OrderDigest};
use forebay_proto::hex;
use forebay_proto::state::LoaderState;
use serde::{Deserialize, Serialize};

use crate::train::hyperparams::Hyperparams;

/// The form of checkpoints that this build writes and reads.
pub const FORMAT: u32 = 1;

/// What a run must have in common with a checkpoint to go on from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The model's name and settings; `none` for the loader alone.
    pub model: String,
    /// The columns that the model takes, in its order.
    pub columns: Vec<String>,
    /// URI of the training dataset.
    pub dataset: String,
    /// Its version, in hex.
    pub manifest_digest: String,
    /// The seed of order and parameters.
    pub seed: u64,
    /// As `none`, `full` or `window(4)`.
    pub shuffle: String,
}

/// `checkpoint.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// [`FORMAT`] when it was written.
    pub format: u32,
    /// The version of `forebay-train` that wrote it.
    pub version: String,
    /// What it belongs to.
    pub identity: Identity,
    /// Steps of the run so far.
    pub step: u64,
    /// The loader's state: 65 bytes, in hex.
    pub loader_state: String,
    /// What was seen, epoch by epoch; the last one may be under way.
    pub epochs: Vec<EpochSeen>,
    /// The sum of their order digests.
    pub order_digest: String,
    /// Ranks of the run that wrote it.
    pub world_size: usize,
    /// Samples per step of the run that wrote it.
    pub global_batch: u64,
    /// How that run learnt; not in checkpoints of the first builds, nor of the loader alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Hyperparams>,
}

/// What was seen of an epoch, over all ranks and all restarts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochSeen {
    /// Counted from 0.
    pub epoch: u64,
    /// Samples, padding apart.
    pub samples: u64,
    pub steps: u64,
    /// The order digest of those samples, in hex.
    pub order_digest: String,
    /// Their content digest, in hex, if all of them were verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_digest: Option<String>,
    /// Sum of the samples' losses, or the sequences'.
    pub loss_sum: f64,
    /// Sequences, if the samples were packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequences: Option<u64>,
}

/// The digests of a stretch of an epoch.
#[derive(Debug, Clone, Copy)]
pub struct Digests {
    pub order: OrderDigest,
    /// If its values were verified.
    pub content: Option<ContentDigest>,
}

impl EpochSeen {
    /// Nothing of this epoch.
    pub fn none(epoch: u64) -> Self {
        let order_digest = OrderDigest::default().to_string();
        Self {
            epoch,
            samples: 0,
            steps: 0,
            order_digest,
            content_digest: None,
            loss_sum: 0.0,
            sequences: None,
        }
    }

    /// What `epochs` say of one of them; nothing if they do not have it.
    pub fn find(epochs: &[Self], epoch: u64) -> Self {
        epochs.iter().find(|seen| seen.epoch == epoch).cloned().unwrap_or_else(|| Self::none(epoch))
    }

    pub fn digest(&self) -> Result<OrderDigest> {
        Ok(self.order_digest.parse()?)
    }

    /// Adds the sequences of a stretch whose samples were packed.
    pub fn add_sequences(&mut self, sequences: Option<u64>) {
        self.sequences =
            sequences.map(|sequences| self.sequences.unwrap_or(0) + sequences).or(self.sequences);
    }

    /// The mean loss of a sample, or of a sequence.
    pub fn mean_loss(&self) -> f64 {
        self.loss_sum / self.sequences.unwrap_or(self.samples).max(1) as f64
    }

    /// Adds a further stretch of the same epoch.
    pub fn add(&mut self, samples: u64, steps: u64, digests: Digests, loss_sum: f64) -> Result<()> {
        let (mut all, mut content) = (self.digest()?, digests.content);
        all.merge(digests.order);
        if self.samples > 0 {
            let before = self.content_digest.as_deref().map(str::parse).transpose()?;
            content = content.zip(before).map(|(mut content, before): (ContentDigest, _)| {
                content.merge(before);
                content
            });
        }
        self.content_digest = content.map(|content| content.to_string());
        self.samples += samples;
        self.steps += steps;
        self.order_digest = all.to_string();
        self.loss_sum += loss_sum;
        Ok(())
    }
}

/// The sum of the epochs' digests.
pub fn digest_of(epochs: &[EpochSeen]) -> Result<OrderDigest> {
    let mut all = OrderDigest::default();
    for epoch in epochs {
        all.merge(epoch.digest()?);
    }
    Ok(all)
}

impl Meta {
    /// Of a run that stands at `state`.
    pub fn new(
        identity: Identity,
        step: u64,
        state: &LoaderState,
        epochs: Vec<EpochSeen>,
        (world_size, global_batch): (usize, u64),
    ) -> Result<Self> {
        Ok(Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            identity,
            step,
            loader_state: hex::encode(&state.to_bytes()),
            order_digest: digest_of(&epochs)?.to_string(),
            epochs,
            world_size,
            global_batch,
            settings: None,
        })
    }

    /// The same with how the run learns.
    pub fn with(self, settings: Option<Hyperparams>) -> Self {
        Self { settings, ..self }
    }

    /// The loader's state after the last step, from which it goes on.
    pub fn state(&self) -> Result<LoaderState> {
        let bytes = hex::decode(&self.loader_state).context("the loader state is no hex")?;
        Ok(LoaderState::from_bytes(&bytes)?)
    }

    /// Refuses a run that it does not belong to, naming what differs.
    pub fn check(&self, run: &Identity) -> Result<()> {
        let own = &self.identity;
        let other = "give another --checkpoint-dir, or start over with --fresh";
        let same = "use the same, or --fresh";
        for (what, own, run, hint) in [
            ("the model", &own.model, &run.model, other),
            ("the columns", &own.columns.join(", "), &run.columns.join(", "), other),
            ("the dataset", &own.dataset, &run.dataset, other),
            ("the dataset version", &own.manifest_digest, &run.manifest_digest, other),
            ("--seed", &own.seed.to_string(), &run.seed.to_string(), same),
            ("the shuffle", &own.shuffle, &run.shuffle, same),
        ] {
            ensure!(own == run, "it is of {what} {own}, but this run has {what} {run}: {hint}");
        }
        Ok(())
    }
}
