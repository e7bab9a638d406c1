//! Packing: an epoch's documents as sequences of a fixed number of tokens.
//!
//! A document is a row; its tokens are one list of it. The documents of an epoch, in the order of the plan,
//! are one stream of tokens, and sequence k of length C is tokens `[kC, (k + 1)C)` of that stream. So a
//! sequence ends in the midst of a document where it must, the next one goes on there, and the epoch's last
//! one alone is not full. Step i of global batch B holds sequences `[iB, (i + 1)B)`, of which rank r of w has
//! the r-th B/w.
//!
//! All of it follows from the order and from the documents' lengths, 4 bytes for each row, before any row is
//! read. A run stands at a [`TokenPlace`], whatever the number of ranks, and goes on from any.
//!
//! A rank reads the rows that its sequences have tokens of ([`RowSpan`]). A row whose first token lies in an
//! earlier sequence is read again by who goes on with it; there it counts as padding, so that each row counts
//! once. A row without tokens goes with the token before it.
//!
//! An epoch of a mix is such a stream too. Its epochs have other documents, so they differ in their tokens
//! and may differ in their steps.

use super::Order;
use super::steps::{Cut, RANK_BATCH_MAX, RowSpan, Steps};
use crate::error::{Error, Result};
use crate::manifest::{Manifest, Part};
use std::fmt;
use std::sync::Arc;

/// Samples of the order that are looked up at once.
const SAMPLES: usize = 4096;

/// How long each document is, and how long sequences are to be. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Packing {
    sequence_tokens: u32,
    lengths: Arc<[u32]>,
    tokens: u64,
}

/// A place in an epoch's stream of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenPlace {
    /// The position of a document.
    pub position: u64,
    /// Tokens of it that lie before.
    pub offset: u32,
}

/// A rank's part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedStep {
    /// Tokens of the first row that lie before the rank's sequences.
    pub skip: u32,
    /// Tokens of the rank's sequences, the last of which need not be full.
    pub tokens: u64,
    /// Sequences of all ranks that have a token.
    pub sequences: u64,
    /// Where all ranks together stand after it.
    pub end: TokenPlace,
}

/// A rank's steps of an epoch, or of the rest of one: 56 bytes for each.
#[derive(Debug)]
pub struct PackedSteps {
    /// The number of the first of them in the epoch.
    pub first_step: u64,
    /// Steps of the whole epoch at this batch.
    pub epoch_steps: u64,
    /// Sequences of the rank in each step, those without a token included.
    pub sequences: u64,
    /// The length of each.
    pub sequence_tokens: u32,
    /// What the rank reads, step by step.
    pub spans: Vec<RowSpan>,
    /// What the same steps are in tokens.
    pub steps: Vec<PackedStep>,
}

impl Packing {
    /// Sequences of `sequence_tokens` tokens of rows that have `lengths`, in file order. `Invalid` if there
    /// is no token.
    pub fn new(sequence_tokens: u32, lengths: Arc<[u32]>) -> Result<Self> {
        let tokens = lengths.iter().map(|length| u64::from(*length)).sum();
        if sequence_tokens == 0 {
            return Err(Error::invalid("sequences of 0 tokens: there must be at least one"));
        }
        if tokens == 0 {
            return Err(Error::invalid("there is nothing to pack: no row has a token"));
        }
        Ok(Self { sequence_tokens, lengths, tokens })
    }

    /// Whether all epochs have the same tokens. Those of a mix have not: which of a part's rows an epoch has
    /// depends on its number.
    pub fn is_alike(&self, manifest: &Manifest) -> bool {
        manifest.parts().len() <= 1
    }

    /// Tokens of an epoch; of a mix the mean over its epochs.
    pub fn tokens(&self, manifest: &Manifest) -> u64 {
        let parts = manifest.parts();
        if self.is_alike(manifest) {
            return self.tokens;
        }
        let (blocks, segments) = (super::mix::blocks(parts), manifest.segments());
        let mean = |part: &Part| {
            let first = segments[part.segments.start as usize].first_row as usize;
            let own = self.lengths.iter().skip(first).take(part.rows as usize);
            let own: u128 = own.map(|length| u128::from(*length)).sum();
            own * u128::from(blocks) * u128::from(part.slots) / u128::from(part.rows.max(1))
        };
        u64::try_from(parts.iter().map(mean).sum::<u128>()).unwrap_or(u64::MAX)
    }

    /// Sequences of an epoch; of a mix of one with the mean of tokens.
    pub fn sequences(&self, manifest: &Manifest) -> u64 {
        self.tokens(manifest).div_ceil(u64::from(self.sequence_tokens)).max(1)
    }

    /// Steps of the epoch that has this order. Of a mix it looks at each of its documents.
    pub fn steps(&self, manifest: &Manifest, order: &Order, global_batch: u64) -> u64 {
        let tokens = match self.is_alike(manifest) {
            true => self.tokens,
            false => self.tokens_before(manifest, order, TokenPlace { position: order.len(), offset: 0 }),
        };
        // An epoch without tokens has rows, which are read.
        tokens.div_ceil(u64::from(self.sequence_tokens)).div_ceil(global_batch.max(1)).max(1)
    }

