//! Steps, ranks and layout: which rows of the order a rank's batch holds, and where each lies in it.
//!
//! Step i of a run that starts at `first` with global batch G covers positions `[first + iG, first +
//! (i+1)G)`; rank r of w takes the r-th G/w of them. So global batches do not depend on the number of ranks.
//! All ranks take the same number of steps, each with the same number of slots:
//!
//! | ending | the last, incomplete step |
//! |---|---|
//! | `drop` | is left out |
//! | `pad` | is filled up with padding to G slots |
//! | `exact` | is filled up with padding to the next multiple of w |
//!
//! Padding repeats samples from the epoch's first position on; its mask is 0 and it counts in no digest.

use super::{Order, Sample};
use crate::digest::OrderDigest;
use crate::error::{Error, Result};

pub use crate::v1::plan_ticket::{Ending, Layout};

/// What one row of a batch holds: a sample, or padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// For padding, one of the epoch's first samples.
    pub sample: Sample,
    /// Its position in the epoch; `len` of the order or more for padding.
    pub position: u64,
}

/// A run: consecutive slots of a batch filled from one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Index into the manifest's segments.
    pub segment: u32,
    /// The first slot within the batch.
    pub first: u32,
    /// Number of slots, one for each row.
    pub rows: u32,
}

/// Samples of one rank's step at most. Their places are held in memory, padding included, by each walk of the
/// plan: a slip in a batch size must not cost a cache node gigabytes.
pub const RANK_BATCH_MAX: u64 = 1 << 22;

/// How the order is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cut {
    /// The epoch's position at which step 0 begins.
    pub first_position: u64,
    /// Slots of one step over all ranks.
    pub global_batch: u64,
    /// Number of ranks.
    pub world: u32,
    /// What becomes of the last, incomplete step.
    pub ending: Ending,
    /// Where the rows of a batch lie.
    pub layout: Layout,
}

/// The rows that a rank reads in a step that is cut by tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSpan {
    /// The position of the first one.
    pub first: u64,
    /// How many, at least one. Those past the epoch's end are padding.
    pub rows: u32,
    /// The first one began in an earlier sequence.
    pub continued: bool,
}

/// An epoch's order cut into steps: which slots the batch of each rank has.
#[derive(Debug, Clone, Copy)]
pub struct Steps<'a> {
    order: &'a Order,
    cut: Cut,
    /// What the one rank reads that is known, where steps are cut by tokens.
    spans: Option<&'a [RowSpan]>,
}

impl Cut {
    /// Checks that the numbers fit each other; `Invalid` with what would fit.
    pub fn check(&self) -> Result<()> {
        let (g, w) = (self.global_batch, u64::from(self.world));
        if w == 0 {
            return Err(Error::invalid("world size 0: there must be at least one rank"));
        }
        if g == 0 {
            return Err(Error::invalid("global batch 0: a step must hold at least one sample"));
        }
        if g > 1 << 31 {
            return Err(Error::invalid(format!("global batch {g} is more than 2^31 samples")));
        }
        if g.div_ceil(w) > RANK_BATCH_MAX {
            return Err(Error::invalid(format!(
                "global batch {g} gives each of {w} ranks more than {RANK_BATCH_MAX} samples a step: use a smaller one"
            )));
        }
        if !g.is_multiple_of(w) {
            let (below, above) = (g / w * w, g.div_ceil(w) * w);
            let near = if below == 0 { format!("{above}") } else { format!("{below} or {above}") };
            return Err(Error::invalid(format!(
                "global batch {g} cannot be shared equally by {w} ranks: use {near}"
            )));
        }
        Ok(())
    }
}

impl<'a> Steps<'a> {
    /// Cuts an order; `Invalid` if the numbers do not fit or the start lies past the epoch's end.
    pub fn new(order: &'a Order, cut: Cut) -> Result<Self> {
        cut.check()?;
        if cut.first_position > order.len() {
            return Err(Error::invalid(format!(
                "cannot start at sample {}: the epoch has {}",
                cut.first_position,
                order.len()
            )));
        }
        Ok(Self { order, cut, spans: None })
    }

    /// The steps of one rank that reads these rows: of an order that is cut by tokens. They must be rows that
    /// the epoch has, as [`RowSpan::check`] says.
    pub fn of_spans(order: &'a Order, cut: Cut, spans: &'a [RowSpan]) -> Result<Self> {
        Ok(Self { spans: Some(spans), ..Self::new(order, cut)? })
    }

    /// Number of steps, the same for every rank.
    pub fn count(&self) -> u64 {
        if let Some(spans) = self.spans {
            return spans.len() as u64;
        }
        let left = self.order.len() - self.cut.first_position;
        match self.cut.ending {
            Ending::Drop => left / self.cut.global_batch,
            Ending::Pad | Ending::Exact => left.div_ceil(self.cut.global_batch),
        }
    }

    /// Position at which a step begins; of spans, the rank's part of it.
    pub fn position(&self, step: u64) -> u64 {
        match self.spans {
            Some(spans) => spans[step as usize].first,
            None => self.cut.first_position + step * self.cut.global_batch,
        }
    }

    /// Slots of each rank in a step.
    pub fn slots(&self, step: u64) -> u64 {
        if let Some(spans) = self.spans {
            return spans[step as usize].rows.into();
        }
        let (g, w) = (self.cut.global_batch, u64::from(self.cut.world));
        let left = self.order.len() - self.position(step);
        match self.cut.ending {
            Ending::Exact => left.min(g).div_ceil(w),
            Ending::Drop | Ending::Pad => g / w,
        }
    }

