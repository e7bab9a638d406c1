//! The process that gets killed: it reads all ranks of a world in lockstep and checkpoints after every step.
//!
//! A checkpoint holds the loader state and the digests so far, and is replaced atomically, as a trainer's is.
//! Samples that a killed process had read beyond it count as not read. Beside it lie the samples themselves,
//! each by a hash of its values, so that one that is lost can be told from one that comes twice.

use super::dataset::open;
use anyhow::Context;
use arrow::array::AsArray;
use arrow::datatypes::{Int64Type, UInt8Type};
use clap::Args;
use forebay_client::loader::Shuffle;
use forebay_client::{Batch, Event, Loader, LoaderSettings};
use forebay_proto::digest::{ContentDigest, OrderDigest};
use forebay_proto::hash::Hash64;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
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
    /// Bytes of the samples read so far.
    sample_bytes: u64,
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

/// How often each sample was read, by its epoch and the hash of its values.
pub type SampleCounts = HashMap<(u64, u64), u64>;

/// The samples that were read up to the checkpoint at `path`.
pub fn samples(path: &Path) -> anyhow::Result<SampleCounts> {
    let bytes = std::fs::read(samples_path(path))?;
    let (pairs, []) = bytes.as_chunks::<16>() else { anyhow::bail!("half a sample in {}", path.display()) };
    let mut counts = SampleCounts::new();
    for pair in pairs {
        let sample = u128::from_le_bytes(*pair);
        *counts.entry(((sample >> 64) as u64, sample as u64)).or_default() += 1;
    }
    Ok(counts)
}

fn samples_path(checkpoint: &Path) -> PathBuf {
    checkpoint.with_extension("samples")
}

/// The samples of a batch as they are kept: for each one its epoch and the hash of its values.
fn kept_samples(batch: &Batch) -> anyhow::Result<Vec<u8>> {
    let (images, labels) = (batch.column("image")?, batch.column("label")?);
    let images = images.as_fixed_size_list_opt().context("images are lists")?;
    let labels = labels.as_primitive_opt::<Int64Type>().context("labels are numbers")?;
    let mut kept = Vec::new();
    for row in (0..batch.rows()).filter(|row| batch.mask.as_ref().is_none_or(|mask| mask.value(*row))) {
        let image = images.value(row);
        let mut hash = Hash64::default();
        hash.update(image.as_primitive_opt::<UInt8Type>().context("images are of bytes")?.values());
        hash.update(&labels.value(row).to_le_bytes());
        let sample = u128::from(batch.epoch) << 64 | u128::from(hash.digest());
        kept.extend(sample.to_le_bytes());
    }
    Ok(kept)
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
    // What a killed process had written beyond its checkpoint goes.
    let samples = samples_path(&options.checkpoint);
    let mut samples = File::options().create(true).write(true).truncate(false).open(samples)?;
    samples.set_len(checkpoint.sample_bytes)?;
    samples.seek(SeekFrom::End(0))?;
    let mut stdout = std::io::stdout();
    loop {
        let (mut going, mut read) = (false, Vec::new());
        for rank in &mut ranks {
            match rank.next().await? {
                Some(Event::Batch(batch)) => {
                    going = true;
                    let seen = checkpoint.seen.entry(batch.epoch).or_default();
                    seen.add(&batch)?;
                    read.extend(kept_samples(&batch)?);
                }
                Some(Event::EpochEnd(_)) => going = true,
                None => {}
            }
        }
        let first = ranks.first().context("a world has ranks")?;
        checkpoint.state = Some(first.state_dict());
        samples.write_all(&read)?;
        checkpoint.sample_bytes += read.len() as u64;
        checkpoint.save(&options.checkpoint)?;
        if !going {
            return Ok(());
        }
        stdout.write_all(b".")?;
        stdout.flush()?;
    }
}