    /// Tokens of an epoch that lie before a place.
    fn tokens_before(&self, manifest: &Manifest, order: &Order, place: TokenPlace) -> u64 {
        let segments = manifest.segments();
        let (mut tokens, mut samples) = (u64::from(place.offset), [super::Sample::default(); SAMPLES]);
        for position in (0..place.position).step_by(SAMPLES) {
            let samples = &mut samples[..SAMPLES.min((place.position - position) as usize)];
            order.fill(position, samples);
            for sample in samples {
                let row = segments[sample.segment as usize].first_row + u64::from(sample.row);
                tokens += u64::from(self.lengths[row as usize]);
            }
        }
        tokens
    }

    /// The steps of a rank from `cut.first_position` and `offset` on, `cut.global_batch` sequences each.
    /// Looks at each document of them once. `Invalid` if the lengths are not those of `manifest`, the start
    /// lies past the end, or a step holds too many rows.
    pub fn cut(
        &self,
        manifest: &Manifest,
        order: &Order,
        cut: Cut,
        offset: u32,
        rank: u32,
    ) -> Result<PackedSteps> {
        Steps::new(order, cut)?;
        if self.lengths.len() as u64 != manifest.rows() || order.len() != Order::samples(manifest) {
            let (known, rows) = (self.lengths.len(), manifest.rows());
            return Err(Error::invalid(format!("the lengths of {known} rows are known, of {rows}")));
        }
        let own = cut.global_batch / u64::from(cut.world);
        let each = u64::from(self.sequence_tokens);
        let marks =
            Marks { step: cut.global_batch * each, first: u64::from(rank) * own * each, own: own * each };
        let from = TokenPlace { position: cut.first_position, offset };
        let (mut places, left) = self.places(manifest, order, from, &marks)?;
        let rows_left = from.position < order.len();
        let count = left.div_ceil(marks.step).max(u64::from(rows_left)) as usize;
        places.resize(3 * count, TokenPlace { position: order.len(), offset: 0 });
        let before = match self.is_alike(manifest) {
            true => self.tokens - left.min(self.tokens),
            false => self.tokens_before(manifest, order, from),
        };
        let mut packed = PackedSteps {
            first_step: before / marks.step,
            epoch_steps: before.saturating_add(left).div_ceil(marks.step).max(1),
            sequences: own,
            sequence_tokens: self.sequence_tokens,
            spans: Vec::with_capacity(count),
            steps: Vec::with_capacity(count),
        };
        for (step, places) in places.chunks_exact(3).enumerate() {
            let mark = |index: usize| marks.at(3 * step + index).min(left);
            let [start, stop, end] = [places[0], places[1], places[2]];
            packed.spans.push(span(start, stop)?);
            packed.steps.push(PackedStep {
                skip: start.offset,
                tokens: mark(1) - mark(0),
                sequences: (left - (step as u64 * marks.step).min(left)).min(marks.step).div_ceil(each),
                end,
            });
        }
        Ok(packed)
    }

    /// The places of the marks that lie before the epoch's end, and the tokens from `from` to there.
    fn places(
        &self,
        manifest: &Manifest,
        order: &Order,
        from: TokenPlace,
        marks: &Marks,
    ) -> Result<(Vec<TokenPlace>, u64)> {
        let segments = manifest.segments();
        let mut places = Vec::new();
        if marks.at(0) == 0 {
            // Rows without tokens that lie here belong to what begins here.
            places.push(from);
        }
        let (mut seen, mut skip) = (0, from.offset);
        let mut samples = [super::Sample::default(); SAMPLES];
        for position in (from.position..order.len()).step_by(SAMPLES) {
            let samples = &mut samples[..SAMPLES.min((order.len() - position) as usize)];
            order.fill(position, samples);
            for (position, sample) in (position..).zip(samples.iter()) {
                let row = segments[sample.segment as usize].first_row + u64::from(sample.row);
                let length = self.lengths[row as usize].checked_sub(skip).ok_or_else(|| {
                    Error::invalid(format!("row {row} has no {skip} tokens: the state is of other data"))
                })?;
                while marks.at(places.len()) < seen + u64::from(length) {
                    let offset = skip + (marks.at(places.len()) - seen) as u32;
                    places.push(TokenPlace { position, offset });
                }
                seen += u64::from(length);
                skip = 0;
            }
        }
        Ok((places, seen))
    }
}

impl fmt::Debug for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequence_tokens, lengths, tokens } = self;
        write!(f, "Packing({tokens} tokens of {} rows by {sequence_tokens})", lengths.len())
    }
}

/// Where a rank's share of each step begins and ends, and where the step ends, in tokens.
struct Marks {
    step: u64,
    first: u64,
    own: u64,
}

impl Marks {
    fn at(&self, index: usize) -> u64 {
        let begin = (index as u64 / 3).saturating_mul(self.step);
        begin.saturating_add(match index % 3 {
            0 => self.first,
            1 => self.first + self.own,
            _ => self.step,
        })
    }
}

/// The rows from a place to another. There is always one: past the end it is padding.
fn span(start: TokenPlace, stop: TokenPlace) -> Result<RowSpan> {
    let rows = stop.position - start.position + u64::from(stop.offset > 0);
    if rows > RANK_BATCH_MAX {
        return Err(Error::invalid(format!(
            "a step of a rank takes {rows} rows, most of them without tokens, and may take {RANK_BATCH_MAX}: use a \
             smaller batch, or leave such rows out"
        )));
    }
    Ok(RowSpan { first: start.position, rows: rows.max(1) as u32, continued: start.offset > 0 })
}

#[cfg(test)]
mod tests;