    /// Writes the slots of a rank's batch, laid out, to `out` (cleared first).
    ///
    /// # Panics
    /// If there is no such step or rank.
    pub fn batch(&self, step: u64, rank: u32, out: &mut Vec<Slot>) {
        assert!(step < self.count() && rank < self.cut.world, "no such step or rank");
        let (len, slots) = (self.order.len(), self.slots(step));
        let (first, is_continued) = match self.spans {
            Some(spans) => (self.position(step), spans[step as usize].continued),
            None => (self.position(step) + u64::from(rank) * slots, false),
        };
        let real = len.saturating_sub(first).min(slots);
        let mut samples = vec![Sample { segment: 0, row: 0 }; slots as usize];
        self.order.fill(first.min(len), &mut samples[..real as usize]);
        let mut padded = real;
        while padded < slots {
            let place = (first + padded - len) % len;
            let n = (slots - padded).min(len - place);
            self.order.fill(place, &mut samples[padded as usize..(padded + n) as usize]);
            padded += n;
        }
        out.clear();
        // A row that an earlier step had is repeated, as padding is.
        let repeated = |i: usize| if is_continued && i == 0 { len } else { 0 };
        let slot = |i: usize| Slot { sample: samples[i], position: first + i as u64 + repeated(i) };
        match self.cut.layout {
            Layout::Position => out.extend((0..samples.len()).map(slot)),
            Layout::Segment => {
                out.extend(by_segment(&samples).into_iter().map(|i| slot(i as usize)));
            }
        }
    }

    /// Whether a slot holds a sample of the epoch rather than padding.
    pub fn is_real(&self, slot: &Slot) -> bool {
        slot.position < self.order.len()
    }

    /// The digest of some slots, padding left out. `first_row[segment]` is the dataset's row at which it
    /// begins.
    pub fn digest(&self, slots: &[Slot], first_row: impl Fn(u32) -> u64) -> OrderDigest {
        let mut digest = OrderDigest::default();
        for s in slots.iter().filter(|s| self.is_real(s)) {
            digest.add(s.position, first_row(s.sample.segment) + u64::from(s.sample.row));
        }
        digest
    }
}

impl RowSpan {
    /// `Invalid` if some are of rows that an epoch does not have, or of too many for a step.
    pub fn check(spans: &[Self], order: &Order) -> Result<()> {
        let fits = |span: &Self| {
            let rows = 1..=RANK_BATCH_MAX;
            rows.contains(&span.rows.into()) && span.first < order.len() + u64::from(!span.continued)
        };
        match !order.is_empty() && spans.iter().all(fits) {
            true => Ok(()),
            false => Err(Error::invalid("the ticket's steps hold rows that the epoch does not have")),
        }
    }

    /// Spans as a ticket has them: for each of them how far it begins behind the one before, doubled, and one
    /// more if it is continued; then its rows.
    pub fn to_wire(spans: &[Self]) -> Vec<u64> {
        let mut before = 0;
        let numbers = spans.iter().flat_map(|span| {
            let behind = span.first - std::mem::replace(&mut before, span.first);
            [behind << 1 | u64::from(span.continued), span.rows.into()]
        });
        numbers.collect()
    }

    /// Reads [`RowSpan::to_wire`] back; `Invalid` if it is none.
    pub fn from_wire(numbers: &[u64]) -> Result<Vec<Self>> {
        let bad = || Error::invalid("the ticket's spans of rows cannot be read");
        let (pairs, []) = numbers.as_chunks::<2>() else { return Err(bad()) };
        let mut first = 0u64;
        let span = |[behind, rows]: &[u64; 2]| {
            first = first.checked_add(behind >> 1).ok_or_else(bad)?;
            Ok(Self { first, rows: u32::try_from(*rows).map_err(|_| bad())?, continued: behind & 1 == 1 })
        };
        pairs.iter().map(span).collect()
    }
}

/// The runs of a batch: maximal stretches of slots from one segment.
pub fn runs(slots: &[Slot]) -> impl Iterator<Item = Run> + '_ {
    let mut next = 0;
    slots.chunk_by(|a, b| a.sample.segment == b.sample.segment).map(move |c| {
        let (first, rows) = (next, c.len() as u32);
        next += rows;
        Run { segment: c[0].sample.segment, first, rows }
    })
}

impl std::str::FromStr for Ending {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        Ending::from_str_name(&s.to_uppercase())
            .ok_or_else(|| Error::invalid(format!("ending `{s}` is unknown: use drop, pad or exact")))
    }
}

/// The places of samples in the order of their segments, and of one segment in their own order. A radix sort:
/// segments have small numbers, so that one or two passes are enough.
fn by_segment(samples: &[Sample]) -> Vec<u32> {
    let last = samples.iter().map(|sample| sample.segment).max().unwrap_or(0);
    let mut order: Vec<u32> = (0..samples.len() as u32).collect();
    let mut sorted = vec![0; samples.len()];
    for shift in (0..u32::BITS).step_by(8).take_while(|shift| last >> shift > 0) {
        let digit = |i: u32| (samples[i as usize].segment >> shift) as usize & 0xff;
        let mut places = [0usize; 256];
        order.iter().for_each(|i| places[digit(*i)] += 1);
        let mut first = 0;
        for place in &mut places {
            let count = std::mem::replace(place, first);
            first += count;
        }
        for &i in &order {
            let place = &mut places[digit(i)];
            sorted[*place] = i;
            *place += 1;
        }
        std::mem::swap(&mut order, &mut sorted);
    }
    order
}
