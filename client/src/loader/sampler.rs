//! The plan of each step: which rows of which segments the batch holds, where they lie, and their digest.
//!
//! Planning is pure; a step's plan costs 24 bytes for each row (its sample's number, and running digests, so
//! that the digest of any stretch of rows is a subtraction and each row is hashed once).

use super::batch::Sequences;
use arrow::buffer::{BooleanBuffer, ScalarBuffer};
use forebay_dataset::pool::Pool;
use forebay_proto::Result;
use forebay_proto::digest::OrderDigest;
use forebay_proto::manifest::Manifest;
use forebay_proto::plan::Order;
use forebay_proto::plan::packing::PackedSteps;
use forebay_proto::plan::steps::{Cut, RowSpan, Run, Slot, Steps, runs};
use forebay_proto::{SegmentSet, v1};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// One epoch, or the rest of one, as one rank reads it.
#[derive(Debug)]
pub(crate) struct Epoch {
    pub manifest: Arc<Manifest>,
    pub order: Order,
    pub cut: Cut,
    pub rank: u32,
    /// The number that step 0 has among all steps of the loader.
    pub first_seq: u64,
    /// Steps, the same on every rank.
    pub count: u64,
    /// Epochs that follow, if that is known.
    pub epochs_after: Option<u64>,
    /// How many workers read it at the moment.
    pub workers: AtomicUsize,
    /// Whether plans of steps know the position of each row.
    pub keeps_positions: bool,
    /// Its steps, where they are cut by tokens.
    pub packed: Option<Arc<PackedSteps>>,
}

/// One rank's batch of one step, before its data.
#[derive(Debug)]
pub(crate) struct StepPlan {
    pub epoch: u64,
    /// Counted from the epoch's beginning.
    pub step: u64,
    /// Samples of the epoch that all ranks have taken once this step is done.
    pub samples_done: u64,
    pub rows: u32,
    /// Rows that are not padding.
    pub real: u32,
    /// Set for rows that are not padding; `None` when all are.
    pub mask: Option<BooleanBuffer>,
    /// The number of each row's sample in the dataset.
    pub samples: ScalarBuffer<u64>,
    /// The sequences that its rows make, where steps are cut by tokens.
    pub sequences: Option<Sequences>,
    /// The position of each row in the epoch, if the epoch keeps them.
    pub positions: Option<Vec<u64>>,
    /// In the order of the batch's rows.
    pub pieces: Vec<Run>,
    /// Entry i is the digest of rows `0 .. i`.
    running: Vec<OrderDigest>,
}

/// Bytes that an open step takes whatever rows it has: its builder, the columns' and the batch's own parts.
const STEP_BYTES: u64 = 2 << 10;

impl StepPlan {
    /// Bytes that an open step of some rows takes besides their values.
    pub fn bytes_of(rows: u64) -> u64 {
        STEP_BYTES + rows * (size_of::<u64>() + size_of::<OrderDigest>()) as u64
    }
}

impl Epoch {
    /// Cuts an order; `Invalid` if the numbers do not fit.
    pub fn new(manifest: Arc<Manifest>, order: Order, cut: Cut, rank: u32, first_seq: u64) -> Result<Self> {
        let count = Steps::new(&order, cut)?.count();
        let (epochs_after, workers, keeps_positions, packed) = Default::default();
        Ok(Self {
            manifest,
            order,
            cut,
            rank,
            first_seq,
            count,
            epochs_after,
            workers,
            keeps_positions,
            packed,
        })
    }

    /// The same with its steps cut by tokens.
    pub fn packed(self, packed: Arc<PackedSteps>) -> Self {
        Self { count: packed.steps.len() as u64, packed: Some(packed), ..self }
    }

