//! What an epoch was: counted on each rank, merged over all.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use forebay_c10d::ProcessGroup;
use forebay_client::{Batch, counters};
use forebay_proto::digest::{ContentDigest, OrderDigest};
use forebay_proto::v1::Counters;
use prost::Message;

use crate::input::rows::TextCount;
use crate::report::timing::nanoseconds;

/// What comes before the counters of a rank that has some.
const COUNTED: u8 = 1;

/// One rank's count of the epoch under way.
#[derive(Debug)]
pub struct Tally {
    pub(crate) began: Instant,
    /// Samples taken, padding apart.
    pub samples: u64,
    /// Steps taken.
    pub steps: u64,
    /// Time spent waiting for the loader.
    pub waited: Duration,
    /// Sequences taken, those without a token apart, if samples are packed. Then these have losses.
    pub sequences: Option<u64>,
    /// What was read of texts.
    pub text: TextCount,
    /// Sum of the samples' losses.
    pub loss_sum: f64,
    /// Of the samples taken.
    pub digest: OrderDigest,
    /// Of their values, if they are verified.
    pub content: Option<ContentDigest>,
}

/// The epoch over all ranks; the same on each of them.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochTotal {
    /// Samples taken, padding apart.
    pub samples: u64,
    /// From the first rank's beginning to the last rank's end, nearly: the longest of the ranks' times.
    pub seconds: f64,
    /// The part of the ranks' time that went into waiting for data, 0 to 1.
    pub wait_share: f64,
    /// Sequences taken, if samples are packed.
    pub sequences: Option<u64>,
    /// What was read of texts.
    pub text: TextCount,
    /// Sum of the samples' losses, or the sequences'.
    pub loss_sum: f64,
    /// Of all samples.
    pub digest: OrderDigest,
    /// Of all values, if they are verified.
    pub content: Option<ContentDigest>,
    /// What this stretch of reading cost, as far as this process's own counters (or the cache's, on rank 0)
    /// say; `None` if the cache does not tell.
    pub counters: Option<Counters>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            samples: 0,
            steps: 0,
            waited: Duration::ZERO,
            sequences: None,
            text: TextCount::default(),
            loss_sum: 0.0,
            digest: OrderDigest::default(),
            content: None,
        }
    }
}

impl Tally {
    /// Adds a batch and the sum of its samples' losses.
    pub fn add(&mut self, batch: &Batch, loss_sum: Option<f64>) {
        self.samples += batch.real_rows as u64;
        self.digest.merge(batch.digest);
        if let Some(content) = batch.content {
            self.content.get_or_insert_default().merge(content);
        }
        if let Some(sequences) = &batch.sequences {
            *self.sequences.get_or_insert_default() += sequences.own;
        }
        self.loss_sum += loss_sum.unwrap_or(0.0);
        self.steps += 1;
    }

    /// Adds what a batch holds of texts.
    pub fn add_text(&mut self, text: TextCount) {
        self.text.tokens += text.tokens;
        self.text.places += text.places;
    }

    /// Time since the epoch began.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Merges all ranks' counts. `seconds` is how long this rank's epoch took, `cost` what it has to add
    /// to the cost: ranks that share one counter leave it to the first.
    pub fn merge(&self, group: &ProcessGroup, took: Duration, cost: Option<&Counters>) -> Result<EpochTotal> {
        let numbers = [
            self.samples as i64,
            self.steps as i64,
            nanoseconds(self.waited),
            nanoseconds(took),
            // Bits, not a value: i64 is what travels, and the sum below is in the order of ranks on every
            // rank.
            self.loss_sum.to_bits() as i64,
            self.sequences.unwrap_or(0) as i64,
            self.text.tokens as i64,
            self.text.places as i64,
        ];
        let ranks = group.all_gather_i64(&numbers)?;
        let sum = |index: usize| ranks.iter().map(|numbers| numbers[index] as u64).sum::<u64>();
        ensure!(
            ranks.iter().all(|numbers| numbers[1] == ranks[0][1]),
            "the ranks took different numbers of steps: {:?}",
            ranks.iter().map(|numbers| numbers[1]).collect::<Vec<_>>()
        );
        // Counters that are all 0 have no bytes.
        let own = cost.map_or_else(Vec::new, |cost| [&[COUNTED], &*cost.encode_to_vec()].concat());
        let mut all_counters = None;
        for bytes in group.all_gather_bytes(&own)? {
            if let Some((_, counted)) = bytes.split_first() {
                let all = all_counters.get_or_insert_default();
                *all = counters::sum(all, &Counters::decode(counted)?);
            }
        }
        Ok(EpochTotal {
            samples: sum(0),
            seconds: ranks.iter().map(|numbers| numbers[3]).max().unwrap_or_default() as f64 / 1e9,
            wait_share: (sum(2) as f64 / sum(3).max(1) as f64).min(1.0),
            sequences: self.sequences.map(|_| sum(5)),
            text: TextCount { tokens: sum(6), places: sum(7) },
            loss_sum: ranks.iter().map(|numbers| f64::from_bits(numbers[4] as u64)).sum(),
            digest: merged(group, self.digest)?,
            content: merged_content(group, self.content)?,
            counters: all_counters,
        })
    }
}

/// The digest of all ranks' samples. Collective.
pub fn merged(group: &ProcessGroup, own: OrderDigest) -> Result<OrderDigest> {
    let mut all = OrderDigest::default();
    for bytes in group.all_gather_bytes(&own.to_bytes())? {
        all.merge(OrderDigest::from_bytes(&bytes)?);
    }
    Ok(all)
}

/// The content digest of all ranks' samples, if they have one. Collective.
pub fn merged_content(group: &ProcessGroup, own: Option<ContentDigest>) -> Result<Option<ContentDigest>> {
    let mut all = None;
    let own = own.map(ContentDigest::to_bytes);
    for bytes in group.all_gather_bytes(own.as_ref().map_or(&[], |bytes| &bytes[..]))? {
        if !bytes.is_empty() {
            all.get_or_insert_with(ContentDigest::default).merge(ContentDigest::from_bytes(&bytes)?);
        }
    }
    Ok(all)
}
