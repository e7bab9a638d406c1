//! The process that gets killed: it reads all ranks of a world in lockstep and checkpoints after every step.
//!
//! A checkpoint holds the loader state and the digests so far, and is replaced atomically, as a trainer's is.
//! Samples that a killed process had read beyond it count as not read.

use super::dataset::open;
use anyhow::Context;
use clap::Args;
use forebay_client::loader::Shuffle;
use forebay_client::{Batch, Event, Loader, LoaderSettings};
use forebay_proto::digest::{ContentDigest, OrderDigest};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Divisible by every world size that is tried.
pub const GLOBAL_BATCH: u64 = 48;

/// World sizes that are tried.
pub const WORLDS: [u32; 7] = [1, 2, 3, 4, 6, 8, 16];

#[derive(Debug, Clone, Args)]
pub struct ReaderOptions {
    #[arg(long)]
    endpoint: String,
    #[arg(long)]
    uri: String,
    #[arg(long)]
    world: u32,
    #[arg(long)]
    epochs: u64,
    #[arg(long)]
    checkpoint: PathBuf,
}

/// The part of an epoch that was read: its digests and number of samples.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochSeen {
    /// The merged digest, in hex.
    pub digest: String,
    /// The same of the values.
    pub content: String,
    /// Samples, padding left out.
    pub samples: u64,
}

impl Default for EpochSeen {
    fn default() -> Self {
        let (digest, content) = (OrderDigest::default(), ContentDigest::default());
        Self { digest: digest.to_string(), content: content.to_string(), samples: 0 }
    }
}

impl EpochSeen {
    fn add(&mut self, batch: &Batch) -> anyhow::Result<()> {
        let (mut digest, mut content): (OrderDigest, ContentDigest) =
            (self.digest.parse()?, self.content.parse()?);
        digest.merge(batch.digest);
        content.merge(batch.content.context("a batch without a content digest")?);
        let samples = self.samples + batch.real_rows as u64;
        *self = Self { digest: digest.to_string(), content: content.to_string(), samples };
        Ok(())
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The loader state's bytes.
    state: Option<Vec<u8>>,
    /// By epoch.
    pub seen: BTreeMap<u64, EpochSeen>,
}

impl Checkpoint {
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        match std::fs::read(path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(e) => Err(e.into()),
        }
    }

    fn save(&self, path: &Path) -> anyhow::Result<()> {
        let tmp = path.with_extension("tmp");
        std::fs::write(&tmp, serde_json::to_vec(self)?)?;
        Ok(std::fs::rename(tmp, path)?)
    }
}

/// What its order depends on, and how much it reads ahead.
pub fn settings() -> LoaderSettings {
    LoaderSettings {
        seed: 11,
        shuffle: Shuffle::Window(8),
        global_batch: GLOBAL_BATCH,
        prefetch_bytes: 8 << 20,
        content_digest: true,
        ..Default::default()
    }
}

/// Reads on from the checkpoint to the end of the last epoch; writes one byte to stdout per step.
pub async fn run(options: &ReaderOptions) -> anyhow::Result<()> {
    let dataset = open(&options.endpoint, &options.uri).await?;
    let mut checkpoint = Checkpoint::load(&options.checkpoint)?;
    let start = |rank| {
        let mut settings =
            LoaderSettings { rank, world: options.world, epochs: Some(options.epochs), ..settings() };
        if let Some(state) = &checkpoint.state {
            settings.load_state_dict(state)?;
        }
        Loader::start(&dataset, settings)
    };
    let mut ranks = (0..options.world).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut stdout = std::io::stdout();
    loop {
        let mut going = false;
        for rank in &mut ranks {
            match rank.next().await? {
                Some(Event::Batch(batch)) => {
                    going = true;
                    let seen = checkpoint.seen.entry(batch.epoch).or_default();
                    seen.add(&batch)?;
                }
                Some(Event::EpochEnd(_)) => going = true,
                None => {}
            }
        }
        let first = ranks.first().context("a world has ranks")?;
        checkpoint.state = Some(first.state_dict());
        checkpoint.save(&options.checkpoint)?;
        if !going {
            return Ok(());
        }
        stdout.write_all(b".")?;
        stdout.flush()?;
    }
}