    fn steps(&self) -> Result<Steps<'_>> {
        match &self.packed {
            Some(packed) => Steps::of_spans(&self.order, self.cut, &packed.spans),
            None => Steps::new(&self.order, self.cut),
        }
    }

    /// Counted from 0; a run may begin with a later one.
    pub fn number(&self) -> u64 {
        self.order.key().epoch
    }

    /// Rows of a step, padding included.
    pub fn rows(&self, step: u64) -> Result<u64> {
        Ok(self.steps()?.slots(step))
    }

    fn slots(&self, step: u64) -> Result<Vec<Slot>> {
        let mut slots = Vec::new();
        self.steps()?.batch(step, self.rank, &mut slots);
        Ok(slots)
    }

    /// The pieces of a step, counted from `cut.first_position`.
    pub fn pieces(&self, step: u64) -> Result<Vec<Run>> {
        Ok(runs(&self.slots(step)?).collect())
    }

    /// Plans a step, counted likewise. What outlives the plan with its batch comes from the pool.
    pub fn plan(&self, step: u64, pool: &Pool) -> Result<StepPlan> {
        let steps = self.steps()?;
        let slots = self.slots(step)?;
        let segments = self.manifest.segments();
        let sample = |s: &Slot| segments[s.sample.segment as usize].first_row + u64::from(s.sample.row);
        let bytes = slots.len() * size_of::<u64>();
        let mut numbers = pool.take(bytes);
        for (number, slot) in numbers.as_slice_mut().as_chunks_mut().0.iter_mut().zip(&slots) {
            *number = sample(slot).to_ne_bytes();
        }
        let samples = ScalarBuffer::<u64>::from(pool.share(numbers, bytes));
        let mut running = vec![OrderDigest::default(); slots.len() + 1];
        let mut digest = OrderDigest::default();
        for ((slot, &sample), after) in slots.iter().zip(samples.iter()).zip(&mut running[1..]) {
            if steps.is_real(slot) {
                digest.add(slot.position, sample);
            }
            *after = digest;
        }
        let real = slots.iter().filter(|s| steps.is_real(s)).count() as u32;
        let rows = slots.len() as u32;
        Ok(StepPlan {
            epoch: self.number(),
            step: step
                + match &self.packed {
                    Some(packed) => packed.first_step,
                    None => self.cut.first_position / self.cut.global_batch,
                },
            samples_done: match &self.packed {
                Some(packed) => packed.steps[step as usize].end.position,
                None => steps.position(step + 1).min(self.order.len()),
            },
            sequences: self.packed.as_ref().map(|packed| Sequences::of(packed, step)),
            rows,
            real,
            samples,
            positions: self.keeps_positions.then(|| slots.iter().map(|s| s.position).collect()),
            pieces: runs(&slots).collect(),
            mask: (real < rows).then(|| slots.iter().map(|s| steps.is_real(s)).collect()),
            running,
        })
    }

    /// The ticket for the rows of `segments` from a step on.
    pub fn ticket(&self, step: u64, columns: Vec<String>, segments: &SegmentSet) -> v1::PlanTicket {
        let spans = self.packed.as_ref().map(|packed| &packed.spans[step as usize..]);
        v1::PlanTicket {
            plan: Some((*self.order.key()).into()),
            columns,
            first_position: match spans {
                Some(spans) => spans.first().map_or(self.order.len(), |span| span.first),
                None => self.cut.first_position + step * self.cut.global_batch,
            },
            global_batch: self.cut.global_batch,
            rank: self.rank,
            world: self.cut.world,
            // Nodes that know nothing of spans refuse it.
            ending: spans.map_or(self.cut.ending.into(), |_| 3),
            layout: self.cut.layout.into(),
            segments: segments.to_wire().into(),
            held_only: false,
            epochs_after: self.epochs_after,
            packed: true,
            knows_rows: true,
            row_spans: spans.map(RowSpan::to_wire).unwrap_or_default(),
        }
    }
}

impl StepPlan {
    /// The digest of a stretch of rows.
    pub fn digest(&self, rows: Range<u32>) -> OrderDigest {
        let at = |i: u32| u128::from_be_bytes(self.running[i as usize].to_bytes());
        let difference = at(rows.end).wrapping_sub(at(rows.start));
        OrderDigest::from_bytes(&difference.to_be_bytes()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::manifest::Digest;
    use forebay_proto::plan::steps::{Ending, Layout};
    use forebay_proto::plan::{PlanKey, Shuffle};

    #[test]
    fn pieces_and_digests_cover_the_batch() {
        let object = forebay_proto::manifest::Object {
            key: "a".into(),
            etag: "e".into(),
            size: 1,
            ..Default::default()
        };
        let sizes = [7u64, 5, 9].map(|rows| forebay_proto::manifest::SegmentSize {
            object: 0,
            row_groups: 1,
            rows,
            decoded_bytes: 1,
        });
        let manifest = Arc::new(Manifest::new("file:///d", 1, vec![], vec![object], &sizes).unwrap());
        let key = PlanKey { manifest: Digest(1), seed: 2, epoch: 3, shuffle: Shuffle::Full };
        let order = Order::of_segments(&[7, 5, 9], key);
        let cut = Cut {
            first_position: 4,
            global_batch: 10,
            world: 2,
            ending: Ending::Pad,
            layout: Layout::Segment,
        };
        let epoch = Epoch::new(manifest, order, cut, 1, 0).unwrap();
        assert_eq!(epoch.count, 2);
        let pool = Pool::new(0);
        let last = epoch.plan(1, &pool).unwrap();
        assert_eq!((last.rows, last.real, last.samples_done), (5, 2, 21));
        assert_eq!(last.mask.as_ref().unwrap().count_set_bits(), 2);
        assert_eq!(last.pieces.iter().map(|p| p.rows).sum::<u32>(), 5);
        assert_eq!(epoch.pieces(1).unwrap(), last.pieces);
        let mut parts = last.digest(0..2);
        parts.merge(last.digest(2..5));
        assert_eq!(parts, last.digest(0..5));
        let mut slots = vec![];
        let steps = Steps::new(&epoch.order, cut).unwrap();
        steps.batch(1, 1, &mut slots);
        let first_row = |s: u32| [0, 7, 12][s as usize];
        assert_eq!(steps.digest(&slots, first_row), last.digest(0..5));
        let samples = slots.iter().map(|s| first_row(s.sample.segment) + u64::from(s.sample.row));
        assert_eq!(last.samples.to_vec(), samples.collect::<Vec<_>>());
        assert!(epoch.plan(0, &pool).unwrap().mask.is_none());
    }
}
