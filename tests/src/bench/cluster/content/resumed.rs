//! A job stops in mid-epoch and goes on with another number of ranks, twice. The digests of its parts add up.

use super::stage::{ContentRead, ContentStage};
use anyhow::Context;
use forebay_client::{Event, Loader};
use forebay_proto::digest::ContentDigest;
use std::collections::BTreeMap;
use std::time::Duration;

/// Epochs of the whole run; an epoch has 103 steps.
const EPOCHS: u64 = 2;

/// Ranks of each part, and after how many steps it stops: in the middle of the first epoch, then of the
/// second.
const PARTS: [(u32, u64); 3] = [(2, 60), (1, 90), (3, u64::MAX)];

/// Runs it on three nodes.
pub fn read(stage: &ContentStage) -> anyhow::Result<ContentRead> {
    let nodes = stage.world.nodes(3, 1)?;
    let seen = stage.world.runtime.block_on(parts(stage, &nodes.endpoints()))?;
    nodes.end()?;
    anyhow::ensure!(seen.len() as u64 == EPOCHS, "{} of {EPOCHS} epochs were read", seen.len());
    let digests = seen.into_iter().map(|(epoch, digest)| (epoch, digest.to_string())).collect();
    Ok(ContentRead { name: "resume", way: "3 nodes, resumed by 2, then 1, then 3 ranks".into(), digests })
}

async fn parts(stage: &ContentStage, endpoints: &str) -> anyhow::Result<BTreeMap<u64, ContentDigest>> {
    let job = |world| stage.job(world, Duration::ZERO, Some(EPOCHS));
    let dataset = job(1).open(endpoints, &stage.table).await?;
    let (mut seen, mut state) = (BTreeMap::new(), None::<Vec<u8>>);
    for (world, steps) in PARTS {
        let mut job = job(world);
        if let Some(state) = &state {
            job.settings.load_state_dict(state)?;
        }
        let mut ranks = job.ranks(&dataset)?;
        let mut taken = 0;
        while taken < steps {
            match step(&mut ranks, &mut seen).await? {
                Some(batches) => taken += u64::from(batches > 0),
                None => break,
            }
        }
        state = Some(ranks.first().context("a job has ranks")?.state_dict());
    }
    Ok(seen)
}

/// What comes next of each rank: a batch, or the end of an epoch. Returns the number of batches; `None` at
/// the end of the run.
async fn step(
    ranks: &mut [Loader],
    seen: &mut BTreeMap<u64, ContentDigest>,
) -> anyhow::Result<Option<usize>> {
    let mut batches = 0;
    for rank in ranks {
        match rank.next().await? {
            Some(Event::Batch(batch)) => {
                batches += 1;
                let content = batch.content.context("a batch without a content digest")?;
                seen.entry(batch.epoch).or_default().merge(content);
            }
            Some(Event::EpochEnd(_)) => {}
            None => return Ok(None),
        }
    }
    Ok(Some(batches))
}
